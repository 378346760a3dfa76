//! What a scrape shows.

use std::time::Duration;

use warren_control::{Shutdown, SystemClock};
use warren_runtime::fake::Fake;
use warren_runtime::{ContainerId, Usage};
use warren_telemetry::{Part, Telemetry};
use warren_types::{Exit, Health, Timestamp};

use super::*;
use crate::samples::{task, task_id};

struct World {
    fake: Fake,
    wishes: watch::Sender<Wishes>,
    metrics: WorkerMetrics,
    stats: Arc<Stats>,
    loops: Loops,
    telemetry: Telemetry,
}

fn wanted(numbers: &[u64]) -> Wishes {
    let tasks = numbers.iter().map(|number| (task_id(*number), Arc::new(task(*number)))).collect();
    Wishes { tasks, ..Wishes::default() }
}

impl World {
    fn new() -> Self {
        let (fake, metrics) = (Fake::new(), WorkerMetrics::default());
        let (wishes, receiver) = watch::channel(wanted(&[1, 2]));
        let stats = Arc::new(Stats::new(Arc::new(fake.clone()), receiver.clone()));
        let loops = Loops::new(Shutdown::new(), Arc::new(SystemClock::new()), Arc::new(|| 0));
        let meter = Arc::new(Meter::new("/".into()));
        let sources = Sources { stats: stats.clone(), meter, wishes: receiver, loops: loops.clone() };
        let telemetry = Telemetry::of(&[]);
        telemetry.add("worker", Part { metrics: register(&metrics, sources), ..Part::default() });
        Self { fake, wishes, metrics, stats, loops, telemetry }
    }

    fn text(&self) -> String {
        self.telemetry.metrics().unwrap()
    }

    /// The value of a series, by its whole name.
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
    TaskReport {
        task: task_id(number),
        attempt,
        state,
        since: Timestamp(0),
        reason: String::new(),
        ready: false,
        exit: Some(Exit { code: 137, out_of_memory: true }),
        removed: false,
        next_attempt: None,
        image: None,
        health: Health::None,
    }
}

#[tokio::test]
async fn a_worker_without_tasks_shows_the_machine() {
    let world = World::new();
    for name in ["worker_heartbeat_failures_total", "worker_tasks_running", "worker_task_failures_total"] {
        assert_eq!(world.value(name), Some(0.0), "{name}");
    }
    assert!(
        world.value("node_memory_used_bytes").unwrap() > 1e6
            && world.value("node_disk_used_bytes").unwrap() > 0.0
    );
    assert_eq!(world.value("node_cpu_used"), Some(0.0));
    assert_eq!(world.value("worker_task_start_duration_seconds_count"), Some(0.0));
    assert!(!world.text().contains("container_"), "{}", world.text());
}

#[tokio::test]
async fn what_happens_to_tasks_moves_their_series_until_they_are_gone() {
    let world = World::new();
    let now = Instant::now();
    for (state, attempt) in [(TaskState::Preparing, 1), (TaskState::Running, 1), (TaskState::Running, 2)] {
        world.metrics.saw(&report(1, state, attempt), now);
    }
    world.metrics.saw(&report(2, TaskState::Preparing, 1), now);
    world.metrics.saw(&report(2, TaskState::Failed, 1), now);
    world.metrics.checked(task_id(1), false);
    world.metrics.checked(task_id(1), true);
    assert_eq!(world.value("worker_tasks_running"), Some(1.0));
    assert_eq!(world.value("worker_task_failures_total"), Some(1.0));
    assert_eq!(world.value("worker_task_start_duration_seconds_count"), Some(1.0));
    for (name, first, second) in [
        ("container_restarts_total", 1.0, 0.0),
        ("health_checks_total", 2.0, 0.0),
        ("health_check_failures_total", 1.0, 0.0),
        ("container_oom_kills_total", 1.0, 1.0),
    ] {
        assert_eq!((world.of_task(name, 1), world.of_task(name, 2)), (Some(first), Some(second)), "{name}");
    }
    world.wishes.send_replace(wanted(&[1]));
    assert_eq!(world.of_task("container_restarts_total", 2), None, "nobody wants it any more");
    world.metrics.forget(&task_id(1));
    assert!(!world.text().contains("container_"));
}

#[tokio::test]
async fn usage_is_that_of_the_last_look() {
    let world = World::new();
    let id = ContainerId::parse(&task_id(1).to_string()).unwrap();
    let usage = Usage {
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
    world.stats.look(Instant::now());
    for (name, value) in [
        ("container_cpu_seconds_total", 2.5),
        ("container_memory_bytes", 4096.0),
        ("container_network_receive_bytes_total", 1.0),
        ("container_network_transmit_bytes_total", 2.0),
        ("container_block_read_bytes_total", 3.0),
        ("container_block_written_bytes_total", 4.0),
    ] {
        assert_eq!((world.of_task(name, 1), world.of_task(name, 2)), (Some(value), None), "{name}");
    }
    world.fake.set_usage(&id, None);
    world.stats.look(Instant::now());
    assert_eq!(world.of_task("container_cpu_seconds_total", 1), None);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_fail_that_cannot_be_sent_and_that_nobody_is_there_for() {
    let world = World::new();
    world.metrics.heartbeat_missed();
    let handle = world.loops.spawn(HEARTBEAT, Duration::from_secs(5), || async {
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
