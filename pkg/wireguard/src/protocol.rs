//! The configuration protocol of WireGuard: lines of `key=value`, ended by an empty one. Pure.
//!
//! A peer that is set again loses its session, so only differences are set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use zeroize::Zeroizing;

use crate::{Error, WireGuardPrivateKey, WireGuardPublicKey};

/// Asks for everything.
pub(crate) const GET: &str = "get=1\n\n";

/// Another node, reached through WireGuard under one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireGuardPeer {
    /// Its public key.
    pub key: WireGuardPublicKey,
    /// Its address: packets to it are encrypted for this peer, and only this peer may send from it. Encrypted packets
    /// are sent to the same address.
    pub address: Ipv4Addr,
}

/// What the device should be. No two peers have the same key or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WireGuardSettings {
    /// The key of this node.
    pub private_key: WireGuardPrivateKey,
    /// UDP port of this node and of its peers.
    pub port: u16,
    /// The peers.
    pub peers: Vec<WireGuardPeer>,
}

/// What the device is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WireGuardState {
    /// The key of this node, if it has one.
    pub private_key: Option<WireGuardPrivateKey>,
    /// UDP port; 0: none.
    pub port: u16,
    /// The peers.
    pub peers: BTreeMap<WireGuardPublicKey, PeerState>,
}

/// A peer as the device has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerState {
    /// Where its packets are sent: it may follow the sender of its last packets.
    pub endpoint: Option<SocketAddr>,
    /// The ranges of its addresses.
    pub allowed: BTreeSet<String>,
    /// Seconds since 1970 of the last handshake, if there was one.
    pub last_handshake: Option<u64>,
    /// Bytes that were received.
    pub received: u64,
}

/// Parses the answer to a question for everything.
///
/// # Errors
/// [`Error::Answer`].
pub(crate) fn parse_state(text: &str) -> Result<WireGuardState, Error> {
    let mut state = WireGuardState::default();
    let mut peer: Option<(WireGuardPublicKey, PeerState)> = None;
    for line in text.lines().filter(|line| !line.is_empty()) {
        // The line may have the private key.
        let wrong = |shown: &str| Error::Answer { line: shown.to_owned() };
        let (key, value) = line.split_once('=').ok_or_else(|| wrong("a line without a value"))?;
        match (key, &mut peer) {
            ("private_key", _) => state.private_key = Some(value.parse().map_err(|_| wrong(key))?),
            ("listen_port", _) => state.port = value.parse().map_err(|_| wrong(line))?,
            ("errno", _) if value != "0" => return Err(wrong(line)),
            ("public_key", _) => {
                state.peers.extend(peer.take());
                peer = Some((value.parse().map_err(|_| wrong(line))?, PeerState::default()));
            }
            ("endpoint", Some((_, peer))) => peer.endpoint = Some(value.parse().map_err(|_| wrong(line))?),
            ("allowed_ip", Some((_, peer))) => drop(peer.allowed.insert(value.to_owned())),
            ("last_handshake_time_sec", Some((_, peer))) => {
                let seconds = value.parse().map_err(|_| wrong(line))?;
                peer.last_handshake = Some(seconds).filter(|seconds| *seconds > 0);
            }
            ("rx_bytes", Some((_, peer))) => peer.received = value.parse().map_err(|_| wrong(line))?,
            // Newer versions say more.
            _ => {}
        }
    }
    state.peers.extend(peer);
    Ok(state)
}

/// Parses the answer to a change.
///
/// # Errors
/// [`Error::Answer`], [`Error::Refused`].
pub(crate) fn parse_outcome(text: &str, port: u16) -> Result<(), Error> {
    let errno = text.lines().find_map(|line| line.strip_prefix("errno=")?.parse::<i32>().ok());
    match errno {
        Some(0) => Ok(()),
        Some(errno) => Err(Error::Refused { errno, port }),
        None => Err(Error::Answer { line: text.chars().take(80).collect() }),
    }
}

