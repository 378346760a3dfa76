//! The events that a machine takes and the effects that it requests.

use bytes::Bytes;

use crate::{
    AcknowledgedEntry, ConfState, FatalError, HardState, InvalidMemberChange, LogPosition, MemberChange,
    Message, RaftEntry, SnapshotMeta,
};

/// Input of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "an event is made, taken and gone; most are messages")]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// Commands to replicate. All of them are accepted or dropped together, and share one write; batch what
    /// is waiting.
    Propose(Vec<Proposal>),
    /// Changes the members. The result comes once, like that of a proposal, in [`CommittedEntry::proposal`]
    /// or [`Effect::ProposalDropped`]. A change of several members is decided when the result comes, and
    /// complete when an [`Effect::MembersChanged`] has no outgoing voters any more.
    ChangeMembers {
        /// Chosen by the caller, unique among the proposals of this machine.
        id: u64,
        /// What to change.
        change: MemberChange,
    },
    /// Transfers the leadership, if this member has it: to a voter, or to the one with the highest log index.
    /// [`Effect::RoleChanged`] reports when it happened. Until then, for at most
    /// [`crate::RaftConfig::election_ticks`].start ticks, proposals are dropped; then this member continues
    /// to lead. It has no effect if this member does not lead, or if there is no such other voter.
    TransferLeadership {
        /// The voter; `None` to choose one.
        to: Option<u64>,
    },
    /// A message arrived. For [`crate::MessageKind::Snapshot`]: after the snapshot's bytes.
    MessageReceived(Message),
    /// The [`DurableWrite`] with this number, and all before it, are on stable storage.
    Persisted {
        /// The number in the effect.
        number: u64,
    },
    /// The state has applied every entry up to this one.
    Applied {
        /// The entry's index.
        index: u64,
    },
    /// A client reads what is committed by now. Answered by [`Effect::ReadReady`], or, when there is no
    /// leader or it has not committed an entry of its term yet, not at all: repeat it until the reader's
    /// deadline.
    ReadIndex {
        /// Associates the answer with the request. Unique for each request of this machine.
        ctx: u64,
    },
    /// A snapshot of the state up to this entry, which was applied, is on stable storage.
    Snapshotted {
        /// The entry's index.
        index: u64,
    },
    /// The snapshot sent to a member was delivered, or not. Must follow every [`Effect::Send`] of a snapshot:
    /// until then the member gets no entries.
    SnapshotSent {
        /// The member.
        to: u64,
        /// Whether it has the snapshot now.
        delivered: bool,
    },
    /// A member could not be reached: entries are no longer sent ahead of its responses.
    PeerUnreachable {
        /// The member.
        to: u64,
    },
}

/// A command to replicate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Chosen by the caller, unique among the proposals of this machine. Returned once, in
    /// [`CommittedEntry::proposal`] or [`Effect::ProposalDropped`].
    pub id: u64,
    /// The command's bytes; not empty.
    pub data: Bytes,
}

