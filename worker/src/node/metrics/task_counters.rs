//! Counters of one task, from its reports.

use std::time::Duration;

use tokio::time::Instant;
use warren_types::{TaskReport, TaskState};

#[derive(Debug, Clone, Default)]
pub(super) struct TaskCounters {
    pub restarts: u64,
    pub checks: u64,
    pub check_failures: u64,
    pub oom_kills: u64,
    last_report: Option<ReportSummary>,
    /// Since when it is on its way to a process, with nothing to wait for.
    start_pending_since: Option<Instant>,
}

/// The relevant part of a report.
#[derive(Debug, Clone, Copy)]
struct ReportSummary {
    state: TaskState,
    /// Attempts whose process was started.
    started: u32,
    /// Attempts that have ended.
    ended: u32,
}

/// Changes between two reports that count for the node as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReportDelta {
    /// Time from the possible start to the running process.
    pub start_duration: Option<Duration>,
    /// It failed permanently.
    pub has_failed: bool,
}

impl ReportSummary {
    /// Attempts count from 1; before the process of an attempt runs, only earlier ones were started.
    fn new(report: &TaskReport) -> Self {
        let TaskReport { state, attempt, .. } = *report;
        let earlier = attempt.saturating_sub(1);
        let started = if state >= TaskState::Running { attempt } else { earlier };
        let ended = if state.is_terminal() { attempt } else { earlier };
        Self { state, started, ended }
    }

    fn restarts(&self) -> u32 {
        self.started.saturating_sub(1)
    }
}

impl TaskCounters {
    /// State in the last report.
    pub fn state(&self) -> Option<TaskState> {
        self.last_report.map(|seen| seen.state)
    }

    /// Counts the changes in `report`. The first report counts nothing of the past: the container may be of
    /// an earlier agent.
    pub fn observe(&mut self, report: &TaskReport, now: Instant) -> ReportDelta {
        let seen = ReportSummary::new(report);
        let waits = report.next_attempt.is_some() || report.state == TaskState::Ready;
        let begun = self.start_pending_since.take();
        let mut delta = ReportDelta::default();
        match report.state {
            _ if waits => {}
            TaskState::Running => {
                delta.start_duration = begun.map(|begun| now.saturating_duration_since(begun))
            }
            state if state < TaskState::Running => self.start_pending_since = begun.or(Some(now)),
            _ => {}
        }
        if let Some(before) = self.last_report.replace(seen) {
            self.restarts += u64::from(seen.restarts().saturating_sub(before.restarts()));
            let killed = report.exit.is_some_and(|exit| exit.out_of_memory);
            self.oom_kills += u64::from(killed && seen.ended > before.ended);
            let failed = |state| matches!(state, TaskState::Failed | TaskState::Rejected);
            delta.has_failed = failed(seen.state) && !failed(before.state);
        }
        delta
    }
}

#[cfg(test)]
mod tests {
    use TaskState::{Accepted, Complete, Failed, Preparing, Ready, Rejected, Running, Shutdown, Starting};
    use warren_types::fixtures::task_report;
    use warren_types::{TaskExit, Timestamp};

    use super::*;
    use crate::fixtures::task_id;

    /// State, attempt, whether it waits for a back-off, and whether the last exit was an OOM kill.
    type ReportCase = (TaskState, u32, bool, bool);

    fn report((state, attempt, waits, killed): ReportCase) -> TaskReport {
        TaskReport {
            exit: killed.then_some(TaskExit { code: 137, out_of_memory: true }),
            next_attempt: waits.then_some(Timestamp(1)),
            ..task_report(task_id(1), attempt, state)
        }
    }

    /// Observes one report per second; returns restarts, OOM kills, failures, and the seconds of each start.
    fn tally(output: &[ReportCase]) -> (u64, u64, u64, Vec<u64>) {
        let (mut counters, mut now) = (TaskCounters::default(), Instant::now());
        let (mut failures, mut starts) = (0, Vec::new());
        for text in output {
            let delta = counters.observe(&report(*text), now);
            failures += u64::from(delta.has_failed);
            starts.extend(delta.start_duration.map(|took| took.as_secs()));
            let again = counters.observe(&report(*text), now);
            assert!(
                !again.has_failed && again.start_duration.is_none(),
                "a repeated report counts nothing: {text:?}"
            );
            now += Duration::from_secs(1);
        }
        (counters.restarts, counters.oom_kills, failures, starts)
    }

    #[tokio::test(start_paused = true)]
    async fn restarts_and_kills_are_counted() {
        let (no, yes) = (false, true);
        let up = [(Accepted, 1, no, no), (Preparing, 1, no, no), (Running, 1, no, no)];
        let with = |more: &[ReportCase]| tally(&[&up[..], more].concat());
        assert_eq!(with(&[]), (0, 0, 0, vec![2]), "a start");
        assert_eq!(with(&[(Shutdown, 1, no, no)]), (0, 0, 0, vec![2]), "a stop is no failure");
        assert_eq!(with(&[(Complete, 1, no, no)]), (0, 0, 0, vec![2]), "neither is an end");
        let again =
            [(Starting, 2, yes, no), (Starting, 2, yes, no), (Starting, 2, no, no), (Running, 2, no, no)];
        assert_eq!(with(&again), (1, 0, 0, vec![2, 1]), "the time between attempts is none of the start's");
        let killed =
            [(Starting, 2, yes, yes), (Running, 2, no, yes), (Starting, 3, yes, yes), (Running, 3, no, yes)];
        assert_eq!(with(&killed), (2, 2, 0, vec![2]), "each kill once");
        assert_eq!(with(&[killed[0], killed[1], (Failed, 2, no, yes)]), (1, 2, 1, vec![2]), "and gives up");
        assert_eq!(
            with(&[(Starting, 4, yes, no)]),
            (2, 0, 0, vec![2]),
            "attempts that were too short to be seen"
        );
        let standby = [(Preparing, 1, no, no), (Ready, 1, no, no), (Ready, 1, no, no), (Starting, 1, no, no)];
        let standby = [&standby[..], &[(Running, 1, no, no)]].concat();
        assert_eq!(tally(&standby), (0, 0, 0, vec![1]), "what is prepared is started when it is told to");
        assert_eq!(tally(&[(Preparing, 0, no, no), (Rejected, 0, no, no)]), (0, 0, 1, vec![]));
    }

    #[tokio::test(start_paused = true)]
    async fn first_report_counts_nothing_before_it() {
        assert_eq!(tally(&[(Running, 3, false, true)]), (0, 0, 0, vec![]));
        assert_eq!(tally(&[(Failed, 3, false, true)]), (0, 0, 0, vec![]));
        assert_eq!(tally(&[(Running, 3, false, true), (Starting, 4, true, true)]), (0, 1, 0, vec![]));
        assert_eq!(tally(&[(Starting, 3, true, false), (Running, 3, false, false)]), (1, 0, 0, vec![]));
    }
}
