//! Reconciles the nftables table that separates networks, by the `nft` program.
//!
//! A change writes only the elements that differ, and all rules if one of them does. Every change is one run of `nft`,
//! which is one transaction.
//!
//! The table is deleted only if its sets or chains are others: the kernel evaluates a packet by the rules of the moment
//! when the evaluation began, but looks up elements at the moment of the lookup. A packet that meets the transaction
//! which deletes a set finds no element in it, and a connection that is allowed would be refused.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::nft_listing::{Elements, Listing};
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
        let Some(written) = self.written.take() else { return self.replace(None, desired).await };
        if written.chains != desired.chains {
            return self.replace(Some(&elements(&written)), desired).await;
        }
        let script = difference(&written, &desired);
        if !script.is_empty() && run("nft", &["-f", "-"], &script).await.is_err() {
            // Another process changed or removed the table.
            return self.replace(None, desired).await;
        }
        self.written = Some(desired);
        Ok(())
    }

    /// Reads the table and repairs it; returns what was damaged or missing.
    pub async fn reconcile(&mut self, desired: &Isolation) -> Result<Vec<String>, Error> {
        let mut repaired = Vec::new();
        let mut replacement = desired.clone();
        let listing = list(&["-s"]).await?;
        match (&listing, &self.read_back) {
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
        let kept = listing.as_ref().filter(|found| found.objects() == objects(&replacement));
        self.replace(kept.map(|found| &found.elements), replacement).await?;
        Ok(repaired)
    }

    /// Writes all rules, and the elements that differ from the present ones. Without these, if the kernel rejects that,
    /// or if the table has other sets or chains then, it is deleted and created.
    async fn replace(&mut self, present: Option<&Elements>, desired: Isolation) -> Result<(), Error> {
        *self = Self::default();
        let mut found = None;
        if let Some(present) = present
            && run("nft", &["-f", "-"], &rewrite(present, &desired)).await.is_ok()
        {
            found = list_rules().await?;
        }
        // Sets and chains that another process added are not in a rewrite, which keeps them.
        if found.as_ref().is_none_or(|found| found.objects() != objects(&desired)) {
            run("nft", &["-f", "-"], &replacement(&desired)).await?;
            found = list_rules().await?;
        }
        self.read_back = found.map(|found| found.chains);
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

/// The table without the elements, which may be many.
async fn list_rules() -> Result<Option<Listing>, Error> {
    list(&["-s", "-t"]).await
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
fn elements(table: &Isolation) -> Elements {
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

/// The first lines of all sets and chains, sorted.
fn objects(desired: &Isolation) -> Vec<&str> {
    let chains = desired.chains.lines().map(str::trim).filter(|line| line.starts_with("chain "));
    let mut found: Vec<&str> = chains.collect();
    found.extend(["map class {", "set allowed {", "set confined {", "set metadata {"]);
    found.sort_unstable();
    found
}

/// The script that replaces the table, whatever it was.
fn replacement(desired: &Isolation) -> String {
    removal() + &definition(desired, &elements(desired))
}

/// The script that replaces the rules of a table with these elements, and the elements that differ.
fn rewrite(present: &Elements, desired: &Isolation) -> String {
    let desired_elements = elements(desired);
    let mut text = format!("flush table ip {ISOLATION_TABLE}\n");
    for (set, present) in present {
        let desired = desired_elements.get(set);
        let gone =
            present.iter().filter(|element| !desired.is_some_and(|desired| desired.contains(*element)));
        let keys: Vec<&str> = gone.map(|element| element.split(" : ").next().unwrap_or(element)).collect();
        change(&mut text, "delete", set, &keys);
    }
    let mut added = desired_elements;
    for (set, all) in &mut added {
        all.retain(|element| !present.get(set).is_some_and(|present| present.contains(element)));
    }
    text + &definition(desired, &added)
}

/// The table with all rules and some elements.
fn definition(desired: &Isolation, elements: &Elements) -> String {
    let mut text = format!("table ip {ISOLATION_TABLE} {{\n");
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

/// Appends the command that adds or deletes elements of a set, if there are any.
fn change(script: &mut String, verb: &str, set: &str, elements: &[impl std::borrow::Borrow<str>]) {
    if !elements.is_empty() {
        let elements = elements.join(", ");
        script.push_str(&format!("{verb} element ip {ISOLATION_TABLE} {set} {{ {elements} }}\n"));
    }
}

/// The script from one content to another with the same chains; empty without a difference.
fn difference(before: &Isolation, after: &Isolation) -> String {
    let mut text = String::new();
    let mut change = |verb: &str, set: &str, elements: Vec<String>| change(&mut text, verb, set, &elements);
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

    use nix::sched::{CloneFlags, unshare};
    use tokio::runtime::Builder;

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

    #[test]
    fn new_rules_keep_the_elements() {
        let present = Isolation {
            classes: BTreeMap::from([(ip(2), 1), (ip(3), 1)]),
            allowed: BTreeSet::from([(ip(2), 1), (ip(3), 1)]),
            ..Isolation::default()
        };
        let desired = Isolation {
            classes: BTreeMap::from([(ip(2), 1), (ip(3), 2)]),
            confined: BTreeSet::from([ip(2)]),
            chains: "\tchain forward {\n\t}\n".to_owned(),
            ..present.clone()
        };
        let expected = "\
flush table ip warren
delete element ip warren class { 10.210.1.3 }
table ip warren {
	map class {
		type ipv4_addr : mark
		elements = { 10.210.1.3 : 0x00000002 }
	}
	set allowed {
		type ipv4_addr . mark
	}
	set confined {
		type ipv4_addr
		elements = { 10.210.1.2 }
	}
	set metadata {
		type ipv4_addr
	}
	chain forward {
	}
}
";
        assert_eq!(rewrite(&elements(&present), &desired), expected);
        let listed = Listing::parse(expected.split_once("}\n").unwrap().1);
        assert_eq!(listed.objects(), objects(&desired));
    }

    #[test]
    fn rewritten_table_has_no_objects_of_others() {
        let table_with = |verdict: &str| Isolation {
            chains: format!("\tchain forward {{\n\t\t{verdict}\n\t}}\n"),
            ..Isolation::default()
        };
        // Its namespaces end with the thread.
        let rewriting = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
                let (before, after) = (table_with("accept"), table_with("drop"));
                let mut table = IsolationTable::default();
                table.replace(None, before.clone()).await.unwrap();
                for foreign in ["add chain ip warren foreign", "add set ip warren foreign { type mark; }"] {
                    run("nft", &[foreign], "").await.unwrap();
                    table.replace(Some(&elements(&before)), after.clone()).await.unwrap();
                    let found = list_rules().await.unwrap().unwrap();
                    assert_eq!(found.objects(), objects(&after), "{foreign}");
                    assert_eq!(table.read_back, Some(found.chains));
                }
            });
        });
        rewriting.join().unwrap();
    }
}
