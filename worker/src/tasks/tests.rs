//! Agents on a machine that outlives them: fake containers, fake network, a real directory.

mod alone;
mod around;
mod crashes;
mod health;
mod image;
mod life;
mod mortal;
mod strays;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tokio::sync::{Notify, RwLock, Semaphore, watch};
use tokio::time::{sleep, timeout};
use warren_control::{Loops, Shutdown, SystemClock};
use warren_health::{Limits, Prober};
use warren_logger::Programs;
use warren_network::fake::FakeNetwork;
use warren_runtime::fake::Fake;
use warren_runtime::{Process, Runtime};
use warren_task::Wishes;
use warren_types::{TaskAssignment, TaskReport};
use warren_volume::Pins;
use warren_volume::fake::Fake as FakeVolumes;

use crate::handlers::contents::courier::fake::FakeCourier;
use crate::handlers::files::Directories;
use crate::handlers::images::fake::FakeImages;
use crate::handlers::ports::Ports;
use crate::handlers::volumes::Volumes;
use crate::node::health::Health;
use crate::node::metrics::WorkerMetrics;
use crate::samples::{image, images, settings, task_id};
use crate::scripted::{PATIENCE, at};
use crate::session::Standing;
use crate::tasks::checks::{Checking, Results};
use crate::tasks::reporter::Reporter;
use crate::tasks::supervisor::{Parts, Supervisor};
use crate::tasks::{Driver, Ground};
use around::{FakeContents, FakeExec};
use mortal::{Life, Mortal};

/// What an agent's death leaves.
struct Machine {
    runtime: Fake,
    images: FakeImages,
    courier: FakeCourier,
    network: Arc<FakeNetwork>,
    contents: FakeContents,
    volumes: Arc<FakeVolumes>,
    exec: Arc<FakeExec>,
    dir: TempDir,
}

/// One life of an agent.
struct Agent {
    life: Arc<Life>,
    shutdown: Shutdown,
    wishes: watch::Sender<Wishes>,
    standing: watch::Sender<Standing>,
    reporter: Arc<Reporter>,
    health: Arc<Health>,
    loops: Loops,
    checking: Arc<Checking>,
}

impl Machine {
    fn new() -> Self {
        let runtime = Fake::new();
        runtime.add_image(&image());
        let network = Arc::new(FakeNetwork::new("/run/none"));
        let (contents, volumes, exec) =
            (FakeContents::default(), Arc::new(FakeVolumes::new()), Arc::default());
        let dir = tempfile::tempdir().unwrap();
        let courier = FakeCourier::default();
        Self { runtime, images: images(), courier, network, contents, volumes, exec, dir }
    }

    /// An agent that knows `wishes` and dies as `life` says.
    fn agent(&self, wishes: Wishes, life: Arc<Life>) -> Agent {
        let shutdown = Shutdown::new();
        let (wishes, wanted) = watch::channel(wishes);
        let (ground, laid) = watch::channel(Ground::Awaited);
        let standing = watch::Sender::new(Standing::Attended);
        let network = Arc::new(Mortal::new(Arc::clone(&self.network), &life));
        let health = Arc::<Health>::default();
        let clock = Arc::new(SystemClock::new());
        let metrics = WorkerMetrics::default();
        let pins = Pins::new(self.dir.path().join("pins"));
        let volumes =
            Volumes::new(self.volumes.clone(), pins, Arc::new(self.runtime.clone()), wanted.clone());
        let prober = Prober::new(self.exec.clone(), Limits::of(1));
        let results = Results::default();
        let checking = Arc::new(Checking { prober, results, metrics: metrics.clone() });
        let driver = Driver {
            runtime: Arc::new(Mortal::new(self.runtime.clone(), &life)),
            network: network.clone(),
            images: Arc::new(self.images.clone()),
            courier: Arc::new(self.courier.clone()),
            programs: Programs {
                logger: "/none/logger".into(),
                init: "/none/init".into(),
                exec: "/none/exec".into(),
            },
            directories: Directories::new(self.dir.path().join("tasks")),
            ports: Ports::new(network),
            contents: Arc::new(Mortal::new(self.contents.clone(), &life)),
            volumes: Arc::new(volumes),
            checking: Arc::clone(&checking),
            wishes: wanted.clone(),
            cluster: settings().cluster,
            ground: laid,
            starts: Arc::new(Semaphore::new(4)),
            laying: RwLock::default(),
            botched: Notify::new(),
        };
        let supervisor = Supervisor::new(Parts {
            driver,
            clock: clock.clone(),
            shutdown: shutdown.clone(),
            wishes: wanted,
            health: Arc::clone(&health),
            metrics,
            ground,
            standing: standing.subscribe(),
        });
        let chance: warren_control::Chance = Arc::new(|| u64::MAX / 2);
        let loops = Loops::new(shutdown.clone(), clock, Arc::clone(&chance));
        supervisor.start(&loops, &chance);
        let reporter = supervisor.reporter();
        Agent { life, shutdown, wishes, standing, reporter, health, loops, checking }
    }

