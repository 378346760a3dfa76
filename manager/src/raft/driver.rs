//! The driver: one OS thread that executes the effects of the raft machine.
//!
//! Writes are grouped: while a write is in progress, proposals and messages queue up in the inbox, and the
//! next write contains all of them. Responses are sent after the new state was published, so a caller that
//! got the response reads its own write. Nothing here waits for another manager: messages go to the
//! [`RaftTransport`], which never blocks.
//!
//! While the log cannot be written (see [`log_writer`]) the driver behaves like one with a long write in
//! progress: the machine receives no events, not even ticks, its effects wait in order, and reads continue.
//! Only new proposals are answered, with the reason. An error that is not retryable ends the driver, and with
//! it the manager.
//!
//! `input.rs` has the inputs, `effects.rs` the effects, `pending_reads.rs` and `received_snapshots.rs` the
//! pending work in between.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use warren_consensus::{ConfState, DurabilityStatus, Effect, Event, RaftMachine};
use warren_core::{AppliedIndex, State};
use warren_log::DataDir;
use warren_security::seal::Keyring;
use warren_types::MemberId;

use self::compaction::Compaction;
pub use self::error::DriverError;
use self::input::MAX_PROPOSALS_PER_WRITE;
use self::log_writer::LogWriter;
use self::pending_reads::PendingReads;
use self::received_snapshots::ReceivedSnapshots;
use self::snapshot_retry::{SnapshotRetry, sleep_until};
use super::snapshot::{Snapshotter, WrittenSnapshot};
use super::transport::RaftTransport;
use crate::store::{
    self, ChangeBatch, ChangeError, CommandResult, DriverInbox, IndeterminateReason, ProposeError,
    PublishedState, QueuedProposal, ReplicaRole, StatePublisher,
};

/// Interval of raft ticks.
pub const TICK: Duration = Duration::from_millis(50);
/// Interval in ticks at which the leader's progress view of its peers is published.
const PEER_REFRESH_TICKS: u64 = 5;
/// How long a stopping leader waits for its successor.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(1);
/// Old states queued for the drop thread; when the queue is full, the driver drops states itself, which
/// throttles it.
const MAX_DEFERRED_DROPS: usize = 64;

type WriteReply = oneshot::Sender<Result<store::AppliedWrite, ProposeError>>;
type ChangeReply = oneshot::Sender<Result<(), ChangeError>>;

/// The caller that waits for a proposal.
enum Waiter {
    Write(WriteReply),
    Change(ChangeReply),
}

/// The parts of a driver.
pub struct DriverParts {
    /// Raft id of this manager.
    pub own_id: MemberId,
    /// The machine and its initial effects.
    pub machine: (RaftMachine, Vec<Effect>),
    /// The writer of the log from which the machine was restored.
    pub log_writer: LogWriter,
    /// Seals log entries.
    pub keyring: Arc<Keyring>,
    /// Writes snapshots concurrently.
    pub snapshotter: Snapshotter,
    /// The state of the latest snapshot.
    pub state: State,
    /// Publishes new states.
    pub publisher: StatePublisher,
    /// Source of all inputs.
    pub inbox: DriverInbox,
    /// Sends messages.
    pub transport: Box<dyn RaftTransport>,
    /// Released when nothing here writes any more.
    pub data_dir: DataDir,
}

/// Executes effects. See the module documentation.
pub struct RaftDriver {
    own_id: MemberId,
    machine: RaftMachine,
    log_writer: LogWriter,
    keyring: Arc<Keyring>,
    /// Continues by one step after each write of the machine and each tick.
    compaction: Option<Compaction>,
    has_appended: bool,
    /// Effects that are not executed yet, in order. Empty unless the log write stalled.
    pending_effects: VecDeque<Effect>,
    /// Events for the machine once all effects are executed.
    pending_events: Vec<Event>,
    snapshotter: Snapshotter,
    snapshot_retry: SnapshotRetry,
    received_snapshots: ReceivedSnapshots,
    state: State,
    publisher: StatePublisher,
    inbox: DriverInbox,
    transport: Box<dyn RaftTransport>,
    /// Waiting callers by proposal number.
    waiters: BTreeMap<u64, Waiter>,
    next_proposal: u64,
    pending_reads: PendingReads,
    role: ReplicaRole,
    members: Arc<ConfState>,
    durability: DurabilityStatus,
    applied: (u64, u64),
    ticks: u64,
    is_peer_progress_current: bool,
    /// Set when the driver is stopping: the time until which a leader waits for its successor.
    stop_deadline: Option<Instant>,
    /// Applied changes that are not published yet.
    pending_publication: PendingPublication,
    /// Drops old states on another thread.
    deferred_drop: SyncSender<Arc<PublishedState>>,
    /// Last field: fields are dropped in order, so after everything that writes in the directory.
    _data_dir: DataDir,
}

