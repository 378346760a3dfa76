//! State and counters of a background task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Clock;

/// State of a background task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundTaskState {
    /// Waits for its interval, a trigger or a due key.
    Idle,
    /// A run is in progress.
    Running,
    /// Ended: it was stopped, or the process is stopping.
    Stopped,
}

/// The last failed run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFailure {
    /// End of the run, in Unix milliseconds.
    pub at_unix_millis: u64,
    /// The error with its sources, or the panic message.
    pub error: String,
}

/// A row of `warren cluster background-tasks`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackgroundTaskStatus {
    /// Registered name.
    pub name: &'static str,
    /// Interval; `None` for a queue, which runs when keys are due.
    pub interval: Option<Duration>,
    /// Current state.
    pub state: BackgroundTaskState,
    /// Start of the latest run, in Unix milliseconds.
    pub last_run_unix_millis: Option<u64>,
    /// Duration of the latest completed run.
    pub last_duration: Option<Duration>,
    /// Total duration of all completed runs.
    pub total_duration: Duration,
    /// The latest failure, kept after later successes.
    pub last_failure: Option<RunFailure>,
    /// Number of completed runs, including failed ones.
    pub runs: u64,
    /// Number of runs that ended in an error or a panic.
    pub failures: u64,
    /// Consecutive failures: zero after a success.
    pub consecutive_failures: u64,
}

#[derive(Debug)]
pub(crate) struct BackgroundTaskRecord {
    clock: Arc<dyn Clock>,
    state: Mutex<RecordState>,
}

#[derive(Debug)]
struct RecordState {
    status: BackgroundTaskStatus,
    alive: u32,
    running: u32,
}

impl BackgroundTaskRecord {
    pub(crate) fn new(name: &'static str, interval: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        let status = BackgroundTaskStatus {
            name,
            interval,
            state: BackgroundTaskState::Stopped,
            last_run_unix_millis: None,
            last_duration: None,
            total_duration: Duration::ZERO,
            last_failure: None,
            runs: 0,
            failures: 0,
            consecutive_failures: 0,
        };
        Self { clock, state: Mutex::new(RecordState { status, alive: 0, running: 0 }) }
    }

    /// Counts the background task as running until the guard is dropped.
    pub(crate) fn register_active(self: &Arc<Self>, interval: Option<Duration>) -> ActiveGuard {
        let mut facts = self.facts();
        facts.alive += 1;
        facts.status.interval = interval;
        ActiveGuard { record: Arc::clone(self) }
    }

    /// Marks the start of a run.
    pub(crate) fn begin(self: &Arc<Self>) -> RunGuard {
        let now = self.clock.unix_millis();
        let mut facts = self.facts();
        facts.running += 1;
        facts.status.last_run_unix_millis = Some(now);
        RunGuard { record: Arc::clone(self), started: self.clock.instant() }
    }

    pub(crate) fn status(&self) -> BackgroundTaskStatus {
        let facts = self.facts();
        let state = match (facts.running, facts.alive) {
            (1.., _) => BackgroundTaskState::Running,
            (0, 1..) => BackgroundTaskState::Idle,
            (0, 0) => BackgroundTaskState::Stopped,
        };
        BackgroundTaskStatus { state, ..facts.status.clone() }
    }

    fn facts(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Guard of a running background task.
pub(crate) struct ActiveGuard {
    record: Arc<BackgroundTaskRecord>,
}

impl Drop for ActiveGuard {
    fn drop(&mut self) {
        self.record.facts().alive -= 1;
    }
}

/// A run in progress. A run that is dropped before its end (its task was aborted) is not counted.
pub(crate) struct RunGuard {
    record: Arc<BackgroundTaskRecord>,
    started: Instant,
}

impl RunGuard {
    pub(crate) fn finish(self, result: Result<(), String>) {
        let clock = &self.record.clock;
        let (now, took) = (clock.unix_millis(), clock.instant() - self.started);
        let mut facts = self.record.facts();
        let status = &mut facts.status;
        status.runs += 1;
        status.last_duration = Some(took);
        status.total_duration += took;
        match result {
            Ok(()) => status.consecutive_failures = 0,
            Err(error) => {
                status.failures += 1;
                status.consecutive_failures += 1;
                status.last_failure = Some(RunFailure { at_unix_millis: now, error });
            }
        }
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.record.facts().running -= 1;
    }
}
