//! The driver: one OS thread that executes what the raft machine says.
//!
//! One durable write holds everything that waited for it: while a write is under way, proposals and messages gather in
//! the inbox, and the next one takes them all. Answers go out after the new state was published, so whoever has an
//! answer sees its effect. Nothing here waits for another manager: messages go to the [`Wire`], which never blocks.
//!
//! While the log cannot be written (see [`keeper`]) the driver is like one whose write takes long: the machine hears of
//! nothing, not even of time, what it asked for waits in order, and reading goes on. Only new proposals are answered,
//! with the reason. An error that waiting cannot heal ends the driver, and with it the manager.
//!
//! `hearing.rs` has what comes in, `effects.rs` what is done, `reads.rs` and `arrivals.rs` what waits in between.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use warren_consensus::{ConfState, Durability, Effect, Event, Machine};
use warren_core::{Applied, State};
use warren_log::DataDir;
use warren_security::seal::Keyring;
use warren_types::MemberId;

use self::again::{Again, at};
use self::arrivals::Arrivals;
use self::compaction::Compaction;
pub use self::error::DriverError;
use self::hearing::MAX_BATCH;
use self::keeper::Keeper;
use self::reads::Reads;
use super::snapshot::{Snapshotter, Written};
use super::wire::Wire;
use crate::store::{
    self, Batch, ChangeError, Doubt, Inbox, Proposal, ProposeError, Published, Publisher, Role, Verdict,
};

/// How often raft's clock ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// After so many ticks the store learns anew what the leader knows of the others.
const PEERS: u64 = 5;
/// How long a leader that stops waits for another one to take over.
const HAND_OVER: Duration = Duration::from_secs(1);
/// Old states that may wait to be dropped; further ones are dropped by the driver, which slows it down as it must.
const GRAVES: usize = 64;

type Reply = oneshot::Sender<Result<store::Written, ProposeError>>;
type ChangeReply = oneshot::Sender<Result<(), ChangeError>>;

/// Who waits for what the machine was given.
enum Waiting {
    Write(Reply),
    Change(ChangeReply),
}

/// What a driver is made from.
pub struct Parts {
    /// This manager's id in the group.
    pub own: MemberId,
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
    /// Where everything comes from.
    pub inbox: Inbox,
    /// Where messages go.
    pub wire: Box<dyn Wire>,
    /// Given back when nothing here writes any more.
    pub data_dir: DataDir,
}

/// Executes effects. See the module's text.
pub struct Driver {
    own: MemberId,
    machine: Machine,
    log: Keeper,
    keyring: Arc<Keyring>,
    /// Goes on by one part with each write of the machine's, and with each tick.
    compaction: Option<Compaction>,
    appended: bool,
    /// What the machine asked for and is not done yet, in order. Empty unless the log is held.
    work: VecDeque<Effect>,
    /// What the machine is told when all of that is done.
    done: Vec<Event>,
    snapshotter: Snapshotter,
    snapshot_again: Again,
    arrivals: Arrivals,
    state: State,
    publisher: Publisher,
    inbox: Inbox,
    wire: Box<dyn Wire>,
    /// Who waits for the answer to which proposal.
    waiting: BTreeMap<u64, Waiting>,
    next_proposal: u64,
    reads: Reads,
    role: Role,
    members: Arc<ConfState>,
    durability: Durability,
    applied: (u64, u64),
    ticks: u64,
    knows_peers: bool,
    /// It is told to stop, and waits until then for another one to lead.
    leaving: Option<Instant>,
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
    replaced: bool,
    batches: Vec<Batch>,
    verdicts: Vec<(Applied, Verdict)>,
    answers: Vec<(Reply, Result<store::Written, ProposeError>)>,
    changes: Vec<(ChangeReply, Result<(), ChangeError>)>,
}

impl News {
    /// Somebody waits for what is new.
    fn is_awaited(&self) -> bool {
        !(self.answers.is_empty() && self.changes.is_empty() && self.batches.is_empty())
    }

    /// What was not published yet is covered by a snapshot.
    fn replace(&mut self) {
        self.batches.clear();
        self.verdicts.clear();
        (self.changed, self.replaced) = (true, true);
    }
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
    let mut driver = Driver::new(parts, graveyard);
    let result = driver.drive(&stop).await;
    driver.abandon(result.as_ref().err()).await;
    result
}

impl Driver {
    fn new(parts: Parts, graveyard: SyncSender<Arc<Published>>) -> Self {
        let Parts { own, machine, log, keyring, snapshotter, state, publisher, inbox, wire, data_dir } =
            parts;
        let (machine, first) = machine;
        Self {
            own,
            log,
            keyring,
            compaction: None,
            appended: false,
            work: first.into(),
            done: Vec::new(),
            snapshotter,
            snapshot_again: Again::default(),
            arrivals: Arrivals::default(),
            applied: (state.applied().term, state.applied().index),
            state,
            publisher,
            inbox,
            wire,
            waiting: BTreeMap::new(),
            next_proposal: 1,
            reads: Reads::default(),
            role: Role::default(),
            members: Arc::new(machine.members().clone()),
            durability: Durability::default(),
            machine,
            ticks: 0,
            knows_peers: false,
            leaving: None,
            news: News::default(),
            graveyard,
            _data_dir: data_dir,
        }
    }