#[derive(Default)]
struct PendingPublication {
    has_changes: bool,
    is_replaced: bool,
    batches: Vec<ChangeBatch>,
    results: Vec<(AppliedIndex, CommandResult)>,
    answers: Vec<(WriteReply, Result<store::AppliedWrite, ProposeError>)>,
    member_changes: Vec<(ChangeReply, Result<(), ChangeError>)>,
}

impl PendingPublication {
    /// Whether a caller or watcher waits for the publication.
    fn is_awaited(&self) -> bool {
        !(self.answers.is_empty() && self.member_changes.is_empty() && self.batches.is_empty())
    }

    /// A snapshot covers all unpublished changes.
    fn reset_to_snapshot(&mut self) {
        self.batches.clear();
        self.results.clear();
        (self.has_changes, self.is_replaced) = (true, true);
    }
}

/// Starts the driver on its own thread. The receiver gets its result.
///
/// # Errors
/// The thread could not be started.
pub fn spawn(
    parts: DriverParts,
    stop: CancellationToken,
) -> std::io::Result<oneshot::Receiver<Result<(), DriverError>>> {
    let (ended, end) = oneshot::channel();
    let (deferred_drop, old_states) = sync_channel::<Arc<PublishedState>>(MAX_DEFERRED_DROPS);
    std::thread::Builder::new()
        .name("state-drop".into())
        .spawn(move || old_states.into_iter().for_each(drop))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    std::thread::Builder::new().name("raft".into()).spawn(move || {
        let result = runtime.block_on(run(parts, deferred_drop, stop));
        // The receiver may be gone if the manager was dropped.
        let _ = ended.send(result);
    })?;
    Ok(end)
}

async fn run(
    parts: DriverParts,
    deferred_drop: SyncSender<Arc<PublishedState>>,
    stop: CancellationToken,
) -> Result<(), DriverError> {
    let mut driver = RaftDriver::new(parts, deferred_drop);
    let result = driver.run(&stop).await;
    driver.abandon(result.as_ref().err()).await;
    result
}

impl RaftDriver {
    fn new(parts: DriverParts, deferred_drop: SyncSender<Arc<PublishedState>>) -> Self {
        let DriverParts {
            own_id: own,
            machine,
            log_writer: log,
            keyring,
            snapshotter,
            state,
            publisher,
            inbox,
            transport: wire,
            data_dir,
        } = parts;
        let (machine, first) = machine;
        Self {
            own_id: own,
            log_writer: log,
            keyring,
            compaction: None,
            has_appended: false,
            pending_effects: first.into(),
            pending_events: Vec::new(),
            snapshotter,
            snapshot_retry: SnapshotRetry::default(),
            received_snapshots: ReceivedSnapshots::default(),
            applied: (state.applied().term, state.applied().index),
            state,
            publisher,
            inbox,
            transport: wire,
            waiters: BTreeMap::new(),
            next_proposal: 1,
            pending_reads: PendingReads::default(),
            role: ReplicaRole::default(),
            members: Arc::new(machine.members().clone()),
            durability: DurabilityStatus::default(),
            machine,
            ticks: 0,
            is_peer_progress_current: false,
            stop_deadline: None,
            pending_publication: PendingPublication::default(),
            deferred_drop,
            _data_dir: data_dir,
        }
    }

