//! What `/metrics` shows of a worker, and the handle by which what happens to tasks is counted.

mod tally;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::Loops;
use warren_task::Wishes;
use warren_telemetry::{
    Collector, Counter, DescriptorEncoder, Histogram, Kind, Labels, Registry, seconds, write_series,
    write_value,
};
use warren_types::{TaskAssignment, TaskId, TaskReport, TaskState};

use crate::node::stats::{Sample, Stats};
use crate::node::usage::Meter;
use tally::Tally;

/// The loop that sends heartbeats.
pub(crate) const HEARTBEAT: &str = "worker.heartbeat";

/// Counts what happens. Cheap to clone; all clones count together.
#[derive(Clone)]
pub(crate) struct WorkerMetrics {
    heartbeats_missed: Counter,
    task_failures: Counter,
    task_starts: Histogram,
    tasks: Arc<Mutex<BTreeMap<TaskId, Tally>>>,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            heartbeats_missed: Counter::default(),
            task_failures: Counter::default(),
            task_starts: Histogram::new(seconds()),
            tasks: Arc::default(),
        }
    }
}

impl WorkerMetrics {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<TaskId, Tally>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is a newer word on a task: what came of it since the last one is counted.
    pub fn saw(&self, report: &TaskReport, now: Instant) {
        let news = self.tasks().entry(report.task).or_default().hear(report, now);
        if let Some(took) = news.started {
            self.task_starts.observe(took.as_secs_f64());
        }
        if news.failed {
            self.task_failures.inc();
        }
    }

    /// A check of the task was run.
    pub fn checked(&self, task: TaskId, good: bool) {
        let mut tasks = self.tasks();
        let tally = tasks.entry(task).or_default();
        tally.checks += 1;
        tally.check_failures += u64::from(!good);
    }

    /// The task is no longer the node's.
    pub fn forget(&self, task: &TaskId) {
        self.tasks().remove(task);
    }

    /// A whole period went by in which no heartbeat could be sent, because there is no session.
    pub fn heartbeat_missed(&self) {
        self.heartbeats_missed.inc();
    }
}

/// What a worker's metrics are read from, beside what was counted.
pub(crate) struct Sources {
    pub stats: Arc<Stats>,
    pub meter: Arc<Meter>,
    pub wishes: watch::Receiver<Wishes>,
    pub loops: Loops,
}

/// Puts everything that a worker shows into a registry.
pub(crate) fn register(metrics: &WorkerMetrics, sources: Sources) -> Registry {
    let mut registry = Registry::default();
    let WorkerMetrics { task_failures, task_starts, .. } = metrics;
    let help = "Tasks of this node that failed for good, so that managers replace them";
    registry.register("worker_task_failures", help, task_failures.clone());
    let help = "From a task's assignment, or the word to start what was prepared, to its process";
    registry.register("worker_task_start_duration_seconds", help, task_starts.clone());
    registry.register_collector(Box::new(Page { metrics: metrics.clone(), sources }));
    registry
}

/// Everything that is computed at a scrape.
struct Page {
    metrics: WorkerMetrics,
    sources: Sources,
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl Collector for Page {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.node(&mut encoder)?;
        let wishes = self.sources.wishes.borrow().clone();
        let tallies = self.metrics.tasks().clone();
        let running = tallies.values().filter(|tally| tally.state() == Some(TaskState::Running)).count();
        let help = "Tasks whose process runs.";
        write_value(&mut encoder, Kind::Gauge, ("worker_tasks_running", help), running as f64)?;
        counted(&mut encoder, &wishes, &tallies)?;
        used(&mut encoder, &wishes, &self.sources.stats.samples())
    }
}

impl Page {
    fn node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let unsent = self.sources.loops.snapshot().into_iter().find(|status| status.name == HEARTBEAT);
        let failed = self.metrics.heartbeats_missed.get() + unsent.map_or(0, |status| status.failures);
        let help = "Heartbeats that did not reach a manager.";
        write_value(encoder, Kind::Counter, ("worker_heartbeat_failures", help), failed as f64)?;
        let usage = self.sources.meter.newest();
        let help = "CPU of the machine that is used, in cores, over the last seconds.";
        write_value(encoder, Kind::Gauge, ("node_cpu_used", help), usage.cpu.0 as f64 / 1000.0)?;
        if let Some(memory) = usage.memory {
            let help = "Memory of the machine that is not available without swapping.";
            write_value(encoder, Kind::Gauge, ("node_memory_used_bytes", help), memory.used.0 as f64)?;
        }
        if let Some(disk) = usage.disk {
            let help = "Used part of the file system with the data directory.";
            write_value(encoder, Kind::Gauge, ("node_disk_used_bytes", help), disk.used.0 as f64)?;
        }
        Ok(())
    }
}

/// What tells the series of a task from the others.
fn labels(task: &TaskAssignment) -> Labels {
    vec![
        ("task", task.id.to_string()),
        ("service", task.service.to_string()),
        ("slot", task.slot.to_string()),
    ]
}

fn counted(
    encoder: &mut DescriptorEncoder<'_>,
    wishes: &Wishes,
    tallies: &BTreeMap<TaskId, Tally>,
) -> fmt::Result {
    let mut write = |name: &str, help: &str, value: fn(&Tally) -> u64| {
        let known = tallies.iter().filter_map(|(id, tally)| Some((wishes.tasks.get(id)?, tally)));
        let series = known.map(|(task, tally)| (labels(task), value(tally) as f64));
        write_series(encoder, Kind::Counter, (name, help), series)
    };
    write("container_restarts", "How often it was started again in place.", |tally| tally.restarts)?;
    write("health_checks", "Runs of its check.", |tally| tally.checks)?;
    write("health_check_failures", "Runs of its check that failed.", |tally| tally.check_failures)?;
    let help = "How often it ended after the kernel had killed something in it for want of memory.";
    write("container_oom_kills", help, |tally| tally.oom_kills)
}

fn used(
    encoder: &mut DescriptorEncoder<'_>,
    wishes: &Wishes,
    samples: &BTreeMap<TaskId, Sample>,
) -> fmt::Result {
    let mut write = |kind, name: &str, help: &str, value: fn(&Sample) -> f64| {
        let known = samples.iter().filter_map(|(id, sample)| Some((wishes.tasks.get(id)?, sample)));
        write_series(encoder, kind, (name, help), known.map(|(task, sample)| (labels(task), value(sample))))
    };
    let help = "CPU time that it used.";
    write(Kind::Counter, "container_cpu_seconds", help, |sample| sample.usage.cpu.as_secs_f64())?;
    let help = "Memory that it cannot do without.";
    write(Kind::Gauge, "container_memory_bytes", help, |sample| sample.usage.memory as f64)?;
    let help = "Bytes that came over its network.";
    write(Kind::Counter, "container_network_receive_bytes", help, |sample| sample.usage.received as f64)?;
    let help = "Bytes that went over its network.";
    write(Kind::Counter, "container_network_transmit_bytes", help, |sample| sample.usage.sent as f64)?;
    let help = "Bytes that it read from block devices.";
    write(Kind::Counter, "container_block_read_bytes", help, |sample| sample.usage.read as f64)?;
    let help = "Bytes that it wrote to block devices.";
    write(Kind::Counter, "container_block_written_bytes", help, |sample| sample.usage.written as f64)
}

#[cfg(test)]
mod tests;
