//! The node's own settings, gateway address, overlay, routes and rules. Blocking.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use nix::errno::Errno;
use rtnetlink::packet_route::route::RouteType;

use super::message::{self, RouteState};
use super::netlink::{Netlink, NetlinkChange, errno};
use super::wireguard::{self, WireGuardPaths};
use super::{overlay, sysctl};
use crate::Error;
use crate::desired::{DesiredNode, GatewayAddress, Route};
use crate::model::Repairs;
use crate::names::{GATEWAY_LABEL, OVERLAY_DEVICE, is_link_name};

/// Reconciles the node itself. A part that fails does not stop the next. Returns also whether the desired
/// overlay works.
pub(super) fn ensure(desired: &DesiredNode, paths: &WireGuardPaths) -> (Repairs, bool) {
    let mut repairs = Repairs::default();
    let mut has_overlay = false;
    for setting in &desired.sysctls {
        let name = setting.path.replace('/', ".");
        let set =
            |changed| if changed { vec![format!("set {name} to {}", setting.value)] } else { Vec::new() };
        repairs.record(sysctl::ensure(setting).map(set));
    }
    let mut netlink = match Netlink::open() {
        Ok(netlink) => netlink,
        Err(error) => {
            repairs.failed.push(error);
            return (repairs, false);
        }
    };
    let part = |work: &mut dyn FnMut(&mut Vec<String>) -> Result<(), Error>| {
        let mut repaired = Vec::new();
        work(&mut repaired).map(|()| repaired)
    };
    repairs.record(part(&mut |repaired| ensure_gateway(&mut netlink, &desired.gateway, repaired)));
    repairs.record(part(&mut |repaired| {
        wireguard::ensure(&mut netlink, desired.wireguard.as_ref(), paths, repaired)
    }));
    repairs.record(part(&mut |repaired| {
        let device = overlay::ensure_device(&mut netlink, desired.overlay.as_ref(), repaired)?;
        has_overlay = device.is_some();
        device.map_or(Ok(()), |device| overlay::ensure_peers(&mut netlink, device, desired, repaired))
    }));
    repairs.record(part(&mut |repaired| ensure_routes(&mut netlink, desired, repaired)));
    repairs.record(part(&mut |repaired| ensure_rules(&mut netlink, desired, repaired)));
    (repairs, has_overlay)
}

/// Reconciles what leads to the peers, after they changed.
pub(super) fn ensure_peers(desired: &DesiredNode, paths: &WireGuardPaths) -> Result<Vec<String>, Error> {
    let mut repaired = Vec::new();
    let mut netlink = Netlink::open()?;
    wireguard::ensure(&mut netlink, desired.wireguard.as_ref(), paths, &mut repaired)?;
    if let Some(device) = message::fetch_link(&mut netlink, OVERLAY_DEVICE)? {
        overlay::ensure_peers(&mut netlink, device.index, desired, &mut repaired)?;
    }
    ensure_routes(&mut netlink, desired, &mut repaired)?;
    ensure_rules(&mut netlink, desired, &mut repaired)?;
    Ok(repaired)
}

fn ensure_gateway(
    netlink: &mut Netlink,
    gateway: &GatewayAddress,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let GatewayAddress { device, address, label } = gateway;
    let Some(link) = message::fetch_link(netlink, device)? else {
        let source = std::io::Error::from_raw_os_error(Errno::ENODEV as i32);
        return Err(Error::Netlink {
            operation: format!("find link {device} for the gateway address"),
            source,
        });
    };
    let mut changes = Vec::new();
    let mut there = false;
    for found in message::fetch_addresses(netlink, link.index)? {
        if found.label.as_deref() != Some(label) {
            continue;
        }
        if found.address == *address {
            there = true;
            continue;
        }
        repaired.push(format!("removed the former gateway address {} from {device}", found.address));
        let what = format!("remove address {} from {device}", found.address);
        changes.push(NetlinkChange::remove(what, message::address_removed(&found)));
    }
    if !there {
        repaired.push(format!("added gateway address {address} to {device}"));
        let what = format!("add address {address} to {device}");
        changes.push(NetlinkChange::replace(what, message::address(link.index, *address, Some(label))));
    }
    netlink.submit(changes)
}

