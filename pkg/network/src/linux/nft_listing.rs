//! Parses the listing of an nftables table. Pure text.

use std::collections::{BTreeMap, BTreeSet};

/// Elements by set, each in the spelling of the listing.
pub(super) type Elements = BTreeMap<String, BTreeSet<String>>;

/// The content of a table.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// The elements of each set and map. The kernel lists them in any order.
    pub elements: Elements,
    /// All other lines: definitions of sets, chains and rules.
    pub chains: Vec<String>,
}

impl Listing {
    /// The first lines of all sets, maps and chains, sorted.
    pub fn objects(&self) -> Vec<&str> {
        let is_object = |line: &&str| ["set ", "map ", "chain "].iter().any(|kind| line.starts_with(kind));
        let mut found: Vec<&str> = self.chains.iter().map(String::as_str).filter(is_object).collect();
        found.sort_unstable();
        found
    }

    /// Parses the output of `nft list table`.
    pub fn parse(text: &str) -> Self {
        let mut found = Self::default();
        let mut set = String::new();
        let mut within = false;
        for line in text.lines() {
            let trimmed = line.trim();
            let elements = match trimmed.strip_prefix("elements = {") {
                Some(rest) => {
                    within = true;
                    rest
                }
                None => trimmed,
            };
            if !within {
                let mut words = trimmed.split(' ');
                if let (Some("set" | "map"), Some(name)) = (words.next(), words.next()) {
                    name.clone_into(&mut set);
                    found.elements.entry(set.clone()).or_default();
                }
                found.chains.push(trimmed.to_owned());
                continue;
            }
            within = !elements.contains('}');
            let all = elements.trim_end_matches('}').split(',').map(str::trim);
            let all = all.filter(|element| !element.is_empty()).map(str::to_owned);
            found.elements.entry(set.clone()).or_default().extend(all);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_apart_from_rules() {
        let text = "table ip warren {
	map class {
		type ipv4_addr : mark
		elements = { 10.210.1.2 : 0x00000002, 10.210.1.3 : 0x80000001,
			     10.210.1.4 : 0x00000001 }
	}

	set allowed {
		type ipv4_addr . mark
		elements = { 10.210.1.2 . 0x00000001 }
	}

	set confined {
		type ipv4_addr
	}

	chain forward {
		type filter hook forward priority filter - 5; policy accept;
		ip daddr { 10.210.0.0/16, 10.220.0.0/16 } goto isolate
	}
}
";
        let found = Listing::parse(text);
        let sizes: Vec<(&str, usize)> =
            found.elements.iter().map(|(name, all)| (name.as_str(), all.len())).collect();
        assert_eq!(sizes, [("allowed", 1), ("class", 3), ("confined", 0)]);
        assert!(found.elements["class"].contains("10.210.1.4 : 0x00000001"));
        assert!(found.chains.contains(&"ip daddr { 10.210.0.0/16, 10.220.0.0/16 } goto isolate".to_owned()));
        assert!(!found.chains.iter().any(|line| line.contains("0x")));
        assert_eq!(Listing::parse(""), Listing::default());
    }
}
