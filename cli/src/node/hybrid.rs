//! Starts the manager and the worker, in this order, and ends them the other way round.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep};
use warren_client::{Context, Contexts, Identity, PrivateKey, Target};
use warren_manager::Manager;
use warren_manager::config::{Config, LocalNode};
use warren_manager::manager::StartError;
use warren_manager::raft::restore::RestoreError;
use warren_security::LiveCertificate;
use warren_types::{NodeDescription, Resources};
use warren_worker::{Doors, NodeOverrides, Place, Worker};

use super::plan::{Plan, WorkerPlan};
use super::settings::{chain, remember};
use crate::args::Settings;
use crate::failure::{Exit, Failure};
use crate::output;

const WHAT: &str = "the node was not started";
/// From nothing to a session takes well under a second; a containerd that starts with it some more.
const READY_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The largest archive that `image import` may bring.
const MAX_ARCHIVE: u64 = 16 << 30;

/// Starts what `plan` says and runs it until a signal. `init` is what to remember and to greet with, when
/// this is a `manager init`.
pub async fn run(plan: Plan, init: Option<Settings>) -> Result<(), Failure> {
    // Before anything is started, so that no signal finds nobody listening.
    let mut signals = Signals::listen()?;
    // What a worker lacks is said before a cluster is made.
    if let Some(worker) = &plan.worker {
        let failed = |error| Failure::new(Exit::Failed, WHAT, chain(&error), "");
        Doors::check(&place(&plan, worker)).await.map_err(failed)?;
    }
    let manager = Manager::start(config(&plan), init.is_some()).await;
    let mut manager = manager.map_err(|error| not_started(&error))?;
    let ended = serve(&plan, init, &mut manager, &mut signals).await;
    manager.stop().await;
    ended
}

async fn serve(
    plan: &Plan,
    init: Option<Settings>,
    manager: &mut Manager,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if let Some(settings) = &init {
        remember(&plan.data_dir, settings)?;
    }
    let worker = match &plan.worker {
        Some(wanted) => Some(start_worker(plan, wanted, manager).await?),
        None => None,
    };
    let ended = watch_over(plan, init.is_some(), manager, worker.as_ref(), signals).await;
    tracing::info!("stopping; containers keep running");
    if let Some(worker) = worker
        && let Err(error) = worker.stop().await
    {
        tracing::warn!(error = chain(&error), "the worker did not stop in an orderly way");
    }
    ended
}

async fn watch_over(
    plan: &Plan,
    init: bool,
    manager: &mut Manager,
    worker: Option<&Worker>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if init {
        let ready = tokio::select! {
            ready = ready(worker) => ready,
            () = signals.next() => return Ok(()),
        };
        greet(plan, manager, ready)?;
    }
    tokio::select! {
        () = signals.next() => Ok(()),
        error = manager.failed() => {
            Err(Failure::new(Exit::Failed, "the manager cannot go on", chain(&error), "see its log above"))
        }
    }
}

fn place(plan: &Plan, worker: &WorkerPlan) -> Place {
    Place { containerd_socket: worker.containerd_socket.clone(), ..Place::new(&plan.data_dir, &plan.run_dir) }
}

fn config(plan: &Plan) -> Config {
    let local =
        |worker: &WorkerPlan| LocalNode { name: worker.name.clone(), description: describe(plan, worker) };
    Config {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        listen: plan.listen,
        ranges: plan.ranges.clone(),
        node: plan.worker.as_ref().map(local),
        log_engine: plan.log_engine,
    }
}

