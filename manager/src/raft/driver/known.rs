//! What a log is known to hold, in so few words that every write can keep count of it.

use std::fmt;

use warren_log::{Batch, ConfState, HardState, Loaded, SnapshotMeta};

use super::keeper::Write;

/// Two logs of one member with the same words here are the same log: raft never has two different entries with one
/// index and one term, nor different ones before them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Known {
    hard_state: HardState,
    members: ConfState,
    snapshot: Option<SnapshotMeta>,
    /// Index of the first entry, or of the one that must come next.
    first: u64,
    /// Index and term of the last entry, or of what stands in its place.
    last: (u64, u64),
}

impl Known {
    /// What was read.
    pub fn of(loaded: &Loaded) -> Self {
        let Loaded { hard_state, conf_state, snapshot, entries, .. } = loaded;
        let covered = snapshot.as_ref().map_or((0, 0), |snapshot| (snapshot.index, snapshot.term));
        Self {
            hard_state: *hard_state,
            members: conf_state.clone(),
            snapshot: snapshot.clone(),
            first: entries.first().map_or(covered.0 + 1, |entry| entry.index),
            last: entries.last().map_or(covered, |entry| (entry.index, entry.term)),
        }
    }

    /// Index of the first entry, or of the one that must come next.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// What is there once `write` is durable.
    pub fn after(&self, write: &Write) -> Self {
        match write {
            Write::Append { batch, .. } => self.with_batch(batch),
            Write::Compact { snapshot, up_to } => {
                let recorded = self.with_snapshot(snapshot);
                Self { first: self.first.max(up_to + 1), ..recorded }
            }
        }
    }

    /// Everything that an interrupted `write` can leave behind, from nothing to all of it.
    pub fn stages(&self, write: &Write) -> Vec<Self> {
        let mut stages = vec![self.clone(), self.after(write)];
        if let Write::Compact { snapshot, .. } = write {
            stages.push(self.with_snapshot(snapshot));
        }
        stages
    }

    fn with_snapshot(&self, snapshot: &SnapshotMeta) -> Self {
        let (snapshot, members) = (Some(snapshot.clone()), snapshot.conf_state.clone());
        Self { snapshot, members, ..self.clone() }
    }

    fn with_batch(&self, batch: &Batch) -> Self {
        // What is known of other members says nothing of this log.
        let Batch { snapshot, entries, hard_state, conf_state, acknowledged: _ } = batch;
        let mut after = self.clone();
        if let Some(snapshot) = snapshot {
            after = after.with_snapshot(snapshot);
            after.first = snapshot.index + 1;
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

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (index, term) = self.last;
        write!(f, "entries {} to {index} of term {term}, {:?}, ", self.first, self.hard_state)?;
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
    use warren_log::{Disk, Entry, EntryKind, LogStore};

    use super::*;

    /// Writes at random to a real log: whatever it takes, the words kept along the way are those of what it holds.
    #[test]
    fn what_is_known_is_what_is_there() {
        let mut chance = StdRng::seed_from_u64(7);
        for _ in 0..200 {
            let disk = Disk::new();
            let (mut log, mut taken) = (disk.open(), 0);
            let mut known = Known::of(&log.load().unwrap());
            for number in 0..40 {
                let write = write(&mut chance, &known, number);
                let stages = known.stages(&write);
                let done = match &write {
                    Write::Append { batch, .. } => log.append(batch),
                    Write::Compact { snapshot, up_to } => log.set_snapshot(snapshot).and_then(|()| {
                        assert!(stages.contains(&Known::of(&log.load().unwrap())));
                        log.compact(*up_to)
                    }),
                };
                match done {
                    Ok(()) => (known, taken) = (known.after(&write), taken + 1),
                    Err(_) => known = Known::of(&log.load().unwrap()),
                }
                let found = Known::of(&log.load().unwrap());
                assert_eq!(found, known, "after {write:?}");
                assert!(stages.contains(&found), "{write:?} left {found}");
            }
            assert!(taken > 10, "most writes are taken: {taken}");
        }
    }

    fn write(chance: &mut StdRng, known: &Known, number: u64) -> Write {
        let (last, term) = known.last;
        let covered = known.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        if last > covered && chance.random_ratio(1, 4) {
            let index = chance.random_range(covered + 1..=last);
            let snapshot = SnapshotMeta { index, term, conf_state: ConfState::of_voters(vec![1, number]) };
            return Write::Compact { snapshot, up_to: chance.random_range(covered..=index) };
        }
        let term = term + chance.random_range(0..2);
        let from = chance.random_range(last.max(1)..=last + 1);
        let entry = |index| Entry { index, term, kind: EntryKind::Command, data: vec![1; 3].into() };
        let entries: Vec<_> = (from..from + chance.random_range(0..4)).map(entry).collect();
        let batch = Batch {
            snapshot: None,
            hard_state: chance.random::<bool>().then_some(HardState { term, vote: 1, commit: last }),
            conf_state: chance.random_ratio(1, 8).then(|| ConfState::of_voters(vec![number])),
            entries,
            acknowledged: None,
        };
        Write::Append { number, batch }
    }
}
