//! Starts the manager, then the worker, and stops them in reverse order.

use std::time::Duration;

use warren_bootstrap::ca::LocalAgent;
use warren_daemon::node_file::NodeFile;
use warren_daemon::{CommandError, ExitKind, HostInfo, ShutdownSignals, error_chain, notify_ready};
use warren_manager::Manager;
use warren_manager::config::LocalNode;
use warren_manager::process::{
    COMPONENT as MANAGER, LockState, ManagerSetup, ManagerStartOutcome, ManagerStartReason, await_unlock,
    ensure_member, keep_contexts_current, or_data_dir_in_use, removed_node, start, superseded_node,
    wait_failed,
};
use warren_security::{Credentials, ReloadableCertificate, Roots, Trust};
use warren_telemetry::Telemetry;
use warren_types::{NodeDescription, Resources};
use warren_worker::Worker;
use warren_worker::process::{PART as WORKER, WorkerFlags, WorkerSetup, check, clear, ready};

use crate::output;

const WHAT: &str = "the node was not started";
/// How long the worker waits until the manager has contact with a leader or learns of its removal.
const LISTENER_DEADLINE: Duration = Duration::from_secs(3);

/// Settings of the worker of a node.
pub struct WorkerPlan {
    flags: WorkerFlags,
}

impl WorkerPlan {
    /// Checks that this machine can run a worker.
    pub fn new(flags: WorkerFlags, machine: &HostInfo) -> Result<Self, CommandError> {
        machine.ensure_root("run it as root, or give --manager-only")?;
        Ok(Self { flags })
    }
}

/// Starts the manager and the worker and runs them until a signal. `sections` are stored if this makes the machine a
/// manager. `ran` are the flags of the worker, also if no worker is to run.
pub async fn run(
    plan: ManagerSetup,
    (worker, ran): (Option<WorkerPlan>, Option<WorkerFlags>),
    occasion: &ManagerStartReason,
    sections: NodeFile,
) -> Result<(), CommandError> {
    // Before anything is started, so that no signal is missed.
    let mut signals = ShutdownSignals::listen(WHAT)?;
    let mut cleared = clean_up_if_removed(&plan, ran.as_ref(), &mut signals).await?;
    let ended = run_parts(&plan, (worker, ran.as_ref()), occasion, sections, &mut signals).await;
    let Err(mut failure) = ended else { return Ok(()) };
    if cleared.is_none() {
        cleared = clean_up_if_removed(&plan, ran.as_ref(), &mut signals).await?;
    }
    if let Some(cleared) = cleared.filter(|_| failure.kind == ExitKind::NotFound) {
        failure.why += &format!("; {cleared}");
    }
    Err(failure)
}

/// Stops the containers of a node whose manager was removed from the cluster, since its tasks were replaced on other
/// nodes, and describes what was stopped. Repeatable, so the next start completes an interrupted cleanup. After a
/// forced new cluster the containers of the managers left out stay: an operator may have forced the wrong manager and
/// return to this one.
async fn clean_up_if_removed(
    plan: &ManagerSetup,
    flags: Option<&WorkerFlags>,
    signals: &mut ShutdownSignals,
) -> Result<Option<String>, CommandError> {
    match removed_node(&plan.data_dir)? {
        Some(node) => clean_up_node(plan, flags, node, signals).await.map(Some),
        None => Ok(None),
    }
}

/// Stops the containers that this machine ran as the node with these credentials, and describes what was stopped.
async fn clean_up_node(
    plan: &ManagerSetup,
    flags: Option<&WorkerFlags>,
    (credentials, roots): (Credentials, Roots),
    signals: &mut ShutdownSignals,
) -> Result<String, CommandError> {
    let Some(flags) = flags else {
        let what = "this machine may still have containers; start it again with --manager-only=false to stop and \
                    remove them";
        return Ok(what.to_owned());
    };
    let setup = WorkerSetup {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        managers: Vec::new(),
        certificate: ReloadableCertificate::new(&credentials),
        trust: Trust::new(&roots)
            .map_err(|error| CommandError::new(ExitKind::Failed, WHAT, error_chain(&error), ""))?,
        membership: None,
        address: Some(plan.advertise_host.clone()),
        flags: flags.clone(),
    };
    clear(setup, "the manager on this machine was removed from its cluster", signals).await
}

