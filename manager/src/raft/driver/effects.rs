//! What the machine asks for, done.

use std::sync::Arc;

use warren_consensus::{Committed, ConfState, Durability, Effect, EntryKind, Event, Role as RaftRole};
use warren_core::{Applied, Outcome};
use warren_log::SnapshotMeta;

use super::compaction::Compaction;
use super::keeper::Write;
use super::{Driver, DriverError, News, Waiting};
use crate::durability;
use crate::raft::{codec, disk};
use crate::store::{self, Batch, Published, Role, Written};

impl Driver {
    /// Does one thing; the answer is what the machine has to be told of it, when nothing holds it up.
    pub(super) fn execute(&mut self, effect: Effect) -> Result<Option<Event>, DriverError> {
        match effect {
            Effect::Persist(persist) => {
                // Nobody who has an answer to come waits for the next write.
                if self.news.is_awaited() {
                    self.publish();
                }
                self.appended = true;
                let number = persist.number;
                self.write(Write::Append { number, batch: disk::batch(persist, &self.keyring)? })
            }
            Effect::Apply(entries) => {
                let last = entries.last().map(|committed| committed.entry.index);
                for committed in entries {
                    self.apply(committed)?;
                    self.publisher.passed(&self.state);
                }
                Ok(last.map(|index| Event::Applied { index }))
            }
            Effect::Compact { snapshot, up_to } => {
                self.compaction = Some(Compaction::new(snapshot, up_to));
                self.compact()
            }
            Effect::Role { term, role, leader } => {
                self.take_role(term, role == RaftRole::Leader, leader);
                Ok(None)
            }
            Effect::Dropped { proposal, reason } => {
                self.dropped(proposal, reason);
                Ok(None)
            }
            Effect::ReadReady { ctx, index } => {
                self.reads.answered(ctx, index);
                Ok(None)
            }
            Effect::Send(messages) => {
                self.wire.send(messages);
                Ok(None)
            }
            Effect::Members { members, .. } => {
                self.take_members(members);
                Ok(None)
            }
            Effect::Durability(durability) => {
                self.take_durability(durability);
                Ok(None)
            }
            Effect::Fatal(fatal) => Err(DriverError::Raft(Box::new(fatal))),
        }
    }

    fn take_role(&mut self, term: u64, leader: bool, leader_id: Option<u64>) {
        let may_plan = leader && self.role.may_plan && self.role.term == term;
        self.role = Role { leader, leader_id, term, may_plan };
        self.news.changed = true;
        self.reads.ask_again();
        self.know_peers();
        if leader_id.is_some() {
            self.publisher.heard_leader();
        }
    }

    fn take_durability(&mut self, durability: Durability) {
        match durability::problem(durability) {
            Some(problem) => tracing::error!("{problem}"),
            None => tracing::info!("this manager has what it acknowledged again, and votes"),
        }
        self.durability = durability;
        self.news.changed = true;
    }

    pub(super) fn take_members(&mut self, members: ConfState) {
        self.wire.members(&members);
        self.members = Arc::new(members);
        self.news.changed = true;
    }

    fn write(&mut self, write: Write) -> Result<Option<Event>, DriverError> {
        match self.log.write(write)? {
            Some(write) => self.written(write),
            None => {
                self.news.changed = true;
                Ok(None)
            }
        }
    }

    /// A write is durable.
    pub(super) fn written(&mut self, write: Write) -> Result<Option<Event>, DriverError> {
        match write {
            Write::Append { number, batch } => {
                if let Some(meta) = batch.snapshot {
                    self.install(meta)?;
                }
                Ok(Some(Event::Persisted { number }))
            }
            Write::Compact { snapshot, .. } => {
                if self.compaction.is_none() {
                    self.snapshotter.remove_older(snapshot);
                }
                Ok(None)
            }
        }
    }

