//! The DNS server of a node.

mod answer;
mod tcp;
mod udp;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use nix::sys::socket::{setsockopt, sockopt};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::counters::{Counters, DnsCounters};
use crate::forward::Forwarder;
use crate::table::NameTable;
use answer::Answerer;

/// Room for the queries of a moment in which the server does not run: a lost one costs its client a second.
const RECEIVE_BUFFER: usize = 1 << 20;
/// How long a stop waits for queries that are being answered.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// How many ports more are tried for a free one.
const FREE_PORT_RETRIES: usize = 16;

/// The sockets of one address.
#[derive(Debug)]
pub struct DnsSockets {
    /// For datagrams.
    pub udp: UdpSocket,
    /// For connections.
    pub tcp: TcpListener,
}

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// An address cannot be used.
    #[error(
        "cannot answer DNS queries on {address}/{transport}; try: ss -{letter}lnp 'sport = :{port}' names the process \
         that has the port",
        letter = &.transport[..1],
        port = .address.port()
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// `udp` or `tcp`.
        transport: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// A socket that was given cannot be used.
    #[error("cannot serve DNS on a socket")]
    Socket(#[from] io::Error),
}

impl DnsSockets {
    /// Binds both in the network namespace of the calling thread. With port 0 both get the same free port.
    ///
    /// # Errors
    /// An address is in use, or not one of this namespace.
    pub fn bind(address: SocketAddr) -> Result<Self, DnsError> {
        // A port that is free for UDP may be in use for TCP.
        let others = if address.port() == 0 { FREE_PORT_RETRIES } else { 0 };
        let failed = |address, transport| move |source| DnsError::Bind { address, transport, source };
        let mut tries = 0;
        loop {
            let udp = UdpSocket::bind(address).map_err(failed(address, "udp"))?;
            let bound = udp.local_addr().map_err(failed(address, "udp"))?;
            match TcpListener::bind(bound) {
                Ok(tcp) => return Ok(Self { udp, tcp }),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < others => tries += 1,
                Err(error) => return Err(failed(bound, "tcp")(error)),
            }
        }
    }
}

/// A running server. It stops when it is dropped; [`DnsServer::stop`] also waits for that.
pub struct DnsServer {
    answerer: Arc<Answerer>,
    addresses: Vec<SocketAddr>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl DnsServer {
    /// Starts to answer on these sockets, from an empty table: until [`DnsServer::set_table`] no task is a client.
    ///
    /// # Errors
    /// A socket cannot be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start(sockets: Vec<DnsSockets>) -> Result<Self, DnsError> {
        let (tasks, stop, counters) =
            (TaskTracker::new(), CancellationToken::new(), Arc::new(Counters::default()));
        let addresses = sockets.iter().map(|sockets| sockets.udp.local_addr());
        let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
        let forwarder = Forwarder::new(addresses.clone(), Arc::clone(&counters), tasks.clone(), stop.clone());
        let table = ArcSwap::from_pointee(NameTable::default());
        let answerer = Arc::new(Answerer { table, forwarder: Arc::new(forwarder), counters });
        let connections: Arc<tcp::Connections> = Arc::default();
        for DnsSockets { udp, tcp } in sockets {
            // Only root may exceed the limit of the system; with less it works as well.
            let _ = setsockopt(&udp, sockopt::RcvBufForce, &RECEIVE_BUFFER);
            udp.set_nonblocking(true)?;
            tcp.set_nonblocking(true)?;
            let udp = Arc::new(tokio::net::UdpSocket::from_std(udp)?);
            let tcp = tokio::net::TcpListener::from_std(tcp)?;
            tasks.spawn(udp::serve(udp, Arc::clone(&answerer), tasks.clone(), stop.clone()));
            let (connections, answerer) = (Arc::clone(&connections), Arc::clone(&answerer));
            tasks.spawn(tcp::serve(tcp, connections, answerer, tasks.clone(), stop.clone()));
        }
        Ok(Self { answerer, addresses, tasks, stop: stop.drop_guard() })
    }

    /// The addresses on which it answers.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Replaces all names and clients; queries that arrive later are answered from it.
    pub fn set_table(&self, table: NameTable) {
        self.answerer.table.store(Arc::new(table));
    }

    /// Replaces the upstreams of the node, in the order in which they are asked. Addresses of this server are left out.
    pub fn set_upstreams(&self, upstreams: &[SocketAddr]) {
        self.answerer.forwarder.set_upstreams(upstreams);
    }

    /// What it has done so far.
    pub fn counters(&self) -> DnsCounters {
        self.answerer.counters().snapshot()
    }

    /// Stops receiving, and waits at most two seconds for queries that are being answered. Those that wait for
    /// upstreams fail. Its addresses are free afterwards.
    pub async fn stop(self) {
        drop(self.stop);
        self.tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("DNS connections did not end in time");
        }
    }
}
