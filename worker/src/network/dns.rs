//! The DNS server of the node: started on the gateway address, and fed with names, clients and upstreams.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warren_dns::{
    DnsClient, DnsCounters, DnsError, DnsServer, DnsSockets, NameTable, NetworkNames, NodeAddresses, PORT,
    parse_nameservers, upstreams,
};
use warren_types::{Catalogue, INGRESS_NETWORK, NetworkId, NetworkView};

/// The resolver configuration of the host.
pub(crate) const HOST_RESOLV_CONF: &str = "/etc/resolv.conf";

/// Opens the sockets of the server, which has the given address and the usual port.
pub type BindDns = Arc<dyn Fn(SocketAddr) -> Result<DnsSockets, DnsError> + Send + Sync>;

/// Sockets on a free port of the loopback, for tests.
#[cfg(any(test, feature = "testing"))]
pub fn loopback_dns() -> BindDns {
    Arc::new(|_| DnsSockets::bind((Ipv4Addr::LOCALHOST, 0).into()))
}

/// The server, while it runs, and what it is made of.
pub(crate) struct NodeDns {
    bind: BindDns,
    /// The file with the upstreams.
    resolv_conf: PathBuf,
    state: Mutex<DnsState>,
}

#[derive(Default)]
struct DnsState {
    server: Option<RunningServer>,
    names: IndexedNames,
}

struct RunningServer {
    gateway: Ipv4Addr,
    server: DnsServer,
    upstreams: Vec<SocketAddr>,
}

/// The indexed names of each network, with the catalogue that they were made from.
#[derive(Default)]
pub(crate) struct IndexedNames(BTreeMap<NetworkId, (Arc<Catalogue>, Arc<NetworkNames>)>);

impl IndexedNames {
    /// The table for these clients. Only networks whose catalogue changed are indexed again.
    pub fn table(
        &mut self,
        view: &NetworkView,
        clients: &BTreeMap<Ipv4Addr, DnsClient>,
        addresses: NodeAddresses,
    ) -> NameTable {
        self.0.retain(|network, _| view.catalogues.contains_key(network));
        // No name means something in the network of published ports.
        for (network, catalogue) in view.catalogues.iter().filter(|(network, _)| **network != INGRESS_NETWORK)
        {
            let is_current = self.0.get(network).is_some_and(|(indexed, _)| Arc::ptr_eq(indexed, catalogue));
            if !is_current {
                let names = Arc::new(NetworkNames::new(catalogue));
                self.0.insert(*network, (Arc::clone(catalogue), names));
            }
        }
        NameTable::new(self.0.values().map(|(_, names)| Arc::clone(names)), clients, addresses)
    }
}

impl NodeDns {
    /// A server that does not run yet, with sockets from `bind` and the upstreams in the file `resolv_conf`.
    pub fn new(bind: BindDns, resolv_conf: impl AsRef<Path>) -> Self {
        Self { bind, resolv_conf: resolv_conf.as_ref().to_owned(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, DnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the server unless it runs on this address; returns whether it was started. It answers nobody until
    /// [`NodeDns::update`].
    ///
    /// # Errors
    /// The address cannot be used; a server on another address is stopped in any case.
    pub fn ensure(&self, gateway: Ipv4Addr) -> Result<bool, DnsError> {
        let mut state = self.state();
        if state.server.as_ref().is_some_and(|running| running.gateway == gateway) {
            return Ok(false);
        }
        state.server = None;
        let server = DnsServer::start(vec![(self.bind)(SocketAddr::from((gateway, PORT)))?])?;
        state.server = Some(RunningServer { gateway, server, upstreams: Vec::new() });
        Ok(true)
    }

    /// Replaces the names and clients; `make` is called only while the server runs.
    pub fn update(&self, make: impl FnOnce(&mut IndexedNames) -> NameTable) {
        let mut state = self.state();
        let DnsState { server: Some(running), names } = &mut *state else { return };
        running.server.set_table(make(names));
    }

    /// Reads the upstreams of the host again.
    pub async fn refresh_upstreams(&self) {
        let text = tokio::fs::read(&self.resolv_conf).await.unwrap_or_default();
        let host = parse_nameservers(&String::from_utf8_lossy(&text));
        if let Some(running) = &mut self.state().server {
            let found = upstreams(&host, &[], running.server.addresses());
            if found != running.upstreams {
                running.server.set_upstreams(&found);
                running.upstreams = found;
            }
        }
    }

    /// What the server has done since it started; zeros before.
    pub fn counters(&self) -> DnsCounters {
        self.state().server.as_ref().map(|running| running.server.counters()).unwrap_or_default()
    }

    /// Addresses on which it answers.
    #[cfg(test)]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.state().server.iter().flat_map(|running| running.server.addresses().to_vec()).collect()
    }

    /// Whom it asks.
    #[cfg(test)]
    pub fn upstreams(&self) -> Vec<SocketAddr> {
        self.state().server.iter().flat_map(|running| running.upstreams.clone()).collect()
    }

    /// Stops the server; its address is free afterwards.
    pub async fn stop(&self) {
        let running = self.state().server.take();
        if let Some(running) = running {
            running.server.stop().await;
        }
    }
}
