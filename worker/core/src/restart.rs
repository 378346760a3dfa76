//! What follows the end of a task's process. The worker alone decides this.

use std::time::Duration;

use warren_types::spec::{LONGEST_RESTART_DELAY, RestartCondition, RestartPolicy};
use warren_types::{Bytes, Exit, Timestamp};

use crate::ledger::{Ledger, Phase, Verdict};
use crate::words;

/// How many start times the ledger must keep to count restarts.
pub(crate) fn kept_starts(policy: &RestartPolicy) -> usize {
    policy.max as usize + 1
}

/// What follows when the attempt of `ledger` ended at `at`. `exit` is `None` when nobody knows how, which
/// counts as a failure.
pub(crate) fn after_end(
    policy: &RestartPolicy,
    ledger: &Ledger,
    exit: Option<Exit>,
    at: Timestamp,
    memory_limit: Option<Bytes>,
) -> Ledger {
    // A process that ended before its start was recorded is counted as started when it ended.
    let ledger = match ledger.phase {
        Phase::Started { .. } => ledger.clone(),
        _ => ledger.started(at, kept_starts(policy)),
    };
    let ledger = Ledger { exit, ..ledger };
    let ending = words::ending(exit, memory_limit);
    let succeeded = exit == Some(Exit { code: 0, out_of_memory: false });
    match policy.condition {
        RestartCondition::None | RestartCondition::OnFailure if succeeded => {
            ledger.ended(at, Verdict::Completed, ending)
        }
        RestartCondition::None => ledger.ended(at, Verdict::Failed, format!("{ending}; not to be restarted")),
        RestartCondition::Any | RestartCondition::OnFailure => again(policy, &ledger, at, &ending),
    }
}

/// Another attempt, unless there were too many.
fn again(policy: &RestartPolicy, ledger: &Ledger, at: Timestamp, ending: &str) -> Ledger {
    let in_window = |start: &&Timestamp| at.since(**start) < policy.window;
    let first_attempts = usize::from(ledger.attempt as usize == ledger.starts.len());
    let restarts = ledger.starts.iter().skip(first_attempts).filter(in_window).count();
    if restarts >= policy.max as usize {
        let recent: Vec<&Timestamp> = ledger.starts.iter().filter(in_window).collect();
        let span = recent.first().map_or(Duration::ZERO, |first| at.since(**first));
        let tried = match recent.len() {
            // Its only attempt in the window, or one that lasted for longer.
            0 | 1 => "no restart is allowed".to_string(),
            attempts => format!("{attempts} attempts in {}", words::lasting(span)),
        };
        return ledger.ended(at, Verdict::Failed, format!("{ending}; {tried}; given up"));
    }
    let delay = next_delay(policy, ledger, at);
    let phase = Phase::Waiting { since: at, until: at + delay };
    Ledger { attempt: ledger.attempt + 1, phase, delay, ..ledger.clone() }
}

