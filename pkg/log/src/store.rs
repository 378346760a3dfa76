//! The door: what a raft log store must do, and the plain types that pass through it.

use std::{
    fmt::{self, Display},
    path::PathBuf,
};

use warren_types::raft::{Acknowledged, ConfState, Entry, HardState, SnapshotMeta};

use crate::{Result, codec};

/// What one durable write changes. Everything in it becomes durable together, or nothing does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// A snapshot received from the leader: it replaces the whole stored log, before `entries`
    /// are appended, and sets the members. Its file must be durable already.
    pub snapshot: Option<SnapshotMeta>,
    /// Contiguous entries. Stored entries at the first one's index and after are removed.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// The new members, if they changed (at the founding of a cluster, for example).
    pub conf_state: Option<ConfState>,
    /// What members are known to have acknowledged, if that changed.
    pub acknowledged: Option<Vec<Acknowledged>>,
}

impl Batch {
    /// True if writing it would change nothing.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none()
            && self.entries.is_empty()
            && self.hard_state.is_none()
            && self.conf_state.is_none()
            && self.acknowledged.is_none()
    }

    /// Bytes of what it stores, as encoded. Keys, the engine's own pages, and what every write
    /// rewrites although it did not change are not counted.
    pub fn stored_bytes(&self) -> u64 {
        let entries: usize = self.entries.iter().map(codec::entry_len).sum();
        let hard_state = self.hard_state.map_or(0, |_| codec::HARD_STATE_LEN);
        let conf_state = self.conf_state.as_ref().map_or(0, codec::conf_state_len);
        let snapshot = self.snapshot.as_ref().map_or(0, codec::snapshot_len);
        let acknowledged = self.acknowledged.as_ref().map_or(0, |it| codec::acknowledged_len(it));
        (entries + hard_state + conf_state + snapshot + acknowledged) as u64
    }
}

/// Everything a store holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loaded {
    /// The hard state; all zero in a new store.
    pub hard_state: HardState,
    /// The members as of the latest snapshot, or of the founding; empty in a new store. Changes
    /// since then are entries of the log.
    pub conf_state: ConfState,
    /// The latest snapshot, if there was one.
    pub snapshot: Option<SnapshotMeta>,
    /// All entries that were not compacted, without gaps. The first index is at most the
    /// snapshot's index plus one (1 without a snapshot).
    pub entries: Vec<Entry>,
    /// Set if the store had to be repaired when it was opened: something to warn about.
    pub recovered: Option<Recovered>,
    /// What members were known to have acknowledged.
    pub acknowledged: Vec<Acknowledged>,
}

/// A store was not closed in order, and its engine brought it back to the last finished write. What
/// was cut off was never acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recovered {
    /// The file.
    pub path: PathBuf,
    /// Whether the engine found a write that had not finished, and took it back.
    pub is_cut: bool,
}

impl Display for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = if self.is_cut { "; a write that had not finished was cut off" } else { "" };
        write!(f, "{} was not closed in order and has been checked and repaired{cut}", self.path.display())
    }
}

/// What a store wrote since it was opened. An idle cluster must leave both where they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Writes that waited for stable storage.
    pub durable_writes: u64,
    /// Bytes of what was written, see [`Batch::stored_bytes`].
    pub bytes_appended: u64,
}

/// A durable raft log. One value is the only writer of its store.
///
/// After any error from a method that writes, other than a refusal of its argument, the caller must
/// drop the store and open it again: what the failed write left behind is known only then. Dropping
/// gives up the file, also after an error, so that [`crate::open`] can follow at once. Then the
/// latest batch can be repeated until it goes through (the disk was full, for example): nothing that
/// was acknowledged is lost meanwhile.
pub trait LogStore: Send {
    /// Reads and verifies everything.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] names the record that does not match its checksum or is missing.
    fn load(&self) -> Result<Loaded>;

    /// Makes `batch` durable in one write. An empty batch writes nothing. Repeating the latest
    /// batch leaves the store as it was.
    ///
    /// # Errors
    /// [`crate::Error::Gap`] and [`crate::Error::Compacted`] if the entries do not fit the log;
    /// nothing is written then.
    fn append(&mut self, batch: &Batch) -> Result<()>;

    /// Records that a snapshot of this member's own state is durable, and its members as those of
    /// the store. Entries stay until [`LogStore::compact`]. Repeating it writes nothing.
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

    /// What was written since the store was opened.
    fn stats(&self) -> Stats;
}
