//! Starts the manager and the worker, in this order, and ends them the other way round.

use warren_manager::Manager;
use warren_manager::config::LocalNode;
use warren_manager::process::{PART as MANAGER, Plan, failed, start};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, Machine, Signals, chain};
use warren_telemetry::Telemetry;
use warren_types::{NodeDescription, NodeName, Resources};
use warren_worker::Worker;
use warren_worker::process::{Flags, PART as WORKER, Setup, check, ready};

use crate::output;

const WHAT: &str = "the node was not started";

/// The worker's part of a node.
pub struct WorkerPlan {
    name: NodeName,
    flags: Flags,
}

impl WorkerPlan {
    /// What to start on this machine.
    pub fn new(flags: Flags, machine: &Machine) -> Result<Self, Failure> {
        machine.must_be_root("run it as root, or give --manager-only")?;
        Ok(Self { name: machine.node_name(flags.node_name.as_ref())?, flags })
    }
}

/// Starts what `plan` says and runs it until a signal. `init` is what to remember, when this is a `manager init`,
/// which also greets.
pub async fn run(plan: Plan, worker: Option<WorkerPlan>, init: Option<Sections>) -> Result<(), Failure> {
    // Before anything is started, so that no signal finds nobody listening.
    let mut signals = Signals::listen(WHAT)?;
    // What a worker lacks is said before a cluster is made.
    if let Some(worker) = &worker {
        check(&plan.data_dir, &plan.run_dir, &worker.flags).await?;
    }
    let node = worker.as_ref().map(|worker| local_node(&plan, worker));
    let telemetry = Telemetry::of(if worker.is_some() { &[MANAGER, WORKER] } else { &[MANAGER] });
    let _server = plan.metrics_listen.serve(&telemetry).await?;
    let mut manager = start(&plan, node, init.is_some()).await?;
    telemetry.add(MANAGER, manager.telemetry());
    let ended = serve(&plan, worker, init, &mut manager, &telemetry, &mut signals).await;
    manager.stop().await;
    ended
}

async fn serve(
    plan: &Plan,
    worker: Option<WorkerPlan>,
    init: Option<Sections>,
    manager: &mut Manager,
    telemetry: &Telemetry,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if let Some(sections) = &init {
        sections.remember()?;
    }
    let worker = match worker {
        Some(worker) => Some(start_worker(plan, worker.flags, manager).await?),
        None => None,
    };
    if let Some(worker) = &worker {
        telemetry.add(WORKER, worker.telemetry());
    }
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
        let ready = async {
            match worker {
                Some(worker) => ready(worker).await,
                None => Ok(()),
            }
        };
        let ready = tokio::select! {
            ready = ready => ready,
            () = signals.next() => return Ok(()),
        };
        greet(plan, manager, worker.is_some(), ready)?;
    }
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = failed(manager) => Err(failure),
    }
}

/// What is known of the node until its agent says more with its first session.
fn local_node(plan: &Plan, worker: &WorkerPlan) -> LocalNode {
    let WorkerPlan { name, flags } = worker;
    let resources =
        Resources { cpu: flags.cpus.unwrap_or_default(), memory: flags.memory.unwrap_or_default() };
    let description = NodeDescription {
        resources,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: plan.host.clone(),
        labels: flags.labels(),
        ..NodeDescription::default()
    };
    LocalNode { name: name.clone(), description }
}

async fn start_worker(plan: &Plan, flags: Flags, manager: &Manager) -> Result<Worker, Failure> {
    let Some((_, credentials)) = manager.node() else {
        let why = "the manager has no certificate for this machine's node";
        return Err(Failure::new(Exit::Failed, WHAT, why, "run `warren manager init` again"));
    };
    let worker = warren_worker::process::start(Setup {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        managers: vec![Plan::inner_address(manager.address())],
        credentials: credentials.clone(),
        roots: manager.roots(),
        membership: None,
        address: Some(plan.host.clone()),
        flags,
    })
    .await?;
    Ok(worker)
}

/// Writes the admin context and says what to try next.
fn greet(plan: &Plan, manager: &Manager, runs_tasks: bool, ready: Result<(), String>) -> Result<(), Failure> {
    let mut text = plan.greeting(manager);
    match ready {
        Ok(()) if !runs_tasks => text += "this machine runs no tasks (--manager-only)\n",
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
