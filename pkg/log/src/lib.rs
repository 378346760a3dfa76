//! warren-log: everything a manager keeps on its disk, behind one door.
//!
//! * [`LogStore`] holds the raft log: hard state, entries, members, and the pointer to the latest
//!   snapshot. Engines: [`RedbLog`] (the default) and [`MemoryLog`], whose [`Disk`] can lose power
//!   at every durable write. Both pass one conformance suite (`tests/log/suite.rs`).
//! * [`Snapshots`] keeps state snapshots as plain checksummed files beside the log.
//! * [`DataDir`] makes sure that one process uses a directory, and that it can read it.
//!
//! All of it is synchronous: the raft driver calls it from a thread of its own. When a call that
//! writes returns `Ok`, the data is on stable storage.
//!
//! This crate must never know what an entry means, never depend on the raft implementation, and
//! never answer a read with bytes whose checksum does not match.
//!
//! Start reading at [`LogStore`] in `store.rs`; `extent.rs` has the rules both engines enforce.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codec;
mod data_dir;
mod error;
mod extent;
mod memory;
mod names;
mod redb_log;
mod snapshot;
mod store;

pub use data_dir::{DATA_DIR_VERSION, DataDir};
pub use error::{Error, Result};
pub use memory::{CrashPoint, Disk, MemoryLog};
pub use redb_log::{LOG_FORMAT, RedbLog};
pub use snapshot::{SNAPSHOT_FORMAT, Snapshots};
pub use store::{Batch, Loaded, LogStore, Stats};
pub use warren_types::raft::{ConfState, Entry, EntryKind, HardState, SnapshotMeta};
