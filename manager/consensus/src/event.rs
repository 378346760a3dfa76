//! The events a machine takes and the effects it asks for.

use bytes::Bytes;

use crate::{Entry, HardState, Message, SnapshotMeta};

/// Something that happened to a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Event {
    /// One tick of the clock passed.
    Tick,
    /// Commands to replicate. All of them are accepted or dropped together, and share one write;
    /// collect what is waiting.
    Propose(Vec<Proposal>),
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
}

/// What one durable write holds; everything in it becomes durable together. There is one only
/// when raft depends on it: a new commit index alone is kept in memory until the next write,
/// because it can be learned again. So a command costs one write, and an idle group none.
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
}

/// An entry that every member applies at its index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Committed {
    /// The entry; nothing is to be done for a [`crate::EntryKind::Noop`] but counting it.
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
    /// Too much waits to be committed, or the member is leaving the group. It was not replicated;
    /// try again later.
    Busy,
    /// It had no data. It was not replicated.
    Empty,
    /// A later leader's entry was committed in its place. It will never be applied.
    Superseded,
    /// A snapshot from a later leader covers its place: it may have been applied or not. Look at
    /// the state, or propose it again if that is harmless.
    Unknown,
}
