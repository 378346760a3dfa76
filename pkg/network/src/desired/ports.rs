//! The chains of published ports, as trees that match one port among thousands in few steps.
//!
//! A flat chain of 5,000 ports costs every new connection to the node 100 microseconds, including those
//! that match none. So a chain has at most 16 rules: either the ports themselves, or up to 16 ranges, each
//! with its own chain; 4 levels of 16 cover all 65,536 ports. A node with few ports gets a single flat
//! chain for each protocol.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;

use super::services::balance;
use super::tree::FAN_OUT;
use super::{Chains, affinity, ingress};
use crate::keys::{HostPort, TransportProtocol};
use crate::model::NodeNetwork;

/// For each port, its rules as (prefix such as `-d 10.0.0.1/32 `, target).
type PortRules = BTreeMap<u16, Vec<(String, String)>>;

/// Leads published ports to the chains of their backends.
pub(super) fn translated(node: &NodeNetwork) -> Chains {
    let target = |at: &HostPort, backends: &BTreeSet<_>| {
        (!backends.is_empty()).then(|| format!("-g {}", port_chain(at)))
    };
    port_trees(node, "WARREN-PORTS", target)
}

/// The chain of one published port; none without a backend.
pub(super) fn backends_of(node: &NodeNetwork, at: &HostPort) -> Option<(String, Vec<String>)> {
    let backends = ingress::published(node, at).filter(|backends| !backends.is_empty())?;
    let matches = format!("-p {}", at.protocol());
    let rules = match ingress::balancing(node, at).client_affinity {
        true => affinity::rules(&matches, &backends),
        false => balance(&matches, &backends),
    };
    Some((port_chain(at), rules))
}

/// Rejects published ports without a ready task: a default-drop firewall of the host would let the client
/// hang.
pub(super) fn closed(node: &NodeNetwork) -> Chains {
    let target = |at: &HostPort, backends: &BTreeSet<_>| {
        let answer = match at.protocol() {
            TransportProtocol::Tcp => "tcp-reset",
            TransportProtocol::Udp | TransportProtocol::Sctp => "icmp-port-unreachable",
        };
        let reject = || format!("-m addrtype --dst-type LOCAL -j REJECT --reject-with {answer}");
        backends.is_empty().then(reject)
    };
    port_trees(node, "WARREN-CLOSED", target)
}

/// The trees below `root` of the ports that have a target.
fn port_trees(
    node: &NodeNetwork,
    root: &str,
    target: impl Fn(&HostPort, &BTreeSet<SocketAddrV4>) -> Option<String>,
) -> Chains {
    let mut chains = Chains::new();
    let mut found: BTreeMap<TransportProtocol, PortRules> = BTreeMap::new();
    for at in ingress::published_ports(node) {
        let backends = ingress::published(node, &at).unwrap_or_default();
        if let Some(target) = target(&at, &backends) {
            let rules = found.entry(at.protocol()).or_default().entry(at.port()).or_default();
            rules.push((destination_match(&at), target));
        }
    }
    build_port_trees(&mut chains, root, &found);
    chains
}

/// The chain of one published port. At most 28 characters, as iptables allows.
fn port_chain(at: &HostPort) -> String {
    let (port, protocol) = (at.port(), at.protocol());
    match at.ip() {
        Some(ip) => format!("WARREN-H-{port}-{protocol}-{:08x}", u32::from(ip)),
        None => format!("WARREN-H-{port}-{protocol}"),
    }
}

fn destination_match(at: &HostPort) -> String {
    at.ip().map(|ip| format!("-d {ip}/32 ")).unwrap_or_default()
}

/// Adds to `chains` the chain `root` with a branch for each protocol.
fn build_port_trees(chains: &mut Chains, root: &str, rules: &BTreeMap<TransportProtocol, PortRules>) {
    let mut branches = Vec::new();
    for (protocol, rules) in rules {
        let branch = format!("{root}-{}", protocol.letter());
        branches.push(format!("-p {protocol} -g {branch}"));
        let all: Vec<(u16, &[(String, String)])> =
            rules.iter().map(|(port, rules)| (*port, rules.as_slice())).collect();
        add_branch(chains, &branch, branch.clone(), *protocol, &all, 16);
    }
    chains.insert(root.to_owned(), branches);
}

