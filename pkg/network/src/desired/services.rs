//! The chains of virtual addresses: a tree that finds the address, a chain for each service that selects a
//! backend. All protocols and ports are translated, because a backend listens where it wants to.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::Ipv4Addr;

use super::Chains;
use super::ingress;
use super::tree::build_address_tree;
use crate::model::NodeNetwork;

/// The tree of all virtual addresses with a backend. The others stay untranslated and are rejected.
pub(super) fn tree(node: &NodeNetwork) -> Chains {
    let mut chains = Chains::new();
    let open = node.cluster.services.iter().filter(|(_, backends)| !backends.is_empty());
    let rules = open.map(|(address, _)| (*address, format!("-g {}", service_chain(*address)))).collect();
    build_address_tree(&mut chains, "WARREN-VIP", "-d", &rules);
    chains
}

/// The chain of one virtual address; none without a backend.
pub(super) fn backends_of(node: &NodeNetwork, address: Ipv4Addr) -> Option<(String, Vec<String>)> {
    let backends = node.cluster.services.get(&address).filter(|backends| !backends.is_empty())?;
    Some((service_chain(address), balance("", backends)))
}

/// Tasks of this node that may reach themselves through a virtual address or a published port: they must
/// see a peer address other than their own.
fn own_backends(node: &NodeNetwork) -> BTreeSet<Ipv4Addr> {
    let ports = ingress::published_ports(node);
    let published = ports.iter().filter_map(|at| ingress::published(node, at));
    let published = published.flat_map(|backends| backends.iter().map(|to| *to.ip()).collect::<Vec<_>>());
    let virtually = node.cluster.services.values().flatten().copied();
    published.chain(virtually).filter(|ip| node.settings.is_own(*ip)).collect()
}

/// Gives connections of a task to itself the source address of the gateway.
pub(super) fn hairpin(node: &NodeNetwork) -> Chains {
    let gateway = node.settings.gateway();
    let rule = |ip| (ip, format!("-d {ip}/32 -j SNAT --to-source {gateway}"));
    let rules: BTreeMap<Ipv4Addr, String> = own_backends(node).into_iter().map(rule).collect();
    let mut chains = Chains::new();
    build_address_tree(&mut chains, "WARREN-HAIRPIN", "-s", &rules);
    chains
}

fn service_chain(address: Ipv4Addr) -> String {
    format!("WARREN-S-{:08x}", u32::from(address))
}

/// Round robin: the first rule takes every k-th connection, the next every (k-1)-th of the rest, the last
/// the remainder. So a client that retries reaches another task, unlike with random selection.
pub(super) fn balance<B: Display>(matches: &str, backends: &BTreeSet<B>) -> Vec<String> {
    let count = backends.len();
    let rule = |(position, backend): (usize, &B)| {
        let turn = match count - position {
            1 => String::new(),
            left => format!("-m statistic --mode nth --every {left} --packet 0 "),
        };
        let space = if matches.is_empty() { "" } else { " " };
        format!("{matches}{space}{turn}-j DNAT --to-destination {backend}")
    };
    backends.iter().enumerate().map(rule).collect()
}
