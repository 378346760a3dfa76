//! Routes, and the rules that select their tables.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteMetric, RouteProtocol, RouteScope,
    RouteType,
};
use rtnetlink::packet_route::rule::{RuleAction as Action, RuleAttribute, RuleMessage, RulePortRange};
use rtnetlink::packet_route::{AddressFamily, IpProtocol, RouteNetlinkMessage};

use crate::Error;
use crate::desired::{MAIN_TABLE, PacketMark, Route, RoutingRule, RuleAction, UdpPort};
use crate::linux::netlink::{Netlink, NetlinkChange};
use crate::names::ROUTE_PROTOCOL;

/// A route as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::linux) struct RouteState {
    pub table: u32,
    pub destination: Ipv4Net,
    pub device: Option<u32>,
    pub gateway: Option<Ipv4Addr>,
    pub source: Option<Ipv4Addr>,
    pub metric: u32,
    /// MTU of the route, if it has its own.
    pub mtu: Option<u32>,
    pub kind: RouteType,
    message: RouteMessage,
}

impl RouteState {
    /// Whether this crate created the route.
    pub fn is_own(&self) -> bool {
        self.message.header.protocol == RouteProtocol::Other(ROUTE_PROTOCOL)
    }
}

/// A rule of this crate as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::linux) struct RuleState {
    pub rule: RoutingRule,
    message: RuleMessage,
}

impl RuleState {
    /// Whether this is the desired rule.
    pub fn is(&self, desired: &RoutingRule) -> bool {
        let is_known = matches!(self.message.header.action, Action::ToTable | Action::Goto | Action::Nop);
        is_known && self.rule == *desired
    }
}

fn route() -> RouteMessageBuilder<Ipv4Addr> {
    RouteMessageBuilder::<Ipv4Addr>::new().protocol(RouteProtocol::Other(ROUTE_PROTOCOL))
}

pub(in crate::linux) fn route_to_link(
    destination: Ipv4Addr,
    device: u32,
    source: Option<Ipv4Addr>,
) -> RouteNetlinkMessage {
    let route = route().destination_prefix(destination, 32).output_interface(device).scope(RouteScope::Link);
    RouteNetlinkMessage::NewRoute(source.map_or(route.clone(), |source| route.pref_source(source)).build())
}

pub(in crate::linux) fn default_route(gateway: Ipv4Addr, device: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::NewRoute(route().gateway(gateway).output_interface(device).build())
}

/// A route of the node as a whole, whose device has the given index.
pub(in crate::linux) fn node_route(desired: &Route, device: Option<u32>) -> RouteNetlinkMessage {
    let destination = desired.destination;
    let mut message = route().destination_prefix(destination.network(), destination.prefix_len());
    if desired.table != MAIN_TABLE {
        message = message.table_id(desired.table);
    }
    if desired.metric != 0 {
        message = message.priority(desired.metric);
    }
    if let Some(source) = desired.source {
        message = message.pref_source(source);
    }
    message = match (device, desired.via) {
        (None, _) => message.kind(RouteType::Unreachable),
        (Some(index), None) => message.output_interface(index).scope(RouteScope::Link),
        (Some(index), Some(via)) if desired.onlink => message.output_interface(index).gateway(via).onlink(),
        (Some(index), Some(via)) => message.output_interface(index).gateway(via),
    };
    RouteNetlinkMessage::NewRoute(message.build())
}

pub(in crate::linux) fn route_removed(found: &RouteState) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRoute(found.message.clone())
}

fn rule_message(desired: &RoutingRule) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.attributes = vec![
        RuleAttribute::Priority(desired.priority),
        RuleAttribute::Protocol(RouteProtocol::Other(ROUTE_PROTOCOL)),
    ];
    let RoutingRule { source, destination, udp, .. } = desired;
    message.header.action = match desired.action {
        RuleAction::Table(table) => {
            message.attributes.push(RuleAttribute::Table(table));
            Action::ToTable
        }
        RuleAction::Goto(priority) => {
            message.attributes.push(RuleAttribute::Goto(priority));
            Action::Goto
        }
        RuleAction::Nop => Action::Nop,
    };
    if let Some(PacketMark { value, mask }) = desired.mark {
        message.attributes.extend([RuleAttribute::FwMark(value), RuleAttribute::FwMask(mask)]);
    }
    message.header.dst_len = destination.prefix_len();
    if message.header.dst_len > 0 {
        message.attributes.push(RuleAttribute::Destination(IpAddr::V4(destination.network())));
    }
    message.header.src_len = source.prefix_len();
    if message.header.src_len > 0 {
        message.attributes.push(RuleAttribute::Source(IpAddr::V4(source.network())));
    }
    if let Some(udp) = *udp {
        let one = |port| RulePortRange { start: port, end: port };
        message.attributes.push(RuleAttribute::IpProtocol(IpProtocol::Udp));
        message.attributes.push(match udp {
            UdpPort::From(port) => RuleAttribute::SourcePortRange(one(port)),
            UdpPort::To(port) => RuleAttribute::DestinationPortRange(one(port)),
        });
    }
    message
}

