//! What a node knows about the rest of the cluster: its peers, and the networks and services of its tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;

use ipnet::Ipv4Net;
use warren_wireguard::WireGuardPublicKey;

use super::settings::{gateway_of, is_host_address};
use crate::error::Error;
use crate::keys::{HostPort, TransportProtocol};

/// Number of a network in the cluster.
pub type NetworkNumber = u32;

/// The network `default`.
pub const DEFAULT_NETWORK: NetworkNumber = 1;

/// Another node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerNode {
    /// Its blocks, the first with its gateway; at least one.
    pub blocks: Vec<Ipv4Net>,
    /// Its address on the underlay.
    pub underlay: Ipv4Addr,
    /// Its key for encrypted packets; `None`: it can receive none.
    pub key: Option<WireGuardPublicKey>,
}

impl PeerNode {
    /// Why this peer cannot be used; `taken` are gateways and addresses of others, which are never equal, and `keys`
    /// their keys.
    fn conflict(
        &self,
        taken: &BTreeMap<Ipv4Addr, u16>,
        keys: &BTreeMap<WireGuardPublicKey, u16>,
    ) -> Option<String> {
        let Some(first) = self.blocks.first() else {
            return Some("it has no block of addresses".to_owned());
        };
        if !is_host_address(self.underlay) {
            return Some(format!("{} is not an address of a host", self.underlay));
        }
        if let Some(other) = self.key.and_then(|key| keys.get(&key)) {
            return Some(format!("node {other} has the same key; delete the key file of one of them"));
        }
        let both = [self.underlay, gateway_of(*first)];
        let (address, other) = both.iter().find_map(|address| Some((address, taken.get(address)?)))?;
        Some(format!("node {other} has its address {address} as well"))
    }
}

/// The members of one network that tasks of this node are in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkMembers {
    /// Whether it has no way out of the cluster.
    pub internal: bool,
    /// Addresses of all its members, on every node, ready or not. Tasks of this node are members by their
    /// [`Attachment`](super::Attachment), whether they are listed here or not.
    pub members: BTreeSet<Ipv4Addr>,
}

/// What managers tell a node about the cluster. It is replaced as a whole; only differences are written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterNetwork {
    /// The other nodes by their numbers. An entry of this node itself is ignored.
    pub peers: BTreeMap<u16, PeerNode>,
    /// The networks of which tasks of this node are members.
    pub networks: BTreeMap<NetworkNumber, NetworkMembers>,
    /// Backends of each virtual address of those networks, with equal shares: the addresses of the ready
    /// tasks. With none, connections are refused. Who may reach them follows from `networks`.
    pub services: BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>,
    /// Ports published in ingress mode: this node accepts them on its addresses, on 127.0.0.1 and from containers, for
    /// the ready tasks of the service on any node, given by address and container port, with equal shares. With none,
    /// connections are refused. A port that [`NodeNetwork::ports`](super::NodeNetwork::ports) has as well is published
    /// in host mode.
    ///
    /// Tasks see the address and port of clients outside of the cluster. Connections from a node, or from its
    /// containers through another node, come from a gateway address if they pass the overlay. Their source has to be
    /// the address of the node on the underlay; from another one they do not reach tasks of that node.
    ///
    /// Only the overlay can lead answers back through the node that accepted the connection. Without one (also with
    /// [`DirectRoutes`](super::DirectRoutes)), and on a node whose number is above 4095, a port leads to tasks of this
    /// node only, and is refused if there are none.
    pub ingress: BTreeMap<HostPort, BTreeSet<SocketAddrV4>>,
    /// The ports in ingress mode that do not give all backends equal shares.
    pub balancing: BTreeMap<HostPort, Balancing>,
}

/// How a port in ingress mode selects the backend of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Balancing {
    /// One of this node, if it has any.
    pub prefer_local: bool,
    /// By the address of the client, on every node alike.
    pub client_affinity: bool,
}