fn next_delay(policy: &RestartPolicy, ledger: &Ledger, at: Timestamp) -> Duration {
    let ran = ledger.starts.last().map_or(Duration::ZERO, |start| at.since(*start));
    if ledger.delay.is_zero() || ran > policy.window {
        return policy.delay;
    }
    (ledger.delay * 2).min(LONGEST_RESTART_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Option<Exit> = Some(Exit { code: 1, out_of_memory: false });
    const DONE: Option<Exit> = Some(Exit { code: 0, out_of_memory: false });

    fn policy() -> RestartPolicy {
        RestartPolicy::default()
    }

    /// Runs attempts that each last `runs[i]` seconds, and gives the delays between them in seconds, until
    /// the task has ended or the runs are over.
    fn play(policy: &RestartPolicy, exit: Option<Exit>, runs: &[u64]) -> (Vec<u64>, Ledger) {
        let (mut now, mut ledger, mut delays) = (Timestamp(1_000_000), Ledger::first(), Vec::new());
        for run in runs {
            ledger = ledger.opened().started(now, kept_starts(policy));
            now = now + Duration::from_secs(*run);
            ledger = after_end(policy, &ledger, exit, now, None);
            let Phase::Waiting { until, .. } = ledger.phase else { break };
            delays.push(until.since(now).as_secs());
            now = until;
        }
        (delays, ledger)
    }

    #[track_caller]
    fn check(policy: &RestartPolicy, runs: &[u64], wanted: &[u64], reason: Option<&str>) {
        let (delays, ledger) = play(policy, FAILED, runs);
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
        check(&policy(), &[0, 0, 0, 0, 0], &[1, 2, 4], Some(given_up));
        let slower = "exited with code 1; 4 attempts in 11s; given up";
        check(&policy(), &[1, 1, 1, 1], &[1, 2, 4], Some(slower));
        let patient = RestartPolicy { max: 6, delay: Duration::from_secs(2), ..policy() };
        check(&patient, &[0, 0, 0, 0, 0, 0], &[2, 4, 8, 16, 32, 64], None);
    }

    #[test]
    fn only_an_attempt_longer_than_the_window_resets_the_delay() {
        let short = RestartPolicy { window: Duration::from_secs(20), ..policy() };
        check(&short, &[0, 20, 20, 21, 0], &[1, 2, 4, 1, 2], None);
        check(&policy(), &[0, 100, 0], &[1, 2, 4], None);
    }

    #[test]
    fn only_restarts_in_the_window_count() {
        check(&policy(), &[100, 100, 100, 100, 100], &[1, 2, 4, 8, 16], None);
        let given_up = "exited with code 1; 3 attempts in 6s; given up";
        check(&policy(), &[3600, 0, 0, 0], &[1, 2, 4], Some(given_up));
    }

    #[test]
    fn without_restarts_the_first_failure_is_the_last() {
        let never = RestartPolicy { max: 0, ..policy() };
        for run in [0, 3600] {
            check(&never, &[run], &[], Some("exited with code 1; no restart is allowed; given up"));
        }
    }

    #[test]
    fn the_delay_has_a_bound() {
        let ledger = Ledger { delay: Duration::from_secs(200), ..Ledger::first() };
        let (at, until) = (Timestamp(1000), Timestamp(301_000));
        let after = after_end(&policy(), &ledger, None, at, None);
        assert_eq!(after.phase, Phase::Waiting { since: at, until });
    }

    #[test]
    fn the_condition_says_what_follows_each_end() {
        use RestartCondition as C;
        let oom = Some(Exit { code: 0, out_of_memory: true });
        for (condition, exit, wanted) in [
            (C::Any, DONE, None),
            (C::Any, FAILED, None),
            (C::Any, None, None),
            (C::OnFailure, DONE, Some((Verdict::Completed, "exited with code 0"))),
            (C::OnFailure, FAILED, None),
            (C::OnFailure, oom, None),
            (C::OnFailure, None, None),
            (C::None, DONE, Some((Verdict::Completed, "exited with code 0"))),
            (C::None, FAILED, Some((Verdict::Failed, "exited with code 1; not to be restarted"))),
        ] {
            let policy = RestartPolicy { condition, ..policy() };
            let (delays, ledger) = play(&policy, exit, &[0]);
            let said = match &ledger.phase {
                Phase::Ended { verdict, reason, .. } => Some((*verdict, reason.as_str())),
                _ => None,
            };
            assert_eq!(
                (said, delays.len()),
                (wanted, usize::from(wanted.is_none())),
                "{condition:?} {exit:?}"
            );
        }
        for exit in [oom, None] {
            let policy = RestartPolicy { condition: C::None, ..policy() };
            let (_, ledger) = play(&policy, exit, &[0]);
            assert_eq!(ledger.verdict(), Some(Verdict::Failed), "{exit:?}");
        }
    }
}
