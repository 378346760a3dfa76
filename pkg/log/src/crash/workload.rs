//! Steps to do to a log, drawn from a seed, and what a log holds after each of them.

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use warren_types::raft::{ConfState, Entry, EntryKind, HardState, SnapshotMeta};

use crate::{Batch, Disk, Loaded, LogStore, Result};

/// One write.
#[derive(Clone)]
pub enum Step {
    Append(Batch),
    SetSnapshot(SnapshotMeta),
    Compact(u64),
}

impl Step {
    pub fn apply(&self, log: &mut dyn LogStore) -> Result<()> {
        match self {
            Step::Append(batch) => log.append(batch),
            Step::SetSnapshot(meta) => log.set_snapshot(meta),
            Step::Compact(up_to) => log.compact(*up_to),
        }
    }
}

/// Steps that each are one durable write, and the contents before the first and after each.
pub struct Workload {
    pub steps: Vec<Step>,
    pub states: Vec<Loaded>,
}

impl Workload {
    /// `count` steps of every kind: entries, conflicts, snapshots of one's own and of a leader.
    pub fn new(seed: u64, count: usize) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let mut log = Disk::new().open();
        let (mut steps, mut states) = (Vec::new(), vec![log.load().unwrap()]);
        while steps.len() < count {
            let step = draw(&mut chance, states.last().unwrap(), steps.len() as u64 + 1);
            let writes = log.stats().durable_writes;
            step.apply(&mut log).unwrap();
            if log.stats().durable_writes > writes {
                steps.push(step);
                states.push(log.load().unwrap());
            }
        }
        Self { steps, states }
    }

    /// `count` appends of one entry of `size` bytes each, with a hard state that changes now and then.
    pub fn of_appends(count: u64, size: usize) -> Self {
        let mut log = Disk::new().open();
        let batches = (1..=count).map(|index| Batch {
            entries: vec![entry(index, 1, size)],
            hard_state: (index % 5 == 1).then_some(HardState { term: 1, vote: 1, commit: index - 1 }),
            ..Batch::default()
        });
        let steps: Vec<Step> = batches.map(Step::Append).collect();
        let mut states = vec![log.load().unwrap()];
        for step in &steps {
            step.apply(&mut log).unwrap();
            states.push(log.load().unwrap());
        }
        Self { steps, states }
    }

    /// How many steps' effect `loaded` is, no matter whether it was repaired to be so.
    pub fn steps_in(&self, loaded: &Loaded) -> Option<usize> {
        let loaded = Loaded { recovered: None, ..loaded.clone() };
        self.states.iter().rposition(|state| *state == loaded)
    }
}

fn draw(chance: &mut StdRng, now: &Loaded, number: u64) -> Step {
    let covered = now.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
    let last = now.entries.last().map_or(covered, |entry| entry.index);
    // Rising with every step, so that no two states are the same.
    let term = number;
    match chance.random_range(0..20) {
        0 => {
            let snapshot = Some(meta(last + chance.random_range(1..20), term));
            Step::Append(Batch { snapshot, ..Batch::default() })
        }
        1..=3 if last > covered => Step::SetSnapshot(meta(chance.random_range(covered + 1..=last), term)),
        4..=6 if covered > 0 => Step::Compact(chance.random_range(0..=covered)),
        kind => {
            let first = if kind < 9 { chance.random_range(covered + 1..=last + 1) } else { last + 1 };
            let count = if kind == 10 { 0 } else { chance.random_range(1..6) };
            let sizes = [10, 256, 256, 3000, 20_000];
            let size = sizes[chance.random_range(0..sizes.len())];
            let hard_state = Some(HardState { term, vote: number, commit: covered });
            let entries = (first..first + count).map(|index| entry(index, term, size)).collect();
            Step::Append(Batch { entries, hard_state, ..Batch::default() })
        }
    }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    let data: Vec<u8> = (0..size as u64).map(|at| (index * 31 + term * 7 + at * at) as u8).collect();
    Entry { index, term, kind: EntryKind::Command, data: Bytes::from(data) }
}

fn meta(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta { index, term, conf_state: ConfState::of_voters(vec![1, 2, term]) }
}
