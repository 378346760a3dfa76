//! The driver: one OS thread that executes what the raft machine says.
//!
//! One durable write holds everything that waited for it: while a write is under way, proposals gather in the queue,
//! and the next write takes them all. Answers go out after the new state was published, so whoever has an answer sees
//! its effect.
//!
//! While the log cannot be written (see [`keeper`]) the driver is like one whose write takes long: the machine hears of
//! nothing, not even of time, what it asked for waits in order, and reading goes on. Only new proposals are answered,
//! with the reason. An error that waiting cannot heal ends the driver, and with it the manager.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use warren_consensus::{Committed, DropReason, Effect, EntryKind, Event, Machine, Role as RaftRole};
use warren_core::{Applied, Outcome, State};
use warren_log::DataDir;
use warren_security::seal::Keyring;

use self::again::{Again, at};
use self::compaction::Compaction;
pub use self::error::DriverError;
use self::keeper::{Keeper, Write};
use super::codec;
use super::disk;
use super::snapshot::{Snapshotter, Written};
use crate::store::{Batch, Doubt, Proposal, ProposeError, Published, Publisher, Role};

/// How often raft's clock ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// Proposals taken into one write, at most.
const MAX_BATCH: usize = 4096;
/// Old states that may wait to be dropped; further ones are dropped by the driver, which slows it down as it must.
const GRAVES: usize = 64;

type Reply = oneshot::Sender<Result<Outcome, ProposeError>>;

/// What a driver is made from.
pub struct Parts {
    /// The machine and the effects it began with.
    pub machine: (Machine, Vec<Effect>),
    /// The log it was restored from.
    pub log: Keeper,
    /// Seals what is written to it.
    pub keyring: Arc<Keyring>,
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
    log: Keeper,
    keyring: Arc<Keyring>,
    /// Goes on by one part with each event.
    compaction: Option<Compaction>,
    /// What the machine asked for and is not done yet, in order. Empty unless the log is held.
    work: VecDeque<Effect>,
    /// What the machine is told when all of that is done.
    done: Vec<Event>,
    snapshotter: Snapshotter,
    snapshot_again: Again,
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
    let Parts { machine: (machine, first), log, keyring, snapshotter, state, publisher, proposals, data_dir } =
        parts;
    let applied = (state.applied().term, state.applied().index);
    let mut driver = Driver {
        machine,
        log,
        keyring,
        compaction: None,
        work: first.into(),
        done: Vec::new(),
        snapshotter,
        snapshot_again: Again::default(),
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
    let result = driver.drive(&stop).await;
    driver.abandon(result.as_ref().err()).await;
    result
}

impl Driver {
    async fn drive(&mut self, stop: &CancellationToken) -> Result<(), DriverError> {
        self.settle()?;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut waiting = Vec::new();
        loop {
            self.publisher.went_round();
            let held = self.log.due();
            let idle = held.is_none();
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                () = at(held) => self.retry()?,
                _ = tick.tick(), if idle => self.on(Event::Tick)?,
                written = self.snapshotter.written(), if idle => self.snapshot_ended(written)?,
                () = at(self.snapshot_again.due()), if idle => self.start_snapshot(),
                count = self.proposals.recv_many(&mut waiting, MAX_BATCH) => {
                    if count == 0 {
                        return Ok(());
                    }
                    self.propose(std::mem::take(&mut waiting))?;
                }
            }
            self.go_on_compacting()?;
        }
    }

    fn on(&mut self, event: Event) -> Result<(), DriverError> {
        self.done.push(event);
        self.settle()
    }

    fn propose(&mut self, proposals: Vec<Proposal>) -> Result<(), DriverError> {
        if let Some(held) = self.log.held() {
            for Proposal { reply, .. } in proposals {
                // The caller may have given up waiting.
                let _ = reply.send(Err(ProposeError::Held(held.clone())));
            }
            return Ok(());
        }
        let mut batch = Vec::with_capacity(proposals.len());
        for Proposal { command, reply } in proposals {
            let id = self.next_proposal;
            self.next_proposal += 1;
            self.waiting.insert(id, reply);
            batch.push(warren_consensus::Proposal { id, data: codec::encode(&command).into() });
        }
        self.on(Event::Propose(batch))
    }

