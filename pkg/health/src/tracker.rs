//! What the results of a task's checks mean, and when the next one is due.
//!
//! Every moment is the age of the task's process: the time since it was started. Nothing here reads a clock.

use std::time::Duration;

use warren_types::Health;
use warren_types::spec::HealthCheck;

use crate::Outcome;

/// The first check of a process comes at most this long after its start, so that a task that is there at once is ready
/// at once.
const FIRST_WITHIN: Duration = Duration::from_millis(250);

/// The checks of one process. At most one is under way at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracker {
    interval: Duration,
    start_interval: Duration,
    start_period: Duration,
    retries: u32,
    /// Where in an interval its checks are, of `u64::MAX` parts.
    phase: u64,
    health: Health,
    /// A check has succeeded since the process was started.
    succeeded: bool,
    /// Failures in a row that count.
    failures: u32,
    /// When the last failure that counts began.
    counted_at: Option<Duration>,
    /// When the check that is under way was due.
    begun: Option<Duration>,
    due: Duration,
    told: Verdict,
    /// What the last check said.
    said: String,
}

/// What follows from a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Healthy, unhealthy or still starting.
    pub health: Health,
    /// Why it is not healthy, in words; empty when it is.
    pub reason: String,
}

impl Tracker {
    /// Of a process that was just started. `seed` differs from task to task: it spreads their checks.
    pub fn new(check: &HealthCheck, seed: u64) -> Self {
        let HealthCheck { probe: _, timeout: _, interval, retries, start_period, start_interval } = check;
        let start_interval = (*start_interval).min(*interval);
        let phase = scatter(seed);
        let half = start_interval.min(FIRST_WITHIN) / 2;
        Self {
            interval: *interval,
            start_interval,
            start_period: *start_period,
            retries: *retries,
            phase,
            health: Health::Starting,
            succeeded: false,
            failures: 0,
            counted_at: None,
            begun: None,
            due: half + part(half, phase),
            told: Verdict { health: Health::Starting, reason: String::new() },
            said: String::new(),
        }
    }

    /// Of a process that has run for `age` already and was found to be `health` by checks that nobody remembers. It
    /// stays that until new ones say otherwise. [`Health::None`] is one that no check has succeeded for yet.
    pub fn adopted(check: &HealthCheck, seed: u64, age: Duration, health: Health) -> Self {
        let mut tracker = Self::new(check, seed);
        if matches!(health, Health::Healthy | Health::Unhealthy) {
            tracker.health = health;
            tracker.succeeded = true;
            tracker.told.health = health;
        }
        if tracker.succeeded || age > tracker.due {
            tracker.due = tracker.aligned(age, tracker.pace(age));
        }
        tracker
    }

    /// What the task is now.
    pub fn health(&self) -> Health {
        self.health
    }

    /// When the next check is to begin; `None` while one is under way.
    pub fn due(&self) -> Option<Duration> {
        self.begun.is_none().then_some(self.due)
    }

    /// The check that was due is begun.
    pub fn begin(&mut self) {
        self.begun = Some(self.due);
    }

    /// The check that was begun is over at `age`.
    pub fn end(&mut self, outcome: &Outcome, age: Duration) -> Verdict {
        let begun = self.begun.take().unwrap_or(self.due);
        if outcome.good {
            (self.health, self.succeeded) = (Health::Healthy, true);
            (self.failures, self.counted_at) = (0, None);
        } else if outcome.asked && self.counts(begun) {
            self.failures = self.failures.saturating_add(1);
            self.counted_at = Some(begun);
            if self.failures >= self.retries {
                self.health = Health::Unhealthy;
            }
        }
        self.due = self.after(begun, age);
        // How many failures there were is told once: each change is another report.
        // What the node could not ask explains at most why nothing is known.
        let tells = outcome.asked || self.health == Health::Starting;
        let news = tells && self.said != outcome.said;
        if self.health != self.told.health || news {
            self.told = Verdict { health: self.health, reason: self.reason(&outcome.said) };
            self.said.clone_from(&outcome.said);
        }
        self.told.clone()
    }

    /// Before the first success, checks come more often than failures count: a task is ready soon, and has as long to
    /// become that as it would have to be found unhealthy later.
    fn counts(&self, begun: Duration) -> bool {
        if self.succeeded {
            return true;
        }
        let since_counted =
            self.counted_at.is_none_or(|counted| begun.saturating_sub(counted) >= self.interval);
        begun >= self.start_period && since_counted
    }

    /// The time from one check to the next.
    fn pace(&self, age: Duration) -> Duration {
        let starts = !self.succeeded && self.health == Health::Starting;
        match starts && (self.start_period.is_zero() || age < self.start_period) {
            true => self.start_interval,
            false => self.interval,
        }
    }

    /// When the check after the one that was due at `begun` and over at `age` is due: where checks are slower than
    /// their interval, some are left out, and they never overlap.
    fn after(&self, begun: Duration, age: Duration) -> Duration {
        let pace = self.pace(age);
        if pace == self.interval {
            return self.aligned(age.max(begun), pace);
        }
        let late = age.saturating_sub(begun).as_nanos();
        let steps = late.div_ceil(pace.as_nanos().max(1)).max(1);
        begun + times(pace, steps)
    }

    /// The first moment after `age` that is the task's own in its interval, so that the checks of many tasks that were
    /// started together do not stay together.
    fn aligned(&self, age: Duration, pace: Duration) -> Duration {
        let offset = part(pace, self.phase);
        if age < offset {
            return offset;
        }
        let periods = (age - offset).as_nanos() / pace.as_nanos().max(1) + 1;
        offset + times(pace, periods)
    }

    fn reason(&self, said: &str) -> String {
        match (self.health, self.failures) {
            (Health::None | Health::Healthy, _) => String::new(),
            (Health::Starting, _) => format!("no check has succeeded yet: {said}"),
            (Health::Unhealthy, 0 | 1) => format!("unhealthy: {said}"),
            (Health::Unhealthy, failures) => format!("unhealthy: {said} ({failures} failures in a row)"),
        }
    }
}

/// Numbers that follow each other become ones that lie far apart (Fibonacci hashing: 2^64 divided by the golden ratio).
fn scatter(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The part of `whole` that `phase` is of `u64::MAX`; always less than the whole.
fn part(whole: Duration, phase: u64) -> Duration {
    let nanos = whole.as_nanos().min(u128::from(u64::MAX)) * u128::from(phase);
    Duration::from_nanos(u64::try_from(nanos >> 64).expect("a part of what fits in 64 bits"))
}

fn times(pace: Duration, count: u128) -> Duration {
    let nanos = pace.as_nanos().saturating_mul(count);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests;
