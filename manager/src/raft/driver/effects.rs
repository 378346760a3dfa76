//! Executes the effects of the raft machine.

use std::sync::Arc;

use warren_consensus::{CommittedEntry, ConfState, DurabilityStatus, Effect, EntryKind, Event, RaftRole};
use warren_core::{AppliedIndex, ApplyOutcome};
use warren_log::SnapshotMeta;

use super::compaction::Compaction;
use super::log_write::LogWrite;
use super::{DriverError, PendingPublication, RaftDriver, Waiter};
use crate::codec;
use crate::durability;
use crate::raft::sealing;
use crate::store::{self, AppliedWrite, ChangeBatch, PublishedState, ReplicaRole};

impl RaftDriver {
    /// Executes one effect and returns the resulting event for the machine, unless the write stalled.
    pub(super) fn execute(&mut self, effect: Effect) -> Result<Option<Event>, DriverError> {
        match effect {
            Effect::Persist(persist) => {
                // Pending responses do not wait for the next write.
                if self.pending_publication.is_awaited() {
                    self.publish();
                }
                self.has_appended = true;
                let number = persist.number;
                self.write(LogWrite::Append { number, batch: sealing::seal_batch(persist, &self.keyring)? })
            }
            Effect::Apply(entries) => {
                let last = entries.last().map(|committed| committed.entry.index);
                for committed in entries {
                    self.apply(committed)?;
                    self.publisher.record_checkpoint(&self.state);
                }
                Ok(last.map(|index| Event::Applied { index }))
            }
            Effect::Compact { snapshot, up_to } => {
                self.compaction = Some(Compaction::new(snapshot, up_to));
                self.compact()
            }
            Effect::RoleChanged { term, role, leader } => {
                self.set_role(term, role == RaftRole::Leader, leader);
                Ok(None)
            }
            Effect::ProposalDropped { proposal, reason } => {
                self.fail_proposal(proposal, reason);
                Ok(None)
            }
            Effect::ReadReady { ctx, index } => {
                self.pending_reads.on_read_index(ctx, index);
                Ok(None)
            }
            Effect::Send(messages) => {
                self.transport.send(messages);
                Ok(None)
            }
            Effect::MembersChanged { members, .. } => {
                self.set_members(members);
                Ok(None)
            }
            Effect::DurabilityChanged(durability) => {
                self.set_durability(durability);
                Ok(None)
            }
            Effect::Fatal(fatal) => Err(DriverError::Raft(Box::new(fatal))),
        }
    }

    fn set_role(&mut self, term: u64, leader: bool, leader_id: Option<u64>) {
        let may_plan = leader && self.role.can_plan && self.role.term == term;
        self.role = ReplicaRole { is_leader: leader, leader_id, term, can_plan: may_plan };
        self.pending_publication.has_changes = true;
        self.pending_reads.retry();
        self.refresh_peers();
        if leader_id.is_some() {
            self.publisher.record_leader_seen();
        }
    }

    fn set_durability(&mut self, durability: DurabilityStatus) {
        match durability::describe_problem(durability) {
            Some(problem) => tracing::error!("{problem}"),
            None => tracing::info!("all acknowledged entries are present again; this manager votes"),
        }
        self.durability = durability;
        self.pending_publication.has_changes = true;
    }

    pub(super) fn set_members(&mut self, members: ConfState) {
        self.transport.set_members(&members);
        self.members = Arc::new(members);
        self.pending_publication.has_changes = true;
    }

    fn write(&mut self, write: LogWrite) -> Result<Option<Event>, DriverError> {
        match self.log_writer.write(write)? {
            Some(write) => self.finish_write(write),
            None => {
                self.pending_publication.has_changes = true;
                Ok(None)
            }
        }
    }

    /// Handles a durable write.
    pub(super) fn finish_write(&mut self, write: LogWrite) -> Result<Option<Event>, DriverError> {
        match write {
            LogWrite::Append { number, batch } => {
                if let Some(meta) = batch.snapshot {
                    self.install(meta)?;
                }
                Ok(Some(Event::Persisted { number }))
            }
            LogWrite::Compact { snapshot, .. } => {
                if self.compaction.is_none() {
                    self.snapshotter.remove_older(snapshot);
                }
                Ok(None)
            }
        }
    }

