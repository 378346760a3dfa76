//! Neighbours, and the entries of the VXLAN device that lead to other nodes.

use std::net::Ipv4Addr;

use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState as Reachability,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::Error;
use crate::linux::netlink::Netlink;

/// A permanent neighbour as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::linux) struct NeighbourState {
    pub device: u32,
    pub address: Ipv4Addr,
    pub mac: Vec<u8>,
}

/// An entry of a VXLAN device: frames to a hardware address go to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::linux) struct ForwardingEntry {
    pub mac: Vec<u8>,
    pub node: Ipv4Addr,
}

fn neighbour_message(device: u32, address: Ipv4Addr, mac: &[u8]) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = device;
    message.header.state = Reachability::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    message
}

pub(in crate::linux) fn neighbour(device: u32, address: Ipv4Addr, mac: [u8; 6]) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewNeighbour(neighbour_message(device, address, &mac))
}

pub(in crate::linux) fn neighbour_removed(found: &NeighbourState) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelNeighbour(neighbour_message(found.device, found.address, &found.mac))
}

fn forwarding_message(device: u32, mac: &[u8], node: Ipv4Addr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = device;
    message.header.state = Reachability::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes = vec![
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        NeighbourAttribute::Destination(NeighbourAddress::Inet(node)),
    ];
    message
}

pub(in crate::linux) fn forwarding(device: u32, mac: [u8; 6], node: Ipv4Addr) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewNeighbour(forwarding_message(device, &mac, node))
}

pub(in crate::linux) fn forwarding_removed(device: u32, found: &ForwardingEntry) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelNeighbour(forwarding_message(device, &found.mac, found.node))
}

/// All permanent neighbours.
pub(in crate::linux) fn fetch_neighbours(netlink: &mut Netlink) -> Result<Vec<NeighbourState>, Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    let found = netlink.fetch_all("list neighbours", RouteNetlinkMessage::GetNeighbour(message))?;
    Ok(found.into_iter().filter_map(read_neighbour).collect())
}

/// All entries of a VXLAN device.
pub(in crate::linux) fn fetch_forwarding(
    netlink: &mut Netlink,
    device: u32,
) -> Result<Vec<ForwardingEntry>, Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = device;
    let found = netlink.fetch_all("list forwarding entries", RouteNetlinkMessage::GetNeighbour(message))?;
    Ok(found.into_iter().filter_map(|entry| read_forwarding(entry, device)).collect())
}

fn read_neighbour(message: RouteNetlinkMessage) -> Option<NeighbourState> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
    let mut ip = None;
    let mut mac = Vec::new();
    for attribute in message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(found)) => ip = Some(found),
            NeighbourAttribute::LinkLayerAddress(found) => mac = found,
            _ => {}
        }
    }
    let permanent = message.header.state == Reachability::Permanent;
    permanent.then_some(NeighbourState { device: message.header.ifindex, address: ip?, mac })
}

fn read_forwarding(message: RouteNetlinkMessage, device: u32) -> Option<ForwardingEntry> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else { return None };
    let (mut mac, mut node) = (Vec::new(), Ipv4Addr::UNSPECIFIED);
    for attribute in message.attributes {
        match attribute {
            // The decoder knows addresses only of families with addresses.
            NeighbourAttribute::Destination(NeighbourAddress::Other(found)) => {
                node = <[u8; 4]>::try_from(found).ok()?.into();
            }
            NeighbourAttribute::LinkLayerAddress(found) => mac = found,
            _ => {}
        }
    }
    (message.header.ifindex == device).then_some(ForwardingEntry { mac, node })
}