pub(in crate::linux) fn rule(desired: &RoutingRule) -> NetlinkChange {
    let what = format!("add the routing rule of {desired}");
    let message = RouteNetlinkMessage::NewRule(rule_message(desired));
    NetlinkChange { flags: NLM_F_CREATE | NLM_F_EXCL, ..NetlinkChange::set(what, message) }
}

pub(in crate::linux) fn rule_removed(found: &RuleState) -> RouteNetlinkMessage {
    RouteNetlinkMessage::DelRule(found.message.clone())
}

/// All routes of this crate: those of one device in the main table, or all of all tables.
pub(in crate::linux) fn fetch_routes(
    netlink: &mut Netlink,
    device: Option<u32>,
) -> Result<Vec<RouteState>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    if device.is_some() {
        message.header.table = RouteHeader::RT_TABLE_MAIN;
    }
    message.header.protocol = RouteProtocol::Other(ROUTE_PROTOCOL);
    message.attributes.extend(device.map(RouteAttribute::Oif));
    let found = netlink.fetch_all("list routes", RouteNetlinkMessage::GetRoute(message))?;
    Ok(found.into_iter().filter_map(read_route).filter(RouteState::is_own).collect())
}

/// All IPv4 routes of all tables, whoever created them.
pub(in crate::linux) fn fetch_all_routes(netlink: &mut Netlink) -> Result<Vec<RouteState>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    let found = netlink.fetch_all("list routes", RouteNetlinkMessage::GetRoute(message))?;
    Ok(found.into_iter().filter_map(read_route).collect())
}

/// The route that packets to an address take.
pub(in crate::linux) fn fetch_route_to(
    netlink: &mut Netlink,
    address: Ipv4Addr,
) -> Result<Option<RouteState>, Error> {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.destination_prefix_length = 32;
    message.attributes.push(RouteAttribute::Destination(RouteAddress::Inet(address)));
    let what = format!("look up the route to {address}");
    Ok(netlink.fetch(&what, RouteNetlinkMessage::GetRoute(message))?.and_then(read_route))
}

/// All rules of this crate.
pub(in crate::linux) fn fetch_rules(netlink: &mut Netlink) -> Result<Vec<RuleState>, Error> {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    let found = netlink.fetch_all("list routing rules", RouteNetlinkMessage::GetRule(message))?;
    Ok(found.into_iter().filter_map(read_rule).collect())
}

fn read_route(message: RouteNetlinkMessage) -> Option<RouteState> {
    let RouteNetlinkMessage::NewRoute(message) = message else { return None };
    let header = &message.header;
    let (mut to, mut device, mut gateway, mut source, mut metric, mut mtu) =
        (Ipv4Addr::UNSPECIFIED, None, None, None, 0, None);
    let mut table = u32::from(header.table);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(found)) => to = *found,
            RouteAttribute::Gateway(RouteAddress::Inet(found)) => gateway = Some(*found),
            RouteAttribute::PrefSource(RouteAddress::Inet(found)) => source = Some(*found),
            RouteAttribute::Oif(index) => device = Some(*index),
            RouteAttribute::Priority(found) => metric = *found,
            RouteAttribute::Table(found) => table = *found,
            RouteAttribute::Metrics(found) => {
                mtu = found.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let destination = Ipv4Net::new(to, header.destination_prefix_length).ok()?;
    Some(RouteState { table, destination, device, gateway, source, metric, mtu, kind: header.kind, message })
}

fn read_rule(message: RouteNetlinkMessage) -> Option<RuleState> {
    let RouteNetlinkMessage::NewRule(message) = message else { return None };
    let (mut from, mut to, mut own) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, false);
    let (mut table, mut target, mut value, mut mask) = (message.header.table.into(), 0, 0, None);
    // The action follows from the attributes.
    let mut rule = RoutingRule::new(0, RuleAction::Nop);
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Source(IpAddr::V4(found)) => from = *found,
            RuleAttribute::Destination(IpAddr::V4(found)) => to = *found,
            RuleAttribute::Priority(found) => rule.priority = *found,
            RuleAttribute::Table(found) => table = *found,
            RuleAttribute::Goto(found) => target = *found,
            RuleAttribute::FwMark(found) => value = *found,
            RuleAttribute::FwMask(found) => mask = Some(*found),
            RuleAttribute::SourcePortRange(found) => rule.udp = Some(UdpPort::From(found.start)),
            RuleAttribute::DestinationPortRange(found) => rule.udp = Some(UdpPort::To(found.start)),
            RuleAttribute::Protocol(found) => own = *found == RouteProtocol::Other(ROUTE_PROTOCOL),
            _ => {}
        }
    }
    rule.source = Ipv4Net::new(from, message.header.src_len).ok()?;
    rule.destination = Ipv4Net::new(to, message.header.dst_len).ok()?;
    rule.mark = mask.map(|mask| PacketMark { value, mask });
    rule.action = match message.header.action {
        Action::Goto => RuleAction::Goto(target),
        Action::Nop => RuleAction::Nop,
        _ => RuleAction::Table(table),
    };
    own.then_some(RuleState { rule, message })
}