    /// Executes what is to be done, and what follows from it, in order, up to a write that has to be held; then tells
    /// everyone.
    fn settle(&mut self) -> Result<(), DriverError> {
        while self.log.held().is_none() {
            if let Some(effect) = self.work.pop_front() {
                let event = self.execute(effect)?;
                self.done.extend(event);
            } else if self.done.is_empty() {
                break;
            } else {
                // Only now: what the machine asks for next comes after all that it asked for before.
                self.work.extend(self.machine.on_all(self.done.drain(..)));
            }
        }
        self.publish();
        if self.snapshotter.is_due() && self.snapshot_again.due().is_none() && self.log.held().is_none() {
            self.start_snapshot();
        }
        Ok(())
    }

    /// Tries the held write again.
    fn retry(&mut self) -> Result<(), DriverError> {
        self.news.changed = true;
        if let Some(write) = self.log.retry()? {
            let event = self.written(write);
            self.done.extend(event);
        }
        self.settle()
    }

    fn write(&mut self, write: Write) -> Result<Option<Event>, DriverError> {
        let written = self.log.write(write)?;
        self.news.changed |= written.is_none();
        Ok(written.and_then(|write| self.written(write)))
    }

    /// A write is durable.
    fn written(&mut self, write: Write) -> Option<Event> {
        match write {
            Write::Append { number, .. } => Some(Event::Persisted { number }),
            Write::Compact { snapshot, .. } => {
                if self.compaction.is_none() {
                    self.snapshotter.remove_older(snapshot);
                }
                None
            }
        }
    }

    fn execute(&mut self, effect: Effect) -> Result<Option<Event>, DriverError> {
        match effect {
            Effect::Persist(persist) => {
                if persist.snapshot.is_some() {
                    return Err(DriverError::Unsupported("installing another member's snapshot"));
                }
                let number = persist.number;
                self.write(Write::Append { number, batch: disk::batch(persist, &self.keyring)? })
            }
            Effect::Apply(entries) => {
                let last = entries.last().map(|committed| committed.entry.index);
                for committed in entries {
                    self.apply(committed)?;
                }
                Ok(last.map(|index| Event::Applied { index }))
            }
            Effect::Compact { snapshot, up_to } => {
                self.compaction = Some(Compaction::new(snapshot, up_to));
                self.compact()
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
            Effect::Members { .. } => Err(DriverError::Unsupported("a change of members")),
            Effect::Fatal(fatal) => Err(DriverError::Raft(Box::new(fatal))),
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
            let published = Published {
                state: self.state.clone(),
                index: self.applied.1,
                role: self.role,
                log: self.log.cost(),
                held: self.log.held().cloned(),
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

    fn start_snapshot(&mut self) {
        self.snapshot_again.begin();
        let (_, index) = self.applied;
        // There is none if a later snapshot exists by now.
        let Some(meta) = self.machine.snapshot_meta(index) else { return };
        if let Err(error) = self.snapshotter.start(self.state.clone(), meta) {
            self.snapshot_again.fail(&error);
        }
    }

    fn snapshot_ended(&mut self, ended: Result<Written, warren_log::Error>) -> Result<(), DriverError> {
        match ended {
            Ok(Written { index, .. }) => {
                self.snapshot_again.succeed();
                self.on(Event::Snapshotted { index })
            }
            Err(error) => {
                self.snapshot_again.fail(&error);
                Ok(())
            }
        }
    }

    /// The driver ends. What was applied is published and answered as ever; nobody will answer the rest.
    async fn abandon(&mut self, error: Option<&DriverError>) {
        self.log.abandon();
        self.news.changed = true;
        self.publish();
        for reply in std::mem::take(&mut self.waiting).into_values() {
            // The caller may have given up waiting, here and below.
            let _ = reply.send(Err(ProposeError::Unconfirmed(Doubt::Ended)));
        }
        let why = match error {
            Some(error) => ProposeError::Log(error.to_string().into()),
            None => ProposeError::Stopping,
        };
        // Closed first: then this ends with the last of those that are on their way in.
        self.proposals.close();
        while let Some(Proposal { reply, .. }) = self.proposals.recv().await {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

fn dropped(reason: DropReason) -> ProposeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
            ProposeError::NotLeader
        }
        DropReason::Busy | DropReason::ChangePending => ProposeError::Busy,
        DropReason::InvalidChange(why) => ProposeError::Log(why.to_string().into()),
        DropReason::Unknown => ProposeError::Unconfirmed(Doubt::Overtaken),
        DropReason::Empty => ProposeError::Log("an empty command was proposed".into()),
    }
}

mod again;
mod compaction;
pub mod error;
pub mod keeper;
pub mod known;
#[cfg(test)]
mod tests;
