//! Converts raft messages to and from their wire form. Invalid messages are typed errors; whether a member
//! may have sent the message is checked by the raft machine.

use warren_consensus::{
    AcknowledgedEntry, ConfState, EntryKind, Message, MessageKind, RaftEntry, SnapshotMeta,
};
use warren_proto::v1;

/// Upper bound of a message's size without entry data: a dozen numbers of up to ten bytes.
pub const MESSAGE_COST: usize = 160;
/// The same for an entry.
pub const ENTRY_COST: usize = 32;
/// The same for an acknowledged entry.
const ACKNOWLEDGEMENT_COST: usize = 40;

/// Why a received message is not a valid raft message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The kind of message is unknown to this version.
    #[error(
        "a raft message is of kind {0}, which this version of Warren does not support; update this manager"
    )]
    UnknownMessageKind(i32),
    /// The kind of entry is unknown to this version.
    #[error(
        "a raft entry is of kind {0}, which this version of Warren does not support; update this manager"
    )]
    UnknownEntryKind(i32),
    /// The snapshot has no membership.
    #[error("a raft message announces a snapshot without its members")]
    SnapshotWithoutMembers,
}

/// Message kinds and their wire values.
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
    (MessageKind::LogStatus, v1::RaftMessageKind::LogStatus),
];

/// Upper bound of the message's size on the wire.
pub fn wire_size(message: &Message) -> usize {
    let entries: usize = message.entries.iter().map(|entry| ENTRY_COST + entry.data.len()).sum();
    let members = message.snapshot.as_ref().map_or(0, |snapshot| {
        let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave: _ } =
            &snapshot.conf_state;
        10 * (voters.len() + learners.len() + voters_outgoing.len() + learners_next.len() + 8)
    });
    let acknowledged = ACKNOWLEDGEMENT_COST * message.acknowledged.len();
    MESSAGE_COST + message.context.len() + entries + members + acknowledged
}

/// Converts a message to its wire form. Entry data is shared, not copied.
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

/// Converts a received message.
///
/// # Errors
/// [`WireError`].
pub fn from_wire(wire: v1::RaftMessage) -> Result<Message, WireError> {
    let kind = KINDS.iter().find(|(_, kind)| *kind as i32 == wire.kind);
    let (kind, _) = kind.ok_or(WireError::UnknownMessageKind(wire.kind))?;
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

fn acknowledged_to_wire(
    AcknowledgedEntry { member, index, term }: AcknowledgedEntry,
) -> v1::RaftAcknowledgedEntry {
    v1::RaftAcknowledgedEntry { member_id: member, index, term }
}

fn acknowledged_from_wire(wire: v1::RaftAcknowledgedEntry) -> AcknowledgedEntry {
    let v1::RaftAcknowledgedEntry { member_id: member, index, term } = wire;
    AcknowledgedEntry { member, index, term }
}

fn entry_to_wire(entry: RaftEntry) -> v1::RaftEntry {
    let RaftEntry { index, term, kind, data } = entry;
    let kind = match kind {
        EntryKind::Noop => v1::RaftEntryKind::Noop,
        EntryKind::Command => v1::RaftEntryKind::Command,
        EntryKind::Membership => v1::RaftEntryKind::Membership,
    };
    v1::RaftEntry { index, term, kind: kind as i32, data }
}

fn entry_from_wire(wire: v1::RaftEntry) -> Result<RaftEntry, WireError> {
    let v1::RaftEntry { index, term, kind, data } = wire;
    let kind = match v1::RaftEntryKind::try_from(kind).map_err(|_| WireError::UnknownEntryKind(kind))? {
        v1::RaftEntryKind::Noop => EntryKind::Noop,
        v1::RaftEntryKind::Command => EntryKind::Command,
        v1::RaftEntryKind::Membership => EntryKind::Membership,
    };
    Ok(RaftEntry { index, term, kind, data })
}

fn snapshot_to_wire(snapshot: SnapshotMeta) -> v1::RaftSnapshot {
    let SnapshotMeta { index, term, conf_state } = snapshot;
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } = conf_state;
    let members = v1::RaftConfState { voters, learners, voters_outgoing, learners_next, auto_leave };
    v1::RaftSnapshot { index, term, members: Some(members) }
}

fn snapshot_from_wire(wire: v1::RaftSnapshot) -> Result<SnapshotMeta, WireError> {
    let v1::RaftSnapshot { index, term, members } = wire;
    let v1::RaftConfState { voters, learners, voters_outgoing, learners_next, auto_leave } =
        members.ok_or(WireError::SnapshotWithoutMembers)?;
    let conf_state = ConfState { voters, learners, voters_outgoing, learners_next, auto_leave };
    Ok(SnapshotMeta { index, term, conf_state })
}

#[cfg(test)]
mod tests;
