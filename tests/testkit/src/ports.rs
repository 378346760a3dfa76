//! Unused ports of 127.0.0.1.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::{Mutex, PoisonError};

use tokio::net::TcpSocket;

/// Below the ports that Linux uses for outgoing connections (`ip_local_port_range`, 32768 and up by default):
/// one of those may be taken between the choice of a port and its use, or while a server is stopped.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// The ports of this process, each with a lock that other test processes see.
static ALLOCATED: Mutex<BTreeMap<u16, UnixListener>> = Mutex::new(BTreeMap::new());

/// A free TCP port that no other test process gets while this value exists.
#[must_use]
pub fn allocate() -> u16 {
    let mut given = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes begin at different ports, so that they seldom try the same one.
    let first = std::process::id().wrapping_mul(61);
    let size = u32::from(PORTS.end - PORTS.start);
    let candidates = (0..size).map(|step| PORTS.start + (first.wrapping_add(step) % size) as u16);
    for port in candidates {
        if given.contains_key(&port) {
            continue;
        }
        let Ok(lock) = lock(port) else { continue };
        if is_free(port) {
            given.insert(port, lock);
            return port;
        }
    }
    panic!("every port of {PORTS:?} is in use");
}

/// Whether a server can listen on the port. The socket never listens: a child that another test has just forked may
/// still have it, and would keep the port from the server.
fn is_free(port: u16) -> bool {
    let bind = || {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((Ipv4Addr::LOCALHOST, port).into())
    };
    bind().is_ok()
}

/// An abstract socket: its name is taken in this network namespace until the process ends.
fn lock(port: u16) -> std::io::Result<UnixListener> {
    UnixListener::bind_addr(&SocketAddr::from_abstract_name(format!("warren-test-port-{port}"))?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn ports_are_distinct_free_and_locked() {
        let ports: BTreeSet<u16> = (0..50).map(|_| allocate()).collect();
        assert_eq!(ports.len(), 50);
        let held: Vec<_> =
            ports.iter().map(|port| TcpListener::bind(("127.0.0.1", *port)).unwrap()).collect();
        assert_eq!(held.len(), 50);
        assert!(ports.iter().all(|port| PORTS.contains(port) && lock(*port).is_err()));
    }
}
