//! Sockets in the network namespace of a task.
//!
//! A socket permanently belongs to the network namespace in which its creating *thread* was. One thread,
//! started at the first request, enters the namespaces and returns; the sockets are then used from any
//! thread. It never waits for the network and holds no namespace open between two requests.

use std::fs::File;
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use tokio::sync::{mpsc, oneshot};

use crate::outcome::is_resource_exhausted;

/// Limit of queued socket requests; further callers wait.
const QUEUE: usize = 64;
/// Network namespace of the calling thread.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// Why no socket could be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The namespace.
    #[error("cannot enter the network namespace of the task: {0}")]
    Enter(io::Error),
    /// The socket.
    #[error("cannot create a socket in the network namespace of the task: {0}")]
    Make(io::Error),
    /// The thread that creates sockets.
    #[error("the socket thread has ended")]
    Gone,
}

impl SocketError {
    /// Whether the node is at fault, not the task's network.
    pub fn is_node_fault(&self) -> bool {
        match self {
            Self::Enter(error) => is_resource_exhausted(error),
            Self::Make(_) | Self::Gone => true,
        }
    }
}

struct SocketRequest {
    netns: PathBuf,
    answer: oneshot::Sender<Result<OwnedFd, SocketError>>,
}

/// Creates sockets in network namespaces.
#[derive(Debug, Default)]
pub struct SocketFactory {
    thread: Mutex<Option<mpsc::Sender<SocketRequest>>>,
}

impl SocketFactory {
    /// An unconnected, non-blocking IPv4 TCP socket in the namespace that is bound to the file `netns`.
    ///
    /// # Errors
    /// All of [`SocketError`].
    pub async fn tcp(&self, netns: &Path) -> Result<TcpStream, SocketError> {
        let (answer, made) = oneshot::channel();
        let order = SocketRequest { netns: netns.to_owned(), answer };
        let maker = self.ensure_thread();
        maker.send(order).await.map_err(|_| SocketError::Gone)?;
        Ok(TcpStream::from(made.await.map_err(|_| SocketError::Gone)??))
    }

    /// The request channel of the thread; starts a new thread if it has ended.
    fn ensure_thread(&self) -> mpsc::Sender<SocketRequest> {
        let mut maker = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        match maker.as_ref().filter(|maker| !maker.is_closed()) {
            Some(maker) => maker.clone(),
            None => maker.insert(start()).clone(),
        }
    }
}

/// The thread ends with the last sender.
fn start() -> mpsc::Sender<SocketRequest> {
    let (sender, mut orders) = mpsc::channel::<SocketRequest>(QUEUE);
    let work = move || {
        let mut own = None;
        while let Some(SocketRequest { netns, answer }) = orders.blocking_recv() {
            let made = own_namespace(&mut own).and_then(|own| {
                let made = make(&netns);
                // An unused namespace must be removable, so the thread leaves it.
                setns(own, CloneFlags::CLONE_NEWNET).map_err(|errno| SocketError::Enter(errno.into()))?;
                made
            });
            // The caller may have been cancelled.
            answer.send(made).ok();
        }
    };
    let started = thread::Builder::new().name("task sockets".into()).spawn(work);
    if let Err(error) = started {
        tracing::error!(%error, "cannot start the thread for sockets of tasks");
    }
    sender
}

/// Opens the own namespace of the thread at the first request; retried at the next one if no file
/// descriptor was available.
fn own_namespace(own: &mut Option<File>) -> Result<&File, SocketError> {
    match own {
        Some(own) => Ok(own),
        None => Ok(own.insert(File::open(OWN_NAMESPACE).map_err(SocketError::Enter)?)),
    }
}

fn make(netns: &Path) -> Result<OwnedFd, SocketError> {
    let namespace = File::open(netns).map_err(SocketError::Enter)?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| SocketError::Enter(errno.into()))?;
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Inet, SockType::Stream, flags, SockProtocol::Tcp);
    made.map_err(|errno| SocketError::Make(errno.into()))
}
