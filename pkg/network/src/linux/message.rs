//! The netlink messages in use, and the parsing of kernel answers.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{AddressMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::netlink::Netlink;
use crate::Error;
use crate::desired::TaskLink;
use crate::names::{GATEWAY_MAC, ROUTE_PROTOCOL};

/// A link as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkState {
    pub name: String,
    pub index: u32,
    /// Index of the other end of a veth, in the other end's namespace.
    pub peer: Option<u32>,
    pub mac: Vec<u8>,
    pub mtu: u32,
    pub veth: bool,
    pub up: bool,
}

/// A route of this crate as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RouteState {
    pub destination: Ipv4Net,
    pub device: Option<u32>,
    pub gateway: Option<Ipv4Addr>,
    pub source: Option<Ipv4Addr>,
    pub metric: u32,
    pub kind: RouteType,
    message: RouteMessage,
}

/// An IPv4 address of a device as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressState {
    pub address: Ipv4Addr,
    pub label: Option<String>,
    message: AddressMessage,
}

pub(super) fn veth(link: &TaskLink, namespace: std::os::fd::RawFd) -> RouteNetlinkMessage {
    let peer = LinkUnspec::new_with_name("eth0")
        .address(link.mac.to_vec())
        .mtu(link.mtu)
        .setns_by_fd(namespace)
        .build();
    RouteNetlinkMessage::NewLink(
        LinkVeth::new(&link.name, "eth0")
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .address(GATEWAY_MAC.to_vec())
            .mtu(link.mtu)
            .build(),
    )
}

pub(super) fn link_up(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::SetLink(LinkUnspec::new_with_index(index).up().build())
}

/// Brings the host's end up and stores the task id as its alias, visible in `ip link`.
pub(super) fn link_up_for(index: u32, link: &TaskLink) -> RouteNetlinkMessage {
    let message = LinkUnspec::new_with_index(index).up().alias(format!("warren task {}", link.task));
    RouteNetlinkMessage::SetLink(message.build())
}

pub(super) fn link_removed(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelLink(LinkUnspec::new_with_index(index).build())
}

pub(super) fn address(index: u32, address: Ipv4Addr, label: Option<&str>) -> RouteNetlinkMessage {
    let mut message = AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(address, 32).build();
    message.attributes.extend(label.map(|label| AddressAttribute::Label(label.to_owned())));
    RouteNetlinkMessage::NewAddress(message)
}

pub(super) fn address_removed(found: &AddressState) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelAddress(found.message.clone())
}

fn route() -> RouteMessageBuilder<Ipv4Addr> {
    RouteMessageBuilder::<Ipv4Addr>::new().protocol(RouteProtocol::Other(ROUTE_PROTOCOL))
}

pub(super) fn route_to_link(
    destination: Ipv4Addr,
    device: u32,
    source: Option<Ipv4Addr>,
) -> RouteNetlinkMessage {
    let route = route().destination_prefix(destination, 32).output_interface(device).scope(RouteScope::Link);
    RouteNetlinkMessage::NewRoute(source.map_or(route.clone(), |source| route.pref_source(source)).build())
}

pub(super) fn default_route(gateway: Ipv4Addr, device: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRoute(route().gateway(gateway).output_interface(device).build())
}

pub(super) fn unreachable(destination: Ipv4Net, metric: u32) -> RouteNetlinkMessage {
    let route = route()
        .destination_prefix(destination.network(), destination.prefix_len())
        .kind(RouteType::Unreachable)
        .priority(metric);
    RouteNetlinkMessage::NewRoute(route.build())
}

pub(super) fn route_removed(found: &RouteState) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRoute(found.message.clone())
}

pub(super) fn neighbour(device: u32, address: Ipv4Addr, mac: [u8; 6]) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.ifindex = device;
    message.header.state = NeighbourState::Permanent;
    message.attributes = vec![
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
        NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
    ];
    RouteNetlinkMessage::NewNeighbour(message)
}

pub(super) fn fetch_link(netlink: &mut Netlink, name: &str) -> Result<Option<LinkState>, Error> {
    let message = LinkUnspec::new_with_name(name).build();
    let found = netlink.fetch(&format!("look up link {name}"), RouteNetlinkMessage::GetLink(message))?;
    Ok(found.and_then(read_link))
}

