//! One check of one task.

mod http;
mod tcp;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use warren_types::spec::{HealthCheck, Probe};

use crate::namespace::{SocketError, Sockets};
use crate::{Ending, Exec, Outcome, Ran, Target};

/// How many checks may be under way at once; others wait for their turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Programs in containers: each is a process or two.
    pub programs: usize,
    /// Connections: each is a socket and some KiB. Most of their time is waiting, so that tasks that do not answer must
    /// not hold up the checks of those that do.
    pub connections: usize,
}

impl Limits {
    /// For a machine with so many cores.
    pub fn of(cores: usize) -> Self {
        let cores = cores.max(1);
        Self { programs: 4 * cores, connections: 64 * cores }
    }
}

/// Runs the checks of all tasks of a node.
pub struct Prober {
    sockets: Sockets,
    exec: Arc<dyn Exec>,
    programs: Semaphore,
    connections: Semaphore,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("connection refused on port {0}")]
    Refused(u16),
    #[error("no connection to port {port}: {source}")]
    Other { port: u16, source: std::io::Error },
}

impl ConnectError {
    fn into_outcome(self) -> Outcome {
        let said = self.to_string();
        match self {
            Self::Socket(error) if error.is_the_nodes() => Outcome::unasked(said),
            _ => Outcome::bad(said),
        }
    }
}

impl Prober {
    /// Runs programs through `exec`. The time of a check that waits for its turn does not run meanwhile.
    pub fn new(exec: Arc<dyn Exec>, limits: Limits) -> Self {
        let Limits { programs, connections } = limits;
        let (programs, connections) = (Semaphore::new(programs), Semaphore::new(connections));
        Self { sockets: Sockets::default(), exec, programs, connections }
    }

    /// Runs the check once. Takes no longer than its timeout from the time on that it is its turn.
    pub async fn check(&self, check: &HealthCheck, target: &Target) -> Outcome {
        let turns = match &check.probe {
            Probe::Exec { .. } => &self.programs,
            Probe::Http { .. } | Probe::Tcp { .. } => &self.connections,
        };
        let Ok(_turn) = turns.acquire().await else {
            return Outcome::unasked("the node runs no checks any more");
        };
        let asked = async {
            match &check.probe {
                Probe::Http { port, path, headers } => {
                    http::get(&self.sockets, target, *port, path, headers).await
                }
                Probe::Tcp { port } => tcp::connect(&self.sockets, target, *port).await,
                // Whoever runs a program ends it, too.
                Probe::Exec { command } => {
                    outcome_of(self.exec.run(target, command, check.timeout).await, check.timeout)
                }
            }
        };
        match &check.probe {
            Probe::Exec { .. } => asked.await,
            Probe::Http { .. } | Probe::Tcp { .. } => {
                timeout(check.timeout, asked).await.unwrap_or_else(|_| late(check.timeout))
            }
        }
    }
}

fn late(within: Duration) -> Outcome {
    Outcome::bad(format!("no answer within {within:?}"))
}

fn outcome_of(ran: Ran, within: Duration) -> Outcome {
    let outcome = match ran.ending {
        Ending::Exited(0) => Outcome::good("exited with code 0"),
        Ending::Exited(code) => Outcome::bad(format!("exited with code {code}")),
        Ending::TimedOut => Outcome::bad(format!("did not end within {within:?}")),
        Ending::Failed(reason) => Outcome::bad(reason),
        Ending::Unable(reason) => Outcome::unasked(reason),
    };
    outcome.with_detail(&ran.output)
}

/// Connects to a port as the task itself would: over its loopback. A server that listens on the task's own address
/// alone is found there.
async fn connect(sockets: &Sockets, target: &Target, port: u16) -> Result<TcpStream, ConnectError> {
    match connect_to(sockets, target, Ipv4Addr::LOCALHOST, port).await {
        Err(ConnectError::Refused(_)) => connect_to(sockets, target, target.address, port).await,
        answer => answer,
    }
}

async fn connect_to(
    sockets: &Sockets,
    target: &Target,
    address: Ipv4Addr,
    port: u16,
) -> Result<TcpStream, ConnectError> {
    let socket = TcpSocket::from_std_stream(sockets.tcp(&target.netns).await?);
    socket.connect(SocketAddrV4::new(address, port).into()).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::ConnectionRefused => ConnectError::Refused(port),
        _ => ConnectError::Other { port, source },
    })
}