/// Whether the process must be started again: one that has a socket already may not get it a second time, and a new key
/// ends all sessions anyway.
pub(crate) fn must_restart(found: &WireGuardState, wanted: &WireGuardSettings) -> bool {
    let WireGuardSettings { private_key, port, .. } = wanted;
    found.private_key.as_ref().is_some_and(|found| found != private_key)
        || found.port != 0 && found.port != *port
}

/// A change of the device: the request, and one sentence for each of its parts.
pub(crate) struct Change {
    pub request: Zeroizing<String>,
    pub descriptions: Vec<String>,
}

/// What makes `found` as `wanted`; `None` if it is.
pub(crate) fn change(found: &WireGuardState, wanted: &WireGuardSettings) -> Option<Change> {
    let mut request = Zeroizing::new("set=1\n".to_owned());
    let mut descriptions = Vec::new();
    let mut line = |key: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(request, "{key}={value}");
    };
    if found.private_key.as_ref() != Some(&wanted.private_key) {
        line("private_key", &wanted.private_key.to_hex());
        descriptions.push("set the key of this node".to_owned());
    }
    if found.port != wanted.port {
        line("listen_port", &wanted.port.to_string());
        descriptions.push(format!("set the port of WireGuard to {}", wanted.port));
    }
    let known: BTreeSet<WireGuardPublicKey> = wanted.peers.iter().map(|peer| peer.key).collect();
    // First, so that their addresses are free for others.
    for key in found.peers.keys().filter(|key| !known.contains(key)) {
        line("public_key", &key.to_string());
        line("remove", "true");
        descriptions.push(format!("removed the WireGuard peer {key}"));
    }
    for peer in wanted.peers.iter().filter(|peer| !is_set(found.peers.get(&peer.key), peer, wanted.port)) {
        line("public_key", &peer.key.to_string());
        line("endpoint", &SocketAddrV4::new(peer.address, wanted.port).to_string());
        line("replace_allowed_ips", "true");
        line("allowed_ip", &format!("{}/32", peer.address));
        descriptions.push(format!("set the WireGuard peer {}", peer.address));
    }
    request.push('\n');
    (!descriptions.is_empty()).then_some(Change { request, descriptions })
}

