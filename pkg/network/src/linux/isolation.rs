//! Reconciles the nftables table that separates networks, by the `nft` program.
//!
//! A change writes only the elements that differ, and the whole table replaces the former one in a single
//! transaction otherwise. Every change is one run of `nft`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::nft_listing::Listing;
use super::process::run;
use crate::Error;
use crate::desired::{Isolation, desired_isolation};
use crate::model::NodeNetwork;
use crate::names::ISOLATION_TABLE;

/// Cached state of the table.
#[derive(Debug, Default)]
pub(super) struct IsolationTable {
    /// The content as last written; `None` after a failed write.
    written: Option<Isolation>,
    /// The chains as nft lists them after they were written.
    read_back: Option<Vec<String>>,
}

impl IsolationTable {
    /// Writes the difference to the last write.
    pub async fn update(&mut self, before: &NodeNetwork, after: &NodeNetwork) -> Result<(), Error> {
        let same = before.tasks == after.tasks
            && before.cluster.networks == after.cluster.networks
            && before.settings == after.settings;
        if same && self.written.is_some() {
            return Ok(());
        }
        let desired = desired_isolation(after);
        let Some(written) = self.written.take().filter(|written| written.chains == desired.chains) else {
            return self.replace(desired).await;
        };
        let script = difference(&written, &desired);
        if !script.is_empty() && run("nft", &["-f", "-"], &script).await.is_err() {
            // Another process changed or removed the table.
            return self.replace(desired).await;
        }
        self.written = Some(desired);
        Ok(())
    }

    /// Reads the table and repairs it; returns what was damaged or missing.
    pub async fn reconcile(&mut self, desired: &Isolation) -> Result<Vec<String>, Error> {
        let mut repaired = Vec::new();
        let mut replacement = desired.clone();
        match (list(&["-s"]).await?, &self.read_back) {
            (None, _) => repaired.push(format!("the nftables table {ISOLATION_TABLE} was missing")),
            (Some(found), Some(chains)) => {
                let written = self.written.as_ref();
                let as_written = found.chains == *chains
                    && written.is_some_and(|written| found.elements == elements(written));
                if as_written && written == Some(desired) {
                    return Ok(Vec::new());
                }
                if !as_written {
                    repaired.push(format!("the nftables table {ISOLATION_TABLE} was changed"));
                }
            }
            // Written by an earlier agent, which may have known more of the cluster. The rules that translate to the
            // destinations that only it knew are replaced later; the next reconciliation removes these.
            (Some(found), None) => {
                let classes: BTreeSet<u32> = desired.classes.values().copied().collect();
                let allowed = found.elements.get("allowed").into_iter().flatten();
                let known = allowed.filter_map(|element| parse_allowed(element));
                replacement.allowed.extend(known.filter(|(_, class)| classes.contains(class)));
            }
        }
        self.replace(replacement).await?;
        Ok(repaired)
    }

    async fn replace(&mut self, desired: Isolation) -> Result<(), Error> {
        *self = Self::default();
        run("nft", &["-f", "-"], &replacement(&desired)).await?;
        // Without the elements, which may be many.
        self.read_back = list(&["-s", "-t"]).await?.map(|found| found.chains);
        self.written = Some(desired);
        Ok(())
    }

    /// Removes the table.
    pub async fn remove() -> Result<(), Error> {
        run("nft", &["-f", "-"], &removal()).await.map(drop)
    }
}

/// Checks whether nft and the kernel accept the table, and returns the version of nft; changes nothing.
pub(super) async fn check() -> Result<String, Error> {
    let found = run("nft", &["--version"], "").await?;
    let probe = Isolation { chains: PROBE.to_owned(), ..Isolation::default() };
    run("nft", &["-c", "-f", "-"], &replacement(&probe)).await?;
    Ok(found.trim().to_owned())
}

/// Every kind of rule in the chains.
const PROBE: &str = "\tchain isolate {
\t\tmeta mark set ip saddr map @class
\t\tip daddr . meta mark @allowed meta mark set 0x0 accept
\t\tmeta l4proto tcp reject with tcp reset
\t\treject with icmp type admin-prohibited
\t}
\tchain forward {
\t\ttype filter hook forward priority -5; policy accept;
\t\tiifname != \"wc*\" accept
\t\tct status dnat ct original ip daddr != { 10.210.224.0/19 } accept
\t\tip saddr @confined goto isolate
\t}
";

