//! The cost of a snapshot of a large state for concurrent writers: the pauses between applied commands, with
//! a snapshot and the compaction after it, and without.
//!
//! One cluster of [`TASKS`] tasks on a real log. Runs with and without a snapshot alternate, each with
//! writers that report states of tasks continuously; a pause is the time between two consecutive answers of
//! any writers.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use warren_core::{Command, FEATURE_LEVEL, NewTask, schedule_with_limit};
use warren_log::{DataDir, LogEngine};
use warren_security::seal::KeyFiles;
use warren_store::Store;
use warren_store::raft::open::{DriverExit, GroupConfig, OpenedStore, ReplicaTuning, open_store};
use warren_store::raft::snapshot::SnapshotThresholds;
use warren_types::{
    Bytes, ClusterId, DesiredTaskState, Health, Id, MilliCpu, NodeDescription, NodeId, NodeRole, Resources,
    ServiceId, ServiceMode, ServiceSpec, TaskId, TaskReport, TaskSpec, TaskState, Timestamp,
};

use crate::commits::driver::OWNER;
use crate::figures::BenchFigures;

const NODES: u32 = 1_000;
const SERVICES: u32 = 100;
const REPLICAS: u32 = 1_000;
const TASKS: u32 = SERVICES * REPLICAS;
const WRITERS: u32 = 32;
/// Pairs of runs; the first warms caches and is discarded.
const PAIRS: usize = 6;
/// Commands of one run, and the number of them after which the snapshot is due.
const COMMANDS: usize = 60_000;
const DUE: usize = 10_000;
const NOW: Timestamp = Timestamp(1_000);

pub fn measure(figures: &mut BenchFigures) -> anyhow::Result<()> {
    println!("\na snapshot of {TASKS} tasks while {WRITERS} writers go on");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let directory = tempfile::Builder::new().prefix("bench-").tempdir_in("target")?;
    let cluster = SnapshotBench { runtime, directory: directory.path().to_owned() };
    cluster.build()?;
    let mut pairs = Vec::new();
    for _ in 0..PAIRS {
        pairs.push((cluster.run(false)?, cluster.run(true)?));
    }
    let pairs = &pairs[1..];
    let bytes = cluster.snapshots()?.first().map_or(0, |(_, bytes)| *bytes);
    figures.add("the snapshot, sealed", bytes as f64 / f64::from(1 << 20), "MiB", "");
    for (name, of) in [("without", SnapshotMode::Without), ("with", SnapshotMode::With)] {
        let all = |figure: fn(&Pauses) -> f64| {
            pairs.iter().map(|pair| figure(of.in_pair(pair))).collect::<Vec<_>>()
        };
        figures.add_samples(&format!("commands, {name} a snapshot"), &all(|run| run.rate), "per second", "");
        let p999 = all(|run| run.quantile(0.999));
        figures.add_samples(&format!("pause between applies, {name} a snapshot: p99.9"), &p999, "ms", "");
        let longest = all(|run| run.quantile(1.0));
        figures.add_samples(
            &format!("pause between applies, {name} a snapshot: longest"),
            &longest,
            "ms",
            "",
        );
    }
    let more = |quantile: f64| {
        let more = pairs.iter().map(|(without, with)| with.quantile(quantile) - without.quantile(quantile));
        more.collect::<Vec<_>>()
    };
    figures.add_samples("longest pause that a snapshot adds, pair by pair", &more(1.0), "ms", "< 10");
    figures.add_samples("p99.9 of the pauses that a snapshot adds, pair by pair", &more(0.999), "ms", "");
    Ok(())
}

#[derive(Clone, Copy)]
enum SnapshotMode {
    Without,
    With,
}

impl SnapshotMode {
    fn in_pair(self, pair: &(Pauses, Pauses)) -> &Pauses {
        match self {
            Self::Without => &pair.0,
            Self::With => &pair.1,
        }
    }
}

/// The result of one run.
struct Pauses {
    rate: f64,
    /// Times between consecutive answers; sorted.
    sorted: Vec<Duration>,
}

