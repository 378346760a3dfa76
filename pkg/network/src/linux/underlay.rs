//! What the machine's own routes say about the underlay and about the cluster's ranges. Blocking; changes
//! nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rtnetlink::packet_route::route::RouteType;

use super::message::{self, RouteState};
use super::netlink::Netlink;
use crate::Error;
use crate::model::{RangeConflict, Underlay, overlap};
use crate::names::GATEWAY_LABEL;

/// The device of an address, and the smallest MTU of it and of the routes to the peers.
pub(super) fn underlay(address: Ipv4Addr, peers: &[Ipv4Addr]) -> Result<Underlay, Error> {
    let mut netlink = Netlink::open()?;
    let addresses = message::fetch_addresses(&mut netlink, 0)?;
    let own = addresses.iter().find(|found| found.address == address);
    let links = message::fetch_links(&mut netlink)?;
    let device = own.and_then(|own| links.iter().find(|link| link.index == own.device));
    let device = device.ok_or(Error::UnderlayMissing { address })?;
    let by_device: BTreeMap<u32, u32> = links.iter().map(|link| (link.index, link.mtu)).collect();
    let mut mtu = device.mtu;
    for peer in peers {
        // A peer without a route is not reachable now; its MTU is found when it is.
        let Ok(Some(route)) = message::fetch_route_to(&mut netlink, *peer) else { continue };
        let device = route.device.and_then(|index| by_device.get(&index).copied());
        mtu = [route.mtu, device].into_iter().flatten().fold(mtu, u32::min);
    }
    Ok(Underlay { device: device.name.clone(), mtu })
}

/// The IPv4 addresses of this machine.
pub(super) fn own_addresses() -> Result<BTreeSet<Ipv4Addr>, Error> {
    let found = message::fetch_addresses(&mut Netlink::open()?, 0)?;
    Ok(found.into_iter().map(|found| found.address).collect())
}

/// A route of the machine that shares addresses with the range.
pub(super) fn range_conflict(range: Ipv4Net) -> Result<Option<RangeConflict>, Error> {
    let mut netlink = Netlink::open()?;
    let own: Vec<Ipv4Addr> = message::fetch_addresses(&mut netlink, 0)?
        .into_iter()
        .filter(|found| found.label.as_deref() == Some(GATEWAY_LABEL))
        .map(|found| found.address)
        .collect();
    let routes = message::fetch_all_routes(&mut netlink)?;
    let Some(route) = routes.into_iter().find(|route| conflicts(route, range, &own)) else {
        return Ok(None);
    };
    let links = message::fetch_links(&mut netlink)?;
    let device = links.into_iter().find(|link| Some(link.index) == route.device).map(|link| link.name);
    Ok(Some(RangeConflict { destination: route.destination, device }))
}

/// Whether a route leads addresses of the range elsewhere. `own` are addresses of this crate, for which the
/// kernel creates routes.
fn conflicts(route: &RouteState, range: Ipv4Net, own: &[Ipv4Addr]) -> bool {
    let destination = route.destination;
    let leads_somewhere = matches!(route.kind, RouteType::Unicast | RouteType::Local);
    // Two halves of all addresses are the default route of a VPN.
    let is_default = destination.prefix_len() <= 1;
    let is_of_own_address = destination.prefix_len() == 32 && own.contains(&destination.addr());
    leads_somewhere && !route.is_own() && !is_default && !is_of_own_address && overlap(destination, range)
}
