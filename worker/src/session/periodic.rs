//! The periodic messages of a session: heartbeats with usage, the sync of the assignment version, and the
//! inventory of the node when it changed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;
use warren_control::{BackgroundTaskHandle, BackgroundTaskState, BackgroundTaskStatus};
use warren_proto::v1;
use warren_proto::v1::worker_frame::Frame;
use warren_types::NodeSettings;

use crate::node::metrics::HEARTBEAT;
use crate::session::SessionContext;
use crate::session::clock_probe::ClockProbe;
use crate::session::inventory::inventory;

/// Timeout of a manager that does not answer: measured from the request if it is the only manager, and from
/// its last message otherwise.
pub(super) const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Minimum time for the answer.
pub(super) const MIN_ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// Interval at which the node looks for changes of its inventory. What arrives at the request of a manager is sent at
/// once.
const INVENTORY_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of background tasks in a heartbeat.
const MAX_BACKGROUND_TASKS: usize = 32;
/// Maximum length of a background task's last error in a heartbeat, in characters.
const MAX_ERROR: usize = 256;

/// A periodic message was not sent or not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeriodicError {
    #[error("session ended")]
    SessionOver,
    #[error("no message from the manager for {SILENCE_TIMEOUT:?}")]
    ManagerSilent,
}

/// The periodic messages of one session; they end with it.
pub(super) struct PeriodicMessages {
    background_tasks: [BackgroundTaskHandle; 3],
}

impl Drop for PeriodicMessages {
    fn drop(&mut self) {
        self.background_tasks.iter().for_each(BackgroundTaskHandle::stop);
    }
}

/// Handle of the periodic tasks on the session.
#[derive(Clone)]
pub(super) struct SessionHandle {
    pub frames: mpsc::Sender<v1::WorkerFrame>,
    /// Counts received frames.
    pub received_frames: watch::Receiver<u64>,
    /// Ends the session.
    pub end: CancellationToken,
    /// Compares the manager's time in answers.
    pub clock_probe: ClockProbe,
}

impl PeriodicMessages {
    /// Starts them with the intervals that the manager set.
    pub fn start(context: &Arc<SessionContext>, settings: &NodeSettings, handle: &SessionHandle) -> Self {
        let (shared, to) = (Arc::clone(context), handle.clone());
        let heartbeat = context.background_tasks.spawn(HEARTBEAT, settings.heartbeat, move || {
            let (context, handle) = (Arc::clone(&shared), to.clone());
            async move { handle.send(Frame::Heartbeat(heartbeat(&context))).await }
        });
        let (shared, to) = (Arc::clone(context), handle.clone());
        let sync = context.background_tasks.spawn("worker.sync", settings.sync, move || {
            let (context, handle) = (Arc::clone(&shared), to.clone());
            async move { handle.sync(&context).await }
        });
        let (shared, to) = (Arc::clone(context), handle.clone());
        // Of this session: another manager knows nothing of what was sent before.
        let sent = Arc::new(Mutex::new(None));
        let inventory = context.background_tasks.spawn("worker.inventory", INVENTORY_INTERVAL, move || {
            let (context, handle, sent) = (Arc::clone(&shared), to.clone(), Arc::clone(&sent));
            async move {
                let (inventory, mut sent) = (inventory(&context).await, sent.lock().await);
                if sent.as_ref() != Some(&inventory) {
                    handle.send(Frame::Inventory(inventory.clone())).await?;
                    *sent = Some(inventory);
                }
                Ok::<_, PeriodicError>(())
            }
        });
        Self { background_tasks: [heartbeat, sync, inventory] }
    }

    /// Sends the inventory now, if it changed.
    pub fn send_inventory(&self) {
        let [.., inventory] = &self.background_tasks;
        inventory.wake();
    }
}

impl SessionHandle {
    /// Sends one frame; ends the session if the manager accepts none for [`SILENCE_TIMEOUT`].
    pub async fn send(&self, frame: Frame) -> Result<(), PeriodicError> {
        let frame = v1::WorkerFrame { frame: Some(frame) };
        match self.frames.send_timeout(frame, SILENCE_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(PeriodicError::SessionOver),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(self.end_as_silent()),
        }
    }

