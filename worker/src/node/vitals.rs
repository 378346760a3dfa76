//! What a heartbeat tells of the tasks: what each uses, and how its checks went since the one before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use warren_health::CheckResult;
use warren_proto::v1;
use warren_types::TaskId;

use crate::node::stats::{Sample, Stats};
use crate::tasks::checks::Checking;

/// Tasks that one heartbeat tells of; a node has address space for fewer.
const MAX_TASKS: usize = 4096;
/// A heartbeat must fit a message of the manager, 4 MiB: what checks said is cut after so many bytes of all of them
/// together, to so many of each.
const MAX_SAID: usize = 1 << 20;
const MIN_SAID: usize = 32;

/// What is told of the tasks.
pub(crate) struct Vitals {
    stats: Arc<Stats>,
    checking: Arc<Checking>,
    /// Tasks that were said to use something.
    told: Mutex<BTreeSet<TaskId>>,
}

impl Vitals {
    /// Tells what these know.
    pub fn new(stats: Arc<Stats>, checking: Arc<Checking>) -> Self {
        Self { stats, checking, told: Mutex::default() }
    }

    /// A new session: its manager knows nothing.
    pub fn restart(&self) {
        self.checking.results.restart();
    }

    /// What is to be told now. Results of checks are told once; a task that uses nothing any more as well.
    pub fn take(&self) -> Vec<v1::TaskVitals> {
        let samples = self.stats.samples();
        let using = samples.keys().copied().collect();
        let before = std::mem::replace(&mut *self.told.lock().unwrap_or_else(PoisonError::into_inner), using);
        vitals(&samples, self.checking.results.take(), &before)
    }
}

fn vitals(
    samples: &BTreeMap<TaskId, Sample>,
    checks: Vec<(TaskId, Vec<CheckResult>)>,
    before: &BTreeSet<TaskId>,
) -> Vec<v1::TaskVitals> {
    let checks: BTreeMap<_, _> = checks.into_iter().collect();
    let tasks: BTreeSet<TaskId> = samples.keys().chain(checks.keys()).chain(before).copied().collect();
    let mut said = 0;
    let mut result = |result: &CheckResult| {
        let output = cut(&result.output, if said < MAX_SAID { usize::MAX } else { MIN_SAID });
        said += output.len();
        v1::CheckResult {
            at: result.at.0,
            duration_us: u64::try_from(result.took.as_micros()).unwrap_or(u64::MAX),
            ok: result.good,
            output: output.to_owned(),
        }
    };
    let tasks = tasks.iter().take(MAX_TASKS).map(|task| v1::TaskVitals {
        task_id: task.to_string(),
        usage: samples.get(task).copied().map(Into::into),
        checks: checks.get(task).into_iter().flatten().map(&mut result).collect(),
    });
    tasks.collect()
}

/// At most so many bytes, in whole characters.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prost::Message;
    use tokio::sync::watch;
    use tokio::time::Instant;
    use warren_runtime::fake::Fake;
    use warren_runtime::{ContainerId, Usage};
    use warren_task::Wishes;
    use warren_types::Timestamp;

    use super::*;
    use crate::samples::{task, task_id};

    fn check(output: &str) -> CheckResult {
        let (at, took) = (Timestamp(7), Duration::from_millis(3));
        CheckResult { at, took, good: false, output: output.into() }
    }

    /// The samples of one look at so many tasks.
    fn samples(count: u64) -> BTreeMap<TaskId, Sample> {
        let fake = Fake::new();
        let tasks = (1..=count).map(|number| {
            let id = ContainerId::parse(&task_id(number).to_string()).unwrap();
            fake.set_usage(&id, Some(Usage { memory: u64::MAX, sent: u64::MAX, ..Usage::default() }));
            (task_id(number), Arc::new(task(1)))
        });
        let wishes = Wishes { tasks: tasks.collect(), ..Wishes::default() };
        let stats = Stats::new(Arc::new(fake.clone()), watch::channel(wishes).1);
        stats.look(Instant::now());
        stats.samples()
    }

    #[tokio::test]
    async fn usage_and_checks_of_a_task_are_told_together() {
        let checks = vec![(task_id(2), vec![check("HTTP 500")])];
        let told = vitals(&samples(1), checks, &BTreeSet::from([task_id(3)]));
        let ids: Vec<_> = told.iter().map(|vitals| vitals.task_id.clone()).collect();
        assert_eq!(ids, [1, 2, 3].map(|number| task_id(number).to_string()));
        assert!(told[0].usage.is_some() && told[0].checks.is_empty());
        let wanted = v1::CheckResult { at: 7, duration_us: 3000, ok: false, output: "HTTP 500".into() };
        assert_eq!((&told[1].usage, &told[1].checks[..]), (&None, &[wanted][..]));
        assert_eq!((&told[2].usage, told[2].checks.len()), (&None, 0), "it uses nothing any more");
    }

    #[tokio::test]
    async fn a_heartbeat_fits_a_message_whatever_there_is_to_tell() {
        let many = MAX_TASKS as u64 + 1000;
        let long = "ä".repeat(256);
        let checks = (1..=many).map(|number| (task_id(number), vec![check(&long); 5])).collect();
        let told = vitals(&samples(many), checks, &BTreeSet::new());
        assert_eq!(told.len(), MAX_TASKS);
        let heartbeat = v1::Heartbeat { tasks: told, ..v1::Heartbeat::default() };
        assert!(heartbeat.encoded_len() < 3 << 20, "{}", heartbeat.encoded_len());
        assert_eq!(heartbeat.tasks[0].checks[4].output, long);
        assert_eq!(heartbeat.tasks[MAX_TASKS - 1].checks[4].output, "ä".repeat(MIN_SAID / 2));
    }
}
