//! What leads to each peer: the VXLAN device of a node and the routes through it, or routes without a tunnel.

use ipnet::Ipv4Net;

use super::{MAIN_TABLE, OverlayDevice, Route, RoutingRule, RuleAction, VxlanPeer, ingress, wireguard};
use crate::model::{NodeNetwork, PeerNode, gateway_of};
use crate::names::{OVERLAY_DEVICE, overlay_mac};

/// Metric of the unreachable routes for unused cluster addresses; any real route takes precedence.
const UNREACHABLE_METRIC: u32 = 4096;

/// Priority of the rules that keep the cluster's addresses in the main table, whatever other software (a
/// VPN) routes elsewhere.
const RULE_PRIORITY: u32 = 900;

pub(super) fn device(node: &NodeNetwork) -> Option<OverlayDevice> {
    let overlay = node.settings.overlay()?;
    Some(OverlayDevice {
        name: OVERLAY_DEVICE,
        mac: overlay_mac(overlay.address()),
        mtu: node.settings.mtu(),
        local: overlay.address(),
        port: overlay.port(),
        vni: overlay.vni(),
    })
}

pub(super) fn peers(node: &NodeNetwork) -> Vec<VxlanPeer> {
    if node.settings.overlay().is_none() {
        return Vec::new();
    }
    let vxlan_peer = |peer: &PeerNode| VxlanPeer {
        gateway: gateway_of(peer.blocks[0]),
        mac: overlay_mac(peer.underlay),
        underlay: peer.underlay,
    };
    node.peers().map(|(_, peer)| vxlan_peer(peer)).collect()
}

/// The routes of the node as a whole, sorted by table and destination.
pub(super) fn routes(node: &NodeNetwork) -> Vec<Route> {
    let gateway = node.settings.gateway();
    let mut routes = Vec::new();
    for range in node.settings.cluster() {
        // Packets to unused addresses are rejected here instead of leaking to the outside.
        routes.push(Route::unreachable(*range, UNREACHABLE_METRIC));
    }
    for range in node.settings.virtual_ranges() {
        // Virtual addresses are translated before this route is followed, or rejected. It gives processes
        // of the node a source address, and is no route to the outside for lack of a better one.
        routes.push(Route { source: Some(gateway), ..Route::to_device(range, "lo") });
    }
    for (_, peer) in node.peers() {
        let (device, via, onlink) = match node.settings.direct_routes() {
            // The kernel refuses a peer that is not on the network of the device.
            Some(direct) => (direct.device(), peer.underlay, false),
            None if node.settings.overlay().is_some() => (OVERLAY_DEVICE, gateway_of(peer.blocks[0]), true),
            None => continue,
        };
        let route = |block: &Ipv4Net| Route {
            via: Some(via),
            onlink,
            source: Some(gateway),
            ..Route::to_device(block.trunc(), device)
        };
        routes.extend(peer.blocks.iter().map(route));
    }
    routes.extend(wireguard::routes(node));
    routes.extend(ingress::routes(node));
    routes.sort_by_key(|route| (route.table, route.destination, route.metric));
    routes.dedup_by_key(|route| (route.table, route.destination, route.metric));
    routes
}

pub(super) fn rules(node: &NodeNetwork) -> Vec<RoutingRule> {
    let rule = |range: &Ipv4Net| RoutingRule {
        destination: *range,
        ..RoutingRule::new(RULE_PRIORITY, RuleAction::Table(MAIN_TABLE))
    };
    let own = node.settings.cluster().iter().map(rule);
    wireguard::rules(node).into_iter().chain(own).chain(ingress::rules(node)).collect()
}
