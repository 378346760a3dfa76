//! What is known of one loop: counted while it runs, read by whoever asks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::Clock;

/// What a loop is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopState {
    /// It waits for its interval, a wake or a due key.
    Idle,
    /// It is at work.
    Running,
    /// It ended: it was stopped, or the process is stopping.
    Stopped,
}

/// The last run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it ended, in Unix milliseconds.
    pub at_unix_millis: u64,
    /// The error with its sources, or the panic's message.
    pub error: String,
}

/// One row of `warren cluster loops`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopStatus {
    /// The name it registered with.
    pub name: &'static str,
    /// Its period; none for a queue, which runs when keys are due.
    pub interval: Option<Duration>,
    /// What it does now.
    pub state: LoopState,
    /// When the latest run started, in Unix milliseconds.
    pub last_run_unix_millis: Option<u64>,
    /// How long the latest run that ended took.
    pub last_duration: Option<Duration>,
    /// How long all runs that ended took together.
    pub total_duration: Duration,
    /// The latest failure, kept after later successes.
    pub last_failure: Option<Failure>,
    /// Runs that ended, failed ones included.
    pub runs: u64,
    /// Runs that ended in an error or a panic.
    pub failures: u64,
    /// Failures since the last success: zero means that it works now.
    pub failures_in_a_row: u64,
}

#[derive(Debug)]
pub(crate) struct Record {
    clock: Arc<dyn Clock>,
    facts: Mutex<Facts>,
}

#[derive(Debug)]
struct Facts {
    status: LoopStatus,
    alive: u32,
    running: u32,
}

impl Record {
    pub(super) fn new(name: &'static str, interval: Option<Duration>, clock: Arc<dyn Clock>) -> Self {
        let status = LoopStatus {
            name,
            interval,
            state: LoopState::Stopped,
            last_run_unix_millis: None,
            last_duration: None,
            total_duration: Duration::ZERO,
            last_failure: None,
            runs: 0,
            failures: 0,
            failures_in_a_row: 0,
        };
        Self { clock, facts: Mutex::new(Facts { status, alive: 0, running: 0 }) }
    }

    /// Counts the loop as alive until the guard is dropped.
    pub(super) fn enlist(self: &Arc<Self>, interval: Option<Duration>) -> Enlisted {
        let mut facts = self.facts();
        facts.alive += 1;
        facts.status.interval = interval;
        Enlisted { record: Arc::clone(self) }
    }

    /// Marks the start of a run.
    pub(crate) fn begin(self: &Arc<Self>) -> Run {
        let now = self.clock.unix_millis();
        let mut facts = self.facts();
        facts.running += 1;
        facts.status.last_run_unix_millis = Some(now);
        Run { record: Arc::clone(self), started: self.clock.instant() }
    }

    pub(super) fn status(&self) -> LoopStatus {
        let facts = self.facts();
        let state = match (facts.running, facts.alive) {
            (1.., _) => LoopState::Running,
            (0, 1..) => LoopState::Idle,
            (0, 0) => LoopState::Stopped,
        };
        LoopStatus { state, ..facts.status.clone() }
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A loop that is alive.
pub(super) struct Enlisted {
    record: Arc<Record>,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        self.record.facts().alive -= 1;
    }
}

/// A run under way. One that is dropped before its end (its task was aborted) is not counted.
pub(crate) struct Run {
    record: Arc<Record>,
    started: Instant,
}

impl Run {
    pub(crate) fn finish(self, result: Result<(), String>) {
        let clock = &self.record.clock;
        let (now, took) = (clock.unix_millis(), clock.instant() - self.started);
        let mut facts = self.record.facts();
        let status = &mut facts.status;
        status.runs += 1;
        status.last_duration = Some(took);
        status.total_duration += took;
        match result {
            Ok(()) => status.failures_in_a_row = 0,
            Err(error) => {
                status.failures += 1;
                status.failures_in_a_row += 1;
                status.last_failure = Some(Failure { at_unix_millis: now, error });
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.record.facts().running -= 1;
    }
}