/// What is known of the node until its agent says more with its first session.
fn describe(plan: &Plan, worker: &WorkerPlan) -> NodeDescription {
    NodeDescription {
        resources: Resources {
            cpu: worker.cpus.unwrap_or_default(),
            memory: worker.memory.unwrap_or_default(),
        },
        architecture: String::new(),
        kernel: String::new(),
        runtime: String::new(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: plan.host.clone(),
    }
}

async fn start_worker(plan: &Plan, wanted: &WorkerPlan, manager: &Manager) -> Result<Worker, Failure> {
    let doors_failed = |error| Failure::new(Exit::Failed, WHAT, chain(&error), "");
    // Clusters on one machine must not sweep each other's cgroups.
    let cgroup_parent = format!("/warren/{}", manager.cluster());
    let place = Place { cgroup_parent, ..place(plan, wanted) };
    let doors = Doors::open(&place).await.map_err(doors_failed)?;
    let Some((_, credentials)) = manager.node() else {
        let why = "the manager has no certificate for this machine's node";
        return Err(Failure::new(Exit::Failed, WHAT, why, "run `warren manager init` again"));
    };
    let config = warren_worker::Config {
        data_dir: plan.data_dir.clone(),
        managers: vec![Plan::inner_address(manager.address())],
        certificate: LiveCertificate::new(credentials),
        roots: manager.roots(),
        overrides: NodeOverrides {
            cpu: wanted.cpus,
            memory: wanted.memory,
            address: Some(plan.host.clone()),
        },
        max_archive: MAX_ARCHIVE,
    };
    let failed = |error| Failure::new(Exit::Failed, WHAT, chain(&error), "");
    let worker = Worker::start(config, doors).await.map_err(failed)?;
    manager.show_loops(worker.loops().clone());
    Ok(worker)
}

/// Waits until the worker takes tasks; answers what it still lacks when it takes too long.
async fn ready(worker: Option<&Worker>) -> Result<(), String> {
    let Some(worker) = worker else { return Ok(()) };
    let deadline = Instant::now() + READY_WITHIN;
    loop {
        match worker.ready() {
            Ok(()) => return Ok(()),
            Err(lacks) if Instant::now() >= deadline => return Err(lacks.to_string()),
            Err(_) => sleep(LOOK_EVERY).await,
        }
    }
}

fn not_started(error: &StartError) -> Failure {
    let exit = match error {
        StartError::Restore(RestoreError::Log(warren_log::Error::OtherEngine { .. })) => Exit::Conflict,
        StartError::Log(warren_log::Error::InUse { .. }) => Exit::Conflict,
        StartError::Log(error) if error.is_out_of_space() => Exit::Failed,
        StartError::Log(warren_log::Error::NotWritable { .. }) => Exit::Denied,
        _ => Exit::Failed,
    };
    Failure::new(exit, WHAT, chain(error), "")
}

/// Writes the admin context and says what to try next.
fn greet(plan: &Plan, manager: &Manager, ready: Result<(), String>) -> Result<(), Failure> {
    let cluster = manager.cluster().to_string();
    let mut text = format!("cluster {cluster} is served at {}\n", plan.advertised(manager.address()));
    match write_context(plan, manager) {
        Ok((name, file)) => text += &format!("admin context {name:?} is in {file}\n"),
        // The socket still works for root, and the node has other work than this.
        Err(failure) => tracing::warn!("no admin context was written: {failure}"),
    }
    match ready {
        Ok(()) if plan.worker.is_none() => text += "this machine runs no tasks (--manager-only)\n",
        Ok(()) => {
            text += "try next:\n  \
                     warren image import web.tar\n  \
                     warren service create web --image web:1 --replicas 2 --publish 8088:80\n  \
                     warren service ps web\n";
        }
        Err(lacks) => text += &format!("this machine takes no tasks yet: {lacks}\n"),
    }
    output::print(&text)
}

fn write_context(plan: &Plan, manager: &Manager) -> Result<(String, String), Failure> {
    let what = "the context was not written";
    let file = crate::connect::contexts_file(what)?;
    let admin = manager.admin();
    let identity = Identity {
        ca: manager.roots().pem().to_owned(),
        certificate: admin.certificate_pem().to_owned(),
        key: PrivateKey(admin.key().pem().to_owned()),
    };
    let failed = |error| Failure::of_client(what, error);
    let address = plan.advertised(manager.address());
    let address = address.parse().map_err(|why| Failure::new(Exit::Usage, what, why, "see --advertise"))?;
    let known = Contexts::load(&file).map_err(failed)?;
    let name = context_name(&known, &identity, &manager.cluster().to_string());
    let context = Context { name: name.clone(), target: Target::Tcp { address, identity } };
    Contexts::ensure(&file, context).map_err(failed)?;
    Ok((name, file.display().to_string()))
}

/// `default`, unless that is another cluster's.
fn context_name(known: &Contexts, own: &Identity, cluster: &str) -> String {
    match known.get("default").map(|context| &context.target) {
        Some(Target::Tcp { identity, .. }) if identity.ca != own.ca => crate::view::short_id(cluster),
        Some(Target::Unix { .. }) => crate::view::short_id(cluster),
        _ => "default".to_owned(),
    }
}

/// What ends a node.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let failed = |error| Failure::new(Exit::Failed, WHAT, error, "free some resources");
        let terminate = signal(SignalKind::terminate()).map_err(failed)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        Ok(Self { terminate, interrupt })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