fn ensure_routes(
    netlink: &mut Netlink,
    desired: &DesiredNode,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let mut devices = BTreeMap::new();
    for name in desired.routes.iter().filter_map(|route| route.device.as_deref()) {
        if !devices.contains_key(name) {
            devices.insert(name, message::fetch_link(netlink, name)?.map(|link| link.index));
        }
    }
    // A route through a device that is missing cannot exist: the device's own failure is reported.
    let wanted = desired.routes.iter().filter_map(|route| match &route.device {
        None => Some((route, None)),
        Some(name) => devices[name.as_str()].map(|index| (route, Some(index))),
    });
    let wanted: Vec<(&Route, Option<u32>)> = wanted.collect();
    // Routes of task links disappear with their link. One that was created after this list is not in it.
    let links = message::fetch_links(netlink)?;
    let of_node: BTreeSet<u32> =
        links.iter().filter(|link| !is_link_name(&link.name)).map(|link| link.index).collect();
    let is_of_node = |route: &RouteState| route.device.is_none_or(|index| of_node.contains(&index));
    let found: Vec<_> = message::fetch_routes(netlink, None)?.into_iter().filter(is_of_node).collect();
    let (mut changes, mut to_peers) = (Vec::new(), Vec::new());
    for route in found.iter().filter(|found| !wanted.iter().any(|(route, index)| is(found, route, *index))) {
        repaired.push(format!("removed the former route of {}", route.destination));
        let what = format!("remove the route of {}", route.destination);
        changes.push(NetlinkChange::remove(what, message::route_removed(route)));
    }
    for (route, index) in wanted {
        if !found.iter().any(|found| is(found, route, index)) {
            repaired.push(format!("added the route of {}", route.destination));
            let what = format!("add the route of {}", route.destination);
            let change = NetlinkChange::replace(what, message::node_route(route, index));
            match (&route.device, route.via) {
                (Some(device), Some(via)) if !route.onlink => to_peers.push((device, via, change)),
                _ => changes.push(change),
            }
        }
    }
    let outcome = netlink.submit(changes);
    outcome.and(add_direct(netlink, to_peers))
}

/// Adds routes to peers that need not be on the network of the device, each given by the device and the address of the
/// peer. All are tried.
fn add_direct(netlink: &mut Netlink, routes: Vec<(&String, Ipv4Addr, NetlinkChange)>) -> Result<(), Error> {
    let (mut elsewhere, mut outcome) = (None, Ok(()));
    for (device, peer, change) in routes {
        match netlink.submit(vec![change]) {
            Err(error) if matches!(errno(&error), Some(Errno::ENETUNREACH | Errno::EHOSTUNREACH)) => {
                elsewhere.get_or_insert((device, BTreeSet::new())).1.insert(peer);
            }
            tried => outcome = outcome.and(tried),
        }
    }
    match elsewhere {
        Some((device, peers)) => Err(Error::PeersElsewhere { peers, device: device.clone() }),
        None => outcome,
    }
}

fn is(found: &RouteState, desired: &Route, device: Option<u32>) -> bool {
    let kind = if device.is_none() { RouteType::Unreachable } else { RouteType::Unicast };
    (found.table, found.destination) == (desired.table, desired.destination)
        && (found.metric, &found.kind) == (desired.metric, &kind)
        && (found.gateway, found.source) == (desired.via, desired.source)
        && (device.is_none() || found.device == device)
}

fn ensure_rules(
    netlink: &mut Netlink,
    desired: &DesiredNode,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let found = message::fetch_rules(netlink)?;
    let mut changes = Vec::new();
    for stale in found.iter().filter(|found| !desired.rules.iter().any(|rule| found.is(rule))) {
        let what = format!("remove the former routing rule of {}", stale.rule);
        changes.push(NetlinkChange::remove(what, message::rule_removed(stale)));
    }
    for rule in desired.rules.iter().filter(|rule| !found.iter().any(|found| found.is(rule))) {
        changes.push(message::rule(rule));
    }
    repaired.extend(changes.iter().map(|change| change.description.clone()));
    netlink.submit(changes)
}

/// Removes the overlay and all addresses, routes and rules of this crate.
pub(super) fn remove(paths: &WireGuardPaths) -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    overlay::remove_device(&mut netlink)?;
    wireguard::ensure(&mut netlink, None, paths, &mut Vec::new())?;
    let mut changes = Vec::new();
    for rule in message::fetch_rules(&mut netlink)? {
        let what = format!("remove the routing rule of {}", rule.rule);
        changes.push(NetlinkChange::remove(what, message::rule_removed(&rule)));
    }
    for route in message::fetch_routes(&mut netlink, None)? {
        let what = format!("remove the route of {}", route.destination);
        changes.push(NetlinkChange::remove(what, message::route_removed(&route)));
    }
    if let Some(link) = message::fetch_link(&mut netlink, "lo")? {
        for found in message::fetch_addresses(&mut netlink, link.index)? {
            if found.label.as_deref() == Some(GATEWAY_LABEL) {
                let what = format!("remove address {}", found.address);
                changes.push(NetlinkChange::remove(what, message::address_removed(&found)));
            }
        }
    }
    netlink.submit(changes)
}
