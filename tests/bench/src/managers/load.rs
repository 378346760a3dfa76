//! Sessions, services of thousands of tasks, what idle workers cost, and the loss of nodes.

use std::time::{Duration, Instant};

use anyhow::ensure;
use rand::RngExt;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::services_client::ServicesClient;
use warren_types::Id;

use super::Scale;
use super::fakes::Fakes;
use super::group::{Group, SOON};
use crate::figures::Figures;
use crate::node::{cpu_seconds, resident_mebibytes};

const ROUNDS: usize = 3;
/// Between two looks at a service.
const LOOK: Duration = Duration::from_millis(4);

/// What is asked of many workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// How soon they have sessions, and a large service runs.
    Deploy,
    /// What the tasks of a manager take.
    Memory,
    /// What workers cost that do nothing.
    Idle,
    /// How soon the tasks of lost nodes run elsewhere.
    Losses,
}

impl Load {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Deploy, Self::Memory, Self::Idle, Self::Losses];

    /// The word on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Deploy => "managers-deploy",
            Self::Memory => "managers-memory",
            Self::Idle => "managers-idle",
            Self::Losses => "managers-losses",
        }
    }
}

pub fn measure(figures: &mut Figures, part: Load, scale: Scale) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    match part {
        Load::Deploy => {
            deployments(figures, &runtime, 3, scale.three, "< 1")?;
            deployments(figures, &runtime, 1, scale.one, "< 3")
        }
        Load::Memory => memory(figures, &runtime, scale),
        Load::Idle => idle(figures, scale),
        Load::Losses => losses(figures, &runtime, scale),
    }
}

/// Sessions of all workers, then a service until all its tasks run.
fn deployments(
    figures: &mut Figures,
    runtime: &Runtime,
    managers: usize,
    (workers, replicas): (usize, u32),
    aim: &str,
) -> anyhow::Result<()> {
    let (mut sessions, mut running) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let group = Group::start(managers)?;
        let mut fakes = Fakes::join(group.warren(), &group.addresses(), workers)?;
        sessions.push(fakes.open()?);
        let mut services = connect(&group, runtime)?;
        running.push(runtime.block_on(deploy(&mut services, replicas))?.as_secs_f64());
    }
    let who = format!("{managers} managers, {workers} workers");
    let opened = if workers >= 1_000 { "< 1" } else { "" };
    figures.add_samples(&format!("{who}: sessions opened, TLS included"), &sessions, "s", opened);
    figures.add_samples(&format!("{who}: {replicas} replicas, create to all RUNNING"), &running, "s", aim);
    Ok(())
}

/// A manager with many tasks.
fn memory(figures: &mut Figures, runtime: &Runtime, scale: Scale) -> anyhow::Result<()> {
    let group = Group::start(1)?;
    let workers = (scale.tasks / 100).max(1) as usize;
    let mut fakes = Fakes::join(group.warren(), &group.addresses(), workers)?;
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

/// Workers that do nothing.
fn idle(figures: &mut Figures, scale: Scale) -> anyhow::Result<()> {
    let group = Group::start(3)?;
    let mut fakes = Fakes::join(group.warren(), &group.addresses(), scale.idle)?;
    let took = fakes.open()?;
    let leader = group.wait_whole()?;
    let others: Vec<usize> = (0..3).filter(|place| *place != leader).collect();
    let cpu = |place: usize| cpu_seconds(group.pid(place));
    let before = [cpu(leader)?, cpu(others[0])?];
    // Not a wait for something: what is measured is this time itself.
    std::thread::sleep(scale.watched);
    let share = |now: f64, before: f64| (now - before) / scale.watched.as_secs_f64();
    let what = format!("{} idle workers, 3 managers", scale.idle);
    figures.add(&format!("{what}: sessions opened"), took, "s", "");
    figures.add(&format!("{what}: the leader's CPU"), share(cpu(leader)?, before[0]), "cores", "< 1");
    figures.add(&format!("{what}: a follower's CPU"), share(cpu(others[0])?, before[1]), "cores", "");
    figures.add(&format!("{what}: the leader's RSS"), resident_mebibytes(group.pid(leader))?, "MiB", "");
    Ok(())
}

/// Half of the workers fall silent.
fn losses(figures: &mut Figures, runtime: &Runtime, scale: Scale) -> anyhow::Result<()> {
    let mut seconds = Vec::new();
    for _ in 0..ROUNDS {
        let group = Group::start(3)?;
        let (workers, replicas) = scale.three;
        let mut lost = Fakes::join(group.warren(), &group.addresses(), workers / 2)?;
        lost.open()?;
        let mut services = connect(&group, runtime)?;
        runtime.block_on(deploy(&mut services, replicas / 5))?;
        let mut kept = Fakes::join_as(group.warren(), &group.addresses(), workers / 2, "kept")?;
        kept.open()?;
        let moment = Instant::now();
        lost.fall_silent()?;
        runtime.block_on(replaced(&group, replicas / 5))?;
        seconds.push(moment.elapsed().as_secs_f64());
    }
    figures.add_samples("nodes lost until all their tasks run elsewhere", &seconds, "s", "< 10");
    Ok(())
}

fn connect(group: &Group, runtime: &Runtime) -> anyhow::Result<ServicesClient<Channel>> {
    let address = group.addresses()[group.wait_whole()?];
    let channel = runtime.block_on(group.access().connect(address)).map_err(anyhow::Error::msg)?;
    Ok(ServicesClient::new(channel))
}

/// Creates a service and waits until all its tasks run.
async fn deploy(services: &mut ServicesClient<Channel>, replicas: u32) -> anyhow::Result<Duration> {
    let id = Id(rand::rng().random()).to_string();
    let spec = v1::ServiceSpec {
        name: format!("s-{id}"),
        mode: Some(v1::service_spec::Mode::Replicated(v1::Replicated { replicas: replicas.into() })),
        task: Some(v1::TaskSpec { image: "web:1".into(), ..Default::default() }),
        ..Default::default()
    };
    let start = Instant::now();
    services.create(v1::CreateServiceRequest { id: id.clone(), spec: Some(spec) }).await?;
    loop {
        let service = services.get(v1::Reference { reference: id.clone() }).await?.into_inner();
        if service.running == replicas {
            return Ok(start.elapsed());
        }
        ensure!(start.elapsed() < SOON, "{} of {replicas} tasks run after {SOON:?}", service.running);
        // Not a wait for something: the next look.
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until so many tasks run on the nodes that are left.
async fn replaced(group: &Group, replicas: u32) -> anyhow::Result<()> {
    let address = group.addresses()[group.wait_whole()?];
    let channel = group.access().connect(address).await.map_err(anyhow::Error::msg)?;
    let mut nodes = v1::nodes_client::NodesClient::new(channel);
    let start = Instant::now();
    loop {
        let listed =
            nodes.list(v1::ListRequest { page_size: 1_000, page_token: String::new() }).await?.into_inner();
        let kept = listed.nodes.iter().filter(|node| node.name.starts_with("kept"));
        let tasks: u32 = kept.map(|node| node.tasks).sum();
        if tasks == replicas {
            return Ok(());
        }
        ensure!(start.elapsed() < SOON, "{tasks} of {replicas} tasks are elsewhere after {SOON:?}");
        // Not a wait for something: the next look.
        tokio::time::sleep(LOOK * 5).await;
    }
}
