//! Generated write steps from a seed, and the expected log content after each.

use bytes::Bytes;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use warren_types::raft::{ConfState, EntryKind, HardState, RaftEntry, SnapshotMeta};

use crate::{LogStore, MemoryDisk, Result, StoredLog, WriteBatch};

/// One write.
#[derive(Clone)]
pub enum WorkloadStep {
    Append(WriteBatch),
    SetSnapshot(SnapshotMeta),
    Compact(u64),
}

impl WorkloadStep {
    pub fn apply(&self, log: &mut dyn LogStore) -> Result<()> {
        match self {
            WorkloadStep::Append(batch) => log.append(batch),
            WorkloadStep::SetSnapshot(meta) => log.set_snapshot(meta),
            WorkloadStep::Compact(up_to) => log.compact(*up_to),
        }
    }
}

/// Steps of one durable write each, and the content before the first and after each.
pub struct Workload {
    pub steps: Vec<WorkloadStep>,
    pub states: Vec<StoredLog>,
}

impl Workload {
    /// `count` steps of every kind: entries, conflicts, own snapshots and leader snapshots.
    pub fn new(seed: u64, count: usize) -> Self {
        let mut chance = StdRng::seed_from_u64(seed);
        let mut log = MemoryDisk::new().open();
        let (mut steps, mut states) = (Vec::new(), vec![log.load().unwrap()]);
        while steps.len() < count {
            let step = random_step(&mut chance, states.last().unwrap(), steps.len() as u64 + 1);
            let writes = log.stats().durable_writes;
            step.apply(&mut log).unwrap();
            if log.stats().durable_writes > writes {
                steps.push(step);
                states.push(log.load().unwrap());
            }
        }
        Self { steps, states }
    }

    /// `count` appends of one entry of `size` bytes each, with occasional changes of the hard state.
    pub fn of_appends(count: u64, size: usize) -> Self {
        let mut log = MemoryDisk::new().open();
        let batches = (1..=count).map(|index| WriteBatch {
            entries: vec![entry(index, 1, size)],
            hard_state: (index % 5 == 1).then_some(HardState { term: 1, vote: 1, commit: index - 1 }),
            ..WriteBatch::default()
        });
        let steps: Vec<WorkloadStep> = batches.map(WorkloadStep::Append).collect();
        let mut states = vec![log.load().unwrap()];
        for step in &steps {
            step.apply(&mut log).unwrap();
            states.push(log.load().unwrap());
        }
        Self { steps, states }
    }

    /// The number of steps that `loaded` contains, ignoring whether it was repaired.
    pub fn steps_in(&self, loaded: &StoredLog) -> Option<usize> {
        let loaded = StoredLog { recovered: None, ..loaded.clone() };
        self.states.iter().rposition(|state| *state == loaded)
    }
}

fn random_step(chance: &mut StdRng, now: &StoredLog, number: u64) -> WorkloadStep {
    let covered = now.snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
    let last = now.entries.last().map_or(covered, |entry| entry.index);
    // Increases with every step, so that all states differ.
    let term = number;
    match chance.random_range(0..20) {
        0 => {
            let snapshot = Some(meta(last + chance.random_range(1..20), term));
            WorkloadStep::Append(WriteBatch { snapshot, ..WriteBatch::default() })
        }
        1..=3 if last > covered => {
            WorkloadStep::SetSnapshot(meta(chance.random_range(covered + 1..=last), term))
        }
        4..=6 if covered > 0 => WorkloadStep::Compact(chance.random_range(0..=covered)),
        kind => {
            let first = if kind < 9 { chance.random_range(covered + 1..=last + 1) } else { last + 1 };
            let count = if kind == 10 { 0 } else { chance.random_range(1..6) };
            let sizes = [10, 256, 256, 3000, 20_000];
            let size = sizes[chance.random_range(0..sizes.len())];
            let hard_state = Some(HardState { term, vote: number, commit: covered });
            let entries = (first..first + count).map(|index| entry(index, term, size)).collect();
            WorkloadStep::Append(WriteBatch { entries, hard_state, ..WriteBatch::default() })
        }
    }
}

fn entry(index: u64, term: u64, size: usize) -> RaftEntry {
    let data: Vec<u8> = (0..size as u64).map(|at| (index * 31 + term * 7 + at * at) as u8).collect();
    RaftEntry { index, term, kind: EntryKind::Command, data: Bytes::from(data) }
}

fn meta(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta { index, term, conf_state: ConfState::of_voters(vec![1, 2, term]) }
}
