//! What the registry of background loops says of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use warren_control::{Clock, LoopState, LoopStatus, Loops};

use crate::probe::Probe;
use crate::series::{Kind, Labels, write_series};

/// Runs, failures and durations of all loops of a registry, as `<prefix>_…{loop}`.
pub struct LoopMetrics {
    prefix: &'static str,
    loops: Loops,
}

impl LoopMetrics {
    /// Of `loops`, with names that begin with `prefix`: `warren_controller`.
    pub fn new(prefix: &'static str, loops: Loops) -> Self {
        Self { prefix, loops }
    }
}

impl fmt::Debug for LoopMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LoopMetrics").field(&self.prefix).finish()
    }
}

impl Collector for LoopMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let loops = self.loops.snapshot();
        let mut write = |kind, name: &str, help: &str, value: &dyn Fn(&LoopStatus) -> f64| {
            let labels = |status: &LoopStatus| -> Labels { vec![("loop", status.name.to_owned())] };
            let series = loops.iter().map(|status| (labels(status), value(status)));
            write_series(&mut encoder, kind, (&format!("{}_{name}", self.prefix), help), series)
        };
        write(Kind::Counter, "runs", "Runs that ended, failed ones included.", &|status| status.runs as f64)?;
        write(Kind::Counter, "failures", "Runs that ended in an error.", &|status| status.failures as f64)?;
        let help = "Time that the runs took.";
        write(Kind::Counter, "duration_seconds", help, &|status| status.total_duration.as_secs_f64())?;
        let help = "How long the latest run took.";
        let last = |status: &LoopStatus| status.last_duration.unwrap_or_default().as_secs_f64();
        write(Kind::Gauge, "last_duration_seconds", help, &last)
    }
}

/// Whether the loop `name`, which shall run without an end, has begun a run within `patience`: more than its interval
/// and the deadlines of one run together.
pub fn loop_probe(name: &'static str, loops: Loops, clock: Arc<dyn Clock>, patience: Duration) -> Probe {
    Probe::new(name, move || {
        let status = loops.snapshot().into_iter().find(|status| status.name == name);
        std::future::ready(progress(status.as_ref(), clock.unix_millis(), patience))
    })
}

fn progress(status: Option<&LoopStatus>, now: u64, patience: Duration) -> Result<(), String> {
    let Some(status) = status.filter(|status| status.state != LoopState::Stopped) else {
        return Err("the loop does not run".to_owned());
    };
    let began = status.last_run_unix_millis.ok_or("the loop has not run yet")?;
    let ago = Duration::from_millis(now.saturating_sub(began));
    match ago <= patience {
        true => Ok(()),
        false => Err(format!("the loop began its last run {} s ago", ago.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;
    use warren_control::{ManualClock, Shutdown};

    use super::*;
    use crate::part::{Part, Telemetry};

    const PATIENCE: Duration = Duration::from_secs(60);

    struct World {
        clock: Arc<ManualClock>,
        shutdown: Shutdown,
        loops: Loops,
    }

    fn world() -> World {
        let (clock, shutdown) = (Arc::new(ManualClock::new(1_000)), Shutdown::new());
        let loops = Loops::new(shutdown.clone(), clock.clone(), Arc::new(|| 0));
        World { clock, shutdown, loops }
    }

    impl World {
        /// A loop whose every run takes two seconds, and the first of which has ended.
        async fn run_once(&self) {
            let (clock, (ran, mut runs)) = (self.clock.clone(), tokio::sync::mpsc::unbounded_channel());
            self.loops.spawn("relist", Duration::from_secs(3600), move || {
                clock.advance(Duration::from_secs(2));
                ran.send(()).unwrap();
                std::future::ready(Err::<(), _>(io::Error::other("away")))
            });
            runs.recv().await.unwrap();
            while self.loops.snapshot()[0].runs == 0 {
                tokio::task::yield_now().await;
            }
        }

        async fn unhealthy(&self) -> Vec<String> {
            let probe = loop_probe("relist", self.loops.clone(), self.clock.clone(), PATIENCE);
            let telemetry = Telemetry::of(&[]);
            telemetry.add("worker", Part { health: vec![probe], ..Part::default() });
            telemetry.unhealthy().await
        }
    }

    #[tokio::test]
    async fn a_loop_works_as_long_as_it_begins_new_runs() {
        let world = world();
        assert_eq!(world.unhealthy().await, ["worker: relist: the loop does not run"]);
        world.run_once().await;
        assert!(world.unhealthy().await.is_empty());
        world.clock.advance(PATIENCE);
        assert_eq!(world.unhealthy().await, ["worker: relist: the loop began its last run 62 s ago"]);
        world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(world.unhealthy().await, ["worker: relist: the loop does not run"]);
    }

    #[tokio::test]
    async fn loops_are_counted_and_timed() {
        let world = world();
        world.run_once().await;
        let mut registry = Registry::default();
        registry.register_collector(Box::new(LoopMetrics::new("warren_controller", world.loops.clone())));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "warren_controller_runs_total{loop=\"relist\"} 1.0",
            "warren_controller_failures_total{loop=\"relist\"} 1.0",
            "warren_controller_duration_seconds_total{loop=\"relist\"} 2.0",
            "warren_controller_last_duration_seconds{loop=\"relist\"} 2.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        world.shutdown.stop(Duration::from_secs(5)).await.unwrap();
    }
}
