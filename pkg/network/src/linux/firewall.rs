//! Reconciles the iptables chains, and the nftables table beside them, with the desired state.
//!
//! There are two paths. A *change* writes only the chains that differ from the last write, in one run of
//! `iptables-restore`, which takes about 10 ms for any number of chains. A *reconciliation* reads
//! everything back and repairs it. `iptables-save` normalises rules, so it compares not with the written
//! text but with the text read back after the write: a chain that differs was changed by another process.

use std::collections::{BTreeMap, BTreeSet};

use super::iptables_save::{RestoreScript, SavedRules};
use super::isolation::IsolationTable;
use super::process::run;
use crate::Error;
use crate::desired::{ChainChange, ChainJump, chain_changes, desired_network};
use crate::model::NodeNetwork;
use crate::names::USER_CHAIN;

/// Above this number of written chains they are not read back at once, which takes long. The next
/// reconciliation reads them, and writes those again that `iptables-save` spells differently.
const MAX_READ_BACK: usize = 500;

/// Cached state of the firewall.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    /// The node as last written; `None` after a failed write, when the state of the chains is unknown.
    written: Option<NodeNetwork>,
    /// Text of chains read back after they were written. A missing chain was written since, or never.
    read_back: BTreeMap<(String, String), Vec<String>>,
    isolation: IsolationTable,
}

impl Firewall {
    /// Writes the difference to the last write. Networks are separated before anything is translated.
    pub async fn update(&mut self, node: &NodeNetwork) -> Result<(), Error> {
        let Some(written) = self.written.take() else {
            return self.reconcile(node).await.map(drop);
        };
        self.isolation.update(&written, node).await?;
        let mut script = RestoreScript::default();
        for ChainChange { table, chain, rules } in chain_changes(&written, node) {
            match rules {
                Some(rules) => script.set_chain(table, &chain, &rules),
                None => script.remove_chain(table, &chain),
            }
            self.read_back.remove(&(table.to_owned(), chain));
        }
        if restore(&script).await.is_err() {
            // Another process may have removed a chain that this script deletes; a full reconciliation
            // reads the actual state.
            return self.reconcile(node).await.map(drop);
        }
        self.written = Some(node.clone());
        Ok(())
    }

    /// Reads the chains, reconciles all of them and their jumps; returns what was damaged or missing.
    pub async fn reconcile(&mut self, node: &NodeNetwork) -> Result<Vec<String>, Error> {
        let written = self.written.take();
        let desired = desired_network(node);
        let (isolated, saved) =
            tokio::join!(self.isolation.reconcile(&desired.isolation), run("iptables-save", &[], ""));
        let mut repaired = isolated?;
        let saved = SavedRules::parse(&saved?);
        let mut script = RestoreScript::default();
        let mut written_chains = 0;
        let changes = written.as_ref().map(|written| chain_changes(written, node)).unwrap_or_default();
        let changed: BTreeSet<(&str, &str)> =
            changes.iter().map(|change| (change.table, change.chain.as_str())).collect();
        if !saved.has_user_chain {
            repaired.push(format!("chain {USER_CHAIN} in table filter was missing"));
            script.add_chain("filter", USER_CHAIN);
        }
        for table in &desired.tables {
            for (chain, rules) in &table.chains {
                let key = (table.name.to_owned(), chain.clone());
                let as_before = written.is_some() && !changed.contains(&(table.name, chain));
                let (found, known) = (saved.chains.get(&key), self.read_back.get(&key));
                let is_known = found.is_some() && found == known;
                if is_known && as_before {
                    continue;
                }
                if known.is_none() && found == Some(rules) {
                    self.read_back.insert(key, rules.clone());
                    continue;
                }
                match (found, known) {
                    (None, _) => repaired.push(format!("chain {chain} in table {} was missing", table.name)),
                    (Some(_), Some(_)) if !is_known => {
                        repaired.push(format!("chain {chain} in table {} was changed", table.name))
                    }
                    _ => {}
                }
                written_chains += 1;
                // Unknown from now on, and after a failure.
                self.read_back.remove(&key);
                script.set_chain(table.name, chain, rules);
            }
        }
        for (table, rule) in saved.stale_jumps(&desired.jumps) {
            repaired.push(format!("a jump in table {table} was left over: {rule}"));
            script.remove_jump(&table, &rule);
        }
        for (table, chain) in saved.stale_chains(&desired.tables) {
            repaired.push(format!("chain {chain} in table {table} was left over"));
            script.remove_chain(&table, &chain);
            self.read_back.remove(&(table, chain));
        }
        for jump in desired.jumps.iter().filter(|jump| !saved.has_jump(jump)) {
            let ChainJump { table, chain, rule } = jump;
            repaired.push(format!("a jump in table {table} was missing: {chain} {rule}"));
            script.insert_jump(jump);
        }
        restore(&script).await?;
        if (1..=MAX_READ_BACK).contains(&written_chains) {
            self.read_back = SavedRules::parse(&run("iptables-save", &[], "").await?).chains;
        }
        self.written = Some(node.clone());
        Ok(repaired)
    }

    /// Removes every chain of this crate and every jump to one. The chain of users stays if it has rules.
    pub async fn remove(&mut self) -> Result<(), Error> {
        *self = Self::default();
        let saved = SavedRules::parse(&run("iptables-save", &[], "").await?);
        let mut script = RestoreScript::default();
        // Forwarding rules are removed before protective ones.
        for table in ["nat", "mangle", "filter", "raw"] {
            for (_, rule) in saved.jumps.iter().filter(|(found, _)| found == table) {
                script.remove_jump(table, rule);
            }
            for (_, chain) in saved.chains.keys().filter(|(found, _)| found == table) {
                script.remove_chain(table, chain);
            }
        }
        if saved.has_empty_user_chain {
            script.remove_chain("filter", USER_CHAIN);
        }
        restore(&script).await?;
        IsolationTable::remove().await
    }
}

/// Runs a script. An error contains the rejected rule.
async fn restore(script: &RestoreScript) -> Result<(), Error> {
    let Some(text) = script.text() else { return Ok(()) };
    match run("iptables-restore", &["--noflush", "-w"], &text).await {
        Err(Error::ProgramFailed { command, detail }) => {
            let rule = rejected_line(&detail).and_then(|line| text.lines().nth(line.checked_sub(1)?));
            let command = rule.map_or(command.clone(), |rule| format!("{command}` at `{rule}"));
            Err(Error::ProgramFailed { command, detail })
        }
        outcome => outcome.map(drop),
    }
}

/// The number of the rejected line: the programs print `line 7: ...` or `Error occurred at line: 7`.
fn rejected_line(detail: &str) -> Option<usize> {
    let (_, rest) = detail.split_once("line")?;
    let digits: String =
        rest.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::rejected_line;

    #[test]
    fn the_refused_line_is_found_in_every_spelling() {
        for (detail, line) in [
            ("iptables-restore v1.8.9 (nf_tables): \nline 4: CHAIN_ADD failed (No such file)", Some(4)),
            ("iptables-restore: line 12 failed", Some(12)),
            ("iptables-restore v1.8.9: unknown option\nError occurred at line: 3\nTry", Some(3)),
            ("Permission denied (you must be root)", None),
        ] {
            assert_eq!(rejected_line(detail), line, "{detail}");
        }
    }
}
