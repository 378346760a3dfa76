//! Raft's messages as they travel. What cannot be one is a typed error; whether a member can have said it is judged by
//! the raft machine.

use warren_consensus::{Acknowledged, ConfState, Entry, EntryKind, Message, MessageKind, SnapshotMeta};
use warren_proto::v1;

/// Bytes that a message takes besides its entries' data, roughly and at most: a dozen numbers of up to ten bytes.
pub const MESSAGE_COST: usize = 160;
/// The same of an entry.
pub const ENTRY_COST: usize = 32;
/// The same of what one member acknowledged.
const ACKNOWLEDGED_COST: usize = 40;

/// Why something that arrived is no message of raft's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// A kind of message that this version does not know.
    #[error("a raft message is of kind {0}, which this version of Warren does not know; update this manager")]
    Kind(i32),
    /// A kind of entry that this version does not know.
    #[error("a raft entry is of kind {0}, which this version of Warren does not know; update this manager")]
    EntryKind(i32),
    /// It says what it covers, and not what the members were.
    #[error("a raft message announces a snapshot without its members")]
    SnapshotWithoutMembers,
}

/// Our kind and the wire's, for every message.
const KINDS: [(MessageKind, v1::RaftMessageKind); 13] = [
    (MessageKind::Append, v1::RaftMessageKind::Append),
    (MessageKind::AppendResponse, v1::RaftMessageKind::AppendResponse),
    (MessageKind::Vote, v1::RaftMessageKind::Vote),
    (MessageKind::VoteResponse, v1::RaftMessageKind::VoteResponse),
    (MessageKind::Snapshot, v1::RaftMessageKind::Snapshot),
    (MessageKind::Heartbeat, v1::RaftMessageKind::Heartbeat),
    (MessageKind::HeartbeatResponse, v1::RaftMessageKind::HeartbeatResponse),
    (MessageKind::TimeoutNow, v1::RaftMessageKind::TimeoutNow),
    (MessageKind::ReadIndex, v1::RaftMessageKind::ReadIndex),
    (MessageKind::ReadIndexResponse, v1::RaftMessageKind::ReadIndexResponse),
    (MessageKind::PreVote, v1::RaftMessageKind::PreVote),
    (MessageKind::PreVoteResponse, v1::RaftMessageKind::PreVoteResponse),
    (MessageKind::Status, v1::RaftMessageKind::Status),
];

/// About how many bytes the message takes on the wire; never fewer.
pub fn cost(message: &Message) -> usize {
    let entries: usize = message.entries.iter().map(|entry| ENTRY_COST + entry.data.len()).sum();
    let members = message.snapshot.as_ref().map_or(0, |snapshot| {
        let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave: _ } =
            &snapshot.conf_state;
        10 * (voters.len() + learners.len() + voters_outgoing.len() + learners_next.len() + 8)
    });
    let acknowledged = ACKNOWLEDGED_COST * message.acknowledged.len();
    MESSAGE_COST + message.context.len() + entries + members + acknowledged
}

/// The message for the wire. Data of entries is shared, not copied.
pub fn to_wire(message: Message) -> v1::RaftMessage {
    let kind = KINDS.iter().find(|(kind, _)| *kind == message.kind);
    let (_, kind) = kind.expect("the table has every kind");
    let Message { to, from, term, log_term, index, commit, commit_term, .. } = message;
    let Message { request_snapshot, reject, reject_hint, context, priority, .. } = message;
    v1::RaftMessage {
        kind: *kind as i32,
        to,
        from,
        term,
        log_term,
        index,
        entries: message.entries.into_iter().map(entry_to_wire).collect(),
        commit,
        commit_term,
        snapshot: message.snapshot.map(snapshot_to_wire),
        request_snapshot,
        reject,
        reject_hint,
        context,
        priority,
        acknowledged: message.acknowledged.into_iter().map(acknowledged_to_wire).collect(),
    }
}

/// The message that arrived.
///
/// # Errors
/// [`WireError`].
pub fn from_wire(wire: v1::RaftMessage) -> Result<Message, WireError> {
    let kind = KINDS.iter().find(|(_, kind)| *kind as i32 == wire.kind);
    let (kind, _) = kind.ok_or(WireError::Kind(wire.kind))?;
    let v1::RaftMessage { to, from, term, log_term, index, commit, commit_term, .. } = wire;
    let v1::RaftMessage { request_snapshot, reject, reject_hint, context, priority, .. } = wire;
    Ok(Message {
        kind: *kind,
        to,
        from,
        term,
        log_term,
        index,
        entries: wire.entries.into_iter().map(entry_from_wire).collect::<Result<_, _>>()?,
        commit,
        commit_term,
        snapshot: wire.snapshot.map(snapshot_from_wire).transpose()?,
        request_snapshot,
        reject,
        reject_hint,
        context,
        priority,
        acknowledged: wire.acknowledged.into_iter().map(acknowledged_from_wire).collect(),
    })
}

fn acknowledged_to_wire(Acknowledged { member, index, term }: Acknowledged) -> v1::RaftAcknowledged {
    v1::RaftAcknowledged { member, index, term }
}

fn acknowledged_from_wire(wire: v1::RaftAcknowledged) -> Acknowledged {
    let v1::RaftAcknowledged { member, index, term } = wire;
    Acknowledged { member, index, term }
}

fn entry_to_wire(entry: Entry) -> v1::RaftEntry {
    let Entry { index, term, kind, data } = entry;
    let kind = match kind {
        EntryKind::Noop => v1::RaftEntryKind::Noop,
        EntryKind::Command => v1::RaftEntryKind::Command,
        EntryKind::Membership => v1::RaftEntryKind::Membership,
    };
    v1::RaftEntry { index, term, kind: kind as i32, data }
}

fn entry_from_wire(wire: v1::RaftEntry) -> Result<Entry, WireError> {
    let v1::RaftEntry { index, term, kind, data } = wire;
    let kind = match v1::RaftEntryKind::try_from(kind).map_err(|_| WireError::EntryKind(kind))? {
        v1::RaftEntryKind::Noop => EntryKind::Noop,
        v1::RaftEntryKind::Command => EntryKind::Command,
        v1::RaftEntryKind::Membership => EntryKind::Membership,
    };
    Ok(Entry { index, term, kind, data })
}

fn snapshot_to_wire(snapshot: SnapshotMeta) -> v1::RaftSnapshot {
    let SnapshotMeta { index, term, conf_state } = snapshot;
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } = conf_state;
    let members = v1::RaftMembers { voters, learners, voters_outgoing, learners_next, auto_leave };
    v1::RaftSnapshot { index, term, members: Some(members) }
}

fn snapshot_from_wire(wire: v1::RaftSnapshot) -> Result<SnapshotMeta, WireError> {
    let v1::RaftSnapshot { index, term, members } = wire;
    let v1::RaftMembers { voters, learners, voters_outgoing, learners_next, auto_leave } =
        members.ok_or(WireError::SnapshotWithoutMembers)?;
    let conf_state = ConfState { voters, learners, voters_outgoing, learners_next, auto_leave };
    Ok(SnapshotMeta { index, term, conf_state })
}

#[cfg(test)]
mod tests;
