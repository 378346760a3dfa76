//! Sessions, services with thousands of tasks, the cost of idle workers, the loss of nodes, and the removal of a
//! service.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::nodes_client::NodesClient;

use super::fake_workers::FakeWorkers;
use super::group::{ManagerProcesses, SOON};
use super::services::{LOOK, connect, deploy};
use super::{ManagerBenchScale, endpoints, removal};
use crate::figures::BenchFigures;
use crate::node::{cpu_seconds, resident_mebibytes};

const ROUNDS: usize = 3;

/// The measurements with many workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerLoad {
    /// The time until all have sessions and a large service runs.
    Deploy,
    /// The memory of a manager's tasks.
    Memory,
    /// The cost of idle workers.
    Idle,
    /// The time until the tasks of lost nodes run elsewhere.
    Losses,
    /// The latency of other commands while a large service is removed.
    Removal,
    /// The time until all nodes know of a changed endpoint.
    Endpoints,
}

impl WorkerLoad {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Deploy, Self::Memory, Self::Idle, Self::Losses, Self::Removal, Self::Endpoints];

    /// The argument on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Deploy => "managers-deploy",
            Self::Memory => "managers-memory",
            Self::Idle => "managers-idle",
            Self::Losses => "managers-losses",
            Self::Removal => "managers-removal",
            Self::Endpoints => "managers-endpoints",
        }
    }
}

pub fn measure(figures: &mut BenchFigures, part: WorkerLoad, scale: ManagerBenchScale) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    match part {
        WorkerLoad::Deploy => {
            deployments(figures, &runtime, 3, scale.three, "< 1")?;
            deployments(figures, &runtime, 1, scale.default_limit, "")?;
            deployments(figures, &runtime, 1, scale.one, "< 3")
        }
        WorkerLoad::Memory => memory(figures, &runtime, scale),
        WorkerLoad::Idle => idle(figures, scale),
        WorkerLoad::Losses => losses(figures, &runtime, scale),
        WorkerLoad::Removal => removal::measure(figures, &runtime, scale),
        WorkerLoad::Endpoints => endpoints::measure(figures, &runtime, scale),
    }
}

/// Sessions of all workers, then a service until all its tasks run.
fn deployments(
    figures: &mut BenchFigures,
    runtime: &Runtime,
    managers: usize,
    (workers, replicas): (usize, u32),
    aim: &str,
) -> anyhow::Result<()> {
    let (mut sessions, mut running) = (Vec::new(), Vec::new());
    let (mut joined, mut spent) = (Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..ROUNDS {
        let group = ManagerProcesses::start(managers)?;
        let mut fakes = FakeWorkers::join(group.warren(), &group.addresses(), workers)?;
        joined.push(fakes.joined);
        let before = [group.cpu()?, fakes.cpu()?];
        sessions.push(fakes.open()?);
        spent[0].push(group.cpu()? - before[0]);
        spent[1].push(fakes.cpu()? - before[1]);
        let mut services = connect(&group, runtime)?;
        running.push(runtime.block_on(deploy(&mut services, replicas))?.as_secs_f64());
    }
    let who = format!("{managers} managers, {workers} workers");
    let opened = if workers >= 1_000 { "< 1" } else { "" };
    let [managers_spent, workers_spent] = &spent;
    figures.add_samples(&format!("{who}: joined, each over a connection of its own"), &joined, "s", "");
    figures.add_samples(&format!("{who}: sessions opened, TLS included"), &sessions, "s", opened);
    figures.add_samples(&format!("{who}: CPU of the managers for that"), managers_spent, "s", "");
    figures.add_samples(&format!("{who}: CPU of the workers for that"), workers_spent, "s", "");
    figures.add_samples(&format!("{who}: {replicas} replicas, create to all RUNNING"), &running, "s", aim);
    Ok(())
}

/// A manager with many tasks.
fn memory(figures: &mut BenchFigures, runtime: &Runtime, scale: ManagerBenchScale) -> anyhow::Result<()> {
    let group = ManagerProcesses::start(1)?;
    let workers = (scale.tasks / 100).max(1) as usize;
    let mut fakes = FakeWorkers::join(group.warren(), &group.addresses(), workers)?;
    fakes.open()?;
    let mut services = connect(&group, runtime)?;
    let before = resident_mebibytes(group.pid(0))?;
    for _ in 0..10 {
        runtime.block_on(deploy(&mut services, scale.tasks / 10))?;
    }
    let after = resident_mebibytes(group.pid(0))?;
    let what = format!("a manager with {} tasks that run on {workers} workers, RSS", scale.tasks);
    figures.add(&format!("{what} before"), before, "MiB", "");
    figures.add(&what, after, "MiB", "< 143 (150 MB)");
    Ok(())
}

/// Idle workers.
fn idle(figures: &mut BenchFigures, scale: ManagerBenchScale) -> anyhow::Result<()> {
    let group = ManagerProcesses::start(3)?;
    let mut fakes = FakeWorkers::join(group.warren(), &group.addresses(), scale.idle)?;
    let took = fakes.open()?;
    let (leader, [leads, follows]) = watch(&group, scale.observed_for)?;
    let what = format!("{} idle workers, 3 managers", scale.idle);
    figures.add(&format!("{what}: joined, each over a connection of its own"), fakes.joined, "s", "");
    figures.add(&format!("{what}: sessions opened"), took, "s", "");
    figures.add(&format!("{what}: the leader's CPU"), leads, "cores", "< 1");
    figures.add(&format!("{what}: a follower's CPU"), follows, "cores", "");
    figures.add(&format!("{what}: the leader's RSS"), resident_mebibytes(group.pid(leader))?, "MiB", "");
    Ok(())
}

/// The leader's index and the cores that it used in that time, and those of one follower. The leader is read
/// before and after; if it changed, the measurement is repeated.
fn watch(group: &ManagerProcesses, time: Duration) -> anyhow::Result<(usize, [f64; 2])> {
    let mut leader = group.wait_all_voters()?;
    for _ in 0..ROUNDS {
        let places = [leader, (leader + 1) % group.addresses().len()];
        let spent = || anyhow::Ok([cpu_seconds(group.pid(places[0]))?, cpu_seconds(group.pid(places[1]))?]);
        let before = spent()?;
        // Not a wait for something: what is measured is this time itself.
        std::thread::sleep(time);
        let after = spent()?;
        let leads = group.wait_all_voters()?;
        if leads == leader {
            return Ok((leader, [0, 1].map(|of| (after[of] - before[of]) / time.as_secs_f64())));
        }
        leader = leads;
    }
    bail!("in each of {ROUNDS} times {time:?} the leader changed")
}

/// Half of the workers fail: alone, and together with the leading manager, which had their sessions.
fn losses(figures: &mut BenchFigures, runtime: &Runtime, scale: ManagerBenchScale) -> anyhow::Result<()> {
    let (mut plain, mut with_leader) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(measure_loss(runtime, scale, false)?);
        with_leader.push(measure_loss(runtime, scale, true)?);
    }
    figures.add_samples("nodes lost until all their tasks run elsewhere", &plain, "s", "< 10");
    let what = "nodes lost together with the leader until all their tasks run elsewhere";
    figures.add_samples(what, &with_leader, "s", "< 15");
    Ok(())
}

