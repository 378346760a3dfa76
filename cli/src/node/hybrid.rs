//! Starts the manager and the worker, in this order, and ends them the other way round.

use std::time::Duration;

use warren_manager::Manager;
use warren_manager::ca::LocalAgent;
use warren_manager::config::LocalNode;
use warren_manager::process::{
    Begun, Occasion, PART as MANAGER, Plan, begin, failed, keep_up, or_in_use, overtaken_node, removed_node,
    start,
};
use warren_process::settings::Sections;
use warren_process::{Exit, Failure, Machine, Signals, chain};
use warren_security::{Credentials, LiveCertificate, Roots};
use warren_telemetry::Telemetry;
use warren_types::{NodeDescription, Resources};
use warren_worker::Worker;
use warren_worker::process::{Flags, PART as WORKER, Setup, check, clear, ready};

use crate::output;

const WHAT: &str = "the node was not started";
/// How long a manager may take to hear of a leader, or that it was removed, before its worker starts without that.
const LISTEN: Duration = Duration::from_secs(3);

/// The worker's part of a node.
pub struct WorkerPlan {
    flags: Flags,
}

impl WorkerPlan {
    /// What to start on this machine.
    pub fn new(flags: Flags, machine: &Machine) -> Result<Self, Failure> {
        machine.must_be_root("run it as root, or give --manager-only")?;
        Ok(Self { flags })
    }
}

/// Starts what `plan` says and runs it until a signal. Where it becomes a manager by that, `sections` are remembered,
/// and it greets. `ran` is what the worker was told, also where none is to run.
pub async fn run(
    plan: Plan,
    (worker, ran): (Option<WorkerPlan>, Option<Flags>),
    occasion: &Occasion,
    sections: Sections,
) -> Result<(), Failure> {
    // Before anything is started, so that no signal finds nobody listening.
    let mut signals = Signals::listen(WHAT)?;
    let mut cleared = clear_if_removed(&plan, ran.as_ref(), &mut signals).await?;
    let ended = run_parts(&plan, (worker, ran.as_ref()), occasion, sections, &mut signals).await;
    let Err(mut failure) = ended else { return Ok(()) };
    if cleared.is_none() {
        cleared = clear_if_removed(&plan, ran.as_ref(), &mut signals).await?;
    }
    if let Some(cleared) = cleared.filter(|_| failure.exit == Exit::NotFound) {
        failure.why += &format!("; {cleared}");
    }
    Err(failure)
}

/// Stops what the worker of a manager ran that its cluster removed: nobody owns it any more, and its tasks run
/// elsewhere. Says in words what that was. After a process that did not finish it, the next one does. What one runs
/// that its cluster went on without stays: people may have forced the wrong manager, and make this one the cluster
/// again.
async fn clear_if_removed(
    plan: &Plan,
    flags: Option<&Flags>,
    signals: &mut Signals,
) -> Result<Option<String>, Failure> {
    match removed_node(&plan.data_dir)? {
        Some(node) => clear_node(plan, flags, node, signals).await.map(Some),
        None => Ok(None),
    }
}

/// Stops what this machine ran as the node that shows these, and says in words what that was.
async fn clear_node(
    plan: &Plan,
    flags: Option<&Flags>,
    (credentials, roots): (Credentials, Roots),
    signals: &mut Signals,
) -> Result<String, Failure> {
    let Some(flags) = flags else {
        let what = "this machine ran tasks once; start it once more with --manager-only=false, and what is left of \
                    them is stopped and removed";
        return Ok(what.to_owned());
    };
    let setup = Setup {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        managers: Vec::new(),
        certificate: LiveCertificate::new(&credentials),
        roots,
        membership: None,
        address: Some(plan.host.clone()),
        flags: flags.clone(),
    };
    clear(setup, "the manager on this machine is none of its cluster any more", signals).await
}

