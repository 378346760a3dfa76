//! Chain trees that match one address among thousands in few steps.
//!
//! A chain has at most 16 rules: either the addresses themselves, or one branch for each value of the first
//! hexadecimal digit in which they differ. So eight levels cover all addresses, and few addresses are a
//! single flat chain.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use super::Chains;

/// Rule limit of a chain before it is split.
pub(super) const FAN_OUT: usize = 16;

/// Hexadecimal digits of an address.
const DIGITS: u32 = 8;

/// Adds to `chains` the chain `root` and the chains below it. `flag` is `-s` or `-d`, and the rest of each
/// address's rule is given.
pub(super) fn build_address_tree(
    chains: &mut Chains,
    root: &str,
    flag: &str,
    rules: &BTreeMap<Ipv4Addr, String>,
) {
    let all: Vec<(u32, &str)> = rules.iter().map(|(ip, rest)| (u32::from(*ip), rest.as_str())).collect();
    add_branch(chains, root, root.to_owned(), flag, &all);
}

/// Fills `chain` with the addresses, which are sorted.
fn add_branch(chains: &mut Chains, root: &str, chain: String, flag: &str, addresses: &[(u32, &str)]) {
    let (Some((first, _)), Some((last, _))) = (addresses.first(), addresses.last()) else {
        chains.insert(chain, Vec::new());
        return;
    };
    if addresses.len() <= FAN_OUT {
        let leaf = |(ip, rest): &(u32, &str)| format!("{flag} {}/32 {rest}", Ipv4Addr::from(*ip));
        chains.insert(chain, addresses.iter().map(leaf).collect());
        return;
    }
    // More than 16 addresses differ in a digit before the last.
    let digits = (first ^ last).leading_zeros() / 4 + 1;
    let shift = 4 * (DIGITS - digits);
    let mut branches = Vec::new();
    for range in addresses.chunk_by(|a, b| a.0 >> shift == b.0 >> shift) {
        let prefix = range[0].0 >> shift;
        let name = format!("{root}-{prefix:0width$x}", width = digits as usize);
        branches.push(format!("{flag} {}/{} -g {name}", Ipv4Addr::from(prefix << shift), 4 * digits));
        add_branch(chains, root, name, flag, range);
    }
    chains.insert(chain, branches);
}

#[cfg(test)]
mod tests {
    use ipnet::Ipv4Net;

    use super::*;

    fn build(addresses: &[u32]) -> Chains {
        let rules =
            addresses.iter().map(|ip| (Ipv4Addr::from(*ip), format!("-j A{ip}"))).collect::<BTreeMap<_, _>>();
        let mut chains = Chains::new();
        build_address_tree(&mut chains, "WARREN-HAIRPIN", "-s", &rules);
        chains
    }

    /// Walks the chains like the kernel; returns the target and the number of rules evaluated.
    fn walk(chains: &Chains, ip: u32) -> (Option<&str>, usize) {
        let (mut chain, mut tried) = ("WARREN-HAIRPIN", 0);
        'chain: loop {
            for rule in &chains[chain] {
                tried += 1;
                let words: Vec<&str> = rule.split(' ').collect();
                let [flag, range, verb, target] = words[..] else { panic!("{rule}") };
                assert_eq!(flag, "-s");
                if !range.parse::<Ipv4Net>().unwrap().contains(&Ipv4Addr::from(ip)) {
                    continue;
                }
                if verb == "-j" {
                    return (Some(target), tried);
                }
                chain = target;
                continue 'chain;
            }
            return (None, tried);
        }
    }

    #[test]
    fn few_addresses_are_one_chain() {
        assert_eq!(build(&[])["WARREN-HAIRPIN"], Vec::<String>::new());
        let chains = build(&[0x0ad2_0102, 0x0ad2_0103]);
        assert_eq!(chains.len(), 1);
        assert_eq!(
            chains["WARREN-HAIRPIN"],
            ["-s 10.210.1.2/32 -j A181534978", "-s 10.210.1.3/32 -j A181534979"]
        );
    }

    #[test]
    fn every_address_is_found_in_few_steps_and_no_other() {
        for addresses in [
            (0x0ad2_e001..0x0ad2_f389).collect::<Vec<u32>>(),
            (0..=255).map(|n| n << 24 | n).collect(),
            (0x0a00_0000..0x0a00_0011).collect(),
            (0..4_000).map(|n| n * 1_000_003).collect(),
        ] {
            let chains = build(&addresses);
            assert!(chains.values().all(|rules| rules.len() <= FAN_OUT));
            assert!(chains.keys().all(|name| name.len() <= 28), "iptables' limit on names");
            for ip in addresses.iter().copied().chain(addresses.iter().map(|ip| ip ^ 0x0100_0001)) {
                let (found, tried) = walk(&chains, ip);
                let expected = addresses.binary_search(&ip).ok().map(|_| format!("A{ip}"));
                assert_eq!(found, expected.as_deref(), "{ip:x}");
                assert!(tried <= DIGITS as usize * FAN_OUT, "{ip:x}: {tried}");
            }
        }
    }
}