    /// The state becomes that of a snapshot from the leader, which the log points to by now.
    fn install(&mut self, meta: SnapshotMeta) -> Result<(), DriverError> {
        let (index, term) = (meta.index, meta.term);
        let (state, bytes) = self.arrivals.take((index, term)).ok_or(DriverError::NoSnapshot(index))?;
        tracing::info!(index, term, bytes, "a snapshot of the leader took the place of the state");
        self.state = state;
        self.applied = (term, index);
        self.news.replace();
        // What it would remove is not there any more.
        self.compaction = None;
        self.snapshotter.installed(meta, bytes);
        Ok(())
    }

    /// Does the next part of the compaction, if one is under way.
    fn compact(&mut self) -> Result<Option<Event>, DriverError> {
        let Some(compaction) = self.compaction.take() else { return Ok(None) };
        let (write, rest) = compaction.next(self.log.first());
        self.compaction = rest;
        self.write(write)
    }

    /// One part more of the compaction, unless the disk does not take it; then it is held like any other write.
    pub(super) fn go_on_compacting(&mut self) -> Result<(), DriverError> {
        if self.compaction.is_some() && self.log.held().is_none() {
            let event = self.compact()?;
            self.done.extend(event);
        }
        Ok(())
    }

    fn apply(&mut self, committed: Committed) -> Result<(), DriverError> {
        let (index, term) = (committed.entry.index, committed.entry.term);
        self.applied = (term, index);
        self.news.changed = true;
        if self.role.leader && term == self.role.term && !self.role.may_plan {
            self.role.may_plan = true;
            self.reads.ask_again();
        }
        self.snapshotter.count(committed.entry.data.len());
        let place = Applied { term, index };
        let waiting = committed.proposal.and_then(|id| self.waiting.remove(&id));
        if committed.entry.kind != EntryKind::Command {
            self.state.advance(place);
            if let Some(Waiting::Change(reply)) = waiting {
                self.news.changes.push((reply, Ok(())));
            }
            return Ok(());
        }
        let command =
            codec::decode(&committed.entry.data).map_err(|source| DriverError::Entry { index, source })?;
        let outcome = self.state.apply(term, index, &command);
        if let Outcome::Applied { changes, .. } = &outcome {
            self.news.batches.push(Batch { index, changes: changes.as_slice().into() });
        }
        if self.has_others() {
            self.news.verdicts.push((place, verdict(&outcome)));
        }
        if let Some(Waiting::Write(reply)) = waiting {
            self.news.answers.push((reply, Ok(Written { place, outcome })));
        }
        Ok(())
    }

    fn has_others(&self) -> bool {
        let ConfState { voters, learners, voters_outgoing, .. } = &*self.members;
        let is_other = |id: &u64| *id != self.own;
        voters.iter().any(is_other) || learners.iter().any(is_other) || voters_outgoing.iter().any(is_other)
    }

    /// Publishes what is new, then answers whoever waited for it.
    pub(super) fn publish(&mut self) {
        let News { changed, replaced, batches, verdicts, answers, changes } = std::mem::take(&mut self.news);
        if changed {
            let published = Published {
                state: self.state.clone(),
                index: self.applied.1,
                role: self.role,
                log: self.log.cost(),
                held: self.log.held().cloned(),
                members: self.members.clone(),
                durability: self.durability,
            };
            let old = self.publisher.publish(published, store::News { batches, verdicts, replaced });
            // A full queue gives the state back, and it is dropped here.
            let _ = self.graveyard.try_send(old);
        }
        // The callers may have given up waiting.
        for (reply, answer) in answers {
            let _ = reply.send(answer);
        }
        for (reply, answer) in changes {
            let _ = reply.send(answer);
        }
        self.reads.published(self.applied.1);
    }

    /// Refreshes what is known of the others.
    pub(super) fn know_peers(&mut self) {
        let peers = self.machine.peers();
        if !peers.is_empty() || self.knows_peers {
            self.knows_peers = !peers.is_empty();
            self.publisher.know(peers.into());
        }
    }
}

fn verdict(outcome: &Outcome) -> store::Verdict {
    match outcome {
        Outcome::Applied { answer, .. } | Outcome::Unchanged { answer } => Ok(answer.clone()),
        Outcome::Rejected(refusal) => Err(refusal.clone()),
    }
}