impl ClusterNetwork {
    /// The same without peers that cannot be reached or that conflict with another, and an error for each of
    /// them.
    pub(crate) fn admitted(cluster: &Arc<Self>) -> (Arc<Self>, Vec<Error>) {
        let mut taken: BTreeMap<Ipv4Addr, u16> = BTreeMap::new();
        let mut keys: BTreeMap<WireGuardPublicKey, u16> = BTreeMap::new();
        let mut refused = BTreeMap::new();
        for (number, peer) in &cluster.peers {
            if let Some(reason) = peer.conflict(&taken, &keys) {
                refused.insert(*number, Error::InvalidPeer { number: *number, reason });
            } else {
                taken.extend([(peer.underlay, *number), (gateway_of(peer.blocks[0]), *number)]);
                keys.extend(peer.key.map(|key| (key, *number)));
            }
        }
        if refused.is_empty() {
            return (Arc::clone(cluster), Vec::new());
        }
        let mut admitted = Self::clone(cluster);
        admitted.peers.retain(|number, _| !refused.contains_key(number));
        (Arc::new(admitted), refused.into_values().collect())
    }

    /// Addresses that belong to no network any more although their network is still known, and those of ingress ports
    /// whose network is not known: their tasks are gone, and with them the connections.
    pub(crate) fn gone_since(&self, before: &Self) -> BTreeSet<Ipv4Addr> {
        let of_ingress = |cluster: &Self| -> BTreeSet<Ipv4Addr> {
            cluster.ingress.values().flatten().map(|backend| *backend.ip()).collect()
        };
        let mut gone = of_ingress(before);
        for (number, network) in &self.networks {
            let Some(earlier) = before.networks.get(number) else { continue };
            gone.extend(earlier.members.difference(&network.members).copied());
        }
        let present = of_ingress(self);
        gone.retain(|address| {
            let is_member = self.networks.values().any(|network| network.members.contains(address));
            !is_member && !present.contains(address)
        });
        gone
    }

    /// The UDP ports in ingress mode whose backends changed, with those that they have now.
    pub(crate) fn moved_since(&self, before: &Self) -> BTreeMap<HostPort, BTreeSet<Ipv4Addr>> {
        let all = self.ingress.keys().chain(before.ingress.keys());
        let moved = all.filter(|at| {
            at.protocol() == TransportProtocol::Udp && self.ingress.get(*at) != before.ingress.get(*at)
        });
        let backends = |at| self.ingress.get(at).into_iter().flatten().map(|backend| *backend.ip()).collect();
        moved.map(|at| (*at, backends(at))).collect()
    }

