//! Task statistics in heartbeats: resource usage, and check results since the previous heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use warren_health::CheckResult;
use warren_proto::v1;
use warren_types::TaskId;

use crate::node::stats::{TaskSample, TaskStats};
use crate::tasks::checks::CheckContext;

/// Maximum tasks in a heartbeat; a node has address space for fewer.
const MAX_TASKS: usize = 4096;
/// A heartbeat must fit a message of the manager, 4 MiB: after this many bytes of check output in total, each
/// output is truncated.
const MAX_CHECK_OUTPUT: usize = 1 << 20;
const MIN_CHECK_OUTPUT: usize = 32;

/// Statistics for heartbeats.
pub(crate) struct HeartbeatStats {
    stats: Arc<TaskStats>,
    check_context: Arc<CheckContext>,
    /// Tasks with reported usage.
    reported: Mutex<BTreeSet<TaskId>>,
}

impl HeartbeatStats {
    /// With these sources.
    pub fn new(stats: Arc<TaskStats>, checking: Arc<CheckContext>) -> Self {
        Self { stats, check_context: checking, reported: Mutex::default() }
    }

    /// A new session: its manager has nothing.
    pub fn reset_for_session(&self) {
        self.check_context.results.reset_for_session();
    }

    /// Statistics to send now. Check results are sent once; a task without usage any more is sent as well.
    pub fn take_unreported(&self) -> Vec<v1::TaskStats> {
        let samples = self.stats.samples();
        let using = samples.keys().copied().collect();
        let before =
            std::mem::replace(&mut *self.reported.lock().unwrap_or_else(PoisonError::into_inner), using);
        task_vitals(&samples, self.check_context.results.take_unreported(), &before)
    }
}

fn task_vitals(
    samples: &BTreeMap<TaskId, TaskSample>,
    checks: Vec<(TaskId, Vec<CheckResult>)>,
    before: &BTreeSet<TaskId>,
) -> Vec<v1::TaskStats> {
    let checks: BTreeMap<_, _> = checks.into_iter().collect();
    let tasks: BTreeSet<TaskId> = samples.keys().chain(checks.keys()).chain(before).copied().collect();
    let mut text = 0;
    let mut result = |result: &CheckResult| {
        let output =
            truncate(&result.output, if text < MAX_CHECK_OUTPUT { usize::MAX } else { MIN_CHECK_OUTPUT });
        text += output.len();
        v1::CheckResult {
            at: result.at.0,
            duration_us: u64::try_from(result.duration.as_micros()).unwrap_or(u64::MAX),
            ok: result.succeeded,
            output: output.to_owned(),
        }
    };
    let tasks = tasks.iter().take(MAX_TASKS).map(|task| v1::TaskStats {
        task_id: task.to_string(),
        usage: samples.get(task).copied().map(Into::into),
        checks: checks.get(task).into_iter().flatten().map(&mut result).collect(),
    });
    tasks.collect()
}

/// At most `most` bytes, at a character boundary.
fn truncate(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prost::Message;
    use tokio::sync::watch;
    use tokio::time::Instant;
    use warren_runtime::fake::FakeRuntime;
    use warren_runtime::{ContainerId, ContainerUsage};
    use warren_task::DesiredState;
    use warren_types::Timestamp;

    use super::*;
    use crate::fixtures::{task, task_id};

    fn check(output: &str) -> CheckResult {
        let (at, took) = (Timestamp(7), Duration::from_millis(3));
        CheckResult { at, duration: took, succeeded: false, output: output.into() }
    }

    /// One sample of so many tasks.
    fn samples(count: u64) -> BTreeMap<TaskId, TaskSample> {
        let fake = FakeRuntime::new();
        let tasks = (1..=count).map(|number| {
            let id = ContainerId::parse(&task_id(number).to_string()).unwrap();
            fake.set_usage(
                &id,
                Some(ContainerUsage { memory: u64::MAX, sent: u64::MAX, ..ContainerUsage::default() }),
            );
            (task_id(number), Arc::new(task(1)))
        });
        let desired_state = DesiredState { tasks: tasks.collect(), ..DesiredState::default() };
        let stats = TaskStats::new(Arc::new(fake.clone()), watch::channel(desired_state).1);
        stats.sample(Instant::now());
        stats.samples()
    }

    #[tokio::test]
    async fn usage_and_checks_of_task_are_sent_together() {
        let checks = vec![(task_id(2), vec![check("HTTP 500")])];
        let vitals_sent = task_vitals(&samples(1), checks, &BTreeSet::from([task_id(3)]));
        let ids: Vec<_> = vitals_sent.iter().map(|vitals| vitals.task_id.clone()).collect();
        assert_eq!(ids, [1, 2, 3].map(|number| task_id(number).to_string()));
        assert!(vitals_sent[0].usage.is_some() && vitals_sent[0].checks.is_empty());
        let expected = v1::CheckResult { at: 7, duration_us: 3000, ok: false, output: "HTTP 500".into() };
        assert_eq!((&vitals_sent[1].usage, &vitals_sent[1].checks[..]), (&None, &[expected][..]));
        assert_eq!(
            (&vitals_sent[2].usage, vitals_sent[2].checks.len()),
            (&None, 0),
            "it uses nothing any more"
        );
    }

    #[tokio::test]
    async fn heartbeat_never_exceeds_message_limit() {
        let many = MAX_TASKS as u64 + 1000;
        let long = "ä".repeat(256);
        let checks = (1..=many).map(|number| (task_id(number), vec![check(&long); 5])).collect();
        let vitals_sent = task_vitals(&samples(many), checks, &BTreeSet::new());
        assert_eq!(vitals_sent.len(), MAX_TASKS);
        let heartbeat = v1::Heartbeat { tasks: vitals_sent, ..v1::Heartbeat::default() };
        assert!(heartbeat.encoded_len() < 3 << 20, "{}", heartbeat.encoded_len());
        assert_eq!(heartbeat.tasks[0].checks[4].output, long);
        assert_eq!(heartbeat.tasks[MAX_TASKS - 1].checks[4].output, "ä".repeat(MIN_CHECK_OUTPUT / 2));
    }
}
