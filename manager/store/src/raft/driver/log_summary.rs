//! A summary of a log's content that is cheap to update with every write.

use std::fmt;

use warren_log::{ConfState, HardState, SnapshotMeta, StoredLog, WriteBatch};

use super::log_write::LogWrite;

/// Two logs of one member with equal summaries are equal: raft never has two different entries with the same
/// index and term, nor different entries before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSummary {
    hard_state: HardState,
    members: ConfState,
    snapshot: Option<SnapshotMeta>,
    /// Index of the first entry, or of the next one in an empty log.
    first_index: u64,
    /// Index and term of the last entry, or of the snapshot in an empty log.
    last: (u64, u64),
}

impl LogSummary {
    /// The summary of a loaded log.
    pub fn new(loaded: &StoredLog) -> Self {
        let StoredLog { hard_state, conf_state, snapshot, entries, .. } = loaded;
        let covered = snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        Self {
            hard_state: *hard_state,
            members: conf_state.clone(),
            snapshot: snapshot.clone(),
            first_index: entries.first().map_or(covered.0 + 1, |entry| entry.index),
            last: entries.last().map_or(covered, |entry| (entry.index, entry.term)),
        }
    }

    /// Index of the first entry, or of the next one in an empty log.
    pub fn first_index(&self) -> u64 {
        self.first_index
    }

    /// Index of the last entry, or of the snapshot in an empty log.
    pub fn last_index(&self) -> u64 {
        self.last.0
    }

    /// The summary after `write`.
    pub fn after(&self, write: &LogWrite) -> Self {
        match write {
            LogWrite::Append { batch, .. } => self.with_batch(batch),
            LogWrite::Compact { snapshot, up_to } => {
                let recorded = self.with_snapshot(snapshot);
                Self { first_index: self.first_index.max(up_to + 1), ..recorded }
            }
        }
    }

    /// All summaries that an interrupted `write` may leave behind.
    pub fn intermediate(&self, write: &LogWrite) -> Vec<Self> {
        let mut stages = vec![self.clone(), self.after(write)];
        if let LogWrite::Compact { snapshot, .. } = write {
            stages.push(self.with_snapshot(snapshot));
        }
        stages
    }

    fn with_snapshot(&self, snapshot: &SnapshotMeta) -> Self {
        let (snapshot, members) = (Some(snapshot.clone()), snapshot.conf_state.clone());
        Self { snapshot, members, ..self.clone() }
    }

    fn with_batch(&self, batch: &WriteBatch) -> Self {
        // Acknowledgements of other members are not part of this log's content.
        let WriteBatch { snapshot, entries, hard_state, conf_state, acknowledged: _ } = batch;
        let mut after = self.clone();
        if let Some(snapshot) = snapshot {
            after = after.with_snapshot(snapshot);
            after.first_index = snapshot.index + 1;
            after.last = (snapshot.index, snapshot.term);
        }
        if let Some(last) = entries.last() {
            after.last = (last.index, last.term);
        }
        if let Some(hard_state) = hard_state {
            after.hard_state = *hard_state;
        }
        if let Some(members) = conf_state {
            after.members = members.clone();
        }
        after
    }
}

impl fmt::Display for LogSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, term) = self.last;
        write!(f, "entries {} to {index} of term {term}, {:?}, ", self.first_index, self.hard_state)?;
        match &self.snapshot {
            None => write!(f, "no snapshot")?,
            Some(snapshot) => write!(f, "a snapshot at entry {}", snapshot.index)?,
        }
        write!(f, ", members {:?}", self.members.voters)
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use warren_log::{EntryKind, LogStore, MemoryDisk, RaftEntry};

    use super::*;

    /// Random writes to a real log: after each accepted write the summary equals that of the loaded log.
    #[test]
    fn summary_matches_log() {
        let mut chance = StdRng::seed_from_u64(7);
        for _ in 0..200 {
            let disk = MemoryDisk::new();
            let (mut log, mut taken) = (disk.open(), 0);
            let mut known = LogSummary::new(&log.load().unwrap());
            for number in 0..40 {
                let write = write(&mut chance, &known, number);
                let stages = known.intermediate(&write);
                let done = match &write {
                    LogWrite::Append { batch, .. } => log.append(batch),
                    LogWrite::Compact { snapshot, up_to } => log.set_snapshot(snapshot).and_then(|()| {
                        assert!(stages.contains(&LogSummary::new(&log.load().unwrap())));
                        log.compact(*up_to)
                    }),
                };
                match done {
                    Ok(()) => (known, taken) = (known.after(&write), taken + 1),
                    Err(_) => known = LogSummary::new(&log.load().unwrap()),
                }
                let found = LogSummary::new(&log.load().unwrap());
                assert_eq!(found, known, "after {write:?}");
                assert!(stages.contains(&found), "{write:?} left {found}");
            }
            assert!(taken > 10, "most writes are taken: {taken}");
        }
    }

    fn write(chance: &mut StdRng, known: &LogSummary, number: u64) -> LogWrite {
        let (last, term) = known.last;
        let covered = known.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        if last > covered && chance.random_ratio(1, 4) {
            let index = chance.random_range(covered + 1..=last);
            let snapshot = SnapshotMeta { index, term, conf_state: ConfState::of_voters(vec![1, number]) };
            return LogWrite::Compact { snapshot, up_to: chance.random_range(covered..=index) };
        }
        let term = term + chance.random_range(0..2);
        let from = chance.random_range(last.max(1)..=last + 1);
        let entry = |index| RaftEntry { index, term, kind: EntryKind::Command, data: vec![1; 3].into() };
        let entries: Vec<_> = (from..from + chance.random_range(0..4)).map(entry).collect();
        let batch = WriteBatch {
            snapshot: None,
            hard_state: chance.random::<bool>().then_some(HardState { term, vote: 1, commit: last }),
            conf_state: chance.random_ratio(1, 8).then(|| ConfState::of_voters(vec![number])),
            entries,
            acknowledged: None,
        };
        LogWrite::Append { number, batch }
    }
}
