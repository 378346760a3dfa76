//! Metrics of a worker, and the handle that counts task events.

mod task_counters;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;
use warren_control::BackgroundTasks;
use warren_dns::DnsCounters;
use warren_task::DesiredState;
use warren_telemetry::{
    Collector, Counter, DescriptorEncoder, Histogram, MetricKind, MetricLabels, Registry, latency_buckets,
    write_series, write_value,
};
use warren_types::{TaskAssignment, TaskId, TaskReport, TaskState};

use crate::node::meter::NodeMeter;
use crate::node::stats::{TaskSample, TaskStats};
use task_counters::TaskCounters;

/// Background task that sends heartbeats.
pub(crate) const HEARTBEAT: &str = "worker.heartbeat";

/// Event counters. Clones share them.
#[derive(Clone)]
pub(crate) struct WorkerMetrics {
    missed_heartbeats: Counter,
    task_failures: Counter,
    task_starts: Histogram,
    tasks: Arc<Mutex<BTreeMap<TaskId, TaskCounters>>>,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        Self {
            missed_heartbeats: Counter::default(),
            task_failures: Counter::default(),
            task_starts: Histogram::new(latency_buckets()),
            tasks: Arc::default(),
        }
    }
}

impl WorkerMetrics {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<TaskId, TaskCounters>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the changes between the previous and this report.
    pub fn record_report(&self, report: &TaskReport, now: Instant) {
        let delta = self.tasks().entry(report.task).or_default().observe(report, now);
        if let Some(took) = delta.start_duration {
            self.task_starts.observe(took.as_secs_f64());
        }
        if delta.has_failed {
            self.task_failures.inc();
        }
    }

    /// Counts a health check.
    pub fn record_check(&self, task: TaskId, good: bool) {
        let mut tasks = self.tasks();
        let counters = tasks.entry(task).or_default();
        counters.checks += 1;
        counters.check_failures += u64::from(!good);
    }

    /// Removes the counters of a task that was removed from the node.
    pub fn forget(&self, task: &TaskId) {
        self.tasks().remove(task);
    }

    /// Counts a heartbeat that was not sent for lack of a session.
    pub fn record_missed_heartbeat(&self) {
        self.missed_heartbeats.inc();
    }
}

/// Sources of computed metrics.
pub(crate) struct MetricSources {
    pub stats: Arc<TaskStats>,
    pub meter: Arc<NodeMeter>,
    pub desired_state: watch::Receiver<DesiredState>,
    pub background_tasks: BackgroundTasks,
    /// Counters of the DNS server.
    pub dns: Arc<dyn Fn() -> DnsCounters + Send + Sync>,
}

/// Registers all metrics of a worker.
pub(crate) fn register(metrics: &WorkerMetrics, sources: MetricSources) -> Registry {
    let mut registry = Registry::default();
    let WorkerMetrics { task_failures, task_starts, .. } = metrics;
    let help = "Tasks of this node that failed permanently";
    registry.register("worker_task_failures", help, task_failures.clone());
    let help = "Time from the assignment of a task (or the start of a prepared one) to its process";
    registry.register("worker_task_start_duration_seconds", help, task_starts.clone());
    registry.register_collector(Box::new(WorkerCollector { metrics: metrics.clone(), sources }));
    registry
}

/// Metrics that are computed at a scrape.
struct WorkerCollector {
    metrics: WorkerMetrics,
    sources: MetricSources,
}

impl fmt::Debug for WorkerCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl Collector for WorkerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.node(&mut encoder)?;
        let desired_state = self.sources.desired_state.borrow().clone();
        let counters_by_task = self.metrics.tasks().clone();
        let running =
            counters_by_task.values().filter(|counters| counters.state() == Some(TaskState::Running)).count();
        let help = "Tasks with a running process.";
        write_value(&mut encoder, MetricKind::Gauge, ("worker_tasks_running", help), running as f64)?;
        write_counters(&mut encoder, &desired_state, &counters_by_task)?;
        write_usage(&mut encoder, &desired_state, &self.sources.stats.samples())
    }
}