/// Output of a member. The driver executes effects in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The member's term, role or leader changed. A leader may plan only after it applied an entry of its own
    /// term; the [`crate::EntryKind::Noop`] that begins the term is such an entry.
    RoleChanged {
        /// The current term.
        term: u64,
        /// The member's role in the term.
        role: RaftRole,
        /// The leader, if known.
        leader: Option<u64>,
    },
    /// The current members: to which of them messages go, and whether this member is still one of them.
    /// Precedes the [`Effect::Apply`] with the entry that changed them, and the [`Effect::Persist`] of a
    /// snapshot that did; repeated when entries are applied again after a start. A removed member should keep
    /// running for some election timeouts, so that the others can ask for its vote if they do not know of the
    /// removal yet.
    MembersChanged {
        /// The entry.
        index: u64,
        /// The members as of that entry.
        members: ConfState,
    },
    /// Send these. They may be lost, repeated, or reordered.
    Send(Vec<Message>),
    /// Apply these to the state, then report [`Event::Applied`].
    Apply(Vec<CommittedEntry>),
    /// Write this, in one durable write, then report [`Event::Persisted`]. Writes are done in order; several
    /// that wait can be merged into one.
    Persist(DurableWrite),
    /// Record the snapshot in the log store, then remove the entries up to `up_to`.
    Compact {
        /// The metadata of the snapshot.
        snapshot: SnapshotMeta,
        /// The last entry to remove; 0 for none.
        up_to: u64,
    },
    /// A proposal will not be applied, by the state of this machine; see the reason.
    ProposalDropped {
        /// The proposal's id.
        proposal: u64,
        /// The reason.
        reason: DropReason,
    },
    /// Once the state has applied `index`, the read observes everything that was committed when it was
    /// requested.
    ReadReady {
        /// From [`Event::ReadIndex`].
        ctx: u64,
        /// The index that must be applied.
        index: u64,
    },
    /// The durability status changed to this.
    DurabilityChanged(DurabilityStatus),
    /// The machine stopped permanently and ignores further events. Always the last effect.
    Fatal(FatalError),
}

/// The content of one durable write; everything in it becomes durable together. A write happens only when
/// raft depends on it: a new commit index alone is kept in memory until the next write, because it can be
/// learned again, except that of a membership change. So a command costs one write, and an idle group none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DurableWrite {
    /// Increases with every write.
    pub number: u64,
    /// A snapshot from the leader, whose bytes are on stable storage already. It replaces the stored log and
    /// the state; the state must be loaded from it before anything else is applied.
    pub snapshot: Option<SnapshotMeta>,
    /// Entries to append; stored entries at the first one's index and after are replaced.
    pub entries: Vec<RaftEntry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// The known acknowledgements, if they changed. That alone causes no write, unless this member has
    /// regressed.
    pub acknowledged: Option<Vec<AcknowledgedEntry>>,
}

/// An entry that every member applies at its index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CommittedEntry {
    /// The entry; a [`crate::EntryKind::Noop`] or a [`crate::EntryKind::Membership`] changes only the applied
    /// index.
    pub entry: RaftEntry,
    /// The proposal that created it, if it was proposed to this machine.
    pub proposal: Option<u64>,
}

/// The raft role of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RaftRole {
    /// Receives entries from the leader, if there is one.
    Follower,
    /// Campaigns for an election.
    Candidate,
    /// Creates the entries.
    Leader,
}

/// Which acknowledged entries are missing or lost, by the records of this member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DurabilityStatus {
    /// This member acknowledged this entry, and its log does not hold it. Until it does, the member does not
    /// campaign, and votes only for candidates that have the entry.
    pub missing_entry: Option<LogPosition>,
    /// The highest entry that was acknowledged and then replaced by another one. This is permanent, so it
    /// stays until the process ends. After a restart it is detected only if a member is still known to have
    /// acknowledged nothing later, and the log still reaches back to it.
    pub lost_entry: Option<u64>,
}

/// Why a proposal was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Only the leader proposes. It was not replicated; send it to the leader.
    NotLeader {
        /// The leader, if known.
        leader: Option<u64>,
    },
    /// Too much is uncommitted. It was not replicated; try again later.
    Busy,
    /// The leader is transferring leadership. It was not replicated; send it to the new leader soon.
    Transferring {
        /// The next leader.
        to: u64,
    },
    /// Another membership change is in progress, or the leader has not applied an entry of its term yet. It
    /// was not replicated; try again later.
    ChangePending,
    /// The membership change is invalid. It was not replicated.
    InvalidChange(InvalidMemberChange),
    /// It had no data. It was not replicated.
    EmptyProposal,
    /// A later leader's entry was committed at its position. It will never be applied.
    Superseded,
    /// A snapshot from a later leader covers its position, or this member was removed from the group before
    /// it was committed: it may be applied or not. Read the state, or propose it again if that is idempotent.
    Indeterminate,
}
