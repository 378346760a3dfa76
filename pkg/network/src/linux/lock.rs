//! Allows one node per network namespace: two nodes would remove each other's chains, links and routes as
//! leftovers.

use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::sys::socket::{getsockopt, sockopt};

use super::ports;
use crate::Error;

/// Abstract socket names belong to the network namespace and are released when the process ends.
const NAME: &[u8] = b"warren-node";

/// The lock on the network namespace, held until it is dropped.
#[derive(Debug)]
pub struct NamespaceLock {
    _listener: UnixListener,
}

impl NamespaceLock {
    /// Locks the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Error::NamespaceTaken`] when another process holds the lock.
    pub fn acquire() -> Result<Self, Error> {
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

    /// The process that holds the lock; `None` without one, and for users who may not see it. Only reads: it never
    /// disturbs a node that starts meanwhile.
    pub fn holder() -> Option<u32> {
        let table = fs::read_to_string("/proc/thread-self/net/unix").ok()?;
        let name = format!("@{}", String::from_utf8_lossy(NAME));
        let is_ours = |line: &&str| line.split_whitespace().nth(7) == Some(name.as_str());
        // Connections that were not accepted have the name as well, and no inode.
        let inodes =
            table.lines().filter(is_ours).filter_map(|line| line.split_whitespace().nth(6)?.parse().ok());
        ports::process_of(&inodes.collect()).map(|holder| holder.pid)
    }
}

/// Connecting reveals the pid of the listener.
fn holder(address: &SocketAddr) -> Option<i32> {
    let stream = UnixStream::connect_addr(address).ok()?;
    getsockopt(&stream, sockopt::PeerCredentials).ok().map(|peer| peer.pid())
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    #[test]
    fn a_namespace_has_one_node() {
        let own_namespace = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            assert_eq!(NamespaceLock::holder(), None);
            let first = NamespaceLock::acquire().unwrap();
            assert_eq!(NamespaceLock::holder(), Some(std::process::id()));
            let second = NamespaceLock::acquire().unwrap_err();
            let me = i32::try_from(std::process::id()).unwrap();
            assert!(matches!(second, Error::NamespaceTaken { pid: Some(pid) } if pid == me), "{second}");
            assert_eq!(NamespaceLock::holder(), Some(std::process::id()), "after a refused one");
            drop(first);
            // A process that another test forks has the first one open until it executes its program.
            let limit = Instant::now() + Duration::from_secs(60);
            loop {
                match NamespaceLock::acquire() {
                    Err(Error::NamespaceTaken { .. }) if Instant::now() < limit => thread::yield_now(),
                    acquired => return acquired.unwrap(),
                }
            }
        };
        // Two concurrent locks: abstract names are per namespace.
        let (a, b) = (thread::spawn(own_namespace), thread::spawn(own_namespace));
        a.join().unwrap();
        b.join().unwrap();
    }
}
