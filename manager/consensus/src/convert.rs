//! Conversion between this crate's types and the raft crate's, field by field.

use raft::eraftpb::{self, EntryType, MessageType};

use crate::{
    ConfState, EntryKind, HardState, MembershipEntry, Message, MessageKind, RaftEntry, SnapshotMeta,
};

/// The kinds of both crates, for every message that the raft crate knows.
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
    let (_, msg_type) = kind.expect("the machine itself takes those that are not in the table");
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
/// On a kind that members do not exchange: the machine never makes raft create one.
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
        acknowledged: Vec::new(),
    }
}

/// Gives the raft crate this crate's encoding of a membership change. The raft crate never parses it: the
/// machine appends such entries itself, and decodes them when they are delivered.
pub(crate) fn entry_to_raft(entry: RaftEntry) -> eraftpb::Entry {
    let entry_type = match entry.kind {
        EntryKind::Noop | EntryKind::Command => EntryType::EntryNormal,
        EntryKind::Membership => EntryType::EntryConfChangeV2,
    };
    eraftpb::Entry {
        entry_type,
        term: entry.term,
        index: entry.index,
        data: entry.data,
        ..eraftpb::Entry::default()
    }
}

/// # Panics
/// On a membership change in the raft crate's old form: the machine proposes none.
pub(crate) fn entry_from_raft(entry: eraftpb::Entry) -> RaftEntry {
    let eraftpb::Entry { index, term, data, .. } = entry;
    match (entry.entry_type, data.is_empty()) {
        // Proposals have data, so an entry without data is the raft crate's own: it begins a term, or ends a
        // joint phase.
        (EntryType::EntryNormal, true) => RaftEntry { index, term, kind: EntryKind::Noop, data },
        (EntryType::EntryNormal, false) => RaftEntry { index, term, kind: EntryKind::Command, data },
        (EntryType::EntryConfChangeV2, true) => {
            let data = MembershipEntry::LeaveJoint.encode().into();
            RaftEntry { index, term, kind: EntryKind::Membership, data }
        }
        (EntryType::EntryConfChangeV2, false) => RaftEntry { index, term, kind: EntryKind::Membership, data },
        (EntryType::EntryConfChange, _) => {
            panic!("the machine never proposes a membership change in the old form")
        }
    }
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
    let conf_state = conf_state_from_raft(metadata.get_conf_state());
    Some(SnapshotMeta { index: metadata.index, term: metadata.term, conf_state })
}

/// Ordered by id: the raft crate does not order them.
pub(crate) fn conf_state_from_raft(conf_state: &eraftpb::ConfState) -> ConfState {
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    ConfState {
        voters: sorted(&conf_state.voters),
        learners: sorted(&conf_state.learners),
        voters_outgoing: sorted(&conf_state.voters_outgoing),
        learners_next: sorted(&conf_state.learners_next),
        auto_leave: conf_state.auto_leave,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn message_round_trip_keeps_every_field() {
        let conf_state = ConfState { voters: vec![1, 2, 3], learners: vec![4], ..ConfState::default() };
        for (number, (kind, _)) in (1..).zip(KINDS) {
            let noop = RaftEntry { index: 7, term: 8, kind: EntryKind::Noop, data: Bytes::new() };
            let command =
                RaftEntry { kind: EntryKind::Command, data: Bytes::from_static(b"x"), ..noop.clone() };
            let change = RaftEntry { kind: EntryKind::Membership, ..command.clone() };
            let message = Message {
                kind,
                to: number,
                from: number + 100,
                term: number + 200,
                log_term: number + 300,
                index: number + 400,
                entries: vec![noop, command, change],
                commit: number + 500,
                commit_term: number + 600,
                snapshot: Some(SnapshotMeta { index: 5, term: 6, conf_state: conf_state.clone() }),
                request_snapshot: number + 700,
                reject: number % 2 == 0,
                reject_hint: number + 800,
                context: Bytes::from_static(b"context"),
                priority: -9,
                acknowledged: Vec::new(),
            };
            assert_eq!(message_from_raft(message_to_raft(message.clone())), message);
            let bare = Message { snapshot: None, entries: Vec::new(), ..message };
            assert_eq!(message_from_raft(message_to_raft(bare.clone())), bare);
        }
    }

    /// The raft crate ends a joint phase with an entry without data.
    #[test]
    fn leave_joint_entry_has_data() {
        let entry_type = EntryType::EntryConfChangeV2;
        let raft = eraftpb::Entry { entry_type, index: 3, term: 2, ..eraftpb::Entry::default() };
        let ours = entry_from_raft(raft);
        let data = MembershipEntry::LeaveJoint.encode().into();
        assert_eq!(ours, RaftEntry { index: 3, term: 2, kind: EntryKind::Membership, data });
        assert_eq!(entry_from_raft(entry_to_raft(ours.clone())), ours);
    }

    #[test]
    fn conf_state_ids_are_sorted() {
        let members = ConfState {
            voters: vec![3, 1, 2],
            learners: vec![9, 8],
            voters_outgoing: vec![5, 4],
            learners_next: vec![5, 4],
            auto_leave: true,
        };
        let sorted = ConfState {
            voters: vec![1, 2, 3],
            learners: vec![8, 9],
            voters_outgoing: vec![4, 5],
            learners_next: vec![4, 5],
            auto_leave: true,
        };
        assert_eq!(conf_state_from_raft(&conf_state_to_raft(&members)), sorted);
    }
}
