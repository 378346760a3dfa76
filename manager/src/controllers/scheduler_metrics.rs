//! Scheduler metrics.

use std::time::Duration;

use warren_telemetry::{Counter, Histogram, Registry, short_latency_buckets};

/// Counts the scheduler's runs.
#[derive(Debug, Clone)]
pub struct SchedulerMetrics {
    runs: Counter,
    placed_tasks: Counter,
    duration: Histogram,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        let duration = Histogram::new(short_latency_buckets());
        Self { runs: Counter::default(), placed_tasks: Counter::default(), duration }
    }
}

impl SchedulerMetrics {
    /// Records a run, its duration and the number of assigned tasks.
    pub fn record_run(&self, took: Duration, placed: usize) {
        self.runs.inc();
        self.placed_tasks.inc_by(placed as u64);
        self.duration.observe(took.as_secs_f64());
    }

    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        let Self { runs, placed_tasks: placed, duration } = self.clone();
        registry.register("warren_scheduler_runs", "Scheduler runs", runs);
        registry.register("warren_scheduler_placed_tasks", "Tasks assigned by the scheduler", placed);
        registry.register("warren_scheduler_duration_seconds", "Duration of a scheduler run", duration);
    }
}
