//! What follows the exit of a task's process. Only the worker decides this.

use std::time::Duration;

use warren_types::spec::{MAX_RESTART_DELAY, RestartCondition, RestartPolicy};
use warren_types::{Bytes, TaskExit, Timestamp};

use crate::attempt_history::{AttemptHistory, AttemptPhase, TerminalState};
use crate::display;

/// How many start times the history must keep to count restarts.
pub(crate) fn max_kept_starts(policy: &RestartPolicy) -> usize {
    policy.max as usize + 1
}

/// The history after the attempt of `attempts` exited at `at`. `exit` is `None` when the exit status is
/// unknown, which counts as a failure.
pub(crate) fn next_after_exit(
    policy: &RestartPolicy,
    history: &AttemptHistory,
    exit: Option<TaskExit>,
    at: Timestamp,
    memory_limit: Option<Bytes>,
) -> AttemptHistory {
    // A process that exited before its start was recorded counts as started when it exited.
    let attempts = match history.phase {
        AttemptPhase::Started { .. } => history.clone(),
        _ => history.with_start(at, max_kept_starts(policy)),
    };
    let ended = AttemptHistory { exit, ..attempts };
    let ending = display::format_exit(exit, memory_limit);
    let succeeded = exit == Some(TaskExit { code: 0, out_of_memory: false });
    match policy.condition {
        RestartCondition::None | RestartCondition::OnFailure if succeeded => {
            ended.with_end(at, TerminalState::Completed, ending)
        }
        RestartCondition::None => {
            ended.with_end(at, TerminalState::Failed, format!("{ending}; not restarted"))
        }
        RestartCondition::Any | RestartCondition::OnFailure => retry(policy, &ended, at, &ending),
    }
}

/// Another attempt, unless there were too many.
fn retry(policy: &RestartPolicy, history: &AttemptHistory, at: Timestamp, ending: &str) -> AttemptHistory {
    let in_window = |start: &&Timestamp| at.saturating_since(**start) < policy.window;
    let first_attempts = usize::from(history.attempt as usize == history.starts.len());
    let restarts = history.starts.iter().skip(first_attempts).filter(in_window).count();
    if restarts >= policy.max as usize {
        let recent: Vec<&Timestamp> = history.starts.iter().filter(in_window).collect();
        let span = recent.first().map_or(Duration::ZERO, |first| at.saturating_since(**first));
        let tried = match recent.len() {
            // The only attempt in the window, or one that ran for longer.
            0 | 1 => "no restart is allowed".to_string(),
            attempts => format!("{attempts} attempts in {}", display::format_duration(span)),
        };
        return history.with_end(at, TerminalState::Failed, format!("{ending}; {tried}; given up"));
    }
    let delay = next_delay(policy, history, at);
    let phase = AttemptPhase::Waiting { since: at, until: at + delay };
    AttemptHistory { attempt: history.attempt + 1, phase, delay, ..history.clone() }
}

fn next_delay(policy: &RestartPolicy, history: &AttemptHistory, at: Timestamp) -> Duration {
    if history.delay.is_zero() || history.last_run(at) > policy.window {
        return policy.delay;
    }
    (history.delay * 2).min(MAX_RESTART_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: Option<TaskExit> = Some(TaskExit { code: 1, out_of_memory: false });
    const DONE: Option<TaskExit> = Some(TaskExit { code: 0, out_of_memory: false });

    fn policy() -> RestartPolicy {
        RestartPolicy::default()
    }

    /// Runs attempts that each last `runs[i]` seconds, and returns the delays between them in seconds, until
    /// the task is terminal or `runs` ends.
    fn play(policy: &RestartPolicy, exit: Option<TaskExit>, runs: &[u64]) -> (Vec<u64>, AttemptHistory) {
        let (mut now, mut history, mut delays) =
            (Timestamp(1_000_000), AttemptHistory::default(), Vec::new());
        for run in runs {
            history = history.with_pending().with_start(now, max_kept_starts(policy));
            now = now + Duration::from_secs(*run);
            history = next_after_exit(policy, &history, exit, now, None);
            let AttemptPhase::Waiting { until, .. } = history.phase else { break };
            delays.push(until.saturating_since(now).as_secs());
            now = until;
        }
        (delays, history)
    }

    #[track_caller]
    fn check(policy: &RestartPolicy, runs: &[u64], expected: &[u64], reason: Option<&str>) {
        let (delays, history) = play(policy, FAILED, runs);
        assert_eq!(delays, expected);
        let text = match &history.phase {
            AttemptPhase::Ended { terminal_state: TerminalState::Failed, reason, .. } => {
                Some(reason.as_str())
            }
            _ => None,
        };
        assert_eq!(text, reason);
    }

    #[test]
    fn crash_loop_backs_off_then_fails() {
        let given_up = "exited with code 1; 4 attempts in 7s; given up";
        check(&policy(), &[0, 0, 0, 0, 0], &[1, 2, 4], Some(given_up));
        let slower = "exited with code 1; 4 attempts in 11s; given up";
        check(&policy(), &[1, 1, 1, 1], &[1, 2, 4], Some(slower));
        let patient = RestartPolicy { max: 6, delay: Duration::from_secs(2), ..policy() };
        check(&patient, &[0, 0, 0, 0, 0, 0], &[2, 4, 8, 16, 32, 64], None);
    }

    #[test]
    fn long_attempt_resets_delay() {
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
    fn zero_restarts_fails_at_first_failure() {
        let never = RestartPolicy { max: 0, ..policy() };
        for run in [0, 3600] {
            check(&never, &[run], &[], Some("exited with code 1; no restart is allowed; given up"));
        }
    }

    #[test]
    fn delay_is_bounded() {
        let history = AttemptHistory { delay: Duration::from_secs(200), ..AttemptHistory::default() };
        let (at, until) = (Timestamp(1000), Timestamp(301_000));
        let after = next_after_exit(&policy(), &history, None, at, None);
        assert_eq!(after.phase, AttemptPhase::Waiting { since: at, until });
    }

    #[test]
    fn restart_condition_decides_next_attempt() {
        use RestartCondition as C;
        let oom = Some(TaskExit { code: 0, out_of_memory: true });
        for (condition, exit, expected) in [
            (C::Any, DONE, None),
            (C::Any, FAILED, None),
            (C::Any, None, None),
            (C::OnFailure, DONE, Some((TerminalState::Completed, "exited with code 0"))),
            (C::OnFailure, FAILED, None),
            (C::OnFailure, oom, None),
            (C::OnFailure, None, None),
            (C::None, DONE, Some((TerminalState::Completed, "exited with code 0"))),
            (C::None, FAILED, Some((TerminalState::Failed, "exited with code 1; not restarted"))),
        ] {
            let policy = RestartPolicy { condition, ..policy() };
            let (delays, history) = play(&policy, exit, &[0]);
            let text = match &history.phase {
                AttemptPhase::Ended { terminal_state, reason, .. } => {
                    Some((*terminal_state, reason.as_str()))
                }
                _ => None,
            };
            assert_eq!(
                (text, delays.len()),
                (expected, usize::from(expected.is_none())),
                "{condition:?} {exit:?}"
            );
        }
        for exit in [oom, None] {
            let policy = RestartPolicy { condition: C::None, ..policy() };
            let (_, attempts) = play(&policy, exit, &[0]);
            assert_eq!(attempts.terminal_state(), Some(TerminalState::Failed), "{exit:?}");
        }
    }
}
