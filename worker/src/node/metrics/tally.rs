//! What is counted of one task, from what is reported of it.

use std::time::Duration;

use tokio::time::Instant;
use warren_types::{TaskReport, TaskState};

/// The counters of one task.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub restarts: u64,
    pub checks: u64,
    pub check_failures: u64,
    pub oom_kills: u64,
    seen: Option<Seen>,
    /// Since when it is on its way to a process, with nothing to wait for.
    begun: Option<Instant>,
}

/// What matters of a report.
#[derive(Debug, Clone, Copy)]
struct Seen {
    state: TaskState,
    /// Attempts whose process was started.
    started: u32,
    /// Attempts that have ended.
    ended: u32,
}

/// What a report tells that the one before did not, of what is counted for the node as a whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct News {
    /// It runs, so long after it could have been started.
    pub started: Option<Duration>,
    /// It failed for good.
    pub failed: bool,
}

impl Seen {
    /// The number of the attempt counts starts from 1; before its process runs, only those before it were started.
    fn of(report: &TaskReport) -> Self {
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

impl Tally {
    /// How far the task was at the last word.
    pub fn state(&self) -> Option<TaskState> {
        self.seen.map(|seen| seen.state)
    }

    /// Counts what is new in `report`. The first word on a task counts nothing of what was before it: it may be of a
    /// container that an earlier agent started.
    pub fn hear(&mut self, report: &TaskReport, now: Instant) -> News {
        let seen = Seen::of(report);
        let waits = report.next_attempt.is_some() || report.state == TaskState::Ready;
        let begun = self.begun.take();
        let mut news = News::default();
        match report.state {
            _ if waits => {}
            TaskState::Running => news.started = begun.map(|begun| now.saturating_duration_since(begun)),
            state if state < TaskState::Running => self.begun = begun.or(Some(now)),
            _ => {}
        }
        if let Some(before) = self.seen.replace(seen) {
            self.restarts += u64::from(seen.restarts().saturating_sub(before.restarts()));
            let killed = report.exit.is_some_and(|exit| exit.out_of_memory);
            self.oom_kills += u64::from(killed && seen.ended > before.ended);
            let failed = |state| matches!(state, TaskState::Failed | TaskState::Rejected);
            news.failed = failed(seen.state) && !failed(before.state);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use TaskState::{Accepted, Complete, Failed, Preparing, Ready, Rejected, Running, Shutdown, Starting};
    use warren_types::{Exit, Health, Timestamp};

    use super::*;
    use crate::samples::task_id;

    /// What a report is made of: state, attempt, whether it waits for a back-off, whether the last exit was a kill
    /// for want of memory.
    type Said = (TaskState, u32, bool, bool);

    fn report((state, attempt, waits, killed): Said) -> TaskReport {
        TaskReport {
            task: task_id(1),
            attempt,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: killed.then_some(Exit { code: 137, out_of_memory: true }),
            removed: false,
            next_attempt: waits.then_some(Timestamp(1)),
            image: None,
            health: Health::None,
        }
    }

    /// Hears one report a second; answers restarts, kills, failures, and how many seconds each start took.
    fn tally(said: &[Said]) -> (u64, u64, u64, Vec<u64>) {
        let (mut tally, mut now) = (Tally::default(), Instant::now());
        let (mut failures, mut starts) = (0, Vec::new());
        for said in said {
            let news = tally.hear(&report(*said), now);
            failures += u64::from(news.failed);
            starts.extend(news.started.map(|took| took.as_secs()));
            let again = tally.hear(&report(*said), now);
            assert!(!again.failed && again.started.is_none(), "the second time it is no news: {said:?}");
            now += Duration::from_secs(1);
        }
        (tally.restarts, tally.oom_kills, failures, starts)
    }

    #[tokio::test(start_paused = true)]
    async fn lives_are_counted() {
        let (no, yes) = (false, true);
        let up = [(Accepted, 1, no, no), (Preparing, 1, no, no), (Running, 1, no, no)];
        let with = |more: &[Said]| tally(&[&up[..], more].concat());
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
    async fn what_an_earlier_agent_saw_is_not_counted() {
        assert_eq!(tally(&[(Running, 3, false, true)]), (0, 0, 0, vec![]));
        assert_eq!(tally(&[(Failed, 3, false, true)]), (0, 0, 0, vec![]));
        assert_eq!(tally(&[(Running, 3, false, true), (Starting, 4, true, true)]), (0, 1, 0, vec![]));
        assert_eq!(tally(&[(Starting, 3, true, false), (Running, 3, false, false)]), (1, 0, 0, vec![]));
    }
}