    /// Backends that a virtual address lost, as (virtual address, backend).
    pub(crate) fn withdrawn_since(&self, before: &Self) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
        let none = BTreeSet::new();
        let lost = before.services.iter().flat_map(|(address, earlier)| {
            let now = self.services.get(address).unwrap_or(&none);
            earlier.difference(now).map(move |backend| (*address, *backend))
        });
        lost.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 210, 1, last)
    }

    fn network(members: &[u8]) -> NetworkMembers {
        NetworkMembers { internal: false, members: members.iter().map(|last| ip(*last)).collect() }
    }

    #[test]
    fn peers_that_cannot_be_reached_are_left_out() {
        let block: Ipv4Net = "10.210.2.0/24".parse().unwrap();
        let peer = |blocks: &[Ipv4Net], last| PeerNode {
            blocks: blocks.to_vec(),
            underlay: Ipv4Addr::new(192, 0, 2, last),
            key: None,
        };
        let mut cluster = ClusterNetwork::default();
        cluster.peers.insert(2, peer(&[block], 2));
        cluster.peers.insert(3, peer(&["10.210.3.0/24".parse().unwrap()], 2));
        cluster.peers.insert(6, peer(&[block], 6));
        cluster.peers.insert(4, peer(&[], 4));
        cluster.peers.insert(5, PeerNode { underlay: Ipv4Addr::LOCALHOST, ..peer(&[block], 5) });
        for number in [7, 8] {
            let own = format!("10.210.{number}.0/24").parse().unwrap();
            let key = Some(WireGuardPublicKey([7; 32]));
            cluster.peers.insert(number.into(), PeerNode { key, ..peer(&[own], number) });
        }
        let (admitted, refused) = ClusterNetwork::admitted(&Arc::new(cluster));
        assert_eq!(admitted.peers.keys().collect::<Vec<_>>(), [&2, &7]);
        let numbers = refused.iter().map(|error| match error {
            Error::InvalidPeer { number, .. } => *number,
            other => panic!("{other}"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [3, 4, 5, 6, 8]);
    }

    #[test]
    fn an_address_is_gone_when_no_known_network_has_it() {
        let networks = BTreeMap::from([(1, network(&[2, 3, 4])), (2, network(&[4, 5])), (3, network(&[6]))]);
        let before = ClusterNetwork { networks, ..ClusterNetwork::default() };
        let mut after = before.clone();
        assert!(after.gone_since(&before).is_empty());
        // 4 is still a member of the second network, and the third is not known here any more.
        after.networks = BTreeMap::from([(1, network(&[2])), (2, network(&[4]))]);
        assert_eq!(after.gone_since(&before), BTreeSet::from([ip(3), ip(5)]));
    }

    fn port(protocol: TransportProtocol, number: u16) -> HostPort {
        HostPort::new(None, std::num::NonZeroU16::new(number).unwrap(), protocol)
    }

    fn backends(tasks: &[u8]) -> BTreeSet<SocketAddrV4> {
        tasks.iter().map(|last| SocketAddrV4::new(ip(*last), 80)).collect()
    }

    #[test]
    fn an_address_of_an_ingress_port_is_gone_unless_a_network_or_another_port_has_it() {
        let ports = [8080, 8081].map(|number| (port(TransportProtocol::Tcp, number), backends(&[2, 3, 4])));
        let networks = BTreeMap::from([(1, network(&[2]))]);
        let before = ClusterNetwork { networks, ingress: ports.into(), ..ClusterNetwork::default() };
        let mut after = before.clone();
        after.ingress.insert(port(TransportProtocol::Tcp, 8080), backends(&[]));
        assert!(after.gone_since(&before).is_empty());
        after.ingress.insert(port(TransportProtocol::Tcp, 8081), backends(&[4]));
        assert_eq!(after.gone_since(&before), BTreeSet::from([ip(3)]), "2 is withdrawn");
        // A member that still serves a port is not gone either.
        after.networks.insert(1, network(&[]));
        after.ingress.insert(port(TransportProtocol::Tcp, 8081), backends(&[2]));
        assert_eq!(after.gone_since(&before), BTreeSet::from([ip(3), ip(4)]));
    }

    #[test]
    fn udp_ports_move_when_their_backends_change() {
        let mut before = ClusterNetwork::default();
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            before.ingress.extend([8080, 8081, 8082].map(|number| (port(protocol, number), backends(&[2]))));
        }
        let mut after = before.clone();
        assert!(after.moved_since(&before).is_empty());
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            after.ingress.insert(port(protocol, 8080), backends(&[3]));
            after.ingress.remove(&port(protocol, 8081));
            after.ingress.insert(port(protocol, 8083), backends(&[2]));
        }
        let moved = after.moved_since(&before);
        let found: Vec<(u16, Vec<Ipv4Addr>)> =
            moved.iter().map(|(at, backends)| (at.port(), backends.iter().copied().collect())).collect();
        assert_eq!(found, [(8080, vec![ip(3)]), (8081, vec![]), (8083, vec![ip(2)])]);
    }

    #[test]
    fn a_backend_is_withdrawn_from_one_virtual_address() {
        let mut before = ClusterNetwork::default();
        before.services.insert(ip(100), BTreeSet::from([ip(2), ip(3)]));
        before.services.insert(ip(101), BTreeSet::from([ip(2)]));
        let mut after = before.clone();
        after.services.insert(ip(100), BTreeSet::from([ip(3), ip(4)]));
        assert_eq!(after.withdrawn_since(&before), BTreeSet::from([(ip(100), ip(2))]));
        after.services.remove(&ip(101));
        assert!(after.withdrawn_since(&before).contains(&(ip(101), ip(2))));
    }
}
