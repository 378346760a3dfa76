//! Applies entries, and informs planners, workers and callers of what was published.

use warren_consensus::{CommittedEntry, EntryKind, Event as RaftEvent};
use warren_core::StateChange;
use warren_replica::{MemberDirectory, Publication, ReplicaOutput};

use crate::simulation::ClusterSimulation;

impl ClusterSimulation {
    pub(super) fn apply(&mut self, host: usize, entries: Vec<CommittedEntry>) {
        let Some(index) = entries.last().map(|committed| committed.entry.index) else { return };
        for committed in entries {
            self.apply_one(host, &committed);
        }
        let Some(run) = &mut self.managers[host].run else { return };
        run.replica.add_event(RaftEvent::Applied { index });
    }

    fn apply_one(&mut self, host: usize, committed: &CommittedEntry) {
        let elapsed = self.elapsed();
        let Some(run) = &mut self.managers[host].run else { return };
        run.snapshots.record_applied(committed.entry.data.len());
        let is_command = committed.entry.kind == EntryKind::Command;
        let place =
            is_command.then(|| committed.entry.data.as_ref().try_into().map_or(0, u64::from_be_bytes));
        let command = place.map(|place| &self.commands[usize::try_from(place).unwrap_or(0)]);
        let outcome = run.replica.apply(committed, command);
        run.clock.observe(run.replica.state().clock(), elapsed);
        self.oracle_applied(host, place, outcome.as_ref());
    }

    /// Publishes what the replica decided, then answers.
    pub(super) fn publish(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        let ReplicaOutput { publication, writes, changes: _, reads } = run.replica.take_output();
        if let Some(publication) = publication {
            self.published(host, publication);
        }
        for (proposer, written) in writes {
            self.proposal_ended(host, proposer, written);
        }
        for read in reads {
            self.finish_read(host, read);
        }
    }

    fn published(&mut self, host: usize, publication: Publication) {
        let Publication { batches, events: _, results, is_replaced } = publication;
        let Some(run) = &mut self.managers[host].run else { return };
        let (index, role) = (run.replica.applied().index, run.replica.role());
        let known = match is_replaced {
            true => run.outcomes.reset_after(index),
            false => run.outcomes.add(index, results),
        };
        let is_member =
            |change: &&StateChange| matches!(change, StateChange::Member(_) | StateChange::Cluster);
        if is_replaced || batches.iter().flat_map(|batch| batch.changes.iter()).any(|it| is_member(&it)) {
            run.peers.update(MemberDirectory::of(run.replica.state()));
        }
        let changes = (!is_replaced).then(|| batches.iter().flat_map(|batch| batch.changes.iter()));
        let woken = run.trigger.wake(&role, run.replica.state(), changes);
        self.network_changed(host, batches, is_replaced);
        self.wake(host, woken);
        self.answer_writes(host, known);
        self.oracle_check_acknowledged(host);
    }
}