    async fn drive(&mut self, stop: &CancellationToken) -> Result<(), DriverError> {
        self.take_members(self.machine.members().clone());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut proposals = Vec::new();
        self.turn()?;
        loop {
            self.publisher.went_round();
            let held = self.log.due();
            let idle = held.is_none();
            let more = idle && !self.done.is_empty();
            let written = self.has_written();
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.leaving.is_none() => self.begin_to_leave(),
                () = at(self.leaving) => return Ok(()),
                () = at(held) => self.retry()?,
                _ = tick.tick(), if idle => self.tick(),
                written = self.snapshotter.written(), if idle => self.snapshot_ended(written),
                () = at(self.snapshot_again.due()), if idle => self.start_snapshot(),
                heard = self.inbox.heard.recv(), if idle => match heard {
                    Some(heard) => self.hear(heard),
                    None => return Ok(()),
                },
                request = self.inbox.requests.recv() => match request {
                    Some(request) => self.request(request),
                    None => return Ok(()),
                },
                count = self.inbox.proposals.recv_many(&mut proposals, MAX_BATCH), if !written => {
                    if count == 0 {
                        return Ok(());
                    }
                }
                // Time goes on only when this thread lets go for a moment.
                () = tokio::task::yield_now(), if more => {}
            }
            self.gather(&mut proposals, !written);
            self.turn()?;
            if self.leaving.is_some() && self.has_left() {
                return Ok(());
            }
        }
    }

    /// Tells the machine what happened, and executes what it asks for in order, up to a write that has to be held; then
    /// tells everyone. What follows from it, the machine hears in the next turn, together with what came meanwhile.
    fn turn(&mut self) -> Result<(), DriverError> {
        // Only then: what the machine asks for next comes after all that it asked for before.
        if self.work.is_empty() && !self.done.is_empty() && self.log.held().is_none() {
            self.arrivals.tell();
            self.work.extend(self.machine.on_all(self.done.drain(..)));
        }
        while self.log.held().is_none()
            && let Some(effect) = self.work.pop_front()
        {
            let event = self.execute(effect)?;
            self.done.extend(event);
        }
        self.publish();
        if self.log.held().is_some() {
            return Ok(());
        }
        self.arrivals.settle();
        if std::mem::take(&mut self.appended) {
            self.go_on_compacting()?;
        }
        if self.snapshotter.is_due() && self.snapshot_again.due().is_none() {
            self.start_snapshot();
        }
        Ok(())
    }

    /// A write was just done. Whoever waited for it is answered before the next one begins, and may have a part in
    /// that.
    fn has_written(&self) -> bool {
        let written = |event: &Event| matches!(event, Event::Persisted { .. });
        self.log.held().is_none() && self.done.iter().any(written)
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.appended = true;
        if self.role.leader {
            self.publisher.heard_leader();
        }
        if self.ticks.is_multiple_of(PEERS) {
            self.know_peers();
        }
        self.done.push(Event::Tick);
    }

    /// Tries the held write again.
    fn retry(&mut self) -> Result<(), DriverError> {
        self.news.changed = true;
        if let Some(write) = self.log.retry()? {
            let event = self.written(write)?;
            self.done.extend(event);
        }
        Ok(())
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

    fn snapshot_ended(&mut self, ended: Result<Written, warren_log::Error>) {
        match ended {
            Ok(Written { index, .. }) => {
                self.snapshot_again.succeed();
                self.done.push(Event::Snapshotted { index });
            }
            Err(error) => self.snapshot_again.fail(&error),
        }
    }

    /// It is told to stop. A leader hands over first, so that the others need not find out by its silence.
    fn begin_to_leave(&mut self) {
        let voters = &self.members.voters;
        let could_lead = |peer: &warren_consensus::Peer| peer.active && voters.contains(&peer.id);
        let hands_over = self.log.held().is_none() && self.machine.peers().iter().any(could_lead);
        let now = Instant::now();
        self.leaving = Some(if hands_over { now + HAND_OVER } else { now });
        if hands_over {
            self.done.push(Event::TransferLeader { to: None });
        }
    }

    /// Somebody else leads, so the vote of this manager is not missed either.
    fn has_left(&self) -> bool {
        !self.role.leader && self.role.leader_id.is_some()
    }

    /// The driver ends. What was applied is published and answered as ever; nobody will answer the rest.
    async fn abandon(&mut self, error: Option<&DriverError>) {
        self.log.abandon();
        self.news.changed = true;
        self.publish();
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            // Whoever waits may have given up, here and below.
            let _ = match waiting {
                Waiting::Write(reply) => reply.send(Err(ProposeError::Unconfirmed(Doubt::Ended))).is_ok(),
                Waiting::Change(reply) => reply.send(Err(ChangeError::Unconfirmed)).is_ok(),
            };
        }
        let why = match error {
            Some(error) => ProposeError::Log(error.to_string().into()),
            None => ProposeError::Stopping,
        };
        self.inbox.heard.close();
        self.inbox.requests.close();
        // Closed first: then this ends with the last of those that are on their way in.
        self.inbox.proposals.close();
        while let Some(Proposal { reply, .. }) = self.inbox.proposals.recv().await {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

mod again;
mod arrivals;
mod compaction;
mod effects;
pub mod error;
mod hearing;
pub mod keeper;
pub mod known;
mod reads;
#[cfg(test)]
mod tests;
