//! What is replicated and remembered, in plain types.

use bytes::Bytes;

/// What an entry carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Nothing: the entry with which a new leader begins its term.
    Noop,
    /// A command, in `data`.
    Command,
}

/// One place in the raft log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Position in the log; the first entry ever is 1.
    pub index: u64,
    /// The term of the leader that created it.
    pub term: u64,
    /// What it carries.
    pub kind: EntryKind,
    /// The command's bytes, never empty; empty for [`EntryKind::Noop`].
    pub data: Bytes,
}

/// What a member must remember besides its entries (Raft paper, figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HardState {
    /// The latest term the member has seen.
    pub term: u64,
    /// The member it voted for in that term; 0 for none.
    pub vote: u64,
    /// An index known to be committed; may lag behind.
    pub commit: u64,
}

/// The members of the group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ConfState {
    /// Ids of the members that vote.
    pub voters: Vec<u64>,
    /// Ids of the members that only receive the log.
    pub learners: Vec<u64>,
}

/// What a snapshot of the state covers. Its bytes travel and rest outside of this crate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SnapshotMeta {
    /// The last entry whose effect is in the snapshot.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The members as of that entry.
    pub conf_state: ConfState,
}
