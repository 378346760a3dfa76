//! Runs one check of one task.

mod http;
mod tcp;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use warren_types::spec::{HealthCheck, Probe};

use crate::namespace::{SocketError, SocketFactory};
use crate::{Exec, ExecResult, ExecStatus, ProbeOutcome, ProbeTarget};

/// Limits of concurrent checks; further checks are queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeLimits {
    /// Programs in containers: each is one or two processes.
    pub programs: usize,
    /// Connections: each is a socket and some KiB. They mostly wait, so this limit is higher: tasks that do
    /// not answer must not delay the checks of others.
    pub connections: usize,
}

impl ProbeLimits {
    /// Limits for a machine with this many cores.
    pub fn for_cores(cores: usize) -> Self {
        let cores = cores.max(1);
        Self { programs: 4 * cores, connections: 64 * cores }
    }
}

/// Runs the checks of all tasks of a node.
pub struct Prober {
    sockets: SocketFactory,
    exec: Arc<dyn Exec>,
    programs: Semaphore,
    connections: Semaphore,
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
enum ConnectError {
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error("connection refused on port {0}")]
    Refused(u16),
    #[error("cannot connect to port {port}: {source}")]
    Other { port: u16, source: std::io::Error },
}

impl ConnectError {
    fn into_outcome(self) -> ProbeOutcome {
        let summary = self.to_string();
        match self {
            Self::Socket(error) if error.is_node_fault() => ProbeOutcome::inconclusive(summary),
            _ => ProbeOutcome::failure(summary),
        }
    }
}

impl Prober {
    /// Runs programs through `exec`. The timeout of a check excludes its time in the queue.
    pub fn new(exec: Arc<dyn Exec>, limits: ProbeLimits) -> Self {
        let ProbeLimits { programs, connections } = limits;
        let (programs, connections) = (Semaphore::new(programs), Semaphore::new(connections));
        Self { sockets: SocketFactory::default(), exec, programs, connections }
    }

    /// Runs the check once. Takes at most its timeout, counted from when it leaves the queue.
    pub async fn check(&self, check: &HealthCheck, target: &ProbeTarget) -> ProbeOutcome {
        let turns = match &check.probe {
            Probe::Exec { .. } => &self.programs,
            Probe::Http { .. } | Probe::Tcp { .. } => &self.connections,
        };
        let Ok(_turn) = turns.acquire().await else {
            return ProbeOutcome::inconclusive("the health prober was stopped");
        };
        let asked = async {
            match &check.probe {
                Probe::Http { port, path, headers } => {
                    http::get(&self.sockets, target, *port, path, headers).await
                }
                Probe::Tcp { port } => tcp::connect(&self.sockets, target, *port).await,
                // The exec implementation enforces the timeout.
                Probe::Exec { command } => {
                    outcome_of(self.exec.run(target, command, check.timeout).await, check.timeout)
                }
            }
        };
        match &check.probe {
            Probe::Exec { .. } => asked.await,
            Probe::Http { .. } | Probe::Tcp { .. } => {
                timeout(check.timeout, asked).await.unwrap_or_else(|_| timed_out(check.timeout))
            }
        }
    }
}

fn timed_out(within: Duration) -> ProbeOutcome {
    ProbeOutcome::failure(format!("no answer within {within:?}"))
}

fn outcome_of(ran: ExecResult, within: Duration) -> ProbeOutcome {
    let outcome = match ran.status {
        ExecStatus::Exited(0) => ProbeOutcome::success("exited with code 0"),
        ExecStatus::Exited(code) => ProbeOutcome::failure(format!("exited with code {code}")),
        ExecStatus::TimedOut => ProbeOutcome::failure(format!("did not end within {within:?}")),
        ExecStatus::Failed(reason) => ProbeOutcome::failure(reason),
        ExecStatus::NotStarted(reason) => ProbeOutcome::inconclusive(reason),
    };
    outcome.with_detail(&ran.output)
}

/// Connects to a port over the task's loopback, or over its own address for a server that listens only
/// there.
async fn connect(
    sockets: &SocketFactory,
    target: &ProbeTarget,
    port: u16,
) -> Result<TcpStream, ConnectError> {
    match connect_to(sockets, target, Ipv4Addr::LOCALHOST, port).await {
        Err(ConnectError::Refused(_)) => connect_to(sockets, target, target.address, port).await,
        answer => answer,
    }
}

async fn connect_to(
    sockets: &SocketFactory,
    target: &ProbeTarget,
    address: Ipv4Addr,
    port: u16,
) -> Result<TcpStream, ConnectError> {
    let socket = TcpSocket::from_std_stream(sockets.tcp(&target.netns).await?);
    socket.connect(SocketAddrV4::new(address, port).into()).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::ConnectionRefused => ConnectError::Refused(port),
        _ => ConnectError::Other { port, source },
    })
}
