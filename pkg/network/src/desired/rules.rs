//! The chains and rules of one node.
//!
//! Tables are written in the order raw, filter, nat: protection before forwarding. A table for marks
//! (mangle) is not needed before nodes have peers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::{ChainJump, IptablesTable, ports};
use crate::keys::HostPort;
use crate::model::NodeNetwork;

/// Jumps from the built-in chains into those of this crate, in the spelling of `iptables-save`.
pub(super) fn jumps() -> Vec<ChainJump> {
    let jump = |table, chain, rule| ChainJump { table, chain, rule };
    vec![
        jump("raw", "PREROUTING", "-j WARREN-RAW"),
        jump("filter", "FORWARD", "-i wc+ -j WARREN-FWD"),
        jump("filter", "FORWARD", "-o wc+ -j WARREN-FWD"),
        jump("filter", "INPUT", "-j WARREN-IN"),
        jump("filter", "OUTPUT", "-j WARREN-OUT"),
        jump("nat", "PREROUTING", "-j WARREN-PRE"),
        jump("nat", "OUTPUT", "-j WARREN-OUT"),
        jump("nat", "POSTROUTING", "-j WARREN-POST"),
    ]
}

pub(super) fn tables(node: &NodeNetwork) -> Vec<IptablesTable> {
    vec![raw(node), filter(node), nat(node)]
}

/// Collects chains by name.
fn chains<const N: usize>(list: [(&str, Vec<String>); N]) -> BTreeMap<String, Vec<String>> {
    list.into_iter().map(|(name, rules)| (name.to_owned(), rules)).collect()
}

fn raw(node: &NodeNetwork) -> IptablesTable {
    let mut all = vec!["-i wc+ -g WARREN-RAW-C".to_owned(), "-i lo -j RETURN".to_owned()];
    // No host on the underlay may send from, or to, the cluster's addresses.
    for range in node.settings.cluster() {
        all.push(format!("-s {range} -j DROP"));
        all.push(format!("-d {range} -j DROP"));
    }
    // A port published only on 127.0.0.1 must not be reachable from the LAN: translation precedes the
    // kernel's own check for such martian destinations.
    all.push("-d 127.0.0.0/8 -j DROP".to_owned());
    let tasks = vec![
        // A task may use only its own source address: the reverse route must be its link.
        "-m rpfilter --invert -j DROP".to_owned(),
        // route_localnet on the task's link would open the node's loopback to it.
        "-d 127.0.0.0/8 -j DROP".to_owned(),
    ];
    IptablesTable { name: "raw", chains: chains([("WARREN-RAW", all), ("WARREN-RAW-C", tasks)]) }
}

fn filter(node: &NodeNetwork) -> IptablesTable {
    let forward = [
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        // Packets unknown to connection tracking are not translated and would expose task addresses
        // outside.
        "-m conntrack --ctstate INVALID -j DROP",
        "-m conntrack --ctstate DNAT -j ACCEPT",
        "-i wc+ -j ACCEPT",
        "-j DROP",
    ];
    // A published port without a ready task is rejected by a rule, because a default-drop firewall of the
    // host would let the client hang.
    let input = ["-p tcp -m conntrack --ctstate NEW -j WARREN-CLOSED"];
    // Suppresses ICMP redirects for connections of a task to itself by a published port.
    let output = ["-o wc+ -p icmp -m icmp --icmp-type 5 -j DROP"];
    let text = |rules: &[&str]| rules.iter().map(|rule| (*rule).to_owned()).collect();
    let mut chains =
        chains([("WARREN-FWD", text(&forward)), ("WARREN-IN", text(&input)), ("WARREN-OUT", text(&output))]);
    let mut closed: BTreeMap<u16, Vec<(String, String)>> = BTreeMap::new();
    for at in node.ports.iter().filter(|(_, backends)| backends.is_empty()).map(|(at, _)| at) {
        let target = "-m addrtype --dst-type LOCAL -j REJECT --reject-with tcp-reset".to_owned();
        closed.entry(at.port()).or_default().push((destination_match(at), target));
    }
    ports::build_port_tree(&mut chains, "WARREN-CLOSED", &closed);
    IptablesTable { name: "filter", chains }
}

fn nat(node: &NodeNetwork) -> IptablesTable {
    let (subnet, gateway) = (node.settings.subnet(), node.settings.gateway());
    let local = || vec!["-m addrtype --dst-type LOCAL -j WARREN-PORTS".to_owned()];
    let post = vec![
        format!("-s {subnet} -d {subnet} -m conntrack --ctstate DNAT -j WARREN-HAIRPIN"),
        // A connection from the node's own 127.0.0.1 needs a source address that the task can answer.
        format!("-s 127.0.0.0/8 -o wc+ -j SNAT --to-source {gateway}"),
        format!("-s {subnet} -j WARREN-MASQ"),
    ];
    let mut masquerade: Vec<String> =
        node.settings.cluster().iter().map(|range| format!("-d {range} -j RETURN")).collect();
    masquerade.push("-j MASQUERADE --random-fully".to_owned());
    let mut chains = chains([
        ("WARREN-PRE", local()),
        ("WARREN-OUT", local()),
        ("WARREN-POST", post),
        ("WARREN-MASQ", masquerade),
        ("WARREN-HAIRPIN", hairpin(node, gateway)),
    ]);
    let mut open: BTreeMap<u16, Vec<(String, String)>> = BTreeMap::new();
    for (at, backends) in node.ports.iter().filter(|(_, backends)| !backends.is_empty()) {
        let chain = port_chain(at);
        open.entry(at.port()).or_default().push((destination_match(at), format!("-g {chain}")));
        chains.insert(chain, backend_rules(backends));
    }
    ports::build_port_tree(&mut chains, "WARREN-PORTS", &open);
    IptablesTable { name: "nat", chains }
}

/// A task that reaches itself by a published port must see a peer address other than its own.
fn hairpin(node: &NodeNetwork, gateway: Ipv4Addr) -> Vec<String> {
    let published: BTreeSet<Ipv4Addr> = node.ports.values().flatten().map(|backend| *backend.ip()).collect();
    published.iter().map(|ip| format!("-s {ip}/32 -d {ip}/32 -j SNAT --to-source {gateway}")).collect()
}

/// The chain of one published port in host mode. At most 27 characters; iptables allows 28.
fn port_chain(at: &HostPort) -> String {
    match at.ip() {
        Some(ip) => format!("WARREN-H-{}-tcp-{:08x}", at.port(), u32::from(ip)),
        None => format!("WARREN-H-{}-tcp", at.port()),
    }
}

fn destination_match(at: &HostPort) -> String {
    at.ip().map(|ip| format!("-d {ip}/32 ")).unwrap_or_default()
}

/// Round robin: the first rule takes every k-th connection, the next every (k-1)-th of the rest, the last
/// the remainder. So a client that retries reaches another task, unlike with random selection.
fn backend_rules(backends: &BTreeSet<SocketAddrV4>) -> Vec<String> {
    let count = backends.len();
    let rule = |(position, backend): (usize, &SocketAddrV4)| {
        let matcher = match count - position {
            1 => String::new(),
            left => format!(" -m statistic --mode nth --every {left} --packet 0"),
        };
        format!("-p tcp{matcher} -j DNAT --to-destination {backend}")
    };
    backends.iter().enumerate().map(rule).collect()
}

#[cfg(test)]
mod tests;
