//! When a task whose process ended is started again. The worker alone decides this.

use std::time::Duration;

use warren_types::{Bytes, Exit, Timestamp};

use crate::ledger::{Ledger, Phase, Verdict};
use crate::words;

/// Bounds of restarts in place. A process that ends is started again whatever its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Before the second attempt; doubles with each further one.
    pub delay: Duration,
    /// The delay does not grow beyond this.
    pub longest_delay: Duration,
    /// So many restarts within `window` are tried.
    pub max_restarts: usize,
    /// Over which restarts are counted.
    pub window: Duration,
}

/// A run of so many times the delay before it was no crash loop: the next delay is the first again.
const GOOD_RUN: u32 = 10;

impl RestartPolicy {
    /// 1 s doubling to 5 min; 3 restarts in 5 min, then the task has failed.
    pub const DEFAULT: Self = Self {
        delay: Duration::from_secs(1),
        longest_delay: Duration::from_secs(300),
        max_restarts: 3,
        window: Duration::from_secs(300),
    };

    /// How many start times the ledger must keep to count restarts.
    pub(crate) fn kept_starts(&self) -> usize {
        self.max_restarts + 1
    }

    /// What follows when the attempt of `ledger` ended at `at`. `exit` is `None` when nobody knows how.
    pub(crate) fn after_end(
        &self,
        ledger: &Ledger,
        exit: Option<Exit>,
        at: Timestamp,
        memory_limit: Option<Bytes>,
    ) -> Ledger {
        // A process that ended before its start was recorded is counted as started when it ended.
        let ledger = match ledger.phase {
            Phase::Started { .. } => ledger.clone(),
            _ => ledger.started(at, self.kept_starts()),
        };
        let ledger = Ledger { exit, ..ledger };
        let in_window = |start: &&Timestamp| at.since(**start) < self.window;
        let first_attempts = usize::from(ledger.attempt as usize == ledger.starts.len());
        let restarts = ledger.starts.iter().skip(first_attempts).filter(in_window).count();
        if restarts >= self.max_restarts {
            let recent: Vec<&Timestamp> = ledger.starts.iter().filter(in_window).collect();
            let span = recent.first().map_or(Duration::ZERO, |first| at.since(**first));
            let ending = words::ending(exit, memory_limit);
            let (attempts, span) = (recent.len(), words::lasting(span));
            let reason = format!("{ending}; {attempts} attempts in {span}; given up");
            return ledger.ended(at, Verdict::Failed, reason);
        }
        let delay = self.next_delay(&ledger, at);
        let phase = Phase::Waiting { since: at, until: at + delay };
        Ledger { attempt: ledger.attempt + 1, phase, delay, ..ledger }
    }

    fn next_delay(&self, ledger: &Ledger, at: Timestamp) -> Duration {
        let ran = ledger.starts.last().map_or(Duration::ZERO, |start| at.since(*start));
        if ledger.delay.is_zero() || ran >= ledger.delay * GOOD_RUN || ran >= self.window {
            return self.delay;
        }
        (ledger.delay * 2).min(self.longest_delay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RestartPolicy = RestartPolicy::DEFAULT;

    /// Runs attempts that each last `runs[i]` seconds, and gives the delays between them in seconds, until
    /// the task has failed or the runs are over.
    fn play(runs: &[u64]) -> (Vec<u64>, Ledger) {
        let exit = Some(Exit { code: 1, out_of_memory: false });
        let (mut now, mut ledger, mut delays) = (Timestamp(1_000_000), Ledger::first(), Vec::new());
        for run in runs {
            ledger = ledger.opened().started(now, POLICY.kept_starts());
            now = now + Duration::from_secs(*run);
            ledger = POLICY.after_end(&ledger, exit, now, None);
            let Phase::Waiting { until, .. } = ledger.phase else { break };
            delays.push(until.since(now).as_secs());
            now = until;
        }
        (delays, ledger)
    }

    #[track_caller]
    fn check(runs: &[u64], wanted: &[u64], reason: Option<&str>) {
        let (delays, ledger) = play(runs);
        assert_eq!(delays, wanted);
        let said = match &ledger.phase {
            Phase::Ended { verdict: Verdict::Failed, reason, .. } => Some(reason.as_str()),
            _ => None,
        };
        assert_eq!(said, reason);
    }

    #[test]
    fn a_crash_loop_slows_down_and_is_given_up() {
        let given_up = "exited with code 1; 4 attempts in 7s; given up";
        check(&[0, 0, 0, 0, 0], &[1, 2, 4], Some(given_up));
        check(&[1, 1, 1, 1], &[1, 2, 4], Some("exited with code 1; 4 attempts in 11s; given up"));
    }

    #[test]
    fn a_good_run_resets_the_delay() {
        check(&[0, 10, 19, 0], &[1, 1, 1], Some("exited with code 1; 4 attempts in 32s; given up"));
        check(&[0, 9, 0], &[1, 2, 4], None);
    }

    #[test]
    fn only_restarts_in_the_window_count() {
        check(&[100, 100, 100, 100, 100, 100], &[1, 1, 1, 1, 1, 1], None);
        check(&[3600, 0, 0, 0], &[1, 2, 4], Some("exited with code 1; 3 attempts in 6s; given up"));
    }

    #[test]
    fn the_delay_has_a_bound() {
        let ledger = Ledger { delay: Duration::from_secs(200), ..Ledger::first() };
        let (at, until) = (Timestamp(1000), Timestamp(301_000));
        let after = POLICY.after_end(&ledger, None, at, None);
        assert_eq!(after.phase, Phase::Waiting { since: at, until });
    }
}
