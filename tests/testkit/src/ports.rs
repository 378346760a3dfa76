//! Ports of 127.0.0.1 that nobody uses.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A TCP port that is free now and that this process was not given before. Another process may still take it
/// before it is used: tests that can live in their own network namespace should, and use fixed ports there.
#[must_use]
pub fn free() -> u16 {
    loop {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return port;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_each_is_free() {
        let ports: BTreeSet<u16> = (0..50).map(|_| free()).collect();
        assert_eq!(ports.len(), 50);
        // All of them at once, so that one which is merely in the set cannot pass for free.
        let held: Vec<_> = ports.iter().map(|port| TcpListener::bind(("127.0.0.1", *port))).collect();
        assert!(held.iter().filter(|bound| bound.is_ok()).count() >= 45, "{held:?}");
    }
}