    fn end_as_silent(&self) -> PeriodicError {
        self.end.cancel();
        PeriodicError::ManagerSilent
    }

    /// Sends the versions of this node, and waits for any message of the manager.
    async fn sync(&self, context: &SessionContext) -> Result<(), PeriodicError> {
        let mut received = self.received_frames.clone();
        let before = *received.borrow_and_update();
        self.clock_probe.record_request();
        self.send(sync_request(context)).await?;
        let answer = received.wait_for(|received| *received > before);
        let within = answer_timeout(context);
        tokio::select! {
            () = self.end.cancelled() => Err(PeriodicError::SessionOver),
            answer = tokio::time::timeout(within, answer) => match answer {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) => Err(PeriodicError::SessionOver),
                Err(_) => Err(self.end_as_silent()),
            }
        }
    }
}

/// Says which versions this node has.
pub(super) fn sync_request(context: &SessionContext) -> Frame {
    let version = context.desired_state.borrow().version;
    let network_version = context.network_view.borrow().version;
    Frame::Sync(v1::SyncRequest {
        version: Some(version.into()),
        network_version: Some(network_version.into()),
    })
}

/// Timeout of an answer. With other managers, a node must have found one before it counts as down, and the
/// silent manager may not have forwarded its last messages.
fn answer_timeout(context: &SessionContext) -> Duration {
    let settings = context.desired_state.borrow().settings.clone();
    match settings.is_some_and(|settings| settings.managers.len() > 1) {
        true => {
            SILENCE_TIMEOUT.saturating_sub(context.connectivity.time_since_contact()).max(MIN_ANSWER_TIMEOUT)
        }
        false => SILENCE_TIMEOUT,
    }
}

fn heartbeat(context: &SessionContext) -> v1::Heartbeat {
    let tasks_run = context
        .background_tasks
        .snapshot()
        .into_iter()
        .take(MAX_BACKGROUND_TASKS)
        .map(background_task_to_wire)
        .collect();
    v1::Heartbeat {
        usage: Some(usage(context)),
        background_tasks: tasks_run,
        tasks: context.heartbeat_stats.take_unreported(),
    }
}

fn background_task_to_wire(status: BackgroundTaskStatus) -> v1::BackgroundTask {
    let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    let last_error = status.last_failure.map(|failure| failure.error.chars().take(MAX_ERROR).collect());
    v1::BackgroundTask {
        name: status.name.into(),
        interval_ms: status.interval.map_or(0, |interval| whole(interval.as_millis())),
        running: status.state == BackgroundTaskState::Running,
        last_run_at: status.last_run_unix_millis,
        last_duration_us: status.last_duration.map_or(0, |lasted| whole(lasted.as_micros())),
        last_error: last_error.unwrap_or_default(),
        runs: status.runs,
        failures: status.failures,
        // The manager knows the node of the session.
        node: String::new(),
        manager: String::new(),
        consecutive_failures: status.consecutive_failures,
    }
}

fn usage(context: &SessionContext) -> v1::NodeUsage {
    let usage = context.meter.latest();
    context.disk_pressure.observe(usage.disk);
    let certificate = context.certificate.validity();
    v1::NodeUsage {
        cpu_milli: usage.cpu.0,
        memory_bytes: usage.memory.map_or(0, |memory| memory.used.0),
        disk_used_bytes: usage.disk.map_or(0, |disk| disk.used.0),
        disk_total_bytes: usage.disk.map_or(0, |disk| disk.total.0),
        condition_messages: context.conditions.messages(),
        conditions: context
            .conditions
            .conditions()
            .into_iter()
            .map(|kind| v1::NodeCondition::from(kind).into())
            .collect(),
        certificate_issued_at: Some(certificate.start.0),
        certificate_expires_at: Some(certificate.end.0),
    }
}
