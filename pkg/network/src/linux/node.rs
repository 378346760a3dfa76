//! The node's own settings, gateway address and routes. Blocking.

use rtnetlink::packet_route::route::RouteType;

use super::message;
use super::netlink::{Netlink, NetlinkChange};
use super::sysctl;
use crate::Error;
use crate::desired::{DesiredNetwork, GatewayAddress};
use crate::names::GATEWAY_LABEL;

/// Reconciles the node itself; returns the changes made, as text.
pub(super) fn ensure(desired: &DesiredNetwork) -> Result<Vec<String>, Error> {
    let mut repaired = Vec::new();
    for setting in &desired.sysctls {
        if sysctl::ensure(setting)? {
            repaired.push(format!("set {} to {}", setting.path.replace('/', "."), setting.value));
        }
    }
    let mut netlink = Netlink::open()?;
    ensure_gateway(&mut netlink, &desired.gateway, &mut repaired)?;
    ensure_routes(&mut netlink, desired, &mut repaired)?;
    Ok(repaired)
}

fn ensure_gateway(
    netlink: &mut Netlink,
    gateway: &GatewayAddress,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let GatewayAddress { device, address, label } = gateway;
    let Some(link) = message::fetch_link(netlink, device)? else {
        let source = std::io::Error::from_raw_os_error(nix::errno::Errno::ENODEV as i32);
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
    desired: &DesiredNetwork,
    repaired: &mut Vec<String>,
) -> Result<(), Error> {
    let mut changes = Vec::new();
    // Routes of task links have a device and disappear with it; only the others can be left over.
    let found: Vec<_> =
        message::fetch_routes(netlink, None)?.into_iter().filter(|route| route.device.is_none()).collect();
    let is = |found: &message::RouteState, desired: &crate::desired::UnreachableRoute| {
        let to = (found.destination, found.metric) == (desired.destination, desired.metric);
        to && found.kind == RouteType::Unreachable
    };
    for route in found.iter().filter(|found| !desired.routes.iter().any(|desired| is(found, desired))) {
        repaired.push(format!("removed the former route of {}", route.destination));
        let what = format!("remove the route of {}", route.destination);
        changes.push(NetlinkChange::remove(what, message::route_removed(route)));
    }
    for route in desired.routes.iter().filter(|desired| !found.iter().any(|found| is(found, desired))) {
        repaired.push(format!("added unreachable route {}", route.destination));
        let what = format!("add unreachable route {}", route.destination);
        changes.push(NetlinkChange::replace(what, message::unreachable(route.destination, route.metric)));
    }
    netlink.submit(changes)
}

/// Removes all addresses and routes of this crate.
pub(super) fn remove() -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let mut changes = Vec::new();
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
