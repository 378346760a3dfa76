//! The WireGuard device below the VXLAN device, and what leads into it.
//!
//! A rule sends the packets of the VXLAN device to a table of their own. It has one route for each peer with a key, and
//! one that rejects all others, so that nothing leaves the node unencrypted while the device or a key is missing. The
//! encrypted packets have another port and follow the usual routes.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use warren_wireguard::{WireGuardPeer, WireGuardSettings};

use super::{Route, RoutingRule, RuleAction, UdpPort, WireGuardDevice};
use crate::model::{NodeNetwork, OVERLAY_OVERHEAD, Overlay};
use crate::names::WIREGUARD_DEVICE;

/// The table of routes to the peers. The tables after it are those of entry nodes, by their numbers from 1.
pub(super) const TABLE: u32 = 4096;

/// Before the rules of the cluster's ranges, and those of other software.
const RULE_PRIORITY: u32 = 890;

/// Any route to a peer takes precedence.
const UNREACHABLE_METRIC: u32 = 4096;

pub(super) fn device(node: &NodeNetwork) -> Option<WireGuardDevice> {
    let wireguard = node.settings.wireguard()?;
    let peers =
        node.peers().filter_map(|(_, peer)| Some(WireGuardPeer { key: peer.key?, address: peer.underlay }));
    Some(WireGuardDevice {
        name: WIREGUARD_DEVICE,
        // A packet of the largest size has the headers of VXLAN around it.
        mtu: node.settings.mtu() + OVERLAY_OVERHEAD,
        settings: WireGuardSettings {
            private_key: wireguard.private_key.clone(),
            port: wireguard.port,
            peers: peers.collect(),
        },
    })
}

pub(super) fn routes(node: &NodeNetwork) -> Vec<Route> {
    let (Some(overlay), Some(_)) = (node.settings.overlay(), node.settings.wireguard()) else {
        return Vec::new();
    };
    let to_peer = |peer: Ipv4Addr| Route {
        source: Some(overlay.address()),
        ..Route::to_device(Ipv4Net::from(peer), WIREGUARD_DEVICE)
    };
    let peers = node.peers().filter(|(_, peer)| peer.key.is_some()).map(|(_, peer)| to_peer(peer.underlay));
    let all = [Route::unreachable(Ipv4Net::default(), UNREACHABLE_METRIC)].into_iter().chain(peers);
    all.map(|route| Route { table: TABLE, ..route }).collect()
}

/// The packets of this node only: it may forward those of other overlays. The second rule is for packets that arrive:
/// the kernel looks up the way back to their sender, and drops them if it is not the device from which they came.
pub(super) fn rules(node: &NodeNetwork) -> Vec<RoutingRule> {
    let overlay = node.settings.overlay().filter(|_| node.settings.wireguard().is_some());
    let of_port = |overlay: &Overlay| [UdpPort::To(overlay.port()), UdpPort::From(overlay.port())];
    let rule = |overlay: &Overlay, udp| RoutingRule {
        source: Ipv4Net::from(overlay.address()),
        udp: Some(udp),
        ..RoutingRule::new(RULE_PRIORITY, RuleAction::Table(TABLE))
    };
    overlay.iter().flat_map(|overlay| of_port(overlay).map(|udp| rule(overlay, udp))).collect()
}