async fn run_parts(
    plan: &Plan,
    (worker, ran): (Option<WorkerPlan>, Option<&Flags>),
    occasion: &Occasion,
    sections: Sections,
    signals: &mut Signals,
) -> Result<(), Failure> {
    // What a worker lacks is said before a cluster is made.
    if let Some(worker) = &worker {
        check(&plan.data_dir, &plan.run_dir, &worker.flags).await?;
    }
    let node = worker.as_ref().map(|worker| local_node(plan, worker));
    let telemetry = Telemetry::of(if worker.is_some() { &[MANAGER, WORKER] } else { &[MANAGER] });
    let served = plan.metrics_listen.serve(&telemetry).await;
    let _server = served.map_err(|failure| or_in_use(&plan.data_dir, failure))?;
    // A join that is refused leaves all as it is; one that is not takes these away.
    let former = overtaken_node(&plan.data_dir)?;
    let begun = begin(plan, occasion).await?;
    // Also where nothing new begins: an earlier join may have been cut off before this, or said another address.
    if matches!(occasion, Occasion::Join(_)) {
        sections.remember()?;
    }
    if let (Begun::Joined(_), Some(former)) = (&begun, former) {
        // What is not done of it the worker does, as soon as it hears what is wanted of the new node.
        let cleared = clear_node(plan, ran, former, signals).await?;
        tracing::info!(cleared, "this machine has begun anew");
    }
    let mut manager = start(plan, node, &begun).await?;
    if begun == Begun::Founded {
        sections.remember()?;
    }
    telemetry.add(MANAGER, manager.telemetry());
    let kept_up = keep_up(plan, &manager);
    let ended = tokio::select! {
        ended = serve(plan, worker, &begun, &mut manager, &telemetry, signals) => ended,
        never = kept_up => match never {},
    };
    manager.stop().await;
    ended
}

async fn serve(
    plan: &Plan,
    worker: Option<WorkerPlan>,
    begun: &Begun,
    manager: &mut Manager,
    telemetry: &Telemetry,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let worker = match worker {
        Some(worker) => {
            // A machine that just joined finds out which node it is from the cluster. One that was removed while it
            // was down starts no task of before, as long as the others can be reached.
            let (agent, heard) = (manager.agent(), manager.hears_a_leader(LISTEN));
            let agent = tokio::select! {
                agent = async { tokio::join!(agent, heard).0 } => agent,
                () = signals.next() => return Ok(()),
                failure = failed(plan, manager) => return Err(failure),
            };
            Some(start_worker(plan, worker.flags, manager, agent).await?)
        }
        None => None,
    };
    if let Some(worker) = &worker {
        telemetry.add(WORKER, worker.telemetry());
    }
    let ended = watch_over(plan, begun, manager, worker.as_ref(), signals).await;
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
    begun: &Begun,
    manager: &mut Manager,
    worker: Option<&Worker>,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if *begun != Begun::Resumed {
        let ready = async {
            match worker {
                Some(worker) => ready(worker).await,
                None => Ok(()),
            }
        };
        let ready = tokio::select! {
            ready = ready => ready,
            () = signals.next() => return Ok(()),
            failure = failed(plan, manager) => return Err(failure),
        };
        greet(plan, begun, manager, worker.is_some(), ready)?;
    }
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = failed(plan, manager) => Err(failure),
    }
}

/// What is known of the node until its agent says more with its first session.
fn local_node(plan: &Plan, worker: &WorkerPlan) -> LocalNode {
    let flags = &worker.flags;
    let resources =
        Resources { cpu: flags.cpus.unwrap_or_default(), memory: flags.memory.unwrap_or_default() };
    let description = NodeDescription {
        resources,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: plan.host.clone(),
        labels: flags.labels(),
        ..NodeDescription::default()
    };
    LocalNode { description }
}

async fn start_worker(
    plan: &Plan,
    flags: Flags,
    manager: &Manager,
    agent: LocalAgent,
) -> Result<Worker, Failure> {
    let worker = warren_worker::process::start(Setup {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        managers: vec![Plan::inner_address(manager.address())],
        certificate: agent.live,
        roots: manager.roots(),
        membership: None,
        address: Some(plan.host.clone()),
        flags,
    })
    .await?;
    Ok(worker)
}

/// Writes the admin context and says what to try next.
fn greet(
    plan: &Plan,
    begun: &Begun,
    manager: &Manager,
    runs_tasks: bool,
    ready: Result<(), String>,
) -> Result<(), Failure> {
    let Some(mut text) = plan.greeting(manager, begun) else { return Ok(()) };
    match ready {
        Ok(()) if !runs_tasks => text += "this machine runs no tasks (--manager-only)\n",
        Ok(()) if *begun == Begun::Founded => {
            text += "try next:\n  \
                     warren image import web.tar\n  \
                     warren service create web --image web:1 --replicas 2 --publish 8088:80\n  \
                     warren service ps web\n";
        }
        Ok(()) => text += "see it with\n  warren manager ls\n",
        Err(lacks) => text += &format!("this machine takes no tasks yet: {lacks}\n"),
    }
    output::print(&text)
}
