//! What the scheduler did.

use std::time::Duration;

use warren_telemetry::{Counter, Histogram, Registry, fractions_of_a_second};

/// Counts the scheduler's runs.
#[derive(Debug, Clone)]
pub struct SchedulerMetrics {
    runs: Counter,
    placed: Counter,
    duration: Histogram,
}

impl Default for SchedulerMetrics {
    fn default() -> Self {
        let duration = Histogram::new(fractions_of_a_second());
        Self { runs: Counter::default(), placed: Counter::default(), duration }
    }
}

impl SchedulerMetrics {
    /// It ran for so long, and found a node for so many tasks.
    pub fn ran(&self, took: Duration, placed: usize) {
        self.runs.inc();
        self.placed.inc_by(placed as u64);
        self.duration.observe(took.as_secs_f64());
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        let Self { runs, placed, duration } = self.clone();
        registry.register("warren_scheduler_runs", "Plans that the scheduler made", runs);
        registry.register("warren_scheduler_placed", "Tasks that the scheduler found a node for", placed);
        registry.register("warren_scheduler_duration_seconds", "How long a plan took", duration);
    }
}
