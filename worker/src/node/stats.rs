//! Resource usage of each task's container: sampled every few seconds, for heartbeats and `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_proto::v1;
use warren_runtime::{ContainerId, ContainerUsage, Runtime};
use warren_task::DesiredState;
use warren_types::{MilliCpu, TaskId};

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TaskSample {
    at: Instant,
    pub usage: ContainerUsage,
    /// CPU since the previous sample; 0 in the first.
    pub cpu: MilliCpu,
}

/// The newest samples of tasks with a process.
pub(crate) struct TaskStats {
    runtime: Arc<dyn Runtime>,
    desired_state: watch::Receiver<DesiredState>,
    latest: Mutex<BTreeMap<TaskId, TaskSample>>,
}

impl TaskStats {
    /// For the tasks of the desired state.
    pub fn new(runtime: Arc<dyn Runtime>, desired_state: watch::Receiver<DesiredState>) -> Self {
        Self { runtime, desired_state, latest: Mutex::default() }
    }

    fn latest(&self) -> MutexGuard<'_, BTreeMap<TaskId, TaskSample>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Samples all of them: eight small kernel files each. Removed tasks are dropped.
    pub fn sample(&self, now: Instant) {
        let tasks: Vec<TaskId> = self.desired_state.borrow().tasks.keys().copied().collect();
        let before = self.latest().clone();
        let found = tasks.into_iter().filter_map(|task| {
            let id = ContainerId::parse(&task.to_string()).ok()?;
            let usage = self.runtime.usage(&id)?;
            Some((task, TaskSample { at: now, usage, cpu: cpu(before.get(&task), usage.cpu, now) }))
        });
        let found = found.collect();
        *self.latest() = found;
    }

    pub fn samples(&self) -> BTreeMap<TaskId, TaskSample> {
        self.latest().clone()
    }
}

impl From<TaskSample> for v1::TaskUsage {
    fn from(TaskSample { usage, cpu, .. }: TaskSample) -> Self {
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

/// The average since the previous sample. A smaller total is of a new container.
fn cpu(before: Option<&TaskSample>, total: Duration, now: Instant) -> MilliCpu {
    let Some(before) = before else { return MilliCpu(0) };
    let used = total.checked_sub(before.usage.cpu).unwrap_or(total);
    let millis = used.as_micros() / now.saturating_duration_since(before.at).as_millis().max(1);
    MilliCpu(u64::try_from(millis).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use warren_runtime::fake::FakeRuntime;

    use super::*;
    use crate::fixtures::{task, task_id};

    fn used(millis: u64) -> ContainerUsage {
        ContainerUsage {
            cpu: Duration::from_millis(millis),
            memory: 4096,
            pids: 2,
            ..ContainerUsage::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_assigned_running_tasks_are_sampled() {
        let fake = FakeRuntime::new();
        let expected = |numbers: &[u64]| DesiredState {
            tasks: numbers.iter().map(|n| (task_id(*n), Arc::new(task(*n)))).collect(),
            ..DesiredState::default()
        };
        let (desired_state, receiver) = watch::channel(expected(&[1, 2]));
        let stats = TaskStats::new(Arc::new(fake.clone()), receiver);
        let id = ContainerId::parse(&task_id(1).to_string()).unwrap();
        fake.set_usage(&id, Some(used(1000)));
        let start = Instant::now();
        stats.sample(start);
        let found = stats.samples();
        assert_eq!(found.keys().collect::<Vec<_>>(), [&task_id(1)], "the other one has no process");
        assert_eq!((found[&task_id(1)].cpu, found[&task_id(1)].usage.memory), (MilliCpu(0), 4096));
        fake.set_usage(&id, Some(used(3500)));
        stats.sample(start + Duration::from_secs(5));
        let sample = stats.samples()[&task_id(1)];
        assert_eq!(v1::TaskUsage::from(sample).cpu_milli, 500);
        fake.set_usage(&id, Some(used(100)));
        stats.sample(start + Duration::from_secs(6));
        assert_eq!(stats.samples()[&task_id(1)].cpu, MilliCpu(100), "a new container counts from nothing");
        desired_state.send_replace(expected(&[2]));
        stats.sample(start + Duration::from_secs(7));
        assert!(stats.samples().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn samples_at_same_time_do_not_divide_by_zero() {
        let now = Instant::now();
        let before = TaskSample { at: now, usage: used(0), cpu: MilliCpu(0) };
        assert_eq!(cpu(Some(&before), Duration::from_millis(1), now), MilliCpu(1000));
    }
}
