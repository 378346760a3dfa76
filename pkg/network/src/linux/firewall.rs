//! Reconciles the iptables chains with the desired state.
//!
//! There are two paths. A *change* of published ports writes only the chains that differ from the last
//! write, in one run of `iptables-restore`, which takes about 10 ms for any number of chains. A
//! *reconciliation* reads everything back and repairs it. `iptables-save` normalises rules, so it compares
//! not with the written text but with the text read back after the write: a chain that differs was changed
//! by another process.

use std::collections::BTreeMap;

use super::iptables_save::{RestoreScript, SavedRules};
use super::process::{self, run};
use crate::Error;
use crate::desired::{ChainJump, DesiredNetwork, IptablesTable};

/// Cached state of the chains.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    /// The tables as last written; `None` after a failed write, when their state is unknown.
    written: Option<Vec<IptablesTable>>,
    /// Text of chains read back after they were written. A missing chain was written since, or never.
    read_back: BTreeMap<(String, String), Vec<String>>,
}

impl Firewall {
    /// Writes the difference to the last write.
    pub async fn update(&mut self, desired: &DesiredNetwork) -> Result<(), Error> {
        let Some(written) = self.written.take() else {
            return self.reconcile(desired).await.map(drop);
        };
        let mut script = RestoreScript::default();
        for (before, now) in written.iter().zip(&desired.tables) {
            for (chain, rules) in
                now.chains.iter().filter(|(chain, rules)| before.chains.get(*chain) != Some(rules))
            {
                script.set_chain(now.name, chain, rules);
                self.read_back.remove(&(now.name.to_owned(), chain.clone()));
            }
            for chain in before.chains.keys().filter(|chain| !now.chains.contains_key(*chain)) {
                script.remove_chain(now.name, chain);
                self.read_back.remove(&(now.name.to_owned(), chain.clone()));
            }
        }
        if restore(&script).await.is_err() {
            // Another process may have removed a chain that this script deletes; a full reconciliation
            // reads the actual state.
            return self.reconcile(desired).await.map(drop);
        }
        self.written = Some(desired.tables.clone());
        Ok(())
    }

    /// Reads the chains, reconciles all of them and their jumps; returns what was damaged or missing.
    pub async fn reconcile(&mut self, desired: &DesiredNetwork) -> Result<Vec<String>, Error> {
        let written = self.written.take().unwrap_or_default();
        let saved = SavedRules::parse(&run("iptables-save", &[], "").await?);
        let mut repaired = Vec::new();
        let mut script = RestoreScript::default();
        for table in &desired.tables {
            let before = written.iter().find(|before| before.name == table.name);
            for (chain, rules) in &table.chains {
                let key = (table.name.to_owned(), chain.clone());
                let as_before = before.is_some_and(|before| before.chains.get(chain) == Some(rules));
                match (saved.chains.get(&key), self.read_back.get(&key)) {
                    (Some(found), Some(known)) if found == known && as_before => continue,
                    (Some(found), Some(known)) if found == known => {}
                    (Some(_), Some(_)) => {
                        repaired.push(format!("chain {chain} in table {} was changed", table.name))
                    }
                    (None, _) => repaired.push(format!("chain {chain} in table {} was missing", table.name)),
                    (Some(_), None) => {}
                }
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
        }
        let wrote = restore(&script).await?;
        let missing: Vec<ChainJump> =
            desired.jumps.iter().filter(|jump| !saved.has_jump(jump)).cloned().collect();
        repaired.extend(ensure_jumps(missing).await?);
        if wrote {
            self.read_back = SavedRules::parse(&run("iptables-save", &[], "").await?).chains;
        }
        self.written = Some(desired.tables.clone());
        Ok(repaired)
    }

    /// Removes every chain of this crate and every jump to one.
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
        restore(&script).await.map(drop)
    }
}

/// Runs a script; returns whether it had changes. An error contains the rejected rule.
async fn restore(script: &RestoreScript) -> Result<bool, Error> {
    let Some(text) = script.text() else { return Ok(false) };
    match run("iptables-restore", &["--noflush", "-w"], &text).await {
        Err(Error::ProgramFailed { command, detail }) => {
            let rule = rejected_line(&detail).and_then(|line| text.lines().nth(line.checked_sub(1)?));
            let command = rule.map_or(command.clone(), |rule| format!("{command}` at `{rule}"));
            Err(Error::ProgramFailed { command, detail })
        }
        outcome => outcome.map(|_| true),
    }
}

/// The number of the rejected line: the programs print `line 7: ...` or `Error occurred at line: 7`.
fn rejected_line(detail: &str) -> Option<usize> {
    let (_, rest) = detail.split_once("line")?;
    let digits: String =
        rest.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Inserts missing jumps in front of all other rules; returns those it inserted. `iptables -C` decides
/// whether a jump exists: other versions may spell it differently.
async fn ensure_jumps(jumps: Vec<ChainJump>) -> Result<Vec<String>, Error> {
    if jumps.is_empty() {
        return Ok(Vec::new());
    }
    process::run_on_thread("inserting jumps", move || {
        let failed =
            |command: String| move |error: Box<dyn std::error::Error>| failed(command, error.as_ref());
        let iptables = iptables::new(false).map_err(failed("iptables --version".to_owned()))?;
        let mut inserted = Vec::new();
        for ChainJump { table, chain, rule } in jumps {
            let command = |verb: &str| format!("iptables -w -t {table} {verb} {chain} {rule}");
            if !iptables.exists(table, chain, rule).map_err(failed(command("-C")))? {
                iptables.insert(table, chain, rule, 1).map_err(failed(command("-I")))?;
                inserted.push(format!("a jump in table {table} was missing: {chain} {rule}"));
            }
        }
        Ok(inserted)
    })
    .await
}

fn failed(command: String, error: &(dyn std::error::Error + 'static)) -> Error {
    Error::ProgramFailed { command, detail: error.to_string() }
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
