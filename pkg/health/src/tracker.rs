//! Derives a task's health from its check results, and schedules the next check.
//!
//! All times are the age of the task's process: the time since its start. Nothing here reads a clock.

use std::time::Duration;

use warren_types::Health;
use warren_types::spec::HealthCheck;

use crate::ProbeOutcome;

/// Latest start of the first check of a process, so that a task that starts quickly is ready quickly.
const FIRST_CHECK_WITHIN: Duration = Duration::from_millis(250);

/// The checks of one process. At most one is in progress at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthTracker {
    interval: Duration,
    start_interval: Duration,
    start_period: Duration,
    retries: u32,
    /// Phase of its checks within an interval, in units of 1/`u64::MAX`.
    phase: u64,
    health: Health,
    /// Whether a check has succeeded since the process start.
    has_succeeded: bool,
    /// Consecutive counted failures.
    failures: u32,
    /// When the last counted failure began.
    counted_at: Option<Duration>,
    /// When the check in progress was due.
    started_at: Option<Duration>,
    due: Duration,
    reported: HealthVerdict,
    /// Summary of the last check.
    last_summary: String,
}

/// Health after a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthVerdict {
    /// Healthy, unhealthy or still starting.
    pub health: Health,
    /// Why it is not healthy; empty when it is.
    pub reason: String,
}

impl HealthTracker {
    /// For a process that was just started. `seed` differs per task and spreads their checks.
    pub fn new(check: &HealthCheck, seed: u64) -> Self {
        let HealthCheck { probe: _, timeout: _, interval, retries, start_period, start_interval } = check;
        let start_interval = (*start_interval).min(*interval);
        let phase = hash_seed(seed);
        let half = start_interval.min(FIRST_CHECK_WITHIN) / 2;
        Self {
            interval: *interval,
            start_interval,
            start_period: *start_period,
            retries: *retries,
            phase,
            health: Health::Starting,
            has_succeeded: false,
            failures: 0,
            counted_at: None,
            started_at: None,
            due: half + fraction(half, phase),
            reported: HealthVerdict { health: Health::Starting, reason: String::new() },
            last_summary: String::new(),
        }
    }

    /// For a process that is `age` old and was `health` according to checks that are no longer known. It
    /// keeps that health until new checks change it. [`Health::None`] means that no check has succeeded
    /// yet.
    pub fn adopted(check: &HealthCheck, seed: u64, age: Duration, health: Health) -> Self {
        let mut tracker = Self::new(check, seed);
        if matches!(health, Health::Healthy | Health::Unhealthy) {
            tracker.health = health;
            tracker.has_succeeded = true;
            tracker.reported.health = health;
        }
        if tracker.has_succeeded || age > tracker.due {
            tracker.due = tracker.aligned(age, tracker.interval_at(age));
        }
        tracker
    }

    /// Current health of the task.
    pub fn health(&self) -> Health {
        self.health
    }

    /// When the next check begins; `None` while one is in progress.
    pub fn due(&self) -> Option<Duration> {
        self.started_at.is_none().then_some(self.due)
    }

    /// Marks the due check as started.
    pub fn begin(&mut self) {
        self.started_at = Some(self.due);
    }

    /// Records the result of the started check, which ended at `age`.
    pub fn end(&mut self, outcome: &ProbeOutcome, age: Duration) -> HealthVerdict {
        let begun = self.started_at.take().unwrap_or(self.due);
        if outcome.succeeded {
            (self.health, self.has_succeeded) = (Health::Healthy, true);
            (self.failures, self.counted_at) = (0, None);
        } else if outcome.is_conclusive && self.counts_failure(begun) {
            self.failures = self.failures.saturating_add(1);
            self.counted_at = Some(begun);
            if self.failures >= self.retries {
                self.health = Health::Unhealthy;
            }
        }
        self.due = self.next_due(begun, age);
        // The failure count is reported once: each change is another report. An inconclusive result
        // explains at most why the health is unknown.
        let is_reported = outcome.is_conclusive || self.health == Health::Starting;
        let is_changed = is_reported && self.last_summary != outcome.summary;
        if self.health != self.reported.health || is_changed {
            self.reported = HealthVerdict { health: self.health, reason: self.reason(&outcome.summary) };
            self.last_summary.clone_from(&outcome.summary);
        }
        self.reported.clone()
    }

    /// Before the first success, checks run more often than failures count: a task is ready soon, and has
    /// as long to become ready as it would have before it counts as unhealthy later.
    fn counts_failure(&self, begun: Duration) -> bool {
        if self.has_succeeded {
            return true;
        }
        let since_counted =
            self.counted_at.is_none_or(|counted| begun.saturating_sub(counted) >= self.interval);
        begun >= self.start_period && since_counted
    }

    /// The time between two checks.
    fn interval_at(&self, age: Duration) -> Duration {
        let starts = !self.has_succeeded && self.health == Health::Starting;
        match starts && (self.start_period.is_zero() || age < self.start_period) {
            true => self.start_interval,
            false => self.interval,
        }
    }

    /// Due time of the check after the one that was due at `begun` and ended at `age`: if checks are slower
    /// than their interval, some are skipped; they never overlap.
    fn next_due(&self, begun: Duration, age: Duration) -> Duration {
        let interval = self.interval_at(age);
        if interval == self.interval {
            return self.aligned(age.max(begun), interval);
        }
        let elapsed = age.saturating_sub(begun).as_nanos();
        let steps = elapsed.div_ceil(interval.as_nanos().max(1)).max(1);
        begun + times(interval, steps)
    }

    /// The first time after `age` with this task's phase in its interval, so that checks of tasks started
    /// together spread out.
    fn aligned(&self, age: Duration, interval: Duration) -> Duration {
        let offset = fraction(interval, self.phase);
        if age < offset {
            return offset;
        }
        let periods = (age - offset).as_nanos() / interval.as_nanos().max(1) + 1;
        offset + times(interval, periods)
    }

    fn reason(&self, summary: &str) -> String {
        match (self.health, self.failures) {
            (Health::None | Health::Healthy, _) => String::new(),
            (Health::Starting, _) => format!("no health check has succeeded yet: {summary}"),
            (Health::Unhealthy, 0 | 1) => format!("unhealthy: {summary}"),
            (Health::Unhealthy, failures) => {
                format!("unhealthy: {summary} ({failures} consecutive failures)")
            }
        }
    }
}

/// Maps consecutive numbers to distant ones (Fibonacci hashing: 2^64 divided by the golden ratio).
fn hash_seed(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The part `phase`/`u64::MAX` of `whole`; always less than the whole.
fn fraction(whole: Duration, phase: u64) -> Duration {
    let nanos = whole.as_nanos().min(u128::from(u64::MAX)) * u128::from(phase);
    Duration::from_nanos(u64::try_from(nanos >> 64).expect("a part of what fits in 64 bits"))
}

fn times(interval: Duration, count: u128) -> Duration {
    let nanos = interval.as_nanos().saturating_mul(count);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
