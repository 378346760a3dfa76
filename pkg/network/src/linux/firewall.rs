//! Making the iptables chains as wanted.
//!
//! Two ways lead here. A *change* of published ports writes only the chains that differ from the last write,
//! in one run of `iptables-restore`, which takes about 10 ms however many chains there are. A *pass* reads
//! everything back and repairs it. `iptables-save` spells rules in its own way, so a pass does not compare
//! with what was written but with what was read back after it: a chain that reads differently was changed by
//! somebody else.

use std::collections::BTreeMap;

use super::process::{self, run};
use super::saved::{Saved, Script};
use crate::Error;
use crate::wanted::{Jump, Table, Wanted};

/// What this process knows about the chains.
#[derive(Debug, Default)]
pub(super) struct Firewall {
    /// The tables as last written; `None` when a write failed, so that nothing is certain.
    written: Option<Vec<Table>>,
    /// How chains read back after they were written. A chain that is not here has been written since, or
    /// never.
    read_back: BTreeMap<(String, String), Vec<String>>,
}

impl Firewall {
    /// Writes the difference to the last write.
    pub async fn change(&mut self, wanted: &Wanted) -> Result<(), Error> {
        let Some(written) = self.written.take() else {
            return self.pass(wanted).await.map(drop);
        };
        let mut script = Script::default();
        for (before, now) in written.iter().zip(&wanted.tables) {
            for (chain, rules) in
                now.chains.iter().filter(|(chain, rules)| before.chains.get(*chain) != Some(rules))
            {
                script.set(now.name, chain, rules);
                self.read_back.remove(&(now.name.to_owned(), chain.clone()));
            }
            for chain in before.chains.keys().filter(|chain| !now.chains.contains_key(*chain)) {
                script.drop_chain(now.name, chain);
                self.read_back.remove(&(now.name.to_owned(), chain.clone()));
            }
        }
        if restore(&script).await.is_err() {
            // Somebody may have removed a chain that this script was to drop; a full pass knows what is
            // there.
            return self.pass(wanted).await.map(drop);
        }
        self.written = Some(wanted.tables.clone());
        Ok(())
    }

    /// Reads the chains, makes all of them as wanted, and hooks them in; returns what was damaged or
    /// missing.
    pub async fn pass(&mut self, wanted: &Wanted) -> Result<Vec<String>, Error> {
        let written = self.written.take().unwrap_or_default();
        let saved = Saved::parse(&run("iptables-save", &[], "").await?);
        let mut repaired = Vec::new();
        let mut script = Script::default();
        for table in &wanted.tables {
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
                script.set(table.name, chain, rules);
            }
        }
        for (table, rule) in saved.stale_jumps(&wanted.jumps) {
            repaired.push(format!("a jump in table {table} was left over: {rule}"));
            script.unhook(&table, &rule);
        }
        for (table, chain) in saved.stale_chains(&wanted.tables) {
            repaired.push(format!("chain {chain} in table {table} was left over"));
            script.drop_chain(&table, &chain);
        }
        let wrote = restore(&script).await?;
        let missing: Vec<Jump> = wanted.jumps.iter().filter(|jump| !saved.has(jump)).cloned().collect();
        repaired.extend(hook(missing).await?);
        if wrote {
            self.read_back = Saved::parse(&run("iptables-save", &[], "").await?).chains;
        }
        self.written = Some(wanted.tables.clone());
        Ok(repaired)
    }

    /// Removes every chain of ours and every jump to one.
    pub async fn remove(&mut self) -> Result<(), Error> {
        *self = Self::default();
        let saved = Saved::parse(&run("iptables-save", &[], "").await?);
        let mut script = Script::default();
        // What opens goes before what protects.
        for table in ["nat", "mangle", "filter", "raw"] {
            for (_, rule) in saved.jumps.iter().filter(|(found, _)| found == table) {
                script.unhook(table, rule);
            }
            for (_, chain) in saved.chains.keys().filter(|(found, _)| found == table) {
                script.drop_chain(table, chain);
            }
        }
        restore(&script).await.map(drop)
    }
}

/// Runs a script; returns whether there was anything to do. An error names the rule that was refused.
async fn restore(script: &Script) -> Result<bool, Error> {
    let Some(text) = script.text() else { return Ok(false) };
    match run("iptables-restore", &["--noflush", "-w"], &text).await {
        Err(Error::ProgramFailed { command, detail }) => {
            let rule = refused_line(&detail).and_then(|line| text.lines().nth(line.checked_sub(1)?));
            let command = rule.map_or(command.clone(), |rule| format!("{command}` at `{rule}"));
            Err(Error::ProgramFailed { command, detail })
        }
        outcome => outcome.map(|_| true),
    }
}

/// The number of the refused line: the programs say `line 7: ...` or `Error occurred at line: 7`.
fn refused_line(detail: &str) -> Option<usize> {
    let (_, rest) = detail.split_once("line")?;
    let digits: String =
        rest.trim_start_matches([':', ' ']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Inserts the jumps that are not there, in front of everybody else's rules; returns those it inserted.
/// `iptables -C` has the last word on whether one is there: programs of other versions may spell it
/// differently.
async fn hook(jumps: Vec<Jump>) -> Result<Vec<String>, Error> {
    if jumps.is_empty() {
        return Ok(Vec::new());
    }
    process::on_thread("hooking the chains in", move || {
        let failed =
            |command: String| move |error: Box<dyn std::error::Error>| failed(command, error.as_ref());
        let iptables = iptables::new(false).map_err(failed("iptables --version".to_owned()))?;
        let mut inserted = Vec::new();
        for Jump { table, chain, rule } in jumps {
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
    use super::refused_line;

    #[test]
    fn the_refused_line_is_found_in_every_spelling() {
        for (detail, line) in [
            ("iptables-restore v1.8.9 (nf_tables): \nline 4: CHAIN_ADD failed (No such file)", Some(4)),
            ("iptables-restore: line 12 failed", Some(12)),
            ("iptables-restore v1.8.9: unknown option\nError occurred at line: 3\nTry", Some(3)),
            ("Permission denied (you must be root)", None),
        ] {
            assert_eq!(refused_line(detail), line, "{detail}");
        }
    }
}