    /// Replaces the state by that of the leader's snapshot, which the log points to.
    fn install(&mut self, meta: SnapshotMeta) -> Result<(), DriverError> {
        let (index, term) = (meta.index, meta.term);
        let (state, bytes) =
            self.received_snapshots.take((index, term)).ok_or(DriverError::SnapshotMissing(index))?;
        tracing::info!(index, term, bytes, "installed snapshot from the leader");
        self.state = state;
        self.applied = (term, index);
        self.pending_publication.reset_to_snapshot();
        // The entries to remove do not exist any more.
        self.compaction = None;
        self.snapshotter.record_installed(meta, bytes);
        Ok(())
    }

    /// Executes the next step of the compaction, if one is in progress.
    fn compact(&mut self) -> Result<Option<Event>, DriverError> {
        let Some(compaction) = self.compaction.take() else { return Ok(None) };
        let (write, rest) = compaction.next_write(self.log_writer.first_index());
        self.compaction = rest;
        self.write(write)
    }

    /// Executes the next step of the compaction; a failure stalls it like any other write.
    pub(super) fn continue_compaction(&mut self) -> Result<(), DriverError> {
        if self.compaction.is_some() && self.log_writer.stall().is_none() {
            let event = self.compact()?;
            self.pending_events.extend(event);
        }
        Ok(())
    }

    fn apply(&mut self, committed: CommittedEntry) -> Result<(), DriverError> {
        let (index, term) = (committed.entry.index, committed.entry.term);
        self.applied = (term, index);
        self.pending_publication.has_changes = true;
        if self.role.is_leader && term == self.role.term && !self.role.can_plan {
            self.role.can_plan = true;
            self.pending_reads.retry();
        }
        self.snapshotter.record_applied(committed.entry.data.len());
        let position = AppliedIndex { term, index };
        let waiting = committed.proposal.and_then(|id| self.waiters.remove(&id));
        if committed.entry.kind != EntryKind::Command {
            self.state.advance_to(position);
            if let Some(Waiter::Change(reply)) = waiting {
                self.pending_publication.member_changes.push((reply, Ok(())));
            }
            return Ok(());
        }
        let command = codec::decode(&committed.entry.data)
            .map_err(|source| DriverError::UnreadableEntry { index, source })?;
        let outcome = self.state.apply(term, index, &command);
        if let ApplyOutcome::Applied { changes, .. } = &outcome {
            self.pending_publication.batches.push(ChangeBatch { index, changes: changes.as_slice().into() });
        }
        if self.has_other_members() {
            self.pending_publication.results.push((position, command_result(&outcome)));
        }
        if let Some(Waiter::Write(reply)) = waiting {
            self.pending_publication.answers.push((reply, Ok(AppliedWrite { position, outcome })));
        }
        Ok(())
    }

    fn has_other_members(&self) -> bool {
        let ConfState { voters, learners, voters_outgoing, .. } = &*self.members;
        let is_other = |id: &u64| *id != self.own_id;
        voters.iter().any(is_other) || learners.iter().any(is_other) || voters_outgoing.iter().any(is_other)
    }

    /// Publishes pending changes, then answers the waiting callers.
    pub(super) fn publish(&mut self) {
        let PendingPublication {
            has_changes: changed,
            is_replaced: replaced,
            batches,
            results: verdicts,
            answers,
            member_changes: changes,
        } = std::mem::take(&mut self.pending_publication);
        if changed {
            let published = PublishedState {
                state: self.state.clone(),
                index: self.applied.1,
                role: self.role,
                log: self.log_writer.cost(),
                write_stall: self.log_writer.stall().cloned(),
                members: self.members.clone(),
                durability: self.durability,
            };
            let old = self
                .publisher
                .publish(published, store::Publication { batches, results: verdicts, is_replaced: replaced });
            // A full queue returns the state, which is dropped here.
            let _ = self.deferred_drop.try_send(old);
        }
        // The callers may have given up.
        for (reply, answer) in answers {
            let _ = reply.send(answer);
        }
        for (reply, answer) in changes {
            let _ = reply.send(answer);
        }
        self.pending_reads.on_published(self.applied.1);
    }

    /// Publishes the leader's progress view of its peers.
    pub(super) fn refresh_peers(&mut self) {
        let peers = self.machine.peers();
        if !peers.is_empty() || self.is_peer_progress_current {
            self.is_peer_progress_current = !peers.is_empty();
            self.publisher.set_peers(peers.into());
        }
    }
}

fn command_result(outcome: &ApplyOutcome) -> store::CommandResult {
    match outcome {
        ApplyOutcome::Applied { response: answer, .. } | ApplyOutcome::Unchanged { answer } => {
            Ok(answer.clone())
        }
        ApplyOutcome::Rejected(refusal) => Err(refusal.clone()),
    }
}
