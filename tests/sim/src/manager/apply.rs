//! Applies entries: the state changes, pending requests are answered, planners and workers are notified.

use std::collections::BTreeSet;

use warren_consensus::{CommittedEntry, EntryKind, Event as RaftEvent};
use warren_core::{AppliedIndex, ApplyOutcome, StateChange};

use super::WriteOrigin;
use crate::simulation::ClusterSimulation;

/// The changes of a batch of entries, by their recipients.
#[derive(Default)]
struct AppliedChanges {
    changes: Vec<StateChange>,
    answers: Vec<(WriteOrigin, u64, ApplyOutcome)>,
}

impl ClusterSimulation {
    pub(super) fn apply(&mut self, host: usize, entries: Vec<CommittedEntry>) {
        let Some(last) = entries.last().map(|committed| committed.entry.index) else { return };
        let could_plan = self.process(host).is_some_and(|run| run.role.may_plan);
        let mut applied_changes = AppliedChanges::default();
        for committed in entries {
            self.apply_one(host, committed, &mut applied_changes);
        }
        self.raft(host, RaftEvent::Applied { index: last });
        self.notify(host, applied_changes);
        self.oracle_check_acknowledged(host);
        if !could_plan && self.process(host).is_some_and(|run| run.role.may_plan) {
            self.become_leader(host);
        }
        self.maybe_snapshot(host);
    }

    fn apply_one(&mut self, host: usize, committed: CommittedEntry, applied_changes: &mut AppliedChanges) {
        let (index, term) = (committed.entry.index, committed.entry.term);
        let elapsed = self.elapsed();
        let Some(run) = &mut self.managers[host].run else { return };
        run.role.may_plan |= run.role.is_leader && term == run.role.term;
        let place = match committed.entry.kind {
            EntryKind::Command => committed.entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes),
            EntryKind::Noop | EntryKind::Membership => {
                run.state.advance_to(AppliedIndex { term, index });
                return self.oracle_applied(host, None, None);
            }
        };
        let command = &self.commands[usize::try_from(place).unwrap_or(0)];
        let outcome = run.state.apply(term, index, command);
        run.clock.observe(run.state.clock(), elapsed);
        if let ApplyOutcome::Applied { changes, .. } = &outcome {
            applied_changes.changes.extend(changes);
        }
        let who = committed.proposal.and_then(|id| run.writes.take_proposed(id));
        self.oracle_applied(host, Some(place), Some(&outcome));
        if let Some(who) = who {
            applied_changes.answers.push((who, index, outcome));
        }
    }

    fn notify(&mut self, host: usize, applied_changes: AppliedChanges) {
        self.wake(host, &applied_changes.changes);
        for (who, index, outcome) in applied_changes.answers {
            self.answer(host, who, Ok((index, Box::new(outcome))));
        }
        self.answer_applied(host);
        if applied_changes.changes.iter().any(|change| matches!(change, StateChange::Member(_))) {
            self.managers_changed(host);
        }
        if applied_changes.changes.iter().any(|change| matches!(change, StateChange::Node(_))) {
            self.end_old_sessions(host);
        }
        self.open_sessions(host);
        let nodes: BTreeSet<_> = applied_changes.changes.iter().filter_map(assigned_node).collect();
        for node in nodes {
            if let Some(worker) = self.worker_of(node) {
                self.push_assignment(host, worker);
            }
        }
    }

    /// The state was replaced by a snapshot from the leader.
    pub(super) fn snapshot_installed(&mut self, host: usize) {
        self.answer_applied(host);
        self.end_old_sessions(host);
        self.managers_changed(host);
        for worker in self.worker_keys() {
            self.push_assignment(host, worker);
        }
        self.oracle_check_acknowledged(host);
    }
}

fn assigned_node(change: &StateChange) -> Option<warren_types::NodeId> {
    match change {
        StateChange::Assignment(node) => Some(*node),
        _ => None,
    }
}
