//! What members say to each other.

use bytes::Bytes;

use crate::{Acknowledged, Entry, SnapshotMeta};

/// The kind of a [`Message`], named as in the Raft thesis.
///
/// The raft crate's other kinds are left out on purpose: members never forward proposals, and
/// what is local to one member must not come from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Leader to follower: entries, and how far they are committed.
    Append,
    /// The answer: how far the follower's log matches.
    AppendResponse,
    /// Candidate to all: vote for me.
    Vote,
    /// The answer.
    VoteResponse,
    /// Leader to a follower that is too far behind: the metadata of a snapshot. Its bytes must be
    /// delivered before this message is.
    Snapshot,
    /// Leader to follower: I am still there.
    Heartbeat,
    /// The answer.
    HeartbeatResponse,
    /// Leader to follower: start an election now, I am about to leave.
    TimeoutNow,
    /// Follower to leader: up to which index must I have applied to read?
    ReadIndex,
    /// The answer.
    ReadIndexResponse,
    /// Would you vote for me? Asked before an election, so that a member that was cut off does
    /// not disturb the others.
    PreVote,
    /// The answer.
    PreVoteResponse,
    /// Follower to leader: this is what my log holds, and it is less than I acknowledged.
    Status,
}

/// One message. Which fields matter depends on the kind; the rest is zero.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// What it says.
    pub kind: MessageKind,
    /// The receiver's id.
    pub to: u64,
    /// The sender's id.
    pub from: u64,
    /// The sender's term.
    pub term: u64,
    /// Term of the entry at `index`.
    pub log_term: u64,
    /// The entry before `entries`, or the last entry, or the index answered with.
    pub index: u64,
    /// Entries to append; for reads, one that holds the request's context.
    pub entries: Vec<Entry>,
    /// Up to where the sender knows entries to be committed.
    pub commit: u64,
    /// Term of the entry at `commit`, in votes.
    pub commit_term: u64,
    /// What a snapshot covers.
    pub snapshot: Option<SnapshotMeta>,
    /// A snapshot that reaches this index is asked for; 0 for none.
    pub request_snapshot: u64,
    /// The answer is no. In a status: the log lacks what the sender acknowledged.
    pub reject: bool,
    /// Where the logs may still match, when an append was rejected.
    pub reject_hint: u64,
    /// Ties a heartbeat and its answer to a read.
    pub context: Bytes,
    /// The sender's election priority.
    pub priority: i64,
    /// What the sender knows members to have acknowledged.
    pub acknowledged: Vec<Acknowledged>,
}

impl Message {
    /// A message that says nothing else.
    pub(crate) fn new(kind: MessageKind, from: u64, to: u64) -> Self {
        Self {
            kind,
            to,
            from,
            term: 0,
            log_term: 0,
            index: 0,
            entries: Vec::new(),
            commit: 0,
            commit_term: 0,
            snapshot: None,
            request_snapshot: 0,
            reject: false,
            reject_hint: 0,
            context: Bytes::new(),
            priority: 0,
            acknowledged: Vec::new(),
        }
    }
}