async fn list(options: &[&str]) -> Result<Option<Listing>, Error> {
    let arguments = [options, &["list", "table", "ip", ISOLATION_TABLE]].concat();
    match run("nft", &arguments, "").await {
        Ok(text) => Ok(Some(Listing::parse(&text))),
        Err(Error::ProgramFailed { detail, .. }) if detail.contains("No such file or directory") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates the table before it deletes it: nft fails to delete what does not exist.
fn removal() -> String {
    format!("add table ip {ISOLATION_TABLE}\ndelete table ip {ISOLATION_TABLE}\n")
}

/// The sets of the table with their types, in the order of [`elements`].
const SETS: [(&str, &str, &str); 4] = [
    ("map", "class", "ipv4_addr : mark"),
    ("set", "allowed", "ipv4_addr . mark"),
    ("set", "confined", "ipv4_addr"),
    ("set", "metadata", "ipv4_addr"),
];

/// The elements of each set, as nft lists them.
fn elements(table: &Isolation) -> super::nft_listing::Elements {
    let class = table.classes.iter().map(|(ip, class)| format!("{ip} : {class:#010x}")).collect();
    let allowed = table.allowed.iter().map(|(ip, class)| format!("{ip} . {class:#010x}")).collect();
    let confined = table.confined.iter().map(ToString::to_string).collect();
    let metadata = table.metadata.iter().map(ToString::to_string).collect();
    let all = SETS.map(|(_, name, _)| name.to_owned()).into_iter().zip([class, allowed, confined, metadata]);
    all.collect()
}

/// An element of the set `allowed`.
fn parse_allowed(element: &str) -> Option<(Ipv4Addr, u32)> {
    let (address, class) = element.split_once(" . ")?;
    Some((address.parse().ok()?, u32::from_str_radix(class.strip_prefix("0x")?, 16).ok()?))
}

/// The script that replaces the table, whatever it was.
fn replacement(desired: &Isolation) -> String {
    let mut text = removal();
    text.push_str(&format!("table ip {ISOLATION_TABLE} {{\n"));
    let elements = elements(desired);
    for (kind, name, key) in SETS {
        text.push_str(&format!("\t{kind} {name} {{\n\t\ttype {key}\n"));
        if let Some(all) = elements.get(name).filter(|all| !all.is_empty()) {
            let all: Vec<&str> = all.iter().map(String::as_str).collect();
            text.push_str(&format!("\t\telements = {{ {} }}\n", all.join(",\n")));
        }
        text.push_str("\t}\n");
    }
    text.push_str(&desired.chains);
    text.push_str("}\n");
    text
}

/// The script from one content to another with the same chains; empty without a difference.
fn difference(before: &Isolation, after: &Isolation) -> String {
    let mut text = String::new();
    let mut change = |verb: &str, set: &str, elements: Vec<String>| {
        if !elements.is_empty() {
            let elements = elements.join(", ");
            text.push_str(&format!("{verb} element ip {ISOLATION_TABLE} {set} {{ {elements} }}\n"));
        }
    };
    // A class that changed is removed first.
    let (old, new) = (&before.classes, &after.classes);
    let differs = |other: &std::collections::BTreeMap<_, _>, ip, class| other.get(ip) != Some(class);
    let removed = old.iter().filter(|(ip, class)| differs(new, *ip, *class));
    change("delete", "class", removed.map(|(ip, _)| ip.to_string()).collect());
    let added = new.iter().filter(|(ip, class)| differs(old, *ip, *class));
    change("add", "class", added.map(|(ip, class)| format!("{ip} : {class:#010x}")).collect());
    let pairs = |a: &Isolation, b: &Isolation| {
        let difference = a.allowed.difference(&b.allowed);
        difference.map(|(ip, class)| format!("{ip} . {class:#010x}")).collect()
    };
    change("delete", "allowed", pairs(before, after));
    change("add", "allowed", pairs(after, before));
    for (set, old, new) in
        [("confined", &before.confined, &after.confined), ("metadata", &before.metadata, &after.metadata)]
    {
        change("delete", set, old.difference(new).map(ToString::to_string).collect());
        change("add", set, new.difference(old).map(ToString::to_string).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 210, 1, last)
    }

    #[test]
    fn only_differences_are_written() {
        let before = Isolation {
            classes: BTreeMap::from([(ip(2), 1), (ip(3), 1), (ip(4), 0x8000_0001)]),
            allowed: BTreeSet::from([(ip(2), 1), (ip(3), 1)]),
            confined: BTreeSet::from([ip(2)]),
            ..Isolation::default()
        };
        assert_eq!(difference(&before, &before), "");
        let mut after = before.clone();
        after.classes.insert(ip(3), 2);
        after.classes.remove(&ip(4));
        after.allowed.insert((ip(3), 2));
        after.allowed.remove(&(ip(2), 1));
        after.confined.clear();
        after.metadata.insert(ip(2));
        let expected = "\
delete element ip warren class { 10.210.1.3, 10.210.1.4 }
add element ip warren class { 10.210.1.3 : 0x00000002 }
delete element ip warren allowed { 10.210.1.2 . 0x00000001 }
add element ip warren allowed { 10.210.1.3 . 0x00000002 }
delete element ip warren confined { 10.210.1.2 }
add element ip warren metadata { 10.210.1.2 }
";
        assert_eq!(difference(&before, &after), expected);
    }
}