/// All links of the namespace.
pub(super) fn fetch_links(netlink: &mut Netlink) -> Result<Vec<LinkState>, Error> {
    let found = netlink.fetch_all("list links", RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    Ok(found.into_iter().filter_map(read_link).collect())
}

/// All routes of this crate in the main table, of one device or of all.
pub(super) fn fetch_routes(netlink: &mut Netlink, device: Option<u32>) -> Result<Vec<RouteState>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.extend(device.map(RouteAttribute::Oif));
    let found = netlink.fetch_all("list routes", RouteNetlinkMessage::GetRoute(message))?;
    Ok(found.into_iter().filter_map(read_route).collect())
}

/// All IPv4 addresses of a device.
pub(super) fn fetch_addresses(netlink: &mut Netlink, device: u32) -> Result<Vec<AddressState>, Error> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.index = device;
    let found = netlink.fetch_all("list addresses", RouteNetlinkMessage::GetAddress(message))?;
    Ok(found.into_iter().filter_map(read_address).collect())
}

/// Permanent neighbours: device, address and hardware address of each.
pub(super) fn fetch_neighbours(netlink: &mut Netlink) -> Result<Vec<(u32, Ipv4Addr, Vec<u8>)>, Error> {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet;
    let found = netlink.fetch_all("list neighbours", RouteNetlinkMessage::GetNeighbour(message))?;
    Ok(found.into_iter().filter_map(read_neighbour).collect())
}

fn read_link(message: RouteNetlinkMessage) -> Option<LinkState> {
    let RouteNetlinkMessage::NewLink(message) = message else { return None };
    let mut found = LinkState {
        name: String::new(),
        index: message.header.index,
        peer: None,
        mac: Vec::new(),
        mtu: 0,
        veth: false,
        up: message.header.flags.contains(LinkFlags::Up),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::Link(index) => found.peer = Some(index),
            LinkAttribute::Address(mac) => found.mac = mac,
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            LinkAttribute::LinkInfo(infos) => {
                found.veth = infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Veth)));
            }
            _ => {}
        }
    }
    Some(found)
}

fn read_route(message: RouteNetlinkMessage) -> Option<RouteState> {
    let RouteNetlinkMessage::NewRoute(message) = message else { return None };
    let header = &message.header;
    if header.protocol != RouteProtocol::Other(ROUTE_PROTOCOL) {
        return None;
    }
    let (mut to, mut device, mut gateway, mut source, mut metric) =
        (Ipv4Addr::UNSPECIFIED, None, None, None, 0);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(found)) => to = *found,
            RouteAttribute::Gateway(RouteAddress::Inet(found)) => gateway = Some(*found),
            RouteAttribute::PrefSource(RouteAddress::Inet(found)) => source = Some(*found),
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Priority(found) => metric = *found,
            _ => {}
        }
    }
    let destination = Ipv4Net::new(to, header.destination_prefix_length).ok()?;
    Some(RouteState { destination, device, gateway, source, metric, kind: header.kind, message })
}

fn read_address(message: RouteNetlinkMessage) -> Option<AddressState> {
    let RouteNetlinkMessage::NewAddress(message) = message else { return None };
    let mut local = None;
    let mut label = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(IpAddr::V4(found)) => local = Some(*found),
            AddressAttribute::Label(found) => label = Some(found.clone()),
            _ => {}
        }
    }
    // The kernel rejects the removal of an address if lifetime or flags are included.
    let mut bare = AddressMessage::default();
    bare.header = message.header.clone();
    let keep = |attribute: &&AddressAttribute| {
        matches!(
            attribute,
            AddressAttribute::Local(_) | AddressAttribute::Address(_) | AddressAttribute::Label(_)
        )
    };
    bare.attributes = message.attributes.iter().filter(keep).cloned().collect();
    Some(AddressState { address: local?, label, message: bare })
}

fn read_neighbour(message: RouteNetlinkMessage) -> Option<(u32, Ipv4Addr, Vec<u8>)> {
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
    let permanent = message.header.state == NeighbourState::Permanent;
    permanent.then_some((message.header.ifindex, ip?, mac))
}
