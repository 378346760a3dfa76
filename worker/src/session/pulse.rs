//! The two periodic messages of a session: usage, and the question whether the assignment is current.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use warren_control::{LoopHandle, LoopState, LoopStatus};
use warren_proto::v1;
use warren_proto::v1::worker_frame::Frame;
use warren_types::NodeSettings;

use crate::node::metrics::HEARTBEAT;
use crate::session::Context;
use crate::session::offset::Asked;

/// A manager that is asked and says nothing for so long is left: counted from the question where it is the only one,
/// and from its last word where there are others.
pub(super) const SILENCE: Duration = Duration::from_secs(3);
/// What a manager gets for its answer in any case.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// How many loops a heartbeat tells of.
const MAX_LOOPS: usize = 32;
/// How much of a loop's last error a heartbeat tells, in characters.
const MAX_ERROR: usize = 256;

/// A periodic message could not be sent, or was not answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum PulseError {
    #[error("the session is over")]
    Over,
    #[error("the manager was silent for {SILENCE:?}")]
    Silent,
}

/// The periodic messages of one session; they end with it.
pub(super) struct Pulse {
    loops: [LoopHandle; 2],
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.loops.iter().for_each(LoopHandle::stop);
    }
}

/// What the loops need of the session.
#[derive(Clone)]
pub(super) struct Line {
    pub frames: mpsc::Sender<v1::WorkerFrame>,
    /// Counts the frames that came from the manager.
    pub heard: watch::Receiver<u64>,
    /// Ends the session.
    pub leave: CancellationToken,
    /// What the manager's time in its answers is compared by.
    pub asked: Asked,
}

impl Pulse {
    /// Starts both loops with the periods that the manager asked for.
    pub fn start(context: &Arc<Context>, settings: &NodeSettings, line: &Line) -> Self {
        let (shared, to) = (Arc::clone(context), line.clone());
        let heartbeat = context.loops.spawn(HEARTBEAT, settings.heartbeat, move || {
            let (context, line) = (Arc::clone(&shared), to.clone());
            async move { line.send(Frame::Heartbeat(heartbeat(&context))).await }
        });
        let (shared, to) = (Arc::clone(context), line.clone());
        let sync = context.loops.spawn("worker.sync", settings.sync, move || {
            let (context, line) = (Arc::clone(&shared), to.clone());
            async move { line.sync(&context).await }
        });
        Self { loops: [heartbeat, sync] }
    }
}

impl Line {
    /// Sends one frame; a manager that takes none for [`SILENCE`] is left.
    pub async fn send(&self, frame: Frame) -> Result<(), PulseError> {
        let frame = v1::WorkerFrame { frame: Some(frame) };
        match self.frames.send_timeout(frame, SILENCE).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(PulseError::Over),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(self.left()),
        }
    }

    fn left(&self) -> PulseError {
        self.leave.cancel();
        PulseError::Silent
    }

    /// Says what this node has, and waits for the manager to say anything.
    async fn sync(&self, context: &Context) -> Result<(), PulseError> {
        let mut heard = self.heard.clone();
        let before = *heard.borrow_and_update();
        let version = context.wishes.borrow().version;
        self.asked.note();
        self.send(Frame::Sync(v1::Sync { version: Some(version.into()) })).await?;
        let answer = heard.wait_for(|heard| *heard > before);
        let within = patience(context);
        tokio::select! {
            () = self.leave.cancelled() => Err(PulseError::Over),
            answer = tokio::time::timeout(within, answer) => match answer {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(_)) => Err(PulseError::Over),
                Err(_) => Err(self.left()),
            }
        }
    }
}

/// How long an answer is waited for. With others to go to, a node must have found one before it counts as down, and the
/// manager that it is silent for may have told nobody of its last words.
fn patience(context: &Context) -> Duration {
    let settings = context.wishes.borrow().settings.clone();
    match settings.is_some_and(|settings| settings.managers.len() > 1) {
        true => SILENCE.saturating_sub(context.contact.silent_for()).max(ANSWER_WITHIN),
        false => SILENCE,
    }
}

fn heartbeat(context: &Context) -> v1::Heartbeat {
    let loops = context.loops.snapshot().into_iter().take(MAX_LOOPS).map(show_loop).collect();
    v1::Heartbeat { usage: Some(usage(context)), loops, tasks: context.vitals.take() }
}

fn show_loop(status: LoopStatus) -> v1::Loop {
    let whole = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    let last_error = status.last_failure.map(|failure| failure.error.chars().take(MAX_ERROR).collect());
    v1::Loop {
        name: status.name.into(),
        interval_ms: status.interval.map_or(0, |interval| whole(interval.as_millis())),
        running: status.state == LoopState::Running,
        last_run_at: status.last_run_unix_millis,
        last_duration_us: status.last_duration.map_or(0, |lasted| whole(lasted.as_micros())),
        last_error: last_error.unwrap_or_default(),
        runs: status.runs,
        failures: status.failures,
        // The manager knows whose session this is.
        node: String::new(),
        manager: String::new(),
    }
}

fn usage(context: &Context) -> v1::NodeUsage {
    let usage = context.meter.newest();
    context.pressure.note(usage.disk);
    v1::NodeUsage {
        cpu_milli: usage.cpu.0,
        memory_bytes: usage.memory.map_or(0, |memory| memory.used.0),
        disk_used_bytes: usage.disk.map_or(0, |disk| disk.used.0),
        disk_total_bytes: usage.disk.map_or(0, |disk| disk.total.0),
        conditions: context.health.sentences(),
        kinds: context.health.kinds().into_iter().map(|kind| v1::NodeCondition::from(kind).into()).collect(),
    }
}
