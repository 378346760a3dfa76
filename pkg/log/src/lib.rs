//! warren-log: durable storage of a manager: raft log, snapshots, data directory.
//!
//! * [`LogStore`] stores the raft log: hard state, entries, members, and the pointer to the latest
//!   snapshot. [`open`] opens the log of a directory with the configured [`LogEngine`]: redb (the
//!   default) or sled. [`MemoryLog`] is for tests; its [`MemoryDisk`] can lose power at every durable write.
//!   All pass one conformance suite (`tests/log/suite.rs`), and those on a disk one crash suite
//!   (`src/crash.rs`).
//! * [`SnapshotDir`] stores state snapshots as plain checksummed files next to the log.
//! * [`DataDir`] ensures that one process uses a directory and that its version is supported.
//!
//! Everything is synchronous: the raft driver calls it from its own thread. When a write returns `Ok`, the
//! data is on stable storage. One append is one engine transaction, whatever it contains: redb makes it
//! durable with one fdatasync, sled needs two.
//!
//! # Damage
//!
//! Opening a log either returns exactly what was acknowledged (plus all or nothing of the one write in
//! progress), or fails with the file, the entry or record, and the remedy. Engines are not trusted: each
//! entry and record has a checksum over its key and content, the head record defines the range of entries
//! and the sum of their checksums, and the acknowledgement watermark (`ack_watermark.rs`) next to the log
//! defines how far it must reach. An engine that panics, returns an old page, or silently falls back to an
//! older state after a flipped bit is therefore detected.
//!
//! **Only unfinished writes are rolled back, and only by the engine.** It writes transactions atomically;
//! one in progress at a power loss is rolled back at the next opening, reported as [`StoredLog::recovered`]
//! for a warning in the log. An entry with a bad checksum is never truncated, not even at the end above the
//! commit index of the hard state: that index lags (a new one alone is not written), a single voter commits
//! by its own acknowledgement, and a follower that loses an acknowledged entry may help to elect a leader
//! without a committed entry. A completed record that does not verify is therefore damage, wherever it is.
//!
//! One case is ambiguous: a *power cut* that loses the last watermarks (redb's are not synced for every
//! write), together with damage to just the last transaction, looks like a transaction in progress. It is
//! rolled back, with the warning. sled's watermarks are synced, so there even this is an error.
//!
//! This crate must never interpret entries, never depend on the raft implementation, and never return bytes
//! whose checksum does not match.
//!
//! Start reading at [`LogStore`] in `store.rs`; `extent.rs` has the rules of all engines, `disk_log.rs`
//! builds a log from an engine, `redb_table.rs` and `sled_table.rs` are the engines.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ack_watermark;
mod codec;
#[cfg(test)]
mod crash;
mod data_dir;
mod disk_log;
mod engine;
mod error;
mod extent;
mod fsync;
#[cfg(test)]
mod golden;
mod head;
mod memory;
mod owner;
mod redb_table;
mod sled_table;
mod snapshot;
mod store;
mod table;

use std::path::Path;

pub use codec::LOG_FORMAT;
pub use data_dir::{DATA_DIR_VERSION, DataDir};
pub use engine::{LogEngine, UnknownLogEngine, find_log};
pub use error::{Error, Result};
pub use memory::{CrashPoint, MemoryDisk, MemoryLog};
pub use owner::LogOwner;
pub use snapshot::{SNAPSHOT_FORMAT, SnapshotDir};
pub use store::{LogStore, Recovery, StoredLog, WriteBatch, WriteStats};
pub use warren_types::raft::{AcknowledgedEntry, ConfState, EntryKind, HardState, RaftEntry, SnapshotMeta};

/// A raft log in a redb file.
pub type RedbLog = disk_log::DiskLog<redb_table::RedbTable>;

/// A raft log in a sled directory.
pub type SledLog = disk_log::DiskLog<sled_table::SledTable>;

/// Opens the log of `owner` in `dir`, which must exist; creates it if there is none.
///
/// # Errors
/// [`Error::OtherEngine`] if a log of another engine exists; [`Error::OtherOwner`] if it belongs to another
/// member; [`Error::Newer`], [`Error::Older`], [`Error::Corrupt`], [`Error::InUse`] and [`Error::Full`] as
/// described there.
pub fn open(dir: &Path, engine: LogEngine, owner: LogOwner) -> Result<Box<dyn LogStore>> {
    for found in LogEngine::ALL.into_iter().filter(|found| *found != engine) {
        let path = found.path_in(dir);
        if path.try_exists().map_err(Error::io("look for", &path))? {
            return Err(Error::OtherEngine { path, found, expected: engine });
        }
    }
    let path = engine.path_in(dir);
    Ok(match engine {
        LogEngine::Redb => Box::new(RedbLog::open_for(path, owner)?),
        LogEngine::Sled => Box::new(SledLog::open_for(path, owner)?),
    })
}
