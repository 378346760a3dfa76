//! Executes the effects of the replica.

use warren_consensus::{CommittedEntry, DurabilityStatus, Effect, EntryKind, Event};
use warren_log::SnapshotMeta;
use warren_replica::ReplicaOutput;

use super::compaction::Compaction;
use super::log_write::LogWrite;
use super::{DriverError, RaftDriver};
use crate::codec;
use crate::durability;
use crate::raft::sealing;
use crate::store::PublishedState;

impl RaftDriver {
    /// Executes one effect. Its result for raft is queued, unless the write stalled.
    pub(super) fn execute(&mut self, effect: Effect) -> Result<(), DriverError> {
        match effect {
            Effect::Persist(persist) => {
                // Pending responses do not wait for the next write.
                if self.replica.is_output_awaited() {
                    self.publish();
                }
                self.has_appended = true;
                let number = persist.number;
                self.write(LogWrite::Append { number, batch: sealing::seal_batch(persist, &self.keyring)? })?;
            }
            Effect::Apply(entries) => {
                let last = entries.last().map(|committed| committed.entry.index);
                for committed in entries {
                    self.apply(&committed)?;
                    self.publisher.record_checkpoint(self.replica.state());
                }
                if let Some(index) = last {
                    self.replica.add_event(Event::Applied { index });
                }
            }
            Effect::Compact { snapshot, up_to } => {
                let up_to = self.key_renewal.as_ref().map_or(up_to, |it| it.up_to(&snapshot, up_to));
                self.compaction = Some(Compaction::new(snapshot, up_to));
                self.compact()?;
            }
            Effect::RoleChanged { .. } => self.refresh_peers(),
            Effect::Send(messages) => self.transport.send(messages),
            Effect::MembersChanged { members, .. } => self.transport.set_members(&members),
            Effect::DurabilityChanged(durability) => log_durability(durability),
            // The replica did all of it.
            Effect::ProposalDropped { .. } | Effect::ReadReady { .. } => {}
            Effect::Fatal(fatal) => return Err(DriverError::Raft(Box::new(fatal))),
        }
        Ok(())
    }

    fn write(&mut self, write: LogWrite) -> Result<(), DriverError> {
        match self.log_writer.write(write)? {
            Some(write) => self.finish_write(write),
            None => {
                self.replica.mark_changed();
                Ok(())
            }
        }
    }

    /// Handles a durable write.
    pub(super) fn finish_write(&mut self, write: LogWrite) -> Result<(), DriverError> {
        match write {
            LogWrite::Append { number, batch } => {
                if let Some(meta) = batch.snapshot {
                    self.install(meta)?;
                }
                self.replica.add_event(Event::Persisted { number });
            }
            LogWrite::Compact { snapshot, .. } => {
                if self.compaction.is_none() {
                    self.snapshotter.remove_older(snapshot);
                }
            }
        }
        Ok(())
    }

    /// Replaces the state by that of the leader's snapshot, which the log points to.
    fn install(&mut self, meta: SnapshotMeta) -> Result<(), DriverError> {
        let (index, term) = (meta.index, meta.term);
        let (state, bytes) =
            self.received_snapshots.take((index, term)).ok_or(DriverError::SnapshotMissing(index))?;
        tracing::info!(index, term, bytes, "installed snapshot from the leader");
        self.replica.install(&meta, state);
        // The entries to remove do not exist any more.
        self.compaction = None;
        if let Some(renewal) = &mut self.key_renewal {
            renewal.record_installed();
        }
        self.snapshotter.record_installed(meta, bytes);
        Ok(())
    }

    /// Executes the next step of the compaction, if one is in progress.
    fn compact(&mut self) -> Result<(), DriverError> {
        let Some(compaction) = self.compaction.take() else { return Ok(()) };
        let (write, rest) = compaction.next_write(self.log_writer.first_index());
        self.compaction = rest;
        self.write(write)
    }

    /// Executes the next step of the compaction; a failure stalls it like any other write.
    pub(super) fn continue_compaction(&mut self) -> Result<(), DriverError> {
        if self.log_writer.stall().is_none() { self.compact() } else { Ok(()) }
    }

    fn apply(&mut self, committed: &CommittedEntry) -> Result<(), DriverError> {
        let (index, data) = (committed.entry.index, &committed.entry.data);
        self.snapshotter.record_applied(data.len());
        let is_command = committed.entry.kind == EntryKind::Command;
        let command = is_command.then(|| codec::decode(data)).transpose();
        let command = command.map_err(|source| DriverError::UnreadableEntry { index, source })?;
        self.replica.apply(committed, command.as_ref());
        Ok(())
    }

    /// Publishes pending changes, then answers the waiting callers.
    pub(super) fn publish(&mut self) {
        self.record_leader_contact();
        let ReplicaOutput { publication, writes, changes, reads } = self.replica.take_output();
        if let Some(publication) = publication {
            let published = PublishedState {
                state: self.replica.state().clone(),
                index: self.replica.applied().index,
                role: self.replica.role(),
                log: self.log_writer.cost(),
                write_stall: self.log_writer.stall().cloned(),
                members: self.replica.members().clone(),
                durability: self.replica.durability(),
            };
            let old = self.publisher.publish(published, publication);
            // A full queue returns the state, which is dropped here.
            let _ = self.deferred_drop.try_send(old);
        }
        // The callers may have given up.
        for (reply, answer) in writes {
            let _ = reply.send(answer);
        }
        for (reply, answer) in changes {
            let _ = reply.send(answer);
        }
        for reply in reads {
            let _ = reply.send(());
        }
    }

    /// Publishes the leader's progress view of its peers.
    pub(super) fn refresh_peers(&mut self) {
        let peers = self.replica.raft().peers();
        if !peers.is_empty() || self.is_peer_progress_current {
            self.is_peer_progress_current = !peers.is_empty();
            self.publisher.set_peers(peers.into());
        }
    }
}

fn log_durability(durability: DurabilityStatus) {
    match durability::describe_problem(durability) {
        Some(problem) => tracing::error!("{problem}"),
        None => tracing::info!("all acknowledged entries are present again; this manager votes"),
    }
}
