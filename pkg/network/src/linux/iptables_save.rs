//! Parses the output of `iptables-save`, and generates the input of `iptables-restore`. Pure text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::desired::{ChainJump, IptablesTable};
use crate::names::{CHAIN_PREFIX, USER_CHAIN};

/// The rules of this crate in the output of `iptables-save`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct SavedRules {
    /// Rules of each chain of this crate, by table and chain.
    pub chains: BTreeMap<(String, String), Vec<String>>,
    /// Rules in other chains that lead to these: table, and the rule with its chain but without `-A`.
    pub jumps: Vec<(String, String)>,
    /// Whether the chain of users exists in the filter table.
    pub has_user_chain: bool,
    /// Whether it exists and has no rules.
    pub has_empty_user_chain: bool,
}

impl SavedRules {
    /// Parses the output of `iptables-save`.
    pub fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.trim();
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if name == USER_CHAIN {
                    saved.has_user_chain |= table == "filter";
                    saved.has_empty_user_chain |= table == "filter";
                } else if name.starts_with(CHAIN_PREFIX) {
                    saved.chains.entry((table.to_owned(), name.to_owned())).or_default();
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rest) = rule.split_once(' ').unwrap_or((rule, ""));
                if chain == USER_CHAIN {
                    saved.has_empty_user_chain &= table != "filter";
                } else if chain.starts_with(CHAIN_PREFIX) {
                    saved
                        .chains
                        .entry((table.to_owned(), chain.to_owned()))
                        .or_default()
                        .push(rest.to_owned());
                } else if is_own_jump(rest) {
                    saved.jumps.push((table.to_owned(), rule.to_owned()));
                }
            }
        }
        saved
    }

    /// Whether the jump exists at least once.
    pub fn has_jump(&self, jump: &ChainJump) -> bool {
        let rule = format!("{} {}", jump.chain, jump.rule);
        self.jumps.iter().any(|(table, found)| table == jump.table && *found == rule)
    }

    /// Jumps that are not desired: of an earlier release, or duplicates.
    pub fn stale_jumps(&self, desired: &[ChainJump]) -> Vec<(String, String)> {
        let mut seen = BTreeSet::new();
        let is_desired = |table: &str, rule: &str| {
            desired.iter().any(|jump| jump.table == table && format!("{} {}", jump.chain, jump.rule) == rule)
        };
        let jumps = self.jumps.iter();
        jumps.filter(|jump| !is_desired(&jump.0, &jump.1) || !seen.insert(*jump)).cloned().collect()
    }

    /// Chains of this crate that are not in any of the tables.
    pub fn stale_chains(&self, desired: &[IptablesTable]) -> BTreeSet<(String, String)> {
        let is_desired = |(table, chain): &(String, String)| {
            desired.iter().any(|desired| desired.name == table && desired.chains.contains_key(chain))
        };
        self.chains.keys().filter(|key| !is_desired(key)).cloned().collect()
    }
}

fn is_own_jump(rule: &str) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    let is_own = |chain: &str| chain.starts_with(CHAIN_PREFIX) && chain != USER_CHAIN;
    words.windows(2).any(|pair| matches!(pair[0], "-j" | "-g") && is_own(pair[1]))
}

/// Changes for one run of `iptables-restore --noflush`; each table is one atomic transaction.
#[derive(Debug, Default)]
pub(super) struct RestoreScript {
    tables: Vec<(String, TableChanges)>,
}

#[derive(Debug, Default)]
struct TableChanges {
    new_chains: Vec<String>,
    chains: Vec<(String, Vec<String>)>,
    removed_jumps: Vec<String>,
    new_jumps: Vec<String>,
    removed_chains: BTreeSet<String>,
}

impl RestoreScript {
    fn table(&mut self, table: &str) -> &mut TableChanges {
        let position = self.tables.iter().position(|(name, _)| name == table).unwrap_or_else(|| {
            self.tables.push((table.to_owned(), TableChanges::default()));
            self.tables.len() - 1
        });
        &mut self.tables[position].1
    }

    /// Creates a chain, which must not exist.
    pub fn add_chain(&mut self, table: &str, chain: &str) {
        self.table(table).new_chains.push(chain.to_owned());
    }

    /// Sets the exact rules of a chain.
    pub fn set_chain(&mut self, table: &str, chain: &str, rules: &[String]) {
        self.table(table).chains.push((chain.to_owned(), rules.to_vec()));
    }

    /// Inserts a jump in front of all other rules.
    pub fn insert_jump(&mut self, jump: &ChainJump) {
        self.table(jump.table).new_jumps.push(format!("{} 1 {}", jump.chain, jump.rule));
    }

    /// Removes a jump, in the form of [`SavedRules::jumps`].
    pub fn remove_jump(&mut self, table: &str, rule: &str) {
        self.table(table).removed_jumps.push(rule.to_owned());
    }

    /// Removes a chain; after the script nothing may jump to it.
    pub fn remove_chain(&mut self, table: &str, chain: &str) {
        self.table(table).removed_chains.insert(chain.to_owned());
    }

    /// The script's text; `None` without changes.
    pub fn text(&self) -> Option<String> {
        let mut text = String::new();
        let mut line =
            |args: std::fmt::Arguments<'_>| writeln!(text, "{args}").expect("writing to a string works");
        for (table, part) in &self.tables {
            line(format_args!("*{table}"));
            for (chain, _) in &part.chains {
                line(format_args!(":{chain} - [0:0]"));
            }
            for chain in &part.new_chains {
                line(format_args!("-N {chain}"));
            }
            for rule in &part.removed_jumps {
                line(format_args!("-D {rule}"));
            }
            for (chain, rules) in &part.chains {
                for rule in rules {
                    line(format_args!("-A {chain} {rule}"));
                }
            }
            for rule in &part.new_jumps {
                line(format_args!("-I {rule}"));
            }
            // All are flushed first, because they may refer to each other.
            for chain in &part.removed_chains {
                line(format_args!("-F {chain}"));
            }
            for chain in &part.removed_chains {
                line(format_args!("-X {chain}"));
            }
            line(format_args!("COMMIT"));
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests;
