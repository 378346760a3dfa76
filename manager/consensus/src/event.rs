//! The events a machine takes and the effects it asks for.

use bytes::Bytes;

use crate::{
    Acknowledged, ConfState, Durability, Entry, Fatal, HardState, InvalidChange, MemberChange, Message,
    SnapshotMeta,
};

/// Something that happened to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "an event is made, taken and gone; most are messages")]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// Commands to replicate. All of them are accepted or dropped together, and share one write;
    /// collect what is waiting.
    Propose(Vec<Proposal>),
    /// Change the members. Answered like a proposal, once, in [`Committed::proposal`] or
    /// [`Effect::Dropped`]. A change of several members is decided when it is answered, and over
    /// when an [`Effect::Members`] has no outgoing voters any more.
    ChangeMembers {
        /// Chosen by the caller, unique among the proposals of this machine's life.
        id: u64,
        /// What to change.
        change: MemberChange,
    },
    /// Hand the leadership over, if this member has it: to a voter, or to the one whose log
    /// reaches furthest. [`Effect::Role`] tells when it happened. Until then, for at most
    /// [`crate::Config::election_ticks`].start ticks, proposals are dropped; then this member goes
    /// on leading. Nothing happens if it does not lead, or if there is no such other voter.
    TransferLeader {
        /// The voter; `None` to choose one.
        to: Option<u64>,
    },
    /// A message arrived. For [`crate::MessageKind::Snapshot`]: after the snapshot's bytes.
    Message(Message),
    /// The [`Persist`] with this number, and all before it, are on stable storage.
    Persisted {
        /// The number in the effect.
        number: u64,
    },
    /// The state has applied every entry up to this one.
    Applied {
        /// The entry's index.
        index: u64,
    },
    /// Someone wants to read what is committed by now. Answered by [`Effect::ReadReady`], or,
    /// when there is no leader or it has not committed an entry of its term yet, not at all: ask
    /// again until the reader's deadline.
    ReadIndex {
        /// Ties the answer to the request. Unique for each request of this machine.
        ctx: u64,
    },
    /// A snapshot of the state up to this entry, which was applied, is on stable storage.
    Snapshotted {
        /// The entry's index.
        index: u64,
    },
    /// The snapshot sent to a member arrived there, or did not. Must follow every
    /// [`Effect::Send`] of a snapshot: until then the member gets no entries.
    SnapshotSent {
        /// The member.
        to: u64,
        /// Whether it has the snapshot now.
        delivered: bool,
    },
    /// A member could not be reached: stop sending it entries ahead of its answers.
    Unreachable {
        /// The member.
        to: u64,
    },
}

/// A command to replicate.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Proposal {
    /// Chosen by the caller, unique among the proposals of this machine's life. Comes back once,
    /// in [`Committed::proposal`] or [`Effect::Dropped`].
    pub id: u64,
    /// The command's bytes; not empty.
    pub data: Bytes,
}

/// Something to be done. Effects are executed in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// The member's term, role or leader changed. A leader may plan only after it applied an
    /// entry of its own term; the [`crate::EntryKind::Noop`] that begins it is such an entry.
    Role {
        /// The current term.
        term: u64,
        /// What the member is in it.
        role: Role,
        /// The leader, if known.
        leader: Option<u64>,
    },
    /// These are the members from now on: who is to be reached, and whether this member is still
    /// one of them. Comes before the [`Effect::Apply`] with the entry that changed them, and
    /// before the [`Effect::Persist`] of a snapshot that did; again when entries are applied again
    /// after a start. One that was removed should stay for some election timeouts, so that the
    /// others can ask for its vote should they not have learned of the removal yet.
    Members {
        /// The entry.
        index: u64,
        /// The members as of that entry.
        members: ConfState,
    },
    /// Send these. They may be lost, repeated, or overtake each other.
    Send(Vec<Message>),
    /// Apply these to the state, then report [`Event::Applied`].
    Apply(Vec<Committed>),
    /// Write this, in one durable write, then report [`Event::Persisted`]. Writes are done in the
    /// order they are asked for; several that wait can be merged into one.
    Persist(Persist),
    /// Record the snapshot in the log store, then remove the entries up to `up_to`.
    Compact {
        /// What the snapshot covers.
        snapshot: SnapshotMeta,
        /// The last entry to remove; 0 for none.
        up_to: u64,
    },
    /// A proposal will not be applied as far as this machine can tell; see the reason.
    Dropped {
        /// The proposal's id.
        proposal: u64,
        /// Why.
        reason: DropReason,
    },
    /// Once the state has applied `index`, the read sees everything that was committed when it
    /// was asked for.
    ReadReady {
        /// From [`Event::ReadIndex`].
        ctx: u64,
        /// The index to have applied.
        index: u64,
    },
    /// What is wrong with acknowledged entries is this from now on.
    Durability(Durability),
    /// The machine stopped for good, and takes no event any more. Always the last effect.
    Fatal(Fatal),
}

/// What one durable write holds; everything in it becomes durable together. There is one only
/// when raft depends on it: a new commit index alone is kept in memory until the next write,
/// because it can be learned again, except that of a change of members. So a command costs one
/// write, and an idle group none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Persist {
    /// Rises with every write.
    pub number: u64,
    /// A snapshot from the leader, whose bytes are on stable storage already. It replaces the
    /// stored log and the state; the state must be loaded from it before anything else is
    /// applied.
    pub snapshot: Option<SnapshotMeta>,
    /// Entries to append; stored entries at the first one's index and after are replaced.
    pub entries: Vec<Entry>,
    /// The new hard state, if it changed.
    pub hard_state: Option<HardState>,
    /// What members are known to have acknowledged, if that changed. It is no reason to write by itself, unless this
    /// one is among those that went back.
    pub acknowledged: Option<Vec<Acknowledged>>,
}

/// An entry that every member applies at its index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The entry; nothing is to be done for a [`crate::EntryKind::Noop`] or a
    /// [`crate::EntryKind::Membership`] but counting it.
    pub entry: Entry,
    /// The proposal it came from, if it was proposed to this machine.
    pub proposal: Option<u64>,
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Takes entries from the leader, if there is one.
    Follower,
    /// Asks to be elected.
    Candidate,
    /// Creates the entries.
    Leader,
}

/// Why a proposal was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// Only the leader proposes. It was not replicated; ask the leader.
    NotLeader {
        /// The leader, if known.
        leader: Option<u64>,
    },
    /// Too much waits to be committed. It was not replicated; try again later.
    Busy,
    /// The leader is handing over to another member. It was not replicated; ask that one soon.
    Transferring {
        /// Who is to lead.
        to: u64,
    },
    /// Another change of members is under way, or the leader has not applied an entry of its term
    /// yet. It was not replicated; try again later.
    ChangePending,
    /// The members cannot be changed like this. It was not replicated.
    InvalidChange(InvalidChange),
    /// It had no data. It was not replicated.
    Empty,
    /// A later leader's entry was committed in its place. It will never be applied.
    Superseded,
    /// A snapshot from a later leader covers its place, or this member was removed from the group
    /// before it was committed: it may be applied or not. Look at the state, or propose it again
    /// if that is harmless.
    Unknown,
}