/// Fills `chain` with `ports`, which lie in one range of `1 << bits` ports.
fn add_branch(
    chains: &mut Chains,
    root: &str,
    chain: String,
    protocol: TransportProtocol,
    ports: &[(u16, &[(String, String)])],
    bits: u32,
) {
    let matches = format!("-p {protocol} -m {protocol} --dport");
    if ports.len() <= FAN_OUT {
        let leaves = ports.iter().flat_map(|(port, rules)| {
            let matches = &matches;
            rules.iter().map(move |(prefix, target)| format!("{prefix}{matches} {port} {target}"))
        });
        chains.insert(chain, leaves.collect());
        return;
    }
    let step = bits - 4;
    let mut branches = Vec::new();
    for range in ports.chunk_by(|a, b| a.0 >> step == b.0 >> step) {
        let first = u32::from(range[0].0) >> step << step;
        let last = first + (1 << step) - 1;
        // The name has the leading hexadecimal digits of the range.
        let digits = format!("{first:04X}")[..(16 - step as usize) / 4].to_owned();
        let name = format!("{root}{digits}");
        branches.push(format!("{matches} {first}:{last} -g {name}"));
        add_branch(chains, root, name, protocol, range, step);
    }
    chains.insert(chain, branches);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(ports: impl IntoIterator<Item = u16>) -> BTreeMap<String, Vec<String>> {
        let rules =
            ports.into_iter().map(|port| (port, vec![(String::new(), format!("-j P{port}"))])).collect();
        let mut chains = Chains::new();
        build_port_trees(&mut chains, "ROOT", &BTreeMap::from([(TransportProtocol::Tcp, rules)]));
        chains
    }

    /// Walks the chains like the kernel; returns the target and the number of rules evaluated.
    fn walk(chains: &Chains, port: u16) -> (Option<String>, usize) {
        let (mut chain, mut tried) = ("ROOT".to_owned(), 0);
        'chain: loop {
            for rule in &chains[&chain] {
                tried += 1;
                let words: Vec<&str> = rule.split(' ').collect();
                let Some(at) = words.iter().position(|word| *word == "--dport") else {
                    // The branch of the protocol.
                    words[words.len() - 1].clone_into(&mut chain);
                    continue 'chain;
                };
                let (first, last) = words[at + 1].split_once(':').unwrap_or((words[at + 1], words[at + 1]));
                if !(first.parse::<u16>().unwrap()..=last.parse().unwrap()).contains(&port) {
                    continue;
                }
                match words[at + 2] {
                    "-j" => return (Some(words[at + 3].to_owned()), tried),
                    _ => {
                        words[at + 3].clone_into(&mut chain);
                        continue 'chain;
                    }
                }
            }
            return (None, tried);
        }
    }

    #[test]
    fn few_ports_are_one_chain() {
        let chains = build([80, 8080]);
        assert_eq!(chains.keys().collect::<Vec<_>>(), ["ROOT", "ROOT-t"]);
        assert_eq!(chains["ROOT"], ["-p tcp -g ROOT-t"]);
        assert_eq!(
            chains["ROOT-t"],
            ["-p tcp -m tcp --dport 80 -j P80", "-p tcp -m tcp --dport 8080 -j P8080"]
        );
        assert_eq!(build([])["ROOT-t"], Vec::<String>::new());
    }

    #[test]
    fn every_port_is_found_in_few_steps_and_no_other() {
        for ports in [
            (20_000..25_000).collect::<Vec<u16>>(),
            (1..=u16::MAX).step_by(13).collect(),
            (0..=u16::MAX).collect(),
            (8_000..8_017).collect(),
        ] {
            let chains = build(ports.iter().copied());
            assert!(chains.values().all(|rules| rules.len() <= FAN_OUT));
            assert!(chains.keys().all(|name| name.len() <= 28), "iptables' limit on names");
            for port in (0..=u16::MAX).step_by(7).chain(ports.iter().copied()) {
                let (found, tried) = walk(&chains, port);
                let expected = ports.binary_search(&port).ok().map(|_| format!("P{port}"));
                assert_eq!(found, expected, "{port}");
                assert!(tried <= 1 + 4 * FAN_OUT, "{port}: {tried}");
            }
        }
    }

    #[test]
    fn bind_addresses_and_protocols_of_one_port_are_apart() {
        let rule = |prefix: &str, target: &str| (prefix.to_owned(), target.to_owned());
        let tcp =
            BTreeMap::from([(80, vec![rule("-d 10.0.0.1/32 ", "-g A"), rule("-d 10.0.0.2/32 ", "-g B")])]);
        let sctp = BTreeMap::from([(80, vec![rule("", "-g C")])]);
        let mut chains = Chains::new();
        build_port_trees(
            &mut chains,
            "ROOT",
            &BTreeMap::from([(TransportProtocol::Tcp, tcp), (TransportProtocol::Sctp, sctp)]),
        );
        assert_eq!(chains["ROOT"], ["-p tcp -g ROOT-t", "-p sctp -g ROOT-s"]);
        assert_eq!(
            chains["ROOT-t"],
            ["-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -g A", "-d 10.0.0.2/32 -p tcp -m tcp --dport 80 -g B"]
        );
        assert_eq!(chains["ROOT-s"], ["-p sctp -m sctp --dport 80 -g C"]);
    }
}
