//! The log store interface and its plain types.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use warren_types::raft::{AcknowledgedEntry, ConfState, HardState, RaftEntry, SnapshotMeta};

use crate::{Result, codec};

/// The change of one durable write. All of it becomes durable, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteBatch {
    /// A snapshot received from the leader: it replaces the whole stored log before `entries` are appended,
    /// and sets the members. Its file must already be durable.
    pub snapshot: Option<SnapshotMeta>,
    /// Contiguous entries. Stored entries from the first index on are removed.
    pub entries: Vec<RaftEntry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// The new members, if they changed (at cluster bootstrap, for example).
    pub conf_state: Option<ConfState>,
    /// Known acknowledgements of members, if they changed.
    pub acknowledged: Option<Vec<AcknowledgedEntry>>,
}

impl WriteBatch {
    /// Whether writing it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none()
            && self.entries.is_empty()
            && self.hard_state.is_none()
            && self.conf_state.is_none()
            && self.acknowledged.is_none()
    }

    /// Stored bytes, as encoded. Excludes keys, the engine's own pages, and unchanged data that every write
    /// rewrites.
    pub fn stored_bytes(&self) -> u64 {
        let entries: usize = self.entries.iter().map(codec::entry_len).sum();
        let hard_state = self.hard_state.map_or(0, |_| codec::HARD_STATE_LEN);
        let conf_state = self.conf_state.as_ref().map_or(0, codec::conf_state_len);
        let snapshot = self.snapshot.as_ref().map_or(0, codec::snapshot_meta_len);
        let acknowledged = self.acknowledged.as_ref().map_or(0, |it| codec::acknowledged_len(it));
        (entries + hard_state + conf_state + snapshot + acknowledged) as u64
    }
}

/// The content of a store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StoredLog {
    /// The hard state; all zero in a new store.
    pub hard_state: HardState,
    /// The members as of the latest snapshot or the bootstrap; empty in a new store. Later changes are
    /// entries of the log.
    pub conf_state: ConfState,
    /// The latest snapshot, if any.
    pub snapshot: Option<SnapshotMeta>,
    /// All entries that were not compacted, without gaps. The first index is at most the snapshot's index
    /// plus one (1 without a snapshot).
    pub entries: Vec<RaftEntry>,
    /// Set if the store was repaired when it was opened, for a warning.
    pub recovered: Option<Recovery>,
    /// Known acknowledgements of members.
    pub acknowledged: Vec<AcknowledgedEntry>,
}

/// A store was not closed cleanly, and its engine rolled it back to the last finished write. Rolled back
/// data was never acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovery {
    /// The file.
    pub path: PathBuf,
    /// Whether the engine found an unfinished write and rolled it back.
    pub was_truncated: bool,
}

impl Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = if self.was_truncated { "; an unfinished write was rolled back" } else { "" };
        write!(f, "{} was not closed cleanly and has been checked and repaired{cut}", self.path.display())
    }
}

/// Write counters since the store was opened. An idle cluster must not increase them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteStats {
    /// Writes that waited for stable storage.
    pub durable_writes: u64,
    /// Bytes written, see [`WriteBatch::stored_bytes`].
    pub bytes_appended: u64,
}

/// A durable raft log. One value is the only writer of its store.
///
/// After any error from a writing method, except a rejected argument, the caller must drop the store and
/// open it again: only then is the result of the failed write known. Dropping releases the file, also after
/// an error, so that [`crate::open`] can follow immediately. Then the latest batch can be repeated until it
/// succeeds (after a full disk, for example): no acknowledged write is lost.
pub trait LogStore: Send {
    /// Reads and verifies everything.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] names the record that does not match its checksum or is missing.
    fn load(&self) -> Result<StoredLog>;

    /// Makes `batch` durable in one write. An empty batch writes nothing. Repeating the latest
    /// batch leaves the store as it was.
    ///
    /// # Errors
    /// [`crate::Error::Gap`] and [`crate::Error::Compacted`] if the entries do not fit the log;
    /// nothing is written then.
    fn append(&mut self, batch: &WriteBatch) -> Result<()>;

    /// Records that a snapshot of this member's own state is durable, and its members as those of the
    /// store. Entries remain until [`LogStore::compact`]. Repeating it writes nothing.
    ///
    /// # Errors
    /// [`crate::Error::SnapshotAhead`] if the log does not reach it,
    /// [`crate::Error::SnapshotBehind`] if a later one is recorded.
    fn set_snapshot(&mut self, snapshot: &SnapshotMeta) -> Result<()>;

    /// Removes the entries up to and including `up_to`. Writes nothing if there are none.
    ///
    /// # Errors
    /// [`crate::Error::NotCovered`] if the latest snapshot does not reach `up_to`.
    fn compact(&mut self, up_to: u64) -> Result<()>;

    /// Write counters since the store was opened.
    fn stats(&self) -> WriteStats;
}
