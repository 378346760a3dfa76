//! Chain trees that match one port among thousands in few steps.
//!
//! A flat chain of 5,000 ports costs every new connection to the node 100 microseconds, including those
//! that match none. So a chain has at most 16 rules: either the ports themselves, or up to 16 ranges, each
//! with its own chain; 4 levels of 16 cover all 65,536 ports. A node with few ports gets a single flat
//! chain.

use std::collections::BTreeMap;

/// Rule limit of a chain before it is split by range.
const FAN_OUT: usize = 16;

/// Adds to `chains` the chain `root` and the chains below it, which match TCP destination ports. The rest
/// of a port's rules (a prefix such as `-d 10.0.0.1/32 `, and the target) is given as (prefix, target).
pub(super) fn build_port_tree(
    chains: &mut BTreeMap<String, Vec<String>>,
    root: &str,
    rules: &BTreeMap<u16, Vec<(String, String)>>,
) {
    let all: Vec<(u16, &[(String, String)])> =
        rules.iter().map(|(port, rules)| (*port, rules.as_slice())).collect();
    add_branch(chains, root, root.to_owned(), &all, 0, 16);
}

/// Fills `chain` with `ports`, which lie in the range of `1 << bits` ports that starts at `base`.
fn add_branch(
    chains: &mut BTreeMap<String, Vec<String>>,
    root: &str,
    chain: String,
    ports: &[(u16, &[(String, String)])],
    base: u32,
    bits: u32,
) {
    if ports.len() <= FAN_OUT {
        let leaves = ports.iter().flat_map(|(port, rules)| {
            rules.iter().map(move |(prefix, target)| format!("{prefix}-p tcp -m tcp --dport {port} {target}"))
        });
        chains.insert(chain, leaves.collect());
        return;
    }
    let step = bits - 4;
    let mut branches = Vec::new();
    for range in ports.chunk_by(|a, b| a.0 >> step == b.0 >> step) {
        let first = u32::from(range[0].0) >> step << step;
        let last = first + (1 << step) - 1;
        // The name has the leading hexadecimal digits of the range; `t` reserves names for a tree of UDP
        // ports.
        let digits = format!("{first:04X}")[..(16 - step as usize) / 4].to_owned();
        let name = format!("{root}-t{digits}");
        debug_assert!(first >= base);
        branches.push(format!("-p tcp -m tcp --dport {first}:{last} -g {name}"));
        add_branch(chains, root, name, range, first, step);
    }
    chains.insert(chain, branches);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(ports: impl IntoIterator<Item = u16>) -> BTreeMap<String, Vec<String>> {
        let rules =
            ports.into_iter().map(|port| (port, vec![(String::new(), format!("-j P{port}"))])).collect();
        let mut chains = BTreeMap::new();
        build_port_tree(&mut chains, "ROOT", &rules);
        chains
    }

    /// Walks the chains like the kernel; returns the target and the number of rules evaluated.
    fn walk(chains: &BTreeMap<String, Vec<String>>, port: u16) -> (Option<String>, usize) {
        let (mut chain, mut tried) = ("ROOT".to_owned(), 0);
        'chain: loop {
            for rule in &chains[&chain] {
                tried += 1;
                let words: Vec<&str> = rule.split(' ').collect();
                let at = words.iter().position(|word| *word == "--dport").unwrap();
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
        assert_eq!(chains.keys().collect::<Vec<_>>(), ["ROOT"]);
        assert_eq!(
            chains["ROOT"],
            ["-p tcp -m tcp --dport 80 -j P80", "-p tcp -m tcp --dport 8080 -j P8080"]
        );
        assert_eq!(build([])["ROOT"], Vec::<String>::new());
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
                assert!(tried <= 4 * FAN_OUT, "{port}: {tried}");
            }
        }
    }

    #[test]
    fn bind_addresses_of_one_port_share_a_chain() {
        let rules = [("-d 10.0.0.1/32 ", "-g A"), ("-d 10.0.0.2/32 ", "-g B")];
        let rules = rules.map(|(prefix, target)| (prefix.to_owned(), target.to_owned())).to_vec();
        let mut chains = BTreeMap::new();
        build_port_tree(&mut chains, "ROOT", &BTreeMap::from([(80, rules)]));
        assert_eq!(
            chains["ROOT"],
            ["-d 10.0.0.1/32 -p tcp -m tcp --dport 80 -g A", "-d 10.0.0.2/32 -p tcp -m tcp --dport 80 -g B"]
        );
    }
}