impl Pauses {
    fn new(elapsed: Duration, mut answers: Vec<Instant>) -> Self {
        answers.sort_unstable();
        let mut sorted: Vec<_> = answers.windows(2).map(|pair| pair[1] - pair[0]).collect();
        sorted.sort_unstable();
        Self { rate: answers.len() as f64 / elapsed.as_secs_f64(), sorted }
    }

    /// In milliseconds.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1) as f64;
        self.sorted.get((last * share) as usize).map_or(0.0, |pause| pause.as_secs_f64() * 1000.0)
    }
}

struct SnapshotBench {
    runtime: Runtime,
    directory: PathBuf,
}

/// A running driver.
struct RunningDriver {
    store: Store,
    stop: CancellationToken,
    ended: DriverExit,
}

impl SnapshotBench {
    /// Opens the existing data; a snapshot is due `after` this many entries.
    fn open(&self, after: usize) -> anyhow::Result<RunningDriver> {
        let path = self.directory.join("manager");
        std::fs::create_dir_all(&path)?;
        let snapshots = SnapshotThresholds { bytes: usize::MAX, entries: after };
        let tuning = ReplicaTuning { snapshot_thresholds: snapshots, ..ReplicaTuning::default() };
        let (data_dir, stop) = (DataDir::open(&self.directory)?, CancellationToken::new());
        let OpenedStore { store, driver_exit: ended, .. } = open_store(
            data_dir,
            &KeyFiles::open(&path, None)?,
            (LogEngine::Redb, OWNER),
            tuning,
            GroupConfig::single(),
            stop.clone(),
        )?;
        self.runtime.block_on(async {
            let mut watch = store.watch(0);
            while !store.read().role.can_plan {
                // A missed change only causes another check.
                let _ = watch.next().await;
            }
        });
        Ok(RunningDriver { store, stop, ended })
    }

    fn close(&self, running: RunningDriver) -> anyhow::Result<()> {
        running.stop.cancel();
        Ok(self.runtime.block_on(running.ended)??)
    }

    /// Every snapshot's path and size.
    fn snapshots(&self) -> anyhow::Result<Vec<(PathBuf, u64)>> {
        let listed =
            std::fs::read_dir(self.directory.join("manager/snapshots")).context("listing snapshots")?;
        listed
            .map(|file| file.and_then(|file| Ok((file.path(), file.metadata()?.len()))))
            .map(|f| Ok(f?))
            .collect()
    }

    fn build(&self) -> anyhow::Result<()> {
        let running = self.open(usize::MAX)?;
        self.runtime.block_on(build(&running.store))?;
        self.close(running)
    }

    /// One run, on the state of the previous one.
    fn run(&self, with_snapshot: bool) -> anyhow::Result<Pauses> {
        // Entries replayed at the start count as well.
        let running = self.open(usize::MAX)?;
        let index = usize::try_from(running.store.read().index)?;
        let covered = self.snapshots()?.iter().map(|(path, _)| covered(path)).max().unwrap_or_default();
        self.close(running)?;
        let before = self.snapshots()?;
        let due = if with_snapshot { index - usize::try_from(covered)? + DUE } else { usize::MAX };
        let running = self.open(due)?;
        let start = Instant::now();
        let answers = self.runtime.block_on(write(&running.store))?;
        let pauses = Pauses::new(start.elapsed(), answers);
        let after = self.snapshots()?;
        ensure!((before != after) == with_snapshot, "a snapshot was due: {with_snapshot}, found {after:?}");
        self.close(running)?;
        Ok(pauses)
    }
}

/// The index in a snapshot's name.
fn covered(path: &Path) -> u64 {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let index = name.rsplit_once('-').map(|(_, index)| u64::from_str_radix(index, 16));
    index.and_then(Result::ok).unwrap_or_default()
}

