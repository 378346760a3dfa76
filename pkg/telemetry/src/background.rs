//! Metrics and probes of background tasks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use warren_control::{BackgroundTaskState, BackgroundTaskStatus, BackgroundTasks, Clock};

use crate::probe::StatusProbe;
use crate::series::{MetricKind, MetricLabels, write_series};

/// Runs, failures and durations of all background tasks of a registry, as `<prefix>_…{loop}`.
pub struct BackgroundTaskMetrics {
    prefix: &'static str,
    tasks: BackgroundTasks,
}

impl BackgroundTaskMetrics {
    /// A collector with a name prefix like `warren_controller`.
    pub fn new(prefix: &'static str, background_tasks: BackgroundTasks) -> Self {
        Self { prefix, tasks: background_tasks }
    }
}

impl fmt::Debug for BackgroundTaskMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BackgroundTaskMetrics").field(&self.prefix).finish()
    }
}

impl Collector for BackgroundTaskMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let background_tasks = self.tasks.snapshot();
        let mut write = |kind, name: &str, help: &str, value: &dyn Fn(&BackgroundTaskStatus) -> f64| {
            let labels =
                |status: &BackgroundTaskStatus| -> MetricLabels { vec![("task", status.name.to_owned())] };
            let series = background_tasks.iter().map(|status| (labels(status), value(status)));
            write_series(&mut encoder, kind, (&format!("{}_{name}", self.prefix), help), series)
        };
        write(MetricKind::Counter, "runs", "Total runs, including failed runs.", &|status| {
            status.runs as f64
        })?;
        write(MetricKind::Counter, "failures", "Total failed runs.", &|status| status.failures as f64)?;
        let help = "Total run time in seconds.";
        write(MetricKind::Counter, "duration_seconds", help, &|status| status.total_duration.as_secs_f64())?;
        let help = "Duration of the latest run in seconds.";
        let last = |status: &BackgroundTaskStatus| status.last_duration.unwrap_or_default().as_secs_f64();
        write(MetricKind::Gauge, "last_duration_seconds", help, &last)
    }
}

/// Whether the background task `name` has started a run within `limit`, which must exceed its interval plus the
/// deadlines of one run.
pub fn background_task_probe(
    name: &'static str,
    background_tasks: BackgroundTasks,
    clock: Arc<dyn Clock>,
    limit: Duration,
) -> StatusProbe {
    StatusProbe::new(name, move || {
        let status = background_tasks.snapshot().into_iter().find(|status| status.name == name);
        std::future::ready(check_progress(status.as_ref(), clock.unix_millis(), limit))
    })
}

fn check_progress(status: Option<&BackgroundTaskStatus>, now: u64, limit: Duration) -> Result<(), String> {
    let Some(status) = status.filter(|status| status.state != BackgroundTaskState::Stopped) else {
        return Err("background task is not running".to_owned());
    };
    let began = status.last_run_unix_millis.ok_or("background task has not run yet")?;
    let ago = Duration::from_millis(now.saturating_sub(began));
    match ago <= limit {
        true => Ok(()),
        false => Err(format!("last run started {} s ago", ago.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use warren_control::{ManualClock, Shutdown};

    use super::*;
    use crate::component::{Telemetry, TelemetryComponent};

    const LIMIT: Duration = Duration::from_secs(60);

    struct BackgroundFixture {
        clock: Arc<ManualClock>,
        shutdown: Shutdown,
        background_tasks: BackgroundTasks,
    }

    fn world() -> BackgroundFixture {
        let (clock, shutdown) = (Arc::new(ManualClock::new(1_000)), Shutdown::new());
        let tasks_run = BackgroundTasks::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
        BackgroundFixture { clock, shutdown, background_tasks: tasks_run }
    }

    impl BackgroundFixture {
        /// A loop whose every run takes two seconds, and the first of which has ended.
        async fn run_once(&self) {
            let (clock, (ran, mut runs)) = (self.clock.clone(), tokio::sync::mpsc::unbounded_channel());
            self.background_tasks.spawn("relist", Duration::from_secs(3600), move || {
                clock.advance(Duration::from_secs(2));
                ran.send(()).unwrap();
                std::future::ready(Err::<(), _>(io::Error::other("away")))
            });
            runs.recv().await.unwrap();
            while self.background_tasks.snapshot()[0].runs == 0 {
                tokio::task::yield_now().await;
            }
        }

        async fn unhealthy(&self) -> Vec<String> {
            let probe =
                background_task_probe("relist", self.background_tasks.clone(), self.clock.clone(), LIMIT);
            let telemetry = Telemetry::with_components(&[]);
            telemetry
                .add("worker", TelemetryComponent { health: vec![probe], ..TelemetryComponent::default() });
            telemetry.unhealthy().await
        }
    }

    #[tokio::test]
    async fn task_is_healthy_while_it_starts_runs() {
        let world = world();
        assert_eq!(world.unhealthy().await, ["worker: relist: background task is not running"]);
        world.run_once().await;
        assert!(world.unhealthy().await.is_empty());
        world.clock.advance(LIMIT);
        assert_eq!(world.unhealthy().await, ["worker: relist: last run started 62 s ago"]);
        world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(world.unhealthy().await, ["worker: relist: background task is not running"]);
    }

    #[tokio::test]
    async fn loops_are_counted_and_timed() {
        let world = world();
        world.run_once().await;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(BackgroundTaskMetrics::new(
            "warren_background_task",
            world.background_tasks.clone(),
        )));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "warren_background_task_runs_total{task=\"relist\"} 1.0",
            "warren_background_task_failures_total{task=\"relist\"} 1.0",
            "warren_background_task_duration_seconds_total{task=\"relist\"} 2.0",
            "warren_background_task_last_duration_seconds{task=\"relist\"} 2.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
    }
}
