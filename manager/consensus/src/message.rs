//! The messages between members.

use bytes::Bytes;

use crate::{AcknowledgedEntry, RaftEntry, SnapshotMeta};

/// The kind of a [`Message`], named as in the Raft thesis.
///
/// The raft crate's other kinds are omitted on purpose: members never forward proposals, and messages that
/// are local to one member must not come from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageKind {
    /// Leader to follower: entries, and the commit index.
    Append,
    /// Response: up to where the follower's log matches.
    AppendResponse,
    /// Candidate to all: request for a vote.
    Vote,
    /// Response to a vote request.
    VoteResponse,
    /// Leader to a follower that is too far behind: the metadata of a snapshot. Its bytes must be delivered
    /// before this message is.
    Snapshot,
    /// Leader to follower: the leader is active.
    Heartbeat,
    /// Response to a heartbeat.
    HeartbeatResponse,
    /// Leader to follower: start an election now, because the leader hands over.
    TimeoutNow,
    /// Follower to leader: asks for the index that must be applied before a read.
    ReadIndex,
    /// Response with the read index.
    ReadIndexResponse,
    /// Asks for a vote without an election, before a real one, so that a member that was cut off does not
    /// disturb the others.
    PreVote,
    /// Response to a pre-vote.
    PreVoteResponse,
    /// Follower to leader: the end of its log, which lacks entries that it acknowledged.
    LogStatus,
}

/// One message. Which fields matter depends on the kind; the rest is zero.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// The kind.
    pub kind: MessageKind,
    /// The receiver's id.
    pub to: u64,
    /// The sender's id.
    pub from: u64,
    /// The sender's term.
    pub term: u64,
    /// Term of the entry at `index`.
    pub log_term: u64,
    /// The entry before `entries`, or the last entry, or the index of the response.
    pub index: u64,
    /// Entries to append; for reads, one that holds the request's context.
    pub entries: Vec<RaftEntry>,
    /// The commit index of the sender.
    pub commit: u64,
    /// Term of the entry at `commit`, in votes.
    pub commit_term: u64,
    /// The metadata of a snapshot.
    pub snapshot: Option<SnapshotMeta>,
    /// The index that a requested snapshot must reach; 0 for no request.
    pub request_snapshot: u64,
    /// The request is rejected. In a log status: the log lacks entries that the sender acknowledged.
    pub reject: bool,
    /// Where the logs may still match, after a rejected append.
    pub reject_hint: u64,
    /// Associates a heartbeat and its response with a read.
    pub context: Bytes,
    /// The sender's election priority.
    pub priority: i64,
    /// The entries that members acknowledged, by the records of the sender.
    pub acknowledged: Vec<AcknowledgedEntry>,
}

impl Message {
    /// A message with all other fields zero.
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
