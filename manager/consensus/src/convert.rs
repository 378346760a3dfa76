//! Between our types and the raft crate's, field by field.

use raft::eraftpb::{self, EntryType, MessageType};

use crate::{ConfState, Entry, EntryKind, HardState, Message, MessageKind, SnapshotMeta};

/// Our kind and the raft crate's, for every message that members exchange.
const KINDS: [(MessageKind, MessageType); 12] = [
    (MessageKind::Append, MessageType::MsgAppend),
    (MessageKind::AppendResponse, MessageType::MsgAppendResponse),
    (MessageKind::Vote, MessageType::MsgRequestVote),
    (MessageKind::VoteResponse, MessageType::MsgRequestVoteResponse),
    (MessageKind::Snapshot, MessageType::MsgSnapshot),
    (MessageKind::Heartbeat, MessageType::MsgHeartbeat),
    (MessageKind::HeartbeatResponse, MessageType::MsgHeartbeatResponse),
    (MessageKind::TimeoutNow, MessageType::MsgTimeoutNow),
    (MessageKind::ReadIndex, MessageType::MsgReadIndex),
    (MessageKind::ReadIndexResponse, MessageType::MsgReadIndexResp),
    (MessageKind::PreVote, MessageType::MsgRequestPreVote),
    (MessageKind::PreVoteResponse, MessageType::MsgRequestPreVoteResponse),
];

/// A message from another member, for the raft crate.
pub(crate) fn message_to_raft(message: Message) -> eraftpb::Message {
    let kind = KINDS.iter().find(|(kind, _)| *kind == message.kind);
    let (_, msg_type) = kind.expect("the table has every kind");
    let entries: Vec<_> = message.entries.into_iter().map(entry_to_raft).collect();
    eraftpb::Message {
        msg_type: *msg_type,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: entries.into(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot: message.snapshot.as_ref().map(snapshot_to_raft).into(),
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context,
        priority: message.priority,
        ..eraftpb::Message::default()
    }
}

/// A message from the raft crate, for another member.
///
/// # Panics
/// On a kind that members do not exchange: the machine gives raft no cause to create one.
pub(crate) fn message_from_raft(message: eraftpb::Message) -> Message {
    let kind = KINDS.iter().find(|(_, msg_type)| *msg_type == message.msg_type);
    let (kind, _) = kind.expect("raft sends neither forwarded proposals nor local messages");
    Message {
        kind: *kind,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.entries.into_iter().map(entry_from_raft).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot: message.snapshot.into_option().as_ref().and_then(snapshot_from_raft),
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context,
        priority: message.priority,
    }
}

pub(crate) fn entry_to_raft(entry: Entry) -> eraftpb::Entry {
    eraftpb::Entry {
        entry_type: EntryType::EntryNormal,
        term: entry.term,
        index: entry.index,
        data: entry.data,
        ..eraftpb::Entry::default()
    }
}

/// # Panics
/// On a change of members: the machine proposes none.
pub(crate) fn entry_from_raft(entry: eraftpb::Entry) -> Entry {
    assert_eq!(entry.entry_type, EntryType::EntryNormal, "no change of members is proposed");
    // Proposals have data, so an entry without is the raft crate's own.
    let kind = if entry.data.is_empty() { EntryKind::Noop } else { EntryKind::Command };
    Entry { index: entry.index, term: entry.term, kind, data: entry.data }
}

pub(crate) fn hard_state_to_raft(hard_state: &HardState) -> eraftpb::HardState {
    eraftpb::HardState {
        term: hard_state.term,
        vote: hard_state.vote,
        commit: hard_state.commit,
        ..eraftpb::HardState::default()
    }
}

pub(crate) fn hard_state_from_raft(hard_state: &eraftpb::HardState) -> HardState {
    HardState { term: hard_state.term, vote: hard_state.vote, commit: hard_state.commit }
}

pub(crate) fn conf_state_to_raft(conf_state: &ConfState) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        voters_outgoing: conf_state.voters_outgoing.clone(),
        learners_next: conf_state.learners_next.clone(),
        auto_leave: conf_state.auto_leave,
        ..eraftpb::ConfState::default()
    }
}

pub(crate) fn snapshot_to_raft(snapshot: &SnapshotMeta) -> eraftpb::Snapshot {
    let mut raft = eraftpb::Snapshot::default();
    let metadata = raft.mut_metadata();
    metadata.index = snapshot.index;
    metadata.term = snapshot.term;
    metadata.set_conf_state(conf_state_to_raft(&snapshot.conf_state));
    raft
}

/// `None` if it is the raft crate's empty snapshot.
pub(crate) fn snapshot_from_raft(snapshot: &eraftpb::Snapshot) -> Option<SnapshotMeta> {
    if snapshot.is_empty() {
        return None;
    }
    let metadata = snapshot.get_metadata();
    let members = metadata.get_conf_state();
    let conf_state = ConfState {
        voters: members.voters.clone(),
        learners: members.learners.clone(),
        voters_outgoing: members.voters_outgoing.clone(),
        learners_next: members.learners_next.clone(),
        auto_leave: members.auto_leave,
    };
    Some(SnapshotMeta { index: metadata.index, term: metadata.term, conf_state })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn every_field_of_every_kind_comes_back() {
        let conf_state = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
        for (number, (kind, _)) in (1..).zip(KINDS) {
            let noop = Entry { index: 7, term: 8, kind: EntryKind::Noop, data: Bytes::new() };
            let command = Entry { kind: EntryKind::Command, data: Bytes::from_static(b"x"), ..noop.clone() };
            let message = Message {
                kind,
                to: number,
                from: number + 100,
                term: number + 200,
                log_term: number + 300,
                index: number + 400,
                entries: vec![noop, command],
                commit: number + 500,
                commit_term: number + 600,
                snapshot: Some(SnapshotMeta { index: 5, term: 6, conf_state: conf_state.clone() }),
                request_snapshot: number + 700,
                reject: number % 2 == 0,
                reject_hint: number + 800,
                context: Bytes::from_static(b"context"),
                priority: -9,
            };
            assert_eq!(message_from_raft(message_to_raft(message.clone())), message);
            let bare = Message { snapshot: None, entries: Vec::new(), ..message };
            assert_eq!(message_from_raft(message_to_raft(bare.clone())), bare);
        }
    }
}
