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
//! It decides nothing: [`Replica`] does. `input.rs` has the inputs, `effects.rs` the effects, and
//! `received_snapshots.rs` the snapshots in between.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use warren_consensus::{Effect, Event, RaftMachine};
use warren_core::State;
use warren_log::DataDir;
use warren_replica::Replica;
use warren_security::seal::Keyring;
use warren_types::MemberId;

use self::compaction::Compaction;
pub use self::error::DriverError;
use self::input::MAX_PROPOSALS_PER_WRITE;
use self::key_renewal::KeyRenewal;
use self::log_writer::LogWriter;
use self::received_snapshots::ReceivedSnapshots;
use self::snapshot_retry::{SnapshotRetry, sleep_until};
use super::snapshot::{Snapshotter, WrittenSnapshot};
use super::transport::RaftTransport;
use crate::store::{
    AppliedWrite, ChangeError, DriverInbox, ProposeError, PublishedState, QueuedProposal, StatePublisher,
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

type WriteReply = oneshot::Sender<Result<AppliedWrite, ProposeError>>;
type ChangeReply = oneshot::Sender<Result<(), ChangeError>>;
type ReadReply = oneshot::Sender<()>;

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
    replica: Replica<WriteReply, ChangeReply, ReadReply>,
    log_writer: LogWriter,
    keyring: Arc<Keyring>,
    /// Continues by one step after each write of the machine and each tick.
    compaction: Option<Compaction>,
    has_appended: bool,
    snapshotter: Snapshotter,
    snapshot_retry: SnapshotRetry,
    received_snapshots: ReceivedSnapshots,
    /// Continues after each iteration.
    key_renewal: Option<KeyRenewal>,
    publisher: StatePublisher,
    inbox: DriverInbox,
    transport: Box<dyn RaftTransport>,
    /// Times of the replica are measured from here.
    started: Instant,
    ticks: u64,
    is_peer_progress_current: bool,
    /// Set when the driver is stopping: the time until which a leader waits for its successor.
    stop_deadline: Option<Instant>,
    /// Drops old states on another thread.
    deferred_drop: SyncSender<Arc<PublishedState>>,
    /// Last field: fields are dropped in order, so after everything that writes in the directory.
    _data_dir: DataDir,
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
            own_id,
            machine,
            log_writer,
            keyring,
            snapshotter,
            state,
            publisher,
            inbox,
            transport,
            data_dir,
        } = parts;
        Self {
            replica: Replica::new(own_id, machine, state),
            log_writer,
            keyring,
            compaction: None,
            has_appended: false,
            snapshotter,
            snapshot_retry: SnapshotRetry::default(),
            received_snapshots: ReceivedSnapshots::default(),
            key_renewal: None,
            publisher,
            inbox,
            transport,
            started: Instant::now(),
            ticks: 0,
            is_peer_progress_current: false,
            stop_deadline: None,
            deferred_drop,
            _data_dir: data_dir,
        }
    }

    async fn run(&mut self, stop: &CancellationToken) -> Result<(), DriverError> {
        self.transport.set_members(self.replica.members());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut ticked_at = Instant::now();
        let mut proposals = Vec::new();
        self.run_once()?;
        loop {
            if ticked_at.elapsed() >= TICK {
                // Timers fire only while this thread yields, which nothing else makes it do under load.
                tokio::task::yield_now().await;
            }
            self.publisher.record_turn();
            let retry_at = self.log_writer.retry_at();
            let idle = retry_at.is_none();
            let more = idle && self.replica.has_events();
            let wrote_for_waiter = self.wrote_for_waiter();
            tokio::select! {
                biased;
                () = stop.cancelled(), if self.stop_deadline.is_none() => self.begin_stop(),
                () = sleep_until(self.stop_deadline) => return Ok(()),
                () = sleep_until(retry_at) => self.retry_write()?,
                _ = tick.tick(), if idle => {
                    ticked_at = Instant::now();
                    self.tick();
                }
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
            if self.stop_deadline.is_some() && self.replica.can_stop() {
                return Ok(());
            }
        }
    }

    /// Passes the queued events to the replica and executes its effects in order up to a stalled write; then
    /// publishes. Events that result from effects are passed in the next iteration, together with new input.
    fn run_once(&mut self) -> Result<(), DriverError> {
        self.record_leader_contact();
        if self.replica.can_handle_events() && self.log_writer.stall().is_none() {
            self.received_snapshots.mark_announced();
            self.replica.handle_events();
        }
        while self.log_writer.stall().is_none()
            && let Some(effect) = self.replica.next_effect()
        {
            self.execute(effect)?;
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
        if self.log_writer.stall().is_none() { self.continue_key_renewal() } else { Ok(()) }
    }

    /// Whether a write has just completed. Its callers are answered before the next write begins, so that
    /// their next proposals can join it.
    fn wrote_for_waiter(&self) -> bool {
        self.log_writer.stall().is_none() && self.replica.has_persisted()
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.has_appended = true;
        if self.ticks.is_multiple_of(PEER_REFRESH_TICKS) {
            self.refresh_peers();
        }
        self.replica.add_event(Event::Tick);
    }

    fn record_leader_contact(&mut self) {
        if self.replica.take_leader_contact() {
            self.publisher.record_leader_seen();
        }
    }

    /// Retries the stalled write.
    fn retry_write(&mut self) -> Result<(), DriverError> {
        self.replica.mark_changed();
        match self.log_writer.retry()? {
            Some(write) => self.finish_write(write),
            None => Ok(()),
        }
    }

    fn start_snapshot(&mut self) {
        self.snapshot_retry.record_start();
        // `None` if a later snapshot exists by now.
        let Some(meta) = self.replica.raft().snapshot_meta(self.replica.applied().index) else { return };
        if let Some(renewal) = &mut self.key_renewal {
            renewal.record_start(&meta);
        }
        if let Err(error) = self.snapshotter.start(self.replica.state().clone(), meta) {
            self.snapshot_retry.record_failure(&error);
        }
    }

    fn finish_snapshot(&mut self, ended: Result<WrittenSnapshot, warren_log::Error>) {
        match ended {
            Ok(WrittenSnapshot { index, .. }) => {
                self.snapshot_retry.record_success();
                if let Some(compaction) = self.key_renewal.as_mut().and_then(|it| it.record_written(index)) {
                    self.compaction = Some(compaction);
                }
                self.replica.add_event(Event::Snapshotted { index });
            }
            Err(error) => self.snapshot_retry.record_failure(&error),
        }
    }

    /// Starts to stop. A leader transfers its leadership first, so that the others need not wait for an
    /// election timeout.
    fn begin_stop(&mut self) {
        let hands_over = self.log_writer.stall().is_none() && self.replica.should_transfer_leadership();
        let now = Instant::now();
        self.stop_deadline = Some(if hands_over { now + TRANSFER_TIMEOUT } else { now });
        if hands_over {
            self.replica.add_event(Event::TransferLeadership { to: None });
        }
    }

    /// Ends the driver. Applied entries are published and answered as usual; all other callers get an error.
    async fn abandon(&mut self, error: Option<&DriverError>) {
        self.log_writer.abandon();
        self.replica.fail_waiters();
        self.publish();
        let why = match error {
            Some(error) => ProposeError::DriverFailed(error.to_string().into()),
            None => ProposeError::Stopping,
        };
        self.inbox.inputs.close();
        self.inbox.requests.close();
        // Closed first: then receiving ends with the last queued proposal.
        self.inbox.proposals.close();
        while let Some(QueuedProposal { reply, .. }) = self.inbox.proposals.recv().await {
            // The caller may have given up.
            let _ = reply.send(Err(why.clone()));
        }
    }
}

mod compaction;
mod effects;
pub mod error;
mod input;
mod key_renewal;
pub mod log_summary;
pub mod log_write;
pub mod log_writer;
mod received_snapshots;
mod snapshot_retry;
#[cfg(test)]
mod tests;
