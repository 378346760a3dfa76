//! The answer to a question, from a [`NameTable`] alone. Pure.
//!
//! These names exist for a client, each also with `.warren` behind it:
//!
//! | name | resolves to |
//! |---|---|
//! | `SERVICE`, or an alias | its virtual address; in mode `dnsrr`, or without one, its ready endpoints |
//! | `tasks.SERVICE` | its ready endpoints |
//! | `SERVICE-SLOT`, `SLOT.tasks.SERVICE` | the ready endpoints of one slot |
//! | `_PORT._tcp.SERVICE` (SRV) | number and name of a port, for each ready endpoint |
//!
//! A name means a service before an alias, and an alias before an instance, on whichever network they are. Among
//! equals the network that the client is attached to first wins. A virtual address is answered also while no endpoint
//! is ready: connections to it are refused at once, and programs that resolve their peers when they start can do so.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ipnet::Ipv4Net;
use smallvec::{SmallVec, smallvec};
use warren_types::catalogue::{instance_name, parse_slot, split_instance_name};
use warren_types::{Endpoint, ServicePort};

use crate::table::{ClientNames, NameTable, Outside, ServiceNames};

/// Seconds that a virtual address may be cached: it stays as long as its service, and is not reused for two minutes.
pub const VIRTUAL_ADDRESS_TTL: u32 = 5;
/// Seconds that addresses of endpoints may be cached: less than the time for which an endpoint that is removed still
/// serves, so that nobody connects to one that has ended.
pub const ENDPOINT_TTL: u32 = 1;
/// Seconds that the absence of a name may be cached: it may be the name of a service that is being created.
pub const NEGATIVE_TTL: u32 = 1;

/// The domain of all names of the cluster.
pub const DOMAIN: &str = "warren";

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Question<'q> {
    /// The labels of the name in lower case, without the root.
    pub labels: &'q [&'q [u8]],
    /// The type of the records.
    pub kind: QuestionKind,
}

/// The types of records that differ in their answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuestionKind {
    /// A.
    Address,
    /// SRV.
    Service,
    /// PTR.
    Pointer,
    /// ANY.
    Any,
    /// AXFR, IXFR.
    Transfer,
    /// Every other type, like AAAA: names of the cluster have no such records.
    Other,
}

/// How a question is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution<'t> {
    /// With A records of the name that was asked.
    Addresses {
        /// In the order of the answer.
        addresses: SmallVec<[Ipv4Addr; 4]>,
        /// Seconds.
        ttl: u32,
    },
    /// With SRV records, and with the addresses of their targets beside them.
    Services(Vec<ServiceTarget>),
    /// With PTR records.
    Names(Vec<InstanceName>),
    /// With one record that says that ANY is not answered (RFC 8482).
    Minimal,
    /// The name exists and has no such record.
    NoData(Zone),
    /// The name does not exist.
    NoName(Zone),
    /// By these upstreams; if there are none, by those of the node.
    Forward(&'t [SocketAddr]),
    /// Not at all: the sender is no client of this node, or may not ask this.
    Refused,
    /// Not now: the catalogue of a network of the client is not known yet.
    Unavailable,
}

/// Where a name ends that has no records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// `warren.`
    Cluster,
    /// The root, for single labels.
    Root,
    /// `in-addr.arpa.`
    Reverse,
}

/// One SRV record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceTarget {
    /// The port of the endpoint.
    pub port: u16,
    /// The name of the endpoint.
    pub target: InstanceName,
    /// Its address.
    pub address: Ipv4Addr,
}

/// A name of the cluster as its labels, without the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct InstanceName(pub SmallVec<[String; 4]>);

