//! The log, snapshot and data directory tests: one suite for all engines, then what is special.

#![allow(clippy::unwrap_used, missing_docs)]

mod data_dir;
mod engines;
mod memory;
mod model;
mod snapshots;
mod suite;

use std::path::Path;

use bytes::Bytes;
use warren_log::{ConfState, Engine, Entry, EntryKind, HardState, LogStore, Owner, Result, SnapshotMeta};
use warren_types::{ClusterId, Id, ManagerId};

/// Whose logs these are.
const OWNER: Owner = Owner { cluster: ClusterId(Id(6)), manager: ManagerId(Id(7)), member: 3 };

fn open(dir: &Path, engine: Engine) -> Result<Box<dyn LogStore>> {
    warren_log::open(dir, engine, OWNER)
}

/// A command whose data tells its index and term apart from any other's.
fn entry(index: u64, term: u64) -> Entry {
    let data = Bytes::from(format!("{index}@{term}"));
    Entry { index, term, kind: EntryKind::Command, data }
}

fn entries(indexes: std::ops::RangeInclusive<u64>, term: u64) -> Vec<Entry> {
    indexes.map(|index| entry(index, term)).collect()
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

/// In the middle of a joint change.
fn joint_members() -> ConfState {
    ConfState {
        voters_outgoing: vec![1],
        learners_next: vec![4],
        auto_leave: true,
        ..members(&[1, 2, 3], &[5])
    }
}

fn snapshot(index: u64, term: u64) -> SnapshotMeta {
    SnapshotMeta { index, term, conf_state: members(&[1, 2, 3], &[index]) }
}