/// Seconds until the tasks of the lost half run on the other one.
fn measure_loss(runtime: &Runtime, scale: ManagerBenchScale, also_leader: bool) -> anyhow::Result<f64> {
    let mut group = ManagerProcesses::start(3)?;
    let (workers, replicas) = scale.three;
    let leader = group.wait_all_voters()?;
    let addresses = group.addresses();
    let sessions_at = if also_leader { &addresses[leader..=leader] } else { &addresses };
    let mut lost = FakeWorkers::join(group.warren(), sessions_at, workers / 2)?;
    lost.open()?;
    let mut services = connect(&group, runtime)?;
    runtime.block_on(deploy(&mut services, replicas / 5))?;
    let mut kept = FakeWorkers::join_as(group.warren(), &addresses, workers / 2, "kept")?;
    kept.open()?;
    let moment = Instant::now();
    lost.pause()?;
    if also_leader {
        group.kill(leader);
    }
    let asked = (leader + usize::from(also_leader)) % addresses.len();
    let access = group.access();
    let channel = runtime.block_on(access.connect(addresses[asked])).map_err(anyhow::Error::msg)?;
    runtime.block_on(replaced(NodesClient::new(channel), replicas / 5))?;
    Ok(moment.elapsed().as_secs_f64())
}

/// Waits until that many tasks run on the remaining nodes. The manager may have no leader in the meantime.
async fn replaced(mut nodes: NodesClient<Channel>, replicas: u32) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let request = v1::ListRequest { page_size: 1_000, page_token: String::new() };
        let seen = match nodes.list(request).await {
            Ok(listed) => {
                let nodes = listed.into_inner().nodes;
                let kept = nodes.iter().filter(|node| node.name.starts_with("kept"));
                let tasks: u32 = kept.map(|node| node.tasks).sum();
                if tasks == replicas {
                    return Ok(());
                }
                format!("{tasks} of {replicas} tasks are elsewhere")
            }
            Err(status) => status.to_string(),
        };
        ensure!(start.elapsed() < SOON, "{seen} after {SOON:?}");
        // Not a wait for a condition: the next check.
        tokio::time::sleep(LOOK * 5).await;
    }
}