/// What a name of the cluster means to a client.
enum Meaning<'t> {
    Services(SmallVec<[&'t ServiceNames; 2]>),
    Tasks(SmallVec<[&'t ServiceNames; 2]>),
    Slot(&'t [Endpoint]),
    Ports(SmallVec<[(&'t ServiceNames, u16); 2]>),
    /// There is only something below it.
    Parent,
}

/// The answer to the question of a client at the address `from`. `seed` selects the order of addresses.
pub fn resolve<'t>(table: &'t NameTable, from: IpAddr, question: &Question<'_>, seed: u64) -> Resolution<'t> {
    let Some(client) = table.client(from) else { return Resolution::Refused };
    if question.kind == QuestionKind::Transfer {
        return Resolution::Refused;
    }
    if let [block @ .., b"in-addr", b"arpa"] = question.labels {
        return resolve_address(table, client, block, question.kind);
    }
    let (labels, zone) = match question.labels {
        [labels @ .., domain] if !labels.is_empty() && *domain == DOMAIN.as_bytes() => {
            (labels, Zone::Cluster)
        }
        labels => (labels, Zone::Root),
    };
    match meaning(client, labels) {
        Some(meaning) => answer(client, meaning, question.kind, zone, seed),
        None if zone == Zone::Cluster || labels.len() == 1 => absent(client, zone),
        None => outside(client, question.kind, zone),
    }
}

/// A name of the cluster, or of one label, that does not exist: it is never forwarded.
fn absent(client: &ClientNames, zone: Zone) -> Resolution<'_> {
    if client.is_complete { Resolution::NoName(zone) } else { Resolution::Unavailable }
}

fn outside(client: &ClientNames, kind: QuestionKind, zone: Zone) -> Resolution<'_> {
    match &client.outside {
        Outside::Forwarded(_) if kind == QuestionKind::Any => Resolution::Minimal,
        Outside::Forwarded(servers) => Resolution::Forward(servers),
        Outside::Hidden => Resolution::NoName(zone),
        Outside::Unknown => Resolution::Unavailable,
        Outside::Refused => Resolution::Refused,
    }
}

fn meaning<'t>(client: &'t ClientNames, labels: &[&[u8]]) -> Option<Meaning<'t>> {
    let mut texts: SmallVec<[&str; 4]> = SmallVec::new();
    for label in labels.iter().take(4) {
        texts.push(std::str::from_utf8(label).ok()?);
    }
    match texts[..] {
        [name] => {
            let services = services(client, name).map(Meaning::Services);
            let slot = || {
                let (service, slot) = split_instance_name(name)?;
                slot_of(client, service, slot)
            };
            let parent = || (name == DOMAIN || name == "tasks").then_some(Meaning::Parent);
            services.or_else(slot).or_else(parent)
        }
        ["tasks", name] => services(client, name).map(Meaning::Tasks),
        [protocol, name] if protocol.starts_with('_') => services(client, name).map(|_| Meaning::Parent),
        [slot, "tasks", name] => slot_of(client, name, parse_slot(slot)?),
        [port, protocol, name] => ports(client, port, protocol, name),
        _ => None,
    }
}

fn services<'t>(client: &'t ClientNames, name: &str) -> Option<SmallVec<[&'t ServiceNames; 2]>> {
    client.service(name).map(|service| smallvec![service]).or_else(|| client.aliased(name))
}

fn slot_of<'t>(client: &'t ClientNames, service: &str, slot: u32) -> Option<Meaning<'t>> {
    let endpoints = client.service(service)?.in_slot(slot);
    (!endpoints.is_empty()).then_some(Meaning::Slot(endpoints))
}

fn ports<'t>(client: &'t ClientNames, port: &str, protocol: &str, name: &str) -> Option<Meaning<'t>> {
    let (port, protocol) = (port.strip_prefix('_')?, protocol.strip_prefix('_')?);
    let is_asked = |known: &&ServicePort| {
        let named = known.name.as_ref().is_some_and(|name| name.as_str() == port);
        known.protocol.as_str() == protocol && (named || known.port.to_string() == port)
    };
    let found = services(client, name)?.into_iter().filter_map(|service| {
        let port = service.ports().iter().find(is_asked)?;
        Some((service, port.port))
    });
    let found: SmallVec<_> = found.collect();
    (!found.is_empty()).then_some(Meaning::Ports(found))
}

