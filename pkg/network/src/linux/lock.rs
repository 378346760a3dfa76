//! One node per network namespace: two would take each other's chains, links and routes for their own
//! leftovers.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt};

use crate::Error;

/// Abstract socket names belong to the network namespace and go with the process, however it ends.
const NAME: &[u8] = b"warren-node";

/// Proof that this process is the node of its network namespace, until it is dropped.
#[derive(Debug)]
pub struct NamespaceLock {
    _listener: UnixListener,
}

impl NamespaceLock {
    /// Becomes the node of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`Error::NamespaceTaken`] when another process is it already.
    pub fn take() -> Result<Self, Error> {
        let failed = |source| Error::Netlink { operation: "claim the network namespace".to_owned(), source };
        let address = SocketAddr::from_abstract_name(NAME).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self { _listener: listener }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(Error::NamespaceTaken { pid: holder(&address) })
            }
            Err(source) => Err(failed(source)),
        }
    }
}

/// The kernel tells who listens to whoever connects.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    getsockopt(&stream, sockopt::PeerCredentials).ok().map(|peer| peer.pid())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_namespace_has_one_node() {
        let own_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let first = NamespaceLock::take().unwrap();
            let second = NamespaceLock::take().unwrap_err();
            let me = i32::try_from(std::process::id()).unwrap();
            assert!(matches!(second, Error::NamespaceTaken { pid: Some(pid) } if pid == me), "{second}");
            drop(first);
            NamespaceLock::take().unwrap()
        };
        // Two at once: namespaces do not see each other's locks.
        let (a, b) = (thread::spawn(own_namespace), thread::spawn(own_namespace));
        a.join().unwrap();
        b.join().unwrap();
    }
}
