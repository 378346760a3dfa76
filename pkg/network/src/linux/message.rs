//! The netlink messages in use, and the parsing of kernel answers: links and addresses here, routes and
//! neighbours in their own modules.

mod neighbour;
mod route;

use std::net::{IpAddr, Ipv4Addr};

use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::packet_route::link::{
    InfoData, InfoKind, InfoVeth, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use rtnetlink::{AddressMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan};

use super::netlink::Netlink;
use crate::Error;
use crate::desired::{OverlayDevice, TaskLink};
use crate::names::GATEWAY_MAC;
pub(super) use neighbour::{
    NeighbourState, fetch_forwarding, fetch_neighbours, forwarding, forwarding_removed, neighbour,
    neighbour_removed,
};
pub(super) use route::{
    RouteState, default_route, fetch_all_routes, fetch_route_to, fetch_routes, fetch_rules, node_route,
    route_removed, route_to_link, rule, rule_removed,
};

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
    pub vxlan: Option<VxlanState>,
    pub up: bool,
}

/// A VXLAN device as reported by the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct VxlanState {
    pub vni: u32,
    pub local: Option<Ipv4Addr>,
    pub port: u16,
    pub learning: bool,
    pub group_policy: bool,
}

/// An IPv4 address of a device as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressState {
    pub device: u32,
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

/// A pair of links in one namespace.
pub(super) fn veth_pair(name: &str, peer: &str) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewLink(LinkVeth::new(name, peer).build())
}

pub(super) fn vxlan(device: &OverlayDevice) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewLink(
        LinkVxlan::new(device.name, device.vni)
            .local(device.local)
            .port(device.port)
            .learning(false)
            .gbp()
            .address(device.mac.to_vec())
            .mtu(device.mtu)
            .build(),
    )
}

pub(super) fn link_mtu(index: u32, mtu: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::SetLink(LinkUnspec::new_with_index(index).mtu(mtu).build())
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

/// All IPv4 addresses of a device; of every device for index 0.
pub(super) fn fetch_addresses(netlink: &mut Netlink, device: u32) -> Result<Vec<AddressState>, Error> {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.index = device;
    let found = netlink.fetch_all("list addresses", RouteNetlinkMessage::GetAddress(message))?;
    Ok(found.into_iter().filter_map(read_address).collect())
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
        vxlan: None,
        up: message.header.flags.contains(LinkFlags::Up),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => found.name = name,
            LinkAttribute::Link(index) => found.peer = Some(index),
            LinkAttribute::Address(mac) => found.mac = mac,
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            LinkAttribute::LinkInfo(infos) => {
                found.veth = infos.contains(&LinkInfo::Kind(InfoKind::Veth));
                found.vxlan = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Vxlan(settings)) => Some(read_vxlan(settings)),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(found)
}

fn read_vxlan(settings: &[InfoVxlan]) -> VxlanState {
    let mut found = VxlanState::default();
    for setting in settings {
        match setting {
            InfoVxlan::Id(vni) => found.vni = *vni,
            InfoVxlan::Local(address) => found.local = Some(*address),
            InfoVxlan::Port(port) => found.port = *port,
            InfoVxlan::Learning(learning) => found.learning = *learning,
            InfoVxlan::Gbp => found.group_policy = true,
            _ => {}
        }
    }
    found
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
    Some(AddressState { device: bare.header.index, address: local?, label, message: bare })
}