    /// An agent that lives until it is killed.
    fn immortal(&self, wishes: Wishes) -> Agent {
        self.agent(wishes, Life::endless())
    }

    /// The pid of a task's running process.
    async fn pid(&self, number: u64) -> Option<u32> {
        let found = self.runtime.list().await.unwrap();
        let of_task = found.into_iter().find(|found| found.id.as_str() == task_id(number).to_string())?;
        match of_task.process {
            Process::Running { pid } => Some(pid),
            _ => None,
        }
    }

    /// Everything that is left of tasks.
    async fn left(&self) -> Vec<String> {
        let mut left: Vec<String> = Vec::new();
        left.extend(self.runtime.list().await.unwrap().iter().map(|found| format!("container {}", found.id)));
        left.extend(self.runtime.orphans().iter().map(|id| format!("orphan {id}")));
        left.extend(self.network.tasks().keys().map(|task| format!("network {task}")));
        left.extend(self.network.ports().keys().map(|port| format!("port {port}")));
        let entries = std::fs::read_dir(self.dir.path().join("tasks"));
        let names = entries.into_iter().flatten().map(|entry| entry.unwrap().file_name());
        left.extend(self.contents.tasks().iter().map(|task| format!("contents of {task}")));
        left.extend(names.map(|name| format!("directory {}", name.display())));
        left
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.life.end();
        self.shutdown.token().cancel();
    }
}

impl Agent {
    /// Ends the agent at once, whatever it is doing.
    async fn kill(self) {
        self.life.end();
        self.shutdown.stop(Duration::ZERO).await.ok();
    }

    /// Tells it what managers want now.
    fn want(&self, tasks: Vec<TaskAssignment>) {
        self.wishes.send_modify(|wishes| *wishes = wishing(tasks));
    }

    /// The first report of a task that is as wanted.
    async fn until(&self, number: u64, wanted: impl Fn(&TaskReport) -> bool) -> TaskReport {
        let mut last = None;
        let found = timeout(PATIENCE * 10, async {
            loop {
                last = self.reporter.newest(&task_id(number));
                if let Some(report) = last.as_ref().filter(|report| wanted(report)) {
                    return report.clone();
                }
                // Between two looks; the loop has a deadline.
                sleep(Duration::from_millis(5)).await;
            }
        });
        let found = found.await;
        found.unwrap_or_else(|_| panic!("the last report was {last:?}"))
    }

    async fn ready(&self, number: u64) -> TaskReport {
        self.until(number, |report| report.ready).await
    }

    async fn removed(&self, number: u64) -> TaskReport {
        self.until(number, |report| report.removed).await
    }
}

/// What a manager said.
fn wishing(tasks: Vec<TaskAssignment>) -> Wishes {
    let tasks: BTreeMap<_, _> = tasks.into_iter().map(|task| (task.id, Arc::new(task))).collect();
    Wishes { settings: Some(settings()), version: at(1), tasks, confirmed: true }
}

/// What the cache knew, before any manager was heard.
fn cached(tasks: Vec<TaskAssignment>) -> Wishes {
    Wishes { confirmed: false, ..wishing(tasks) }
}

/// Waits until something is so.
async fn eventually<F: Future<Output = bool>>(what: &str, so: impl Fn() -> F) {
    let waiting = async {
        while !so().await {
            // Between two looks; the loop has a deadline.
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE * 10, waiting).await.unwrap_or_else(|_| panic!("never {what}"));
}
