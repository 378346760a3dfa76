//! Sockets that belong to a task's network.
//!
//! A socket belongs for ever to the network namespace that its maker's *thread* was in. One thread, started with the
//! first socket that is asked for, moves into the namespaces and back again; the sockets it makes are then used from
//! anywhere. It never waits for the network itself, and it holds no namespace open between two sockets.

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

use crate::outcome::is_scarcity;

/// How many sockets may be asked for and not made yet; more wait.
const QUEUE: usize = 64;
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    #[error("the task's network cannot be entered: {0}")]
    Enter(io::Error),
    #[error("no socket can be made in the task's network: {0}")]
    Make(io::Error),
    #[error("the thread that makes sockets is gone")]
    Gone,
}

impl SocketError {
    /// The node is at fault, not the task's network.
    pub fn is_the_nodes(&self) -> bool {
        match self {
            Self::Enter(error) => is_scarcity(error),
            Self::Make(_) | Self::Gone => true,
        }
    }
}

struct Order {
    netns: PathBuf,
    answer: oneshot::Sender<Result<OwnedFd, SocketError>>,
}

/// Makes sockets in network namespaces.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    maker: Mutex<Option<mpsc::Sender<Order>>>,
}

impl Sockets {
    /// A TCP socket for IPv4 in the namespace that is bound to a file, not connected and not blocking.
    pub async fn tcp(&self, netns: &Path) -> Result<TcpStream, SocketError> {
        let (answer, made) = oneshot::channel();
        let order = Order { netns: netns.to_owned(), answer };
        let maker = self.maker();
        maker.send(order).await.map_err(|_| SocketError::Gone)?;
        Ok(TcpStream::from(made.await.map_err(|_| SocketError::Gone)??))
    }

    /// The way to the thread; to a new one where there is none any more.
    fn maker(&self) -> mpsc::Sender<Order> {
        let mut maker = self.maker.lock().unwrap_or_else(PoisonError::into_inner);
        match maker.as_ref().filter(|maker| !maker.is_closed()) {
            Some(maker) => maker.clone(),
            None => maker.insert(start()).clone(),
        }
    }
}

/// The thread ends with the last sender.
fn start() -> mpsc::Sender<Order> {
    let (sender, mut orders) = mpsc::channel::<Order>(QUEUE);
    let work = move || {
        let mut own = None;
        while let Some(Order { netns, answer }) = orders.blocking_recv() {
            let made = own_namespace(&mut own).and_then(|own| {
                let made = make(&netns);
                // A namespace that nobody is in any more must be able to go.
                setns(own, CloneFlags::CLONE_NEWNET).map_err(|errno| SocketError::Enter(errno.into()))?;
                made
            });
            // Whoever asked may have given up.
            answer.send(made).ok();
        }
    };
    let started = thread::Builder::new().name("health sockets".into()).spawn(work);
    if let Err(error) = started {
        tracing::error!(%error, "cannot start the thread that makes sockets for health checks");
    }
    sender
}

/// Opened with the first socket, while the thread is in it; again with the next one where the node had no descriptor to
/// give.
fn own_namespace(own: &mut Option<File>) -> Result<&File, SocketError> {
    match own {
        Some(own) => Ok(own),
        None => Ok(own.insert(File::open(OWN).map_err(SocketError::Enter)?)),
    }
}

fn make(netns: &Path) -> Result<OwnedFd, SocketError> {
    let namespace = File::open(netns).map_err(SocketError::Enter)?;
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| SocketError::Enter(errno.into()))?;
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let made = socket(AddressFamily::Inet, SockType::Stream, flags, SockProtocol::Tcp);
    made.map_err(|errno| SocketError::Make(errno.into()))
}
