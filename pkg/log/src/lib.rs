//! warren-log: everything a manager keeps on its disk, behind one door.
//!
//! * [`LogStore`] holds the raft log: hard state, entries, members, and the pointer to the latest
//!   snapshot. [`open`] opens the one of a directory with the [`Engine`] that is set: redb (the
//!   default) or sled. [`MemoryLog`] is for tests; its [`Disk`] can lose power at every durable write.
//!   All pass one conformance suite (`tests/log/suite.rs`), and those on a disk one crash suite
//!   (`src/crash.rs`).
//! * [`Snapshots`] keeps state snapshots as plain checksummed files beside the log.
//! * [`DataDir`] makes sure that one process uses a directory, and that it can read it.
//!
//! All of it is synchronous: the raft driver calls it from a thread of its own. When a call that
//! writes returns `Ok`, the data is on stable storage. One append is one transaction of the engine,
//! whatever is in it: redb makes it durable with one fdatasync, sled needs two.
//!
//! # Damage
//!
//! A log is opened with exactly what was acknowledged (and all or nothing of the one write that was
//! under way), or it is refused with the file, the entry or record, and what to do. Engines are not
//! believed: each entry and record has a checksum over its key and content, the head record says which
//! entries there are and what their checksums add up to, and the receipt (`receipt.rs`) beside the log says
//! how far it must reach. So an engine that panics, hands out an old page, or silently falls back to an
//! older state over a flipped bit is found out.
//!
//! **What is cut is what never finished, and only the engine cuts it.** It writes transactions as a
//! whole; one that was under way when the power went is taken back at the next opening, which
//! [`Loaded::recovered`] tells, to be logged as a warning. An entry with a bad checksum is never cut,
//! not even at the end and above the commit index of the hard state: that index lags behind (a new one
//! alone is not written), a single voter commits by its own acknowledgement, and a follower that
//! forgets what it acknowledged may help to elect a leader that lacks a committed entry. A completed
//! record that does not verify is therefore damage, wherever it stands.
//!
//! One thing cannot be told apart: a *power cut* that loses the last receipts (redb's are not synced
//! for every write), together with damage to just the last transaction, looks like a transaction that
//! was under way. It is cut, with the warning. sled's receipts are synced, so there even that is
//! refused.
//!
//! This crate must never know what an entry means, never depend on the raft implementation, and
//! never answer a read with bytes whose checksum does not match.
//!
//! Start reading at [`LogStore`] in `store.rs`; `extent.rs` has the rules all engines enforce,
//! `disk_log.rs` what makes a log of an engine, `redb_table.rs` and `sled_table.rs` the engines.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod codec;
#[cfg(test)]
mod crash;
mod data_dir;
mod disk_log;
mod engine;
mod error;
mod extent;
#[cfg(test)]
mod golden;
mod head;
mod memory;
mod names;
mod owner;
mod receipt;
mod redb_table;
mod sled_table;
mod snapshot;
mod store;
mod table;

pub use codec::LOG_FORMAT;
pub use data_dir::{DATA_DIR_VERSION, DataDir};
pub use engine::{Engine, UnknownEngine, log_in, open};
pub use error::{Error, Result};
pub use memory::{CrashPoint, Disk, MemoryLog};
pub use owner::Owner;
pub use snapshot::{SNAPSHOT_FORMAT, Snapshots};
pub use store::{Batch, Loaded, LogStore, Recovered, Stats};
pub use warren_types::raft::{Acknowledged, ConfState, Entry, EntryKind, HardState, SnapshotMeta};

/// A raft log in a redb file.
pub type RedbLog = disk_log::DiskLog<redb_table::RedbTable>;

/// A raft log in a directory of sled's.
pub type SledLog = disk_log::DiskLog<sled_table::SledTable>;
