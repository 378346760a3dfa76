//! Published ports in ingress mode: any node accepts connections for tasks of any node, which see the client's address.
//!
//! The *entry node* translates only the destination, and sends the packets through the tunnel with its own number as
//! group policy id. The node of the task keeps that number in the upper bits of the connection's mark. It gives each
//! answer this mark, and a rule for each peer leads marked packets back to the entry node, which translates the source.
//! Packets without a mark skip these rules.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::SocketAddrV4;

use ipnet::Ipv4Net;

use super::{PacketMark, Route, RoutingRule, RuleAction, wireguard};
use crate::keys::HostPort;
use crate::model::{Balancing, NodeNetwork, Overlay, PeerNode, gateway_of};
use crate::names::OVERLAY_DEVICE;

/// The bits of a mark that have the number of the entry node. Others are those of Kubernetes and of VPNs.
pub(super) const ENTRY_MASK: u32 = NUMBER_MASK << ENTRY_SHIFT;
/// The place of these bits.
pub(super) const ENTRY_SHIFT: u32 = 20;
/// The largest number that fits, and the bits of a group policy id in use.
pub(super) const NUMBER_MASK: u32 = 0xfff;

/// Leads packets without a mark behind the rules of the peers. A rule that looked up the main table instead would
/// precede those of other software.
const UNMARKED_PRIORITY: u32 = 901;
/// Added to the number of a peer.
const PEER_PRIORITY: u32 = 1000;
const END_PRIORITY: u32 = 9000;

/// The number of this node as an entry node for tasks of other nodes.
pub(super) fn entry_number(overlay: &Overlay) -> Option<u32> {
    fitting(overlay.number())
}

fn fitting(number: u16) -> Option<u32> {
    Some(u32::from(number)).filter(|number| *number <= NUMBER_MASK)
}

/// The backends of a published port to which this node can translate it; `None` if it is published in neither mode.
pub(super) fn published<'a>(node: &'a NodeNetwork, at: &HostPort) -> Option<Cow<'a, BTreeSet<SocketAddrV4>>> {
    let host = node.ports.get(at);
    let backends = host.or_else(|| node.cluster.ingress.get(at))?;
    if host.is_some() {
        return Some(Cow::Borrowed(backends));
    }
    let is_entry = node.settings.overlay().is_some_and(|overlay| entry_number(overlay).is_some());
    let is_own = |backend: &&SocketAddrV4| node.settings.is_own(*backend.ip());
    if is_entry && !(balancing(node, at).prefer_local && backends.iter().any(|backend| is_own(&backend))) {
        return Some(Cow::Borrowed(backends));
    }
    Some(Cow::Owned(backends.iter().filter(is_own).copied().collect()))
}

/// How the port selects one of its backends.
pub(super) fn balancing(node: &NodeNetwork, at: &HostPort) -> Balancing {
    let is_host_mode = node.ports.contains_key(at);
    node.cluster.balancing.get(at).copied().filter(|_| !is_host_mode).unwrap_or_default()
}

/// The published ports of both modes.
pub(super) fn published_ports(node: &NodeNetwork) -> BTreeSet<HostPort> {
    node.ports.keys().chain(node.cluster.ingress.keys()).copied().collect()
}

/// The way back to each peer as the entry node, in a table of its own.
pub(super) fn routes(node: &NodeNetwork) -> Vec<Route> {
    let entries = node.peers().filter(|_| node.settings.overlay().is_some());
    let route = |(number, peer): (u16, &PeerNode)| {
        Some(Route {
            table: wireguard::TABLE + fitting(number)?,
            via: Some(gateway_of(peer.blocks[0])),
            onlink: true,
            ..Route::to_device(Ipv4Net::default(), OVERLAY_DEVICE)
        })
    };
    entries.filter_map(route).collect()
}

pub(super) fn rules(node: &NodeNetwork) -> Vec<RoutingRule> {
    if node.settings.overlay().is_none() {
        return Vec::new();
    }
    let marked = |number: u32, rule: RoutingRule| {
        let mark = PacketMark { value: number << ENTRY_SHIFT, mask: ENTRY_MASK };
        RoutingRule { mark: Some(mark), ..rule }
    };
    let of_peer = |number: u32| {
        marked(number, RoutingRule::new(PEER_PRIORITY + number, RuleAction::Table(wireguard::TABLE + number)))
    };
    let end = RoutingRule::new(END_PRIORITY, RuleAction::Nop);
    let unmarked = marked(0, RoutingRule::new(UNMARKED_PRIORITY, RuleAction::Goto(END_PRIORITY)));
    let peers = node.peers().filter_map(|(number, _)| fitting(number)).map(of_peer);
    [end, unmarked].into_iter().chain(peers).collect()
}
