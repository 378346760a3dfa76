//! The driver: one OS thread that executes what the raft machine says.
//!
//! One durable write holds everything that waited for it: while a write is under way, proposals gather in the queue,
//! and the next write takes them all. Answers go out after the new state was published, so whoever has an answer sees
//! its effect. A log that cannot be written ends the driver, and with it the manager.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use warren_consensus::{Committed, DropReason, Effect, EntryKind, Event, Machine, Role as RaftRole};
use warren_core::{Applied, Outcome, State};
use warren_log::{DataDir, LogStore};

use super::codec::{self, CodecError};
use super::disk;
use super::snapshot::{Snapshotter, Written};
use crate::store::{Batch, LogCost, Proposal, ProposeError, Published, Publisher, Role};

/// How often raft's clock ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// Proposals taken into one write, at most.
const MAX_BATCH: usize = 4096;
/// Old states that may wait to be dropped; further ones are dropped by the driver, which slows it down as it must.
const GRAVES: usize = 64;

/// Why a driver ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The log or a snapshot could not be written. What was acknowledged before is safe.
    #[error("the log cannot be written, so this manager stops: {0}")]
    Log(#[from] warren_log::Error),
    /// The log holds what this version cannot read.
    #[error("entry {index} of the log: {source}")]
    Entry {
        /// The entry.
        index: u64,
        /// What is wrong with it.
        source: CodecError,
    },
    /// Raft asks for something that a single manager never does.
    #[error("raft asked for {0}, which this version of Warren does not do")]
    Unsupported(&'static str),
    /// A bug, or a log that contradicts itself.
    #[error("the raft thread ended by a panic, so this manager stops; its last message says why")]
    Panicked,
}

type Reply = oneshot::Sender<Result<Outcome, ProposeError>>;

/// What a driver is made from.
pub struct Parts {
    /// The machine and the effects it began with.
    pub machine: (Machine, Vec<Effect>),
    /// The log it was restored from.
    pub log: Box<dyn LogStore>,
    /// Writes snapshots beside the driver.
    pub snapshotter: Snapshotter,
    /// The state as of the latest snapshot.
    pub state: State,
    /// Where new states go.
    pub publisher: Publisher,
    /// Where commands come from.
    pub proposals: mpsc::Receiver<Proposal>,
    /// Given back when nothing here writes any more.
    pub data_dir: DataDir,
}

/// Executes effects. See the module's text.
pub struct Driver {
    machine: Machine,
    log: Box<dyn LogStore>,
    snapshotter: Snapshotter,
    state: State,
    publisher: Publisher,
    proposals: mpsc::Receiver<Proposal>,
    /// Who waits for the answer to which proposal.
    waiting: BTreeMap<u64, Reply>,
    next_proposal: u64,
    role: Role,
    applied: (u64, u64),
    /// Applied and not yet published.
    news: News,
    /// Old states are dropped by a thread of their own.
    graveyard: SyncSender<Arc<Published>>,
    /// After everything that writes in it, since fields are dropped in this order.
    _data_dir: DataDir,
}

#[derive(Default)]
struct News {
    changed: bool,
    batches: Vec<Batch>,
    answers: Vec<(Reply, Result<Outcome, ProposeError>)>,
}

/// Starts the driver on a thread of its own. The receiver answers how it ended.
///
/// # Errors
/// The thread could not be started.
pub fn spawn(
    parts: Parts,
    stop: CancellationToken,
) -> std::io::Result<oneshot::Receiver<Result<(), DriverError>>> {
    let (ended, end) = oneshot::channel();
    let (graveyard, graves) = sync_channel::<Arc<Published>>(GRAVES);
    std::thread::Builder::new().name("state-drop".into()).spawn(move || graves.into_iter().for_each(drop))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new().name("raft".into()).spawn(move || {
        let result = runtime.block_on(run(parts, graveyard, stop));
        // Nobody listens any more when the manager was dropped.
        let _ = ended.send(result);
    })?;
    Ok(end)
}

async fn run(
    parts: Parts,
    graveyard: SyncSender<Arc<Published>>,
    stop: CancellationToken,
) -> Result<(), DriverError> {
    let Parts { machine: (machine, first), log, snapshotter, state, publisher, proposals, data_dir } = parts;
    let applied = (state.applied().term, state.applied().index);
    let mut driver = Driver {
        machine,
        log,
        snapshotter,
        state,
        publisher,
        proposals,
        waiting: BTreeMap::new(),
        next_proposal: 1,
        role: Role::default(),
        applied,
        news: News::default(),
        graveyard,
        _data_dir: data_dir,
    };
    let result = driver.drive(first, &stop).await;
    driver.abandon(result.as_ref().err()).await;
    result
}

impl Driver {
    async fn drive(&mut self, first: Vec<Effect>, stop: &CancellationToken) -> Result<(), DriverError> {
        self.settle(first)?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut waiting = Vec::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = tick.tick() => self.on(Event::Tick)?,
                written = self.snapshotter.written() => self.snapshot_written(written?)?,
                count = self.proposals.recv_many(&mut waiting, MAX_BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.propose(std::mem::take(&mut waiting))?;
                }
            }
        }
    }

    fn on(&mut self, event: Event) -> Result<(), DriverError> {
        let effects = self.machine.on(event);
        self.settle(effects)
    }

    fn propose(&mut self, proposals: Vec<Proposal>) -> Result<(), DriverError> {
        let mut batch = Vec::with_capacity(proposals.len());
        for Proposal { command, reply } in proposals {
            let id = self.next_proposal;
            self.next_proposal += 1;
            self.waiting.insert(id, reply);
            batch.push(warren_consensus::Proposal { id, data: codec::encode(&command).into() });
        }
        self.on(Event::Propose(batch))
    }

    /// Executes effects, and those that follow from them, in order; then tells everyone.
    fn settle(&mut self, effects: Vec<Effect>) -> Result<(), DriverError> {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            if let Some(event) = self.execute(effect)? {
                effects.extend(self.machine.on(event));
            }
        }
        self.publish();
        self.maybe_snapshot()
    }

    fn execute(&mut self, effect: Effect) -> Result<Option<Event>, DriverError> {
        match effect {
            Effect::Persist(persist) => {
                if persist.snapshot.is_some() {
                    return Err(DriverError::Unsupported("installing another member's snapshot"));
                }
                let number = persist.number;
                self.log.append(&disk::batch(persist))?;
                Ok(Some(Event::Persisted { number }))
            }
            Effect::Apply(entries) => {
                let last = entries.last().map(|committed| committed.entry.index);
                for committed in entries {
                    self.apply(committed)?;
                }
                Ok(last.map(|index| Event::Applied { index }))
            }
            Effect::Compact { snapshot, up_to } => {
                self.log.set_snapshot(&snapshot)?;
                if up_to > 0 {
                    self.log.compact(up_to)?;
                }
                self.snapshotter.remove_older(&snapshot)?;
                Ok(None)
            }
            Effect::Role { term, role, .. } => {
                let leader = role == RaftRole::Leader;
                let may_plan = leader && self.role.may_plan && self.role.term == term;
                self.role = Role { leader, term, may_plan };
                self.news.changed = true;
                Ok(None)
            }
            Effect::Dropped { proposal, reason } => {
                if let Some(reply) = self.waiting.remove(&proposal) {
                    self.news.answers.push((reply, Err(dropped(reason))));
                }
                Ok(None)
            }
            Effect::ReadReady { .. } => Ok(None),
            Effect::Send(messages) if messages.is_empty() => Ok(None),
            Effect::Send(_) => Err(DriverError::Unsupported("sending to another manager")),
        }
    }

    fn apply(&mut self, committed: Committed) -> Result<(), DriverError> {
        let (index, term) = (committed.entry.index, committed.entry.term);
        self.applied = (term, index);
        self.news.changed = true;
        if self.role.leader && term == self.role.term {
            self.role.may_plan = true;
        }
        self.snapshotter.count(committed.entry.data.len());
        if committed.entry.kind != EntryKind::Command {
            self.state.advance(Applied { term, index });
            return Ok(());
        }
        let command =
            codec::decode(&committed.entry.data).map_err(|source| DriverError::Entry { index, source })?;
        let outcome = self.state.apply(term, index, &command);
        if let Outcome::Applied { changes, .. } = &outcome {
            self.news.batches.push(Batch { index, changes: changes.as_slice().into() });
        }
        if let Some(reply) = committed.proposal.and_then(|id| self.waiting.remove(&id)) {
            self.news.answers.push((reply, Ok(outcome)));
        }
        Ok(())
    }

    fn publish(&mut self) {
        let News { changed, batches, answers } = std::mem::take(&mut self.news);
        if changed {
            let stats = self.log.stats();
            let published = Published {
                state: self.state.clone(),
                index: self.applied.1,
                role: self.role,
                log: LogCost { writes: stats.durable_writes, bytes: stats.bytes_appended },
            };
            let old = self.publisher.publish(published, batches);
            // A full queue gives the state back, and it is dropped here.
            let _ = self.graveyard.try_send(old);
        }
        for (reply, answer) in answers {
            // The caller may have given up waiting.
            let _ = reply.send(answer);
        }
    }

    fn maybe_snapshot(&mut self) -> Result<(), DriverError> {
        if self.snapshotter.is_due() {
            let (term, index) = self.applied;
            self.snapshotter.start(self.state.clone(), term, index)?;
        }
        Ok(())
    }

    fn snapshot_written(&mut self, written: Written) -> Result<(), DriverError> {
        self.on(Event::Snapshotted { index: written.index })
    }

    /// The driver ends. What was applied is published and answered as ever; nobody will answer the rest.
    async fn abandon(&mut self, error: Option<&DriverError>) {
        self.publish();
        let why = match error {
            Some(error) => ProposeError::Log(error.to_string().into()),
            None => ProposeError::Stopping,
        };
        for reply in std::mem::take(&mut self.waiting).into_values() {
            let _ = reply.send(Err(why.clone()));
        }
        // Closed first: then this ends with the last of those that are on their way in.
        self.proposals.close();
        while let Some(Proposal { reply, .. }) = self.proposals.recv().await {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

fn dropped(reason: DropReason) -> ProposeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded => ProposeError::NotLeader,
        DropReason::Busy => ProposeError::Busy,
        DropReason::Unknown => ProposeError::Unconfirmed(Duration::ZERO),
        DropReason::Empty => ProposeError::Log("an empty command was proposed".into()),
    }
}

#[cfg(test)]
mod tests;
