//! Reading what `iptables-save` prints, and writing what `iptables-restore` reads. Pure text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::wanted::{CHAIN_PREFIX, Jump, Table};

/// The rules of a firewall as `iptables-save` spells them, as far as they are ours.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Saved {
    /// Rules of each chain of ours, by table and chain.
    pub chains: BTreeMap<(String, String), Vec<String>>,
    /// Rules in chains of others that lead into ours: table, and the rule with its chain but without `-A`.
    pub jumps: Vec<(String, String)>,
}

impl Saved {
    /// Parses the output of `iptables-save`.
    pub fn parse(text: &str) -> Self {
        let mut saved = Self::default();
        let mut table = "";
        for line in text.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name.trim();
            } else if let Some(chain) = line.strip_prefix(':') {
                let name = chain.split(' ').next().unwrap_or_default();
                if name.starts_with(CHAIN_PREFIX) {
                    saved.chains.entry((table.to_owned(), name.to_owned())).or_default();
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let (chain, rest) = rule.split_once(' ').unwrap_or((rule, ""));
                if chain.starts_with(CHAIN_PREFIX) {
                    saved
                        .chains
                        .entry((table.to_owned(), chain.to_owned()))
                        .or_default()
                        .push(rest.to_owned());
                } else if leads_to_us(rest) {
                    saved.jumps.push((table.to_owned(), rule.to_owned()));
                }
            }
        }
        saved
    }

    /// Whether the jump is there, once at least.
    pub fn has(&self, jump: &Jump) -> bool {
        let rule = format!("{} {}", jump.chain, jump.rule);
        self.jumps.iter().any(|(table, found)| table == jump.table && *found == rule)
    }

    /// Jumps that are not wanted: of an earlier release, or the second and later copies of one.
    pub fn stale_jumps(&self, wanted: &[Jump]) -> Vec<(String, String)> {
        let mut seen = BTreeSet::new();
        let is_wanted = |table: &str, rule: &str| {
            wanted.iter().any(|jump| jump.table == table && format!("{} {}", jump.chain, jump.rule) == rule)
        };
        let jumps = self.jumps.iter();
        jumps.filter(|jump| !is_wanted(&jump.0, &jump.1) || !seen.insert(*jump)).cloned().collect()
    }

    /// Chains of ours that are not in any of the tables.
    pub fn stale_chains(&self, wanted: &[Table]) -> BTreeSet<(String, String)> {
        let is_wanted = |(table, chain): &(String, String)| {
            wanted.iter().any(|wanted| wanted.name == table && wanted.chains.contains_key(chain))
        };
        self.chains.keys().filter(|key| !is_wanted(key)).cloned().collect()
    }
}

fn leads_to_us(rule: &str) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    words.windows(2).any(|pair| matches!(pair[0], "-j" | "-g") && pair[1].starts_with(CHAIN_PREFIX))
}

/// Changes to be made by one run of `iptables-restore --noflush`; each table is one atomic transaction.
#[derive(Debug, Default)]
pub(super) struct Script {
    tables: Vec<(String, Part)>,
}

#[derive(Debug, Default)]
struct Part {
    chains: Vec<(String, Vec<String>)>,
    unhook: Vec<String>,
    drop: BTreeSet<String>,
}

impl Script {
    fn part(&mut self, table: &str) -> &mut Part {
        let place = self.tables.iter().position(|(name, _)| name == table).unwrap_or_else(|| {
            self.tables.push((table.to_owned(), Part::default()));
            self.tables.len() - 1
        });
        &mut self.tables[place].1
    }

    /// Makes a chain have exactly these rules.
    pub fn set(&mut self, table: &str, chain: &str, rules: &[String]) {
        self.part(table).chains.push((chain.to_owned(), rules.to_vec()));
    }

    /// Removes a jump, given as [`Saved::jumps`] has it.
    pub fn unhook(&mut self, table: &str, rule: &str) {
        self.part(table).unhook.push(rule.to_owned());
    }

    /// Removes a chain, which nothing may lead to after the rest of the script.
    pub fn drop_chain(&mut self, table: &str, chain: &str) {
        self.part(table).drop.insert(chain.to_owned());
    }

    /// The script's text, or nothing when there is nothing to change.
    pub fn text(&self) -> Option<String> {
        let mut text = String::new();
        let mut line =
            |args: std::fmt::Arguments<'_>| writeln!(text, "{args}").expect("writing to a string works");
        for (table, part) in &self.tables {
            line(format_args!("*{table}"));
            for (chain, _) in &part.chains {
                line(format_args!(":{chain} - [0:0]"));
            }
            for rule in &part.unhook {
                line(format_args!("-D {rule}"));
            }
            for (chain, rules) in &part.chains {
                for rule in rules {
                    line(format_args!("-A {chain} {rule}"));
                }
            }
            // All are emptied first, because they may lead to each other.
            for chain in &part.drop {
                line(format_args!("-F {chain}"));
            }
            for chain in &part.drop {
                line(format_args!("-X {chain}"));
            }
            line(format_args!("COMMIT"));
        }
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests;
