//! The chains and rules of one node, in parts: a change renders only the parts that depend on it.
//!
//! Tables are written in the order raw, mangle, filter, nat: protection before forwarding.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::{ChainJump, IptablesTable, base, ingress, ports, services};
use crate::keys::HostPort;
use crate::model::{NodeNetwork, NodeNetworkSettings};

/// Jumps from the built-in chains into those of this crate, in the spelling of `iptables-save`.
pub(super) fn jumps(settings: &NodeNetworkSettings) -> Vec<ChainJump> {
    let jump = |table, chain, rule| ChainJump { table, chain, rule };
    let mut jumps = vec![
        jump("raw", "PREROUTING", "-j WARREN-RAW"),
        jump("raw", "OUTPUT", "-j WARREN-RAW-OUT"),
        jump("filter", "FORWARD", "-i wc+ -j WARREN-FWD"),
        jump("filter", "FORWARD", "-o wc+ -j WARREN-FWD"),
        jump("filter", "INPUT", "-j WARREN-IN"),
        jump("filter", "OUTPUT", "-j WARREN-OUT"),
        jump("nat", "PREROUTING", "-j WARREN-PRE"),
        jump("nat", "OUTPUT", "-j WARREN-OUT"),
        jump("nat", "POSTROUTING", "-j WARREN-POST"),
    ];
    if settings.overlay().is_some() {
        jumps.extend([
            jump("mangle", "PREROUTING", "-j WARREN-PRE"),
            jump("mangle", "OUTPUT", "-j WARREN-OUT"),
            jump("mangle", "POSTROUTING", "-j WARREN-POST"),
            jump("filter", "FORWARD", "-i warren-vx -j WARREN-FWD"),
            jump("filter", "FORWARD", "-o warren-vx -j WARREN-FWD"),
        ]);
    }
    jumps
}

/// All chains.
pub(super) fn tables(node: &NodeNetwork) -> Vec<IptablesTable> {
    render(node, &Parts::all(node))
}

/// Groups of chains, by what they depend on.
#[derive(Debug, PartialEq, Eq)]
struct Parts {
    /// Settings and peers.
    base: bool,
    /// Which ports are published, and which of them have a backend.
    port_trees: bool,
    /// Which virtual addresses have a backend.
    tree: bool,
    /// Backends that are tasks of this node.
    hairpin: bool,
    /// The backends of each of these virtual addresses.
    services: BTreeSet<Ipv4Addr>,
    /// The backends of each of these published ports.
    ports: BTreeSet<HostPort>,
}

impl Parts {
    fn all(node: &NodeNetwork) -> Self {
        let services = node.cluster.services.keys().copied().collect();
        let ports = ingress::published_ports(node);
        Self { base: true, port_trees: true, tree: true, hairpin: true, services, ports }
    }

    /// The parts that can differ between two states of a node.
    fn between(before: &NodeNetwork, after: &NodeNetwork) -> Self {
        let same_cluster = Arc::ptr_eq(&before.cluster, &after.cluster);
        let same_settings = before.settings == after.settings;
        let (old, new) = (&before.cluster.services, &after.cluster.services);
        let (mut services, mut ports) = (BTreeSet::new(), changed(&before.ports, &after.ports));
        if !same_cluster {
            services = changed(old, new);
            ports.extend(changed(&before.cluster.ingress, &after.cluster.ingress));
            ports.extend(changed(&before.cluster.balancing, &after.cluster.balancing));
        }
        if !same_settings {
            // They decide which backends can be reached.
            ports.extend([before, after].into_iter().flat_map(ingress::published_ports));
        }
        let is_open = |all: &BTreeMap<Ipv4Addr, BTreeSet<Ipv4Addr>>, ip| {
            all.get(ip).is_some_and(|backends| !backends.is_empty())
        };
        let base = !same_settings || !same_cluster && before.cluster.peers != after.cluster.peers;
        let is_own = |ip: &Ipv4Addr| after.settings.is_own(*ip);
        let mut of_services = services.iter().flat_map(|ip| [old.get(ip), new.get(ip)]).flatten().flatten();
        let published = |at| [before, after].map(|node| ingress::published(node, at));
        let mut of_ports = ports.iter().flat_map(published).flatten();
        let own = of_services.any(is_own)
            || of_ports.any(|backends| backends.iter().any(|backend| is_own(backend.ip())));
        let is_moved = |at| {
            let [was, is] = published(at).map(|backends| backends.map(|backends| backends.is_empty()));
            was != is
        };
        Self {
            base,
            port_trees: ports.iter().any(is_moved),
            tree: services.iter().any(|ip| is_open(old, ip) != is_open(new, ip)),
            hairpin: base || own,
            services,
            ports,
        }
    }
}

/// The keys whose values differ.
fn changed<K: Ord + Copy, V: PartialEq>(old: &BTreeMap<K, V>, new: &BTreeMap<K, V>) -> BTreeSet<K> {
    let other = old.iter().filter(|(key, was)| new.get(*key) != Some(was)).map(|(key, _)| *key);
    other.chain(new.keys().filter(|key| !old.contains_key(*key)).copied()).collect()
}

fn render(node: &NodeNetwork, parts: &Parts) -> Vec<IptablesTable> {
    let table = |name| IptablesTable { name, chains: BTreeMap::new() };
    let [mut raw, mut mangle, mut filter, mut nat] = ["raw", "mangle", "filter", "nat"].map(table);
    if parts.base {
        raw.chains.extend(base::raw(&node.settings));
        mangle.chains.extend(base::mangle(&node.settings));
        filter.chains.extend(base::filter(node));
        nat.chains.extend(base::nat(node));
    }
    if parts.port_trees {
        filter.chains.extend(ports::closed(node));
        nat.chains.extend(ports::translated(node));
    }
    if parts.tree {
        nat.chains.extend(services::tree(node));
    }
    if parts.hairpin {
        nat.chains.extend(services::hairpin(node));
    }
    nat.chains.extend(parts.services.iter().filter_map(|ip| services::backends_of(node, *ip)));
    nat.chains.extend(parts.ports.iter().filter_map(|at| ports::backends_of(node, at)));
    vec![raw, mangle, filter, nat]
}

/// A chain that differs between two states of a node: its rules now, `None` when it is removed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ChainChange {
    pub table: &'static str,
    pub chain: String,
    pub rules: Option<Vec<String>>,
}

/// The differences between two states of a node, in the order of tables and chains.
pub(crate) fn chain_changes(before: &NodeNetwork, after: &NodeNetwork) -> Vec<ChainChange> {
    let parts = Parts::between(before, after);
    let mut changes = Vec::new();
    for (mut old, new) in render(before, &parts).into_iter().zip(render(after, &parts)) {
        let table = new.name;
        for (chain, rules) in new.chains {
            if old.chains.remove(&chain).as_ref() != Some(&rules) {
                changes.push(ChainChange { table, chain, rules: Some(rules) });
            }
        }
        let removed = old.chains.into_keys().map(|chain| ChainChange { table, chain, rules: None });
        changes.extend(removed);
    }
    changes
}

#[cfg(test)]
mod tests;