    async fn run(&mut self, stop: &CancellationToken) -> Result<(), DriverError> {
        self.set_members(self.machine.members().clone());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut proposals = Vec::new();
        self.run_once()?;
        loop {
            self.publisher.record_turn();
            let retry_at = self.log_writer.retry_at();
            let idle = retry_at.is_none();
            let more = idle && !self.pending_events.is_empty();
            let wrote_for_waiter = self.wrote_for_waiter();
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.stop_deadline.is_none() => self.begin_stop(),
                () = sleep_until(self.stop_deadline) => return Ok(()),
                () = sleep_until(retry_at) => self.retry_write()?,
                _ = tick.tick(), if idle => self.tick(),
                written = self.snapshotter.next_result(), if idle => self.finish_snapshot(written),
                () = sleep_until(self.snapshot_retry.due()), if idle => self.start_snapshot(),
                input = self.inbox.inputs.recv(), if idle => match input {
                    Some(input) => self.handle_input(input),
                    None => return Ok(()),
                },
                request = self.inbox.requests.recv() => match request {
                    Some(request) => self.handle_request(request),
                    None => return Ok(()),
                },
                count = self.inbox.proposals.recv_many(&mut proposals, MAX_PROPOSALS_PER_WRITE),
                    if !wrote_for_waiter =>
                {
                    if count == 0 {
                        return Ok(());
                    }
                }
                // Paused test time advances only when this thread yields.
                () = tokio::task::yield_now(), if more => {}
            }
            self.take_inputs(&mut proposals, !wrote_for_waiter);
            self.run_once()?;
            if self.stop_deadline.is_some() && self.can_stop() {
                return Ok(());
            }
        }
    }

    /// Passes the pending events to the machine and executes its effects in order up to a stalled write; then
    /// publishes. Events that result from effects are passed in the next iteration, together with new input.
    fn run_once(&mut self) -> Result<(), DriverError> {
        // Only with all earlier effects executed: effects are ordered.
        if self.pending_effects.is_empty()
            && !self.pending_events.is_empty()
            && self.log_writer.stall().is_none()
        {
            self.received_snapshots.mark_announced();
            self.pending_effects.extend(self.machine.handle_all(self.pending_events.drain(..)));
        }
        while self.log_writer.stall().is_none()
            && let Some(effect) = self.pending_effects.pop_front()
        {
            let event = self.execute(effect)?;
            self.pending_events.extend(event);
        }
        self.publish();
        if self.log_writer.stall().is_some() {
            return Ok(());
        }
        self.received_snapshots.release_announced();
        if std::mem::take(&mut self.has_appended) {
            self.continue_compaction()?;
        }
        if self.snapshotter.is_due() && self.snapshot_retry.due().is_none() {
            self.start_snapshot();
        }
        Ok(())
    }

    /// Whether a write has just completed. Its callers are answered before the next write begins, so that
    /// their next proposals can join it.
    fn wrote_for_waiter(&self) -> bool {
        let written = |event: &Event| matches!(event, Event::Persisted { .. });
        self.log_writer.stall().is_none() && self.pending_events.iter().any(written)
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.has_appended = true;
        if self.role.is_leader {
            self.publisher.record_leader_seen();
        }
        if self.ticks.is_multiple_of(PEER_REFRESH_TICKS) {
            self.refresh_peers();
        }
        self.pending_events.push(Event::Tick);
    }

    /// Retries the stalled write.
    fn retry_write(&mut self) -> Result<(), DriverError> {
        self.pending_publication.has_changes = true;
        if let Some(write) = self.log_writer.retry()? {
            let event = self.finish_write(write)?;
            self.pending_events.extend(event);
        }
        Ok(())
    }

    fn start_snapshot(&mut self) {
        self.snapshot_retry.record_start();
        let (_, index) = self.applied;
        // `None` if a later snapshot exists by now.
        let Some(meta) = self.machine.snapshot_meta(index) else { return };
        if let Err(error) = self.snapshotter.start(self.state.clone(), meta) {
            self.snapshot_retry.record_failure(&error);
        }
    }

    fn finish_snapshot(&mut self, ended: Result<WrittenSnapshot, warren_log::Error>) {
        match ended {
            Ok(WrittenSnapshot { index, .. }) => {
                self.snapshot_retry.record_success();
                self.pending_events.push(Event::Snapshotted { index });
            }
            Err(error) => self.snapshot_retry.record_failure(&error),
        }
    }

    /// Starts to stop. A leader transfers its leadership first, so that the others need not wait for an
    /// election timeout.
    fn begin_stop(&mut self) {
        let voters = &self.members.voters;
        let could_lead = |peer: &warren_consensus::PeerProgress| peer.active && voters.contains(&peer.id);
        let hands_over = self.log_writer.stall().is_none() && self.machine.peers().iter().any(could_lead);
        let now = Instant::now();
        self.stop_deadline = Some(if hands_over { now + TRANSFER_TIMEOUT } else { now });
        if hands_over {
            self.pending_events.push(Event::TransferLeadership { to: None });
        }
    }

    /// Whether another member leads, so that this manager is not needed for an election.
    fn can_stop(&self) -> bool {
        !self.role.is_leader && self.role.leader_id.is_some()
    }

    /// Ends the driver. Applied entries are published and answered as usual; all other callers get an error.
    async fn abandon(&mut self, error: Option<&DriverError>) {
        self.log_writer.abandon();
        self.pending_publication.has_changes = true;
        self.publish();
        for waiting in std::mem::take(&mut self.waiters).into_values() {
            // The callers may have given up, here and below.
            let _ = match waiting {
                Waiter::Write(reply) => {
                    reply.send(Err(ProposeError::Indeterminate(IndeterminateReason::DriverEnded))).is_ok()
                }
                Waiter::Change(reply) => reply.send(Err(ChangeError::Indeterminate)).is_ok(),
            };
        }
        let why = match error {
            Some(error) => ProposeError::DriverFailed(error.to_string().into()),
            None => ProposeError::Stopping,
        };
        self.inbox.inputs.close();
        self.inbox.requests.close();
        // Closed first: then receiving ends with the last queued proposal.
        self.inbox.proposals.close();
        while let Some(QueuedProposal { reply, .. }) = self.inbox.proposals.recv().await {
            let _ = reply.send(Err(why.clone()));
        }
    }
}

mod compaction;
mod effects;
pub mod error;
mod input;
pub mod log_summary;
pub mod log_write;
pub mod log_writer;
mod pending_reads;
mod received_snapshots;
mod snapshot_retry;
#[cfg(test)]
mod tests;