fn answer<'t>(
    client: &ClientNames,
    meaning: Meaning<'_>,
    kind: QuestionKind,
    zone: Zone,
    seed: u64,
) -> Resolution<'t> {
    let mut shuffle = Shuffle(seed);
    match (kind, meaning) {
        (QuestionKind::Any, _) => Resolution::Minimal,
        (QuestionKind::Address, Meaning::Services(services)) => {
            let is_virtual = services.iter().all(|service| service.virtual_address.is_some());
            let ttl = if is_virtual { VIRTUAL_ADDRESS_TTL } else { ENDPOINT_TTL };
            let addresses = services.iter().flat_map(|service| {
                let endpoints = service.ready().filter(move |_| service.virtual_address.is_none());
                service.virtual_address.into_iter().chain(endpoints.map(|endpoint| endpoint.address))
            });
            shuffle.addresses(addresses, ttl, zone)
        }
        (QuestionKind::Address, Meaning::Tasks(services)) => {
            let ready = services.iter().flat_map(|service| service.ready());
            shuffle.addresses(ready.map(|endpoint| endpoint.address), ENDPOINT_TTL, zone)
        }
        (QuestionKind::Address, Meaning::Slot(endpoints)) => {
            let ready = endpoints.iter().filter(|endpoint| endpoint.ready);
            shuffle.addresses(ready.map(|endpoint| endpoint.address), ENDPOINT_TTL, zone)
        }
        (QuestionKind::Service, Meaning::Ports(ports)) => {
            let targets = ports.iter().flat_map(|(service, port)| {
                service.ready().map(move |endpoint| ServiceTarget {
                    port: *port,
                    target: endpoint_name(client, service, endpoint.slot),
                    address: endpoint.address,
                })
            });
            let mut targets: Vec<_> = targets.collect();
            shuffle.apply(&mut targets);
            if targets.is_empty() { Resolution::NoData(zone) } else { Resolution::Services(targets) }
        }
        _ => Resolution::NoData(zone),
    }
}

/// A name that resolves to the endpoints of a slot, whatever other names there are.
fn endpoint_name(client: &ClientNames, service: &ServiceNames, slot: u32) -> InstanceName {
    let short = instance_name(&service.name, slot);
    if short.len() <= 63 && services(client, &short).is_none() {
        return InstanceName(smallvec![short, DOMAIN.to_owned()]);
    }
    let service = service.name.to_string();
    InstanceName(smallvec![slot.to_string(), "tasks".to_owned(), service, DOMAIN.to_owned()])
}

/// A name below `in-addr.arpa`. An endpoint has a name also while it is not ready: that leads nobody to it.
fn resolve_address<'t>(
    table: &NameTable,
    client: &'t ClientNames,
    labels: &[&[u8]],
    kind: QuestionKind,
) -> Resolution<'t> {
    let octets: SmallVec<[u8; 4]> = labels.iter().rev().map_while(|label| octet(label)).take(4).collect();
    let mut address = [0; 4];
    address[..octets.len()].copy_from_slice(&octets);
    let (address, is_whole) = (Ipv4Addr::from(address), octets.len() == labels.len());
    if is_whole && octets.len() == 4 {
        let mut names: Vec<InstanceName> = Vec::new();
        for (service, slot) in client.owners(address) {
            let name = match slot {
                Some(slot) => endpoint_name(client, service, slot),
                None => InstanceName(smallvec![service.name.to_string(), DOMAIN.to_owned()]),
            };
            if !names.contains(&name) {
                names.push(name);
            }
        }
        match kind {
            _ if names.is_empty() => {}
            QuestionKind::Pointer => return Resolution::Names(names),
            QuestionKind::Any => return Resolution::Minimal,
            _ => return Resolution::NoData(Zone::Reverse),
        }
    }
    let block = Ipv4Net::new(address, 8 * octets.len() as u8).unwrap_or_default();
    match table.is_of_cluster(block) {
        false => outside(client, kind, Zone::Reverse),
        true if is_whole && octets.len() < 4 => Resolution::NoData(Zone::Reverse),
        true => absent(client, Zone::Reverse),
    }
}

fn octet(label: &[u8]) -> Option<u8> {
    let is_canonical = label == b"0" || !label.starts_with(b"0") && label.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(label).ok()?.parse().ok().filter(|_| is_canonical)
}

/// Orders by a seed (SplitMix64).
struct Shuffle(u64);

impl Shuffle {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn apply<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The product's upper half is below `last + 1`.
            let other = (u128::from(self.next()) * (last as u128 + 1)) >> 64;
            items.swap(last, other as usize);
        }
    }

    fn addresses<'t>(
        &mut self,
        addresses: impl Iterator<Item = Ipv4Addr>,
        ttl: u32,
        zone: Zone,
    ) -> Resolution<'t> {
        let mut addresses: SmallVec<[Ipv4Addr; 4]> = addresses.collect();
        self.apply(&mut addresses);
        if addresses.is_empty() { Resolution::NoData(zone) } else { Resolution::Addresses { addresses, ttl } }
    }
}

#[cfg(test)]
mod tests;
