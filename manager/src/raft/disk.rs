//! Between the words of the raft machine and those of the log. Both crates keep their own, so that neither knows
//! the other; this is the only place that knows both.

use warren_consensus as raft;
use warren_log as log;

/// What one durable write holds.
pub fn batch(persist: raft::Persist) -> log::Batch {
    log::Batch {
        snapshot: persist.snapshot.map(snapshot_meta),
        entries: persist.entries.into_iter().map(entry).collect(),
        hard_state: persist.hard_state.map(|raft::HardState { term, vote, commit }| log::HardState {
            term,
            vote,
            commit,
        }),
        conf_state: None,
    }
}

/// What a snapshot covers, for the log.
pub fn snapshot_meta(meta: raft::SnapshotMeta) -> log::SnapshotMeta {
    let raft::ConfState { voters, learners } = meta.conf_state;
    let conf_state = log::ConfState { voters, learners };
    log::SnapshotMeta { index: meta.index, term: meta.term, conf_state }
}

/// What the machine starts from.
pub fn restored(loaded: log::Loaded) -> raft::Restored {
    let log::HardState { term, vote, commit } = loaded.hard_state;
    raft::Restored {
        hard_state: raft::HardState { term, vote, commit },
        conf_state: members(loaded.conf_state),
        snapshot: loaded.snapshot.map(|meta| raft::SnapshotMeta {
            index: meta.index,
            term: meta.term,
            conf_state: members(meta.conf_state),
        }),
        entries: loaded.entries.into_iter().map(restored_entry).collect(),
    }
}

fn members(conf_state: log::ConfState) -> raft::ConfState {
    let log::ConfState { voters, learners } = conf_state;
    raft::ConfState { voters, learners }
}

fn entry(entry: raft::Entry) -> log::Entry {
    let kind = match entry.kind {
        raft::EntryKind::Noop => log::EntryKind::Noop,
        raft::EntryKind::Command => log::EntryKind::Command,
    };
    log::Entry { index: entry.index, term: entry.term, kind, data: entry.data }
}

fn restored_entry(entry: log::Entry) -> raft::Entry {
    let kind = match entry.kind {
        log::EntryKind::Noop => raft::EntryKind::Noop,
        log::EntryKind::Command => raft::EntryKind::Command,
    };
    raft::Entry { index: entry.index, term: entry.term, kind, data: entry.data }
}
