//! The data of raft that the raft machine, the log on disk and the driver share.

use ::bytes::Bytes;

/// What an entry carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// Nothing: the first entry of a new leader's term.
    Noop,
    /// A command, in `data`.
    Command,
    /// A membership change, in `data`, in the encoding of the raft machine.
    Membership,
}

/// One entry of the raft log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RaftEntry {
    /// Position in the log; the first entry is 1.
    pub index: u64,
    /// The term of the leader that created it.
    pub term: u64,
    /// What it carries.
    pub kind: EntryKind,
    /// The command or change; never empty, except for [`EntryKind::Noop`], where it always is.
    pub data: Bytes,
}

/// What a member must store besides its entries (Raft paper, figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct HardState {
    /// The latest term the member has seen.
    pub term: u64,
    /// The member it voted for in that term; 0 for none.
    pub vote: u64,
    /// The highest index that was committed for this member when this was written; may lag behind.
    pub commit: u64,
}

/// What a member has acknowledged: it had that entry, which was or became committed, on stable storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AcknowledgedEntry {
    /// The member.
    pub member: u64,
    /// Index of the entry.
    pub index: u64,
    /// Its term.
    pub term: u64,
}

/// The members of the group. During a joint change (Raft thesis, 4.3) both the incoming and the outgoing voters
/// must agree.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct ConfState {
    /// Ids of the members that vote; in a joint change, of the incoming voters.
    pub voters: Vec<u64>,
    /// Ids of the members that only receive the log.
    pub learners: Vec<u64>,
    /// Ids of the outgoing voters of a joint change; empty when there is none.
    pub voters_outgoing: Vec<u64>,
    /// Ids of those that become learners when the joint change ends.
    pub learners_next: Vec<u64>,
    /// Whether the leader ends the joint change by itself.
    pub auto_leave: bool,
}

impl ConfState {
    /// A group of these voters.
    pub fn of_voters(voters: impl Into<Vec<u64>>) -> Self {
        Self { voters: voters.into(), ..Self::default() }
    }
}

/// What a snapshot of the state covers. Its bytes are sent and stored separately.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SnapshotMeta {
    /// The last entry whose effect is in the snapshot.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// The members as of that entry.
    pub conf_state: ConfState,
}