impl WorkerCollector {
    fn node(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let unsent =
            self.sources.background_tasks.snapshot().into_iter().find(|status| status.name == HEARTBEAT);
        let failed = self.metrics.missed_heartbeats.get() + unsent.map_or(0, |status| status.failures);
        let help = "Heartbeats that did not reach a manager.";
        write_value(encoder, MetricKind::Counter, ("worker_heartbeat_failures", help), failed as f64)?;
        let usage = self.sources.meter.latest();
        let help = "CPU in use on the node, in cores.";
        write_value(encoder, MetricKind::Gauge, ("node_cpu_used_cores", help), usage.cpu.0 as f64 / 1000.0)?;
        if let Some(memory) = usage.memory {
            let help = "Memory in use on the node (total minus available).";
            write_value(encoder, MetricKind::Gauge, ("node_memory_used_bytes", help), memory.used.0 as f64)?;
        }
        if let Some(disk) = usage.disk {
            let help = "Used bytes of the file system that holds the data directory.";
            write_value(encoder, MetricKind::Gauge, ("node_disk_used_bytes", help), disk.used.0 as f64)?;
        }
        let counters = (self.sources.dns)();
        let events =
            counters.by_name().map(|(event, count)| (vec![("event", event.to_owned())], count as f64));
        let help = "Events of the DNS server of this node: queries, and what became of them.";
        write_series(encoder, MetricKind::Counter, ("worker_dns_events", help), events)
    }
}

/// Labels of a task's series.
fn labels(task: &TaskAssignment) -> MetricLabels {
    vec![
        ("task", task.id.to_string()),
        ("service", task.service.to_string()),
        ("slot", task.slot.to_string()),
    ]
}

fn write_counters(
    encoder: &mut DescriptorEncoder<'_>,
    desired_state: &DesiredState,
    counters_by_task: &BTreeMap<TaskId, TaskCounters>,
) -> fmt::Result {
    let mut write = |name: &str, help: &str, value: fn(&TaskCounters) -> u64| {
        let known = counters_by_task
            .iter()
            .filter_map(|(id, counters)| Some((desired_state.tasks.get(id)?, counters)));
        let series = known.map(|(task, counters)| (labels(task), value(counters) as f64));
        write_series(encoder, MetricKind::Counter, (name, help), series)
    };
    write("container_restarts", "Restarts of the container in place.", |counters| counters.restarts)?;
    write("container_health_checks", "Health checks run.", |counters| counters.checks)?;
    write("container_health_check_failures", "Health checks failed.", |counters| counters.check_failures)?;
    let help = "Exits after an out-of-memory kill.";
    write("container_oom_kills", help, |counters| counters.oom_kills)
}

fn write_usage(
    encoder: &mut DescriptorEncoder<'_>,
    desired_state: &DesiredState,
    samples: &BTreeMap<TaskId, TaskSample>,
) -> fmt::Result {
    let mut write = |kind, name: &str, help: &str, value: fn(&TaskSample) -> f64| {
        let known = samples.iter().filter_map(|(id, sample)| Some((desired_state.tasks.get(id)?, sample)));
        write_series(encoder, kind, (name, help), known.map(|(task, sample)| (labels(task), value(sample))))
    };
    let help = "CPU time used.";
    write(MetricKind::Counter, "container_cpu_seconds", help, |sample| sample.usage.cpu.as_secs_f64())?;
    let help = "Working set.";
    write(MetricKind::Gauge, "container_memory_bytes", help, |sample| sample.usage.memory as f64)?;
    let help = "Bytes received.";
    write(MetricKind::Counter, "container_network_receive_bytes", help, |sample| {
        sample.usage.received as f64
    })?;
    let help = "Bytes sent.";
    write(MetricKind::Counter, "container_network_transmit_bytes", help, |sample| sample.usage.sent as f64)?;
    let help = "Bytes read from block devices.";
    write(MetricKind::Counter, "container_block_read_bytes", help, |sample| sample.usage.read as f64)?;
    let help = "Bytes written to block devices.";
    write(MetricKind::Counter, "container_block_write_bytes", help, |sample| sample.usage.written as f64)
}

#[cfg(test)]
mod tests;
