//! Tests of log, snapshots and data directory: one suite for all engines, then specific tests.

#![allow(clippy::unwrap_used, missing_docs)]

mod data_dir;
mod engines;
mod memory;
mod model;
mod snapshots;
mod suite;

use std::path::Path;

use bytes::Bytes;
use warren_log::{
    ConfState, EntryKind, HardState, LogEngine, LogOwner, LogStore, RaftEntry, Result, SnapshotMeta,
};
use warren_types::{ClusterId, Id, ManagerId};

/// Owner of the test logs.
const OWNER: LogOwner = LogOwner { cluster: ClusterId(Id(6)), manager: ManagerId(Id(7)), member: 3 };

fn open(dir: &Path, engine: LogEngine) -> Result<Box<dyn LogStore>> {
    warren_log::open(dir, engine, OWNER)
}

/// A command with unique data per index and term.
fn entry(index: u64, term: u64) -> RaftEntry {
    let data = Bytes::from(format!("{index}@{term}"));
    RaftEntry { index, term, kind: EntryKind::Command, data }
}

fn entries(indexes: std::ops::RangeInclusive<u64>, term: u64) -> Vec<RaftEntry> {
    indexes.map(|index| entry(index, term)).collect()
}

fn hard_state(term: u64, vote: u64, commit: u64) -> HardState {
    HardState { term, vote, commit }
}

fn members(voters: &[u64], learners: &[u64]) -> ConfState {
    ConfState { voters: voters.to_vec(), learners: learners.to_vec(), ..ConfState::default() }
}

/// Members during a joint configuration change.
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