/// Whether the peer is as it should be. A peer that was heard from another address is answered there.
fn is_set(found: Option<&PeerState>, wanted: &WireGuardPeer, port: u16) -> bool {
    let Some(PeerState { endpoint, allowed, .. }) = found else { return false };
    let is_own = allowed.len() == 1 && allowed.contains(&format!("{}/32", wanted.address));
    let is_outdated = |endpoint: &SocketAddr| endpoint.ip() == wanted.address && endpoint.port() != port;
    is_own && endpoint.as_ref().is_some_and(|endpoint| !is_outdated(endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(last: u8) -> WireGuardPublicKey {
        WireGuardPublicKey([last; 32])
    }

    fn peer(last: u8) -> WireGuardPeer {
        WireGuardPeer { key: key(last), address: Ipv4Addr::new(192, 0, 2, last) }
    }

    fn settings(peers: &[u8]) -> WireGuardSettings {
        let private_key = "11".repeat(32).parse().unwrap();
        WireGuardSettings { private_key, port: 51820, peers: peers.iter().map(|last| peer(*last)).collect() }
    }

    fn state(peers: &[u8]) -> WireGuardState {
        let WireGuardSettings { private_key, port, peers } = settings(peers);
        let peers = peers.iter().map(|peer| {
            let endpoint = Some(SocketAddr::from((peer.address, port)));
            let allowed = BTreeSet::from([format!("{}/32", peer.address)]);
            (peer.key, PeerState { endpoint, allowed, ..PeerState::default() })
        });
        WireGuardState { private_key: Some(private_key), port, peers: peers.collect() }
    }

    #[test]
    fn answers_are_parsed() {
        let text = format!(
            "private_key={}\nlisten_port=51820\nfwmark=0\npublic_key={}\nendpoint=192.0.2.2:51820\n\
             allowed_ip=192.0.2.2/32\nlast_handshake_time_sec=12\nrx_bytes=7\npublic_key={}\n\
             last_handshake_time_sec=0\nunknown=1\nerrno=0\n\n",
            "11".repeat(32),
            key(2),
            key(3)
        );
        let mut expected = state(&[2]);
        let second = expected.peers.get_mut(&key(2)).unwrap();
        (second.last_handshake, second.received) = (Some(12), 7);
        expected.peers.insert(key(3), PeerState::default());
        assert_eq!(parse_state(&text).unwrap(), expected);
        let secret = "private_key=secret";
        for bad in ["errno=22", "listen_port=x", "public_key=1", secret, "x"] {
            let error = parse_state(bad).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(parse_outcome("errno=0\n", 1).is_ok());
        assert!(matches!(parse_outcome("errno=22\n", 7), Err(Error::Refused { errno: 22, port: 7 })));
        assert!(matches!(parse_outcome("", 7), Err(Error::Answer { .. })));
    }

    #[test]
    fn only_differences_are_set() {
        let lines = |found: &WireGuardState, wanted: &WireGuardSettings| {
            change(found, wanted).map(|change| change.request.lines().map(str::to_owned).collect::<Vec<_>>())
        };
        let set = |last: u8| {
            let (key, address) = (key(last), peer(last).address);
            vec![
                format!("public_key={key}"),
                format!("endpoint={address}:51820"),
                "replace_allowed_ips=true".to_owned(),
                format!("allowed_ip={address}/32"),
            ]
        };
        let start = vec!["set=1".to_owned()];
        let end = vec![String::new()];
        assert_eq!(lines(&state(&[2, 3]), &settings(&[2, 3])), None);
        let new = vec![format!("private_key={}", "11".repeat(32)), "listen_port=51820".to_owned()];
        let all = [start.clone(), new, set(2), end.clone()].concat();
        assert_eq!(lines(&WireGuardState::default(), &settings(&[2])), Some(all));
        let removal = vec![format!("public_key={}", key(2)), "remove=true".to_owned()];
        let replaced = [start.clone(), removal, set(4), end.clone()].concat();
        assert_eq!(lines(&state(&[2, 3]), &settings(&[3, 4])), Some(replaced));

        let another = WireGuardSettings { private_key: "22".repeat(32).parse().unwrap(), ..settings(&[2]) };
        for (found, wanted, restarts) in [
            (WireGuardState::default(), settings(&[2]), false),
            (state(&[2]), settings(&[3]), false),
            (state(&[2]), another, true),
            (state(&[2]), WireGuardSettings { port: 9, ..settings(&[2]) }, true),
        ] {
            assert_eq!(must_restart(&found, &wanted), restarts, "{wanted:?}");
        }

        // A peer behind an address translation is answered where it was heard; another port is a new setting.
        let mut roamed = state(&[2]);
        roamed.peers.get_mut(&key(2)).unwrap().endpoint = Some(SocketAddr::from(([203, 0, 113, 1], 9)));
        assert_eq!(lines(&roamed, &settings(&[2])), None);
        roamed.peers.get_mut(&key(2)).unwrap().endpoint = Some(SocketAddr::from((peer(2).address, 9)));
        let again = [start, set(2), end].concat();
        assert_eq!(lines(&roamed, &settings(&[2])), Some(again.clone()));
        roamed.peers.get_mut(&key(2)).unwrap().allowed.insert("0.0.0.0/0".to_owned());
        assert_eq!(lines(&roamed, &settings(&[2])), Some(again));
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_parsed_or_refused(text in "([a-z_]{0,16}=?[0-9a-f:./]{0,70}\n?){0,8}") {
            parse_state(&text).map(drop).or_else(|error| match error {
                Error::Answer { .. } => Ok(()),
                other => Err(other),
            }).unwrap();
        }
    }
}