async fn build(store: &Store) -> anyhow::Result<()> {
    let ranges = vec!["10.0.0.0/8".parse()?];
    store
        .propose(Command::CreateCluster {
            id: ClusterId(Id(1)),
            ranges,
            feature_level: FEATURE_LEVEL,
            at: NOW,
        })
        .await?;
    for number in 1..=NODES {
        let (id, name, description) = (node(number), format!("node-{number}").parse()?, description());
        let role = NodeRole::Worker;
        store
            .propose(Command::RegisterNode {
                id,
                name,
                role,
                description,
                taints: Default::default(),
                at: NOW,
            })
            .await?;
        store
            .propose(Command::OpenSession { node: id, description: self::description(), manager: 1, at: NOW })
            .await?;
    }
    let term = store.read().role.term;
    for number in 1..=SERVICES {
        let (id, spec) = (ServiceId(Id(number.into())), spec(number)?);
        store.propose(Command::CreateService { id, spec, at: NOW }).await?;
        let slots = (1..=REPLICAS).map(new_task).collect();
        store.propose(Command::CreateTasks { term, service: id, revision: 1, slots, at: NOW }).await?;
    }
    let placement = schedule_with_limit(&store.read().state, NOW, usize::MAX);
    ensure!(placement.assignments.len() == TASKS as usize, "everything fits");
    for placements in placement.assignments.chunks(1_000) {
        store.propose(Command::AssignTasks { term, placements: placements.to_vec(), at: NOW }).await?;
    }
    Ok(())
}

/// When each command of all writers was answered.
async fn write(store: &Store) -> anyhow::Result<Vec<Instant>> {
    let tasks: Vec<(TaskId, NodeId)> =
        store.read().state.tasks().filter_map(|task| Some((task.id, task.node?))).collect();
    // Attempts only increase; each run has its own.
    let attempt = 1 + store.read().state.tasks().map(|task| task.observed.attempt).max().unwrap_or_default();
    let writing = (0..WRITERS).map(|writer| {
        let (store, tasks) = (store.clone(), tasks.clone());
        tokio::spawn(async move {
            let mut answers = Vec::with_capacity(COMMANDS / WRITERS as usize);
            // Consecutive reports are far apart in the tree.
            let mine = tasks.iter().skip(writer as usize).step_by(WRITERS as usize).cycle();
            for (task, node) in mine.take(COMMANDS / WRITERS as usize) {
                store.propose(report(*task, *node, attempt)).await?;
                answers.push(Instant::now());
            }
            anyhow::Ok(answers)
        })
    });
    let mut answers = Vec::new();
    for writer in writing.collect::<Vec<_>>() {
        answers.extend(writer.await??);
    }
    Ok(answers)
}

fn new_task(slot: u32) -> NewTask {
    NewTask {
        slot,
        not_before: None,
        desired: DesiredTaskState::Running,
        replaces: None,
        bound_to: None,
        label_value: None,
    }
}

fn report(task: TaskId, node: NodeId, attempt: u32) -> Command {
    let report = TaskReport {
        task,
        attempt,
        state: TaskState::Running,
        since: NOW,
        reason: String::new(),
        ready: true,
        exit: None,
        removed: false,
        next_attempt: None,
        image: None,
        health: Health::None,
    };
    Command::ReportTasks { node, session: 1, reports: vec![report], at: NOW }
}

fn node(number: u32) -> NodeId {
    NodeId(Id(number.into()))
}

fn spec(number: u32) -> anyhow::Result<ServiceSpec> {
    let mut task = TaskSpec::new("web:1".parse()?);
    task.reservations = Resources { cpu: MilliCpu(10), memory: Bytes(16 << 20) };
    Ok(ServiceSpec {
        mode: ServiceMode::Replicated { replicas: REPLICAS },
        ..ServiceSpec::new(format!("service-{number}").parse()?, task)
    })
}

fn description() -> NodeDescription {
    NodeDescription {
        resources: Resources { cpu: MilliCpu(64_000), memory: Bytes(256 << 30) },
        architecture: "amd64".into(),
        kernel: "6.1".into(),
        runtime: "containerd 1.6.20".into(),
        version: "0.1.0".into(),
        address: "10.0.0.1:8080".into(),
        ..NodeDescription::default()
    }
}