async fn run_parts(
    plan: &ManagerSetup,
    (worker, ran): (Option<WorkerPlan>, Option<&WorkerFlags>),
    occasion: &ManagerStartReason,
    sections: NodeFile,
    signals: &mut ShutdownSignals,
) -> Result<(), CommandError> {
    // Missing requirements of the worker are reported before a cluster is created.
    if let Some(worker) = &worker {
        check(&plan.data_dir, &plan.run_dir, &worker.flags).await?;
    }
    let node = worker.as_ref().map(|worker| local_node(plan, worker));
    let telemetry =
        Telemetry::with_components(if worker.is_some() { &[MANAGER, WORKER] } else { &[MANAGER] });
    let served = plan.metrics_listen.serve(&telemetry).await;
    let _server = served.map_err(|failure| or_data_dir_in_use(&plan.data_dir, failure))?;
    // The worker is the node that a locked key belongs to. What runs in its containers does not need it.
    let LockState::Unlocked(unlock_key) = await_unlock(plan, &telemetry, signals).await? else {
        return Ok(());
    };
    // A successful join deletes these credentials; a refused one keeps them.
    let former = superseded_node(&plan.data_dir, unlock_key.as_ref())?;
    let begun = ensure_member(plan, occasion).await?;
    // Also for a resumed join: the earlier one may have been interrupted before this, or had another address.
    if matches!(occasion, ManagerStartReason::Join(_)) {
        sections.save()?;
    }
    if let (ManagerStartOutcome::Joined(_), Some(former)) = (&begun, former) {
        // The worker removes the rest once it receives the assignments of the new node.
        let cleared = clean_up_node(plan, ran, former, signals).await?;
        tracing::info!(cleared, "cleaned up after a node that was removed");
    }
    let mut manager = start(plan, node, &begun, unlock_key).await?;
    if begun == ManagerStartOutcome::Initialized {
        sections.save()?;
    }
    telemetry.add(MANAGER, manager.telemetry());
    notify_ready();
    let kept_up = keep_contexts_current(plan, &manager);
    let ended = tokio::select! {
        ended = serve(plan, worker, &begun, &mut manager, &telemetry, signals) => ended,
        never = kept_up => match never {},
    };
    manager.stop().await;
    ended
}

async fn serve(
    plan: &ManagerSetup,
    worker: Option<WorkerPlan>,
    begun: &ManagerStartOutcome,
    manager: &mut Manager,
    telemetry: &Telemetry,
    signals: &mut ShutdownSignals,
) -> Result<(), CommandError> {
    let worker = match worker {
        Some(worker) => {
            // A machine that just joined learns its node id from the cluster. A node that was removed while it was
            // down starts no earlier task, as long as other managers can be reached.
            let (agent, leader) = (manager.wait_for_agent(), manager.wait_for_leader(LISTENER_DEADLINE));
            let agent = tokio::select! {
                agent = async { tokio::join!(agent, leader).0 } => agent,
                () = signals.next() => return Ok(()),
                failure = wait_failed(plan, manager) => return Err(failure),
            };
            Some(start_worker(plan, worker.flags, manager, agent).await?)
        }
        None => None,
    };
    if let Some(worker) = &worker {
        telemetry.add(WORKER, worker.telemetry());
    }
    let ended = supervise(plan, begun, manager, worker.as_ref(), signals).await;
    tracing::info!("stopping; containers keep running");
    if let Some(worker) = worker
        && let Err(error) = worker.stop().await
    {
        tracing::warn!(error = error_chain(&error), "the worker did not stop cleanly");
    }
    ended
}

async fn supervise(
    plan: &ManagerSetup,
    begun: &ManagerStartOutcome,
    manager: &mut Manager,
    worker: Option<&Worker>,
    signals: &mut ShutdownSignals,
) -> Result<(), CommandError> {
    if *begun != ManagerStartOutcome::Resumed {
        let ready = async {
            match worker {
                Some(worker) => ready(worker).await,
                None => Ok(()),
            }
        };
        let ready = tokio::select! {
            ready = ready => ready,
            () = signals.next() => return Ok(()),
            failure = wait_failed(plan, manager) => return Err(failure),
        };
        print_started(plan, begun, manager, worker.is_some(), ready)?;
    }
    tokio::select! {
        () = signals.next() => Ok(()),
        failure = wait_failed(plan, manager) => Err(failure),
    }
}

/// What is known of the node until its agent says more with its first session.
fn local_node(plan: &ManagerSetup, worker: &WorkerPlan) -> LocalNode {
    let flags = &worker.flags;
    let resources =
        Resources { cpu: flags.cpus.unwrap_or_default(), memory: flags.memory.unwrap_or_default() };
    let description = NodeDescription {
        resources,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: plan.advertise_host.clone(),
        labels: flags.labels(),
        ..NodeDescription::default()
    };
    LocalNode { description, taints: flags.taints.clone() }
}

async fn start_worker(
    plan: &ManagerSetup,
    flags: WorkerFlags,
    manager: &Manager,
    agent: LocalAgent,
) -> Result<Worker, CommandError> {
    let worker = warren_worker::process::start(WorkerSetup {
        data_dir: plan.data_dir.clone(),
        run_dir: plan.run_dir.clone(),
        managers: vec![ManagerSetup::local_address(manager.address())],
        certificate: agent.live_certificate,
        trust: manager.trust(),
        membership: None,
        address: Some(plan.advertise_host.clone()),
        flags,
    })
    .await?;
    Ok(worker)
}

/// Writes the admin context and says what to try next.
fn print_started(
    plan: &ManagerSetup,
    begun: &ManagerStartOutcome,
    manager: &Manager,
    runs_tasks: bool,
    ready: Result<(), String>,
) -> Result<(), CommandError> {
    let Some(mut text) = plan.startup_message(manager, begun) else { return Ok(()) };
    match ready {
        Ok(()) if !runs_tasks => text += "this machine runs no tasks (--manager-only)\n",
        Ok(()) if *begun == ManagerStartOutcome::Initialized => {
            text += "try next:\n  \
                     warren image import web.tar\n  \
                     warren service create web --image web:1 --replicas 2 --publish 8088:80\n  \
                     warren service ps web\n";
        }
        Ok(()) => text += "see the managers with\n  warren manager ls\n",
        Err(lacks) => text += &format!("this machine accepts no tasks yet: {lacks}\n"),
    }
    output::print(&text)
}
