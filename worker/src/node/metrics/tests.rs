//! Content of a scrape.

use std::time::Duration;

use warren_control::{Shutdown, SystemClock};
use warren_runtime::fake::FakeRuntime;
use warren_runtime::{ContainerId, ContainerUsage};
use warren_telemetry::{Telemetry, TelemetryComponent};
use warren_types::TaskExit;
use warren_types::fixtures::task_report;

use super::*;
use crate::fixtures::{task, task_id};

struct Fixture {
    fake: FakeRuntime,
    desired_state: watch::Sender<DesiredState>,
    metrics: WorkerMetrics,
    stats: Arc<TaskStats>,
    background_tasks: BackgroundTasks,
    telemetry: Telemetry,
}

fn desired(numbers: &[u64]) -> DesiredState {
    let tasks = numbers.iter().map(|number| (task_id(*number), Arc::new(task(*number)))).collect();
    DesiredState { tasks, ..DesiredState::default() }
}

impl Fixture {
    fn new() -> Self {
        let (fake, metrics) = (FakeRuntime::new(), WorkerMetrics::default());
        let (desired_state, receiver) = watch::channel(desired(&[1, 2]));
        let stats = Arc::new(TaskStats::new(Arc::new(fake.clone()), receiver.clone()));
        let tasks_run = BackgroundTasks::new(Shutdown::new(), Arc::new(SystemClock::new()), Arc::new(|| 0));
        let meter = Arc::new(NodeMeter::new("/".into()));
        let sources = MetricSources {
            stats: stats.clone(),
            meter,
            desired_state: receiver,
            background_tasks: tasks_run.clone(),
            dns: Arc::new(|| DnsCounters { queries: 3, ..DnsCounters::default() }),
        };
        let telemetry = Telemetry::with_components(&[]);
        telemetry.add(
            "worker",
            TelemetryComponent { metrics: register(&metrics, sources), ..TelemetryComponent::default() },
        );
        Self { fake, desired_state, metrics, stats, background_tasks: tasks_run, telemetry }
    }

    fn text(&self) -> String {
        self.telemetry.metrics().unwrap()
    }

    /// The value of a series, by its full name.
    fn value(&self, series: &str) -> Option<f64> {
        let text = self.text();
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }

    fn of_task(&self, name: &str, number: u64) -> Option<f64> {
        self.value(&format!("{name}{{task=\"{}\",service=\"web\",slot=\"{number}\"}}", task_id(number)))
    }
}

fn report(number: u64, state: TaskState, attempt: u32) -> TaskReport {
    let exit = Some(TaskExit { code: 137, out_of_memory: true });
    TaskReport { exit, ..task_report(task_id(number), attempt, state) }
}

#[tokio::test]
async fn worker_without_tasks_shows_node_usage() {
    let world = Fixture::new();
    for name in ["worker_heartbeat_failures_total", "worker_tasks_running", "worker_task_failures_total"] {
        assert_eq!(world.value(name), Some(0.0), "{name}");
    }
    assert_eq!(world.value("worker_dns_events_total{event=\"queries\"}"), Some(3.0));
    assert_eq!(world.value("worker_dns_events_total{event=\"upstream_timeouts\"}"), Some(0.0));
    assert!(
        world.value("node_memory_used_bytes").unwrap() > 1e6
            && world.value("node_disk_used_bytes").unwrap() > 0.0
    );
    assert_eq!(world.value("node_cpu_used_cores"), Some(0.0));
    assert_eq!(world.value("worker_task_start_duration_seconds_count"), Some(0.0));
    assert!(!world.text().contains("container_"), "{}", world.text());
}

#[tokio::test]
async fn task_series_change_and_disappear_with_task() {
    let world = Fixture::new();
    let now = Instant::now();
    for (state, attempt) in [(TaskState::Preparing, 1), (TaskState::Running, 1), (TaskState::Running, 2)] {
        world.metrics.record_report(&report(1, state, attempt), now);
    }
    world.metrics.record_report(&report(2, TaskState::Preparing, 1), now);
    world.metrics.record_report(&report(2, TaskState::Failed, 1), now);
    world.metrics.record_check(task_id(1), false);
    world.metrics.record_check(task_id(1), true);
    assert_eq!(world.value("worker_tasks_running"), Some(1.0));
    assert_eq!(world.value("worker_task_failures_total"), Some(1.0));
    assert_eq!(world.value("worker_task_start_duration_seconds_count"), Some(1.0));
    for (name, first, second) in [
        ("container_restarts_total", 1.0, 0.0),
        ("container_health_checks_total", 2.0, 0.0),
        ("container_health_check_failures_total", 1.0, 0.0),
        ("container_oom_kills_total", 1.0, 1.0),
    ] {
        assert_eq!((world.of_task(name, 1), world.of_task(name, 2)), (Some(first), Some(second)), "{name}");
    }
    world.desired_state.send_replace(desired(&[1]));
    assert_eq!(world.of_task("container_restarts_total", 2), None, "it is not desired any more");
    world.metrics.forget(&task_id(1));
    assert!(!world.text().contains("container_"));
}

#[tokio::test]
async fn usage_is_last_sample() {
    let world = Fixture::new();
    let id = ContainerId::parse(&task_id(1).to_string()).unwrap();
    let usage = ContainerUsage {
        cpu: Duration::from_millis(2500),
        memory: 4096,
        received: 1,
        sent: 2,
        read: 3,
        written: 4,
        pids: 5,
    };
    world.fake.set_usage(&id, Some(usage));
    assert_eq!(world.of_task("container_cpu_seconds_total", 1), None);
    world.stats.sample(Instant::now());
    for (name, value) in [
        ("container_cpu_seconds_total", 2.5),
        ("container_memory_bytes", 4096.0),
        ("container_network_receive_bytes_total", 1.0),
        ("container_network_transmit_bytes_total", 2.0),
        ("container_block_read_bytes_total", 3.0),
        ("container_block_write_bytes_total", 4.0),
    ] {
        assert_eq!((world.of_task(name, 1), world.of_task(name, 2)), (Some(value), None), "{name}");
    }
    world.fake.set_usage(&id, None);
    world.stats.sample(Instant::now());
    assert_eq!(world.of_task("container_cpu_seconds_total", 1), None);
}

#[tokio::test(start_paused = true)]
async fn unsent_and_missed_heartbeats_are_counted() {
    let world = Fixture::new();
    world.metrics.record_missed_heartbeat();
    let handle = world.background_tasks.spawn(HEARTBEAT, Duration::from_secs(5), || async {
        Err::<(), _>(std::io::Error::other("the session is over"))
    });
    let failed = async {
        while world.value("worker_heartbeat_failures_total") != Some(3.0) {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), failed).await.unwrap();
    handle.stop();
}
