//! Separation of networks: who may connect to whom, as the content of one nftables table.
//!
//! A new connection of a task is checked once, on its own node, by two lookups: the address of the task
//! gives its *class*, one for each combination of networks, and the pair of destination and class must be
//! in a set. So neither the number of networks nor of tasks costs a packet anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::Ipv4Addr;

use crate::model::{DEFAULT_NETWORK, NetworkNumber, NodeNetwork, NodeNetworkSettings};

/// Where clouds serve the credentials of a machine to everything that runs on it.
const METADATA_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 169, 254);

/// The class of a single network is its number; classes of combinations have this bit.
const COMBINATION: u32 = 0x8000_0000;

/// The content of the table. Classes are packet marks while a packet is being checked, and never outside.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Isolation {
    /// The class of each task of this node.
    pub classes: BTreeMap<Ipv4Addr, u32>,
    /// Destinations and the classes that may connect to them.
    pub allowed: BTreeSet<(Ipv4Addr, u32)>,
    /// Tasks of this node without a way out: all their networks are internal.
    pub confined: BTreeSet<Ipv4Addr>,
    /// Tasks of this node that may reach the metadata service.
    pub metadata: BTreeSet<Ipv4Addr>,
    /// The chains, in the syntax of nft.
    pub chains: String,
}

pub(super) fn isolation(node: &NodeNetwork) -> Isolation {
    let mut by_networks: BTreeMap<&BTreeSet<NetworkNumber>, Vec<Ipv4Addr>> = BTreeMap::new();
    let mut members: BTreeMap<NetworkNumber, BTreeSet<Ipv4Addr>> = BTreeMap::new();
    let mut found = Isolation { chains: chains(&node.settings), ..Isolation::default() };
    for task in node.tasks.values() {
        by_networks.entry(&task.networks).or_default().push(task.address);
        for network in &task.networks {
            members.entry(*network).or_default().insert(task.address);
        }
        if task.allows_metadata {
            found.metadata.insert(task.address);
        }
        // A network of which nothing is known yet may be internal.
        let is_internal = |number: &NetworkNumber| match node.cluster.networks.get(number) {
            Some(network) => network.internal,
            None => *number != DEFAULT_NETWORK,
        };
        if task.networks.iter().all(is_internal) {
            found.confined.insert(task.address);
        }
    }
    let mut taken = BTreeSet::new();
    for (networks, tasks) in by_networks {
        let class = class(networks, &mut taken);
        found.classes.extend(tasks.into_iter().map(|address| (address, class)));
        for number in networks {
            let known = node.cluster.networks.get(number).into_iter().flat_map(|network| &network.members);
            let local = members.get(number).into_iter().flatten();
            found.allowed.extend(known.chain(local).map(|address| (*address, class)));
        }
    }
    found
}

/// The class of a combination of networks. It does not depend on other combinations, unless two have the
/// same hash, so that a new one does not change the class of others.
fn class(networks: &BTreeSet<NetworkNumber>, taken: &mut BTreeSet<u32>) -> u32 {
    let single = networks.first().filter(|number| networks.len() == 1 && (1..COMBINATION).contains(*number));
    if let Some(number) = single {
        return *number;
    }
    let bytes = networks.iter().flat_map(|number| number.to_be_bytes());
    let hash = bytes.fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193) // FNV-1a
    });
    let mut class = hash | COMBINATION;
    while !taken.insert(class) {
        class = class.wrapping_add(1) | COMBINATION;
    }
    class
}

/// The chains run before those of iptables, so that a refused connection is never accepted by a rule of
/// others. Connections of the node itself are not checked.
fn chains(settings: &NodeNetworkSettings) -> String {
    let list = |ranges: Vec<String>| match ranges.is_empty() {
        // No range is this one: an address that is never a destination.
        true => "{ 0.0.0.0/32 }".to_owned(),
        false => format!("{{ {} }}", ranges.join(", ")),
    };
    let cluster = list(settings.cluster().iter().map(ToString::to_string).collect());
    let virtually = list(settings.virtual_ranges().map(|range| range.to_string()).collect());
    let mut text = String::new();
    let mut chain = |name: &str, hook: &str, rules: &[String]| {
        let body: String = rules.iter().map(|rule| format!("\t\t{rule}\n")).collect();
        write!(text, "\tchain {name} {{\n{hook}{body}\t}}\n").expect("writing to a string works");
    };
    let is_metadata = format!("ct original ip daddr {METADATA_ADDRESS} ip saddr != @metadata goto refuse");
    // A TCP client learns of an ICMP answer only with its second attempt.
    let refuse = [
        "meta mark set 0x0",
        "meta l4proto tcp reject with tcp reset",
        "reject with icmp type admin-prohibited",
    ];
    chain("refuse", "", &refuse.map(str::to_owned));
    let isolate = [
        // Virtual addresses without a backend are rejected by iptables.
        format!("ip daddr {virtually} accept"),
        "meta mark set 0x0".to_owned(),
        "meta mark set ip saddr map @class".to_owned(),
        "ip daddr . meta mark @allowed meta mark set 0x0 accept".to_owned(),
        "goto refuse".to_owned(),
    ];
    chain("isolate", "", &isolate);
    let forward = [
        "iifname != \"wc*\" accept".to_owned(),
        "ct state established,related accept".to_owned(),
        is_metadata.clone(),
        "ip saddr @confined goto isolate".to_owned(),
        // A published port is open to all networks.
        format!("ct status dnat ct original ip daddr != {virtually} accept"),
        format!("ip daddr {cluster} goto isolate"),
    ];
    chain("forward", "\t\ttype filter hook forward priority -5; policy accept;\n", &forward);
    let input = [
        "iifname != \"wc*\" accept".to_owned(),
        "ct state established,related accept".to_owned(),
        is_metadata,
        "ip saddr != @confined accept".to_owned(),
        format!("ip daddr {} meta l4proto {{ tcp, udp }} th dport 53 accept", settings.gateway()),
        format!("ip daddr {} meta l4proto icmp accept", settings.gateway()),
        "goto refuse".to_owned(),
    ];
    chain("input", "\t\ttype filter hook input priority -5; policy accept;\n", &input);
    text
}

#[cfg(test)]
mod tests;
