//! What each task's container uses: looked at every few seconds, for heartbeats and for `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_proto::v1;
use warren_runtime::{ContainerId, Runtime, Usage};
use warren_task::Wishes;
use warren_types::{MilliCpu, TaskId};

/// What was found at one look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    at: Instant,
    pub usage: Usage,
    /// CPU since the look before; nothing at the first.
    pub cpu: MilliCpu,
}

/// The newest samples, of the tasks that have a process.
pub(crate) struct Stats {
    runtime: Arc<dyn Runtime>,
    wishes: watch::Receiver<Wishes>,
    newest: Mutex<BTreeMap<TaskId, Sample>>,
}

impl Stats {
    /// Of the tasks that the node should have.
    pub fn new(runtime: Arc<dyn Runtime>, wishes: watch::Receiver<Wishes>) -> Self {
        Self { runtime, wishes, newest: Mutex::default() }
    }

    fn newest(&self) -> MutexGuard<'_, BTreeMap<TaskId, Sample>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all of them: eight small files of the kernel each. A task that is gone is forgotten.
    pub fn look(&self, now: Instant) {
        let tasks: Vec<TaskId> = self.wishes.borrow().tasks.keys().copied().collect();
        let before = self.newest().clone();
        let found = tasks.into_iter().filter_map(|task| {
            let id = ContainerId::parse(&task.to_string()).ok()?;
            let usage = self.runtime.usage(&id)?;
            Some((task, Sample { at: now, usage, cpu: cpu(before.get(&task), usage.cpu, now) }))
        });
        let found = found.collect();
        *self.newest() = found;
    }

    /// The newest samples.
    pub fn samples(&self) -> BTreeMap<TaskId, Sample> {
        self.newest().clone()
    }
}

impl From<Sample> for v1::TaskUsage {
    fn from(Sample { usage, cpu, .. }: Sample) -> Self {
        Self {
            cpu_milli: cpu.0,
            memory_bytes: usage.memory,
            received_bytes: usage.received,
            sent_bytes: usage.sent,
            read_bytes: usage.read,
            written_bytes: usage.written,
            pids: usage.pids,
        }
    }
}

/// The average since the sample before. A total that is smaller than before is of a new container.
fn cpu(before: Option<&Sample>, total: Duration, now: Instant) -> MilliCpu {
    let Some(before) = before else { return MilliCpu(0) };
    let used = total.checked_sub(before.usage.cpu).unwrap_or(total);
    let millis = used.as_micros() / now.saturating_duration_since(before.at).as_millis().max(1);
    MilliCpu(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::Fake;

    use super::*;
    use crate::samples::{task, task_id};

    fn used(millis: u64) -> Usage {
        Usage { cpu: Duration::from_millis(millis), memory: 4096, pids: 2, ..Usage::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_sampled_while_they_have_a_process_and_are_wanted() {
        let fake = Fake::new();
        let wanted = |numbers: &[u64]| Wishes {
            tasks: numbers.iter().map(|n| (task_id(*n), Arc::new(task(*n)))).collect(),
            ..Wishes::default()
        };
        let (wishes, receiver) = watch::channel(wanted(&[1, 2]));
        let stats = Stats::new(Arc::new(fake.clone()), receiver);
        let id = ContainerId::parse(&task_id(1).to_string()).unwrap();
        fake.set_usage(&id, Some(used(1000)));
        let start = Instant::now();
        stats.look(start);
        let found = stats.samples();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&task_id(1)], "the other one has no process");
        assert_eq!((found[&task_id(1)].cpu, found[&task_id(1)].usage.memory), (MilliCpu(0), 4096));
        fake.set_usage(&id, Some(used(3500)));
        stats.look(start + Duration::from_secs(5));
        let sample = stats.samples()[&task_id(1)];
        assert_eq!(v1::TaskUsage::from(sample).cpu_milli, 500);
        fake.set_usage(&id, Some(used(100)));
        stats.look(start + Duration::from_secs(6));
        assert_eq!(stats.samples()[&task_id(1)].cpu, MilliCpu(100), "a new container counts from nothing");
        wishes.send_replace(wanted(&[2]));
        stats.look(start + Duration::from_secs(7));
        assert!(stats.samples().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn two_looks_at_once_do_not_divide_by_zero() {
        let now = Instant::now();
        let before = Sample { at: now, usage: used(0), cpu: MilliCpu(0) };
        assert_eq!(cpu(Some(&before), Duration::from_millis(1), now), MilliCpu(1000));
    }
}
