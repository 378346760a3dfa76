//! Runs a worker until a signal, or until it was removed from its cluster: then its containers are stopped
//! first.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use warren_daemon::{CommandError, ExitKind, HostInfo, ShutdownSignals, error_chain, notify_ready, program};
use warren_security::{MembershipStore, ReloadableCertificate, Trust};
use warren_task::DesiredState;

use super::{MAX_ARCHIVE, NOT_STARTED, WorkerFlags, WorkerSettings, WorkerTelemetry, failed};
use crate::backends::{BackendConfig, HostBackends};
use crate::node::NodeOverrides;
use crate::session::{Removal, SessionRejection, removal_file};
use crate::worker::{Worker, WorkerConfig};

/// A session takes well under a second; a containerd that starts with it takes longer.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Command that completes an incomplete removal.
const RESUME_COMMAND: &str = "warren worker run";

/// Everything needed to start a worker.
#[derive(Debug)]
pub struct WorkerSetup {
    /// Directory for persistent state.
    pub data_dir: PathBuf,
    /// Directory for sockets and volatile state.
    pub run_dir: PathBuf,
    /// Known managers, each `host:port`.
    pub managers: Vec<String>,
    /// Certificate and key of this node.
    pub certificate: Arc<ReloadableCertificate>,
    /// What it trusts.
    pub trust: Arc<Trust>,
    /// Store for renewed certificates; `None` if the manager of this node renews them.
    pub membership: Option<MembershipStore>,
    /// Address for other machines; `None`: the source address of the connection to the manager.
    pub address: Option<String>,
    /// Flags of the worker.
    pub flags: WorkerFlags,
}

fn backend_config(data_dir: &Path, run_dir: &Path, flags: &WorkerFlags) -> BackendConfig {
    BackendConfig {
        containerd_socket: flags.containerd_socket.clone(),
        runtime: flags.runtime.clone(),
        insecure_registries: flags.insecure_registry.clone(),
        ..BackendConfig::new(data_dir, run_dir)
    }
}

/// Checks the requirements of a worker; changes nothing.
///
/// # Errors
/// A requirement is missing.
pub async fn check(data_dir: &Path, run_dir: &Path, flags: &WorkerFlags) -> Result<(), CommandError> {
    flags.check_labels()?;
    let config = backend_config(data_dir, run_dir, flags);
    HostBackends::check(&config).await.map_err(|error| failed(NOT_STARTED, &error, ""))
}

/// Adopts the containers on this machine and connects to a manager. Returns at once: see [`ready`]. Raises the limit of
/// open files of this process, and lowers its OOM score.
///
/// # Errors
/// The worker cannot start.
pub async fn start(setup: WorkerSetup) -> Result<Worker, CommandError> {
    if setup.membership.is_none() {
        // The machine is a manager: a removal record is from an earlier membership.
        super::remove_if_present(&removal_file(&setup.data_dir))
            .map_err(|error| failed(NOT_STARTED, &error, ""))?;
    }
    open(setup).await
}

/// As [`start`]; with a removal record the worker only removes its containers.
pub(super) async fn open(setup: WorkerSetup) -> Result<Worker, CommandError> {
    let WorkerSetup { data_dir, run_dir, managers, certificate, trust, membership, address, flags } = setup;
    flags.check_labels()?;
    warren_runtime::raise_open_files_limit();
    warren_runtime::lower_oom_score();
    // In the background: managers learn it when it is known.
    program::start_digest();
    // Nodes on one machine must not sweep each other's cgroups.
    let cgroup_parent = format!("/warren/{}", certificate.identity().id());
    let backends =
        HostBackends::open(&BackendConfig { cgroup_parent, ..backend_config(&data_dir, &run_dir, &flags) })
            .await;
    let backends = backends.map_err(|error| failed(NOT_STARTED, &error, ""))?;
    let labels = flags.labels();
    let config = WorkerConfig {
        data_dir,
        run_dir,
        managers,
        certificate,
        trust,
        overrides: NodeOverrides {
            cpu: flags.cpus,
            memory: flags.memory,
            address,
            labels,
            data_address: flags.data_address,
            network: flags.network(),
        },
        user_ids: flags.user_namespace_ids.unwrap_or_default(),
        max_archive_bytes: MAX_ARCHIVE,
        membership,
    };
    Worker::start(config, backends).await.map_err(|error| failed(NOT_STARTED, &error, ""))
}

/// Waits until the worker can run tasks.
///
/// # Errors
/// The missing condition, after a timeout.
pub async fn ready(worker: &Worker) -> Result<(), String> {
    let deadline = Instant::now() + READY_TIMEOUT;
    loop {
        match worker.ready() {
            Ok(()) => return Ok(()),
            Err(lacks) if Instant::now() >= deadline => return Err(lacks.to_string()),
            Err(_) => sleep(POLL_INTERVAL).await,
        }
    }
}

/// How a worker ended without an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkerEnd {
    /// By a signal.
    Stopped,
    /// It was removed from its cluster, and all its containers are removed.
    Removed {
        /// Record of the removal.
        removal: Removal,
        /// It was removed before this process started.
        before_start: bool,
    },
    /// It tried to resume, and no manager has a record of it.
    UnknownNode,
}

/// Why the worker is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WorkerStartReason {
    /// It just joined: message to print when it can run tasks.
    Joined(String),
    /// `join` on a machine that is a member already.
    Resumed,
    /// `run`, or a clean-up.
    Run,
}

/// Runs a worker that has joined.
pub(super) async fn run_joined(
    reported: &WorkerSettings,
    occasion: WorkerStartReason,
    shown: &WorkerTelemetry,
) -> Result<WorkerEnd, CommandError> {
    // Before anything is started, so that no signal is lost.
    let mut signals = ShutdownSignals::listen(NOT_STARTED)?;
    HostInfo::detect()?.ensure_root("run it as root")?;
    let (credentials, roots) = reported.load_membership()?;
    let trust = Trust::new(&roots).map_err(|error| failed(NOT_STARTED, &error, ""))?;
    let removal_record = reported.removal_record(&credentials)?;
    if let Some(removal) = removal_record.load().filter(|removal| removal.cleared) {
        return Ok(WorkerEnd::Removed { removal, before_start: true });
    }
    let worker = open(WorkerSetup {
        data_dir: reported.data_dir.clone(),
        run_dir: reported.run_dir(),
        managers: reported.managers(),
        certificate: ReloadableCertificate::new(&credentials),
        trust,
        membership: Some(reported.membership()),
        address: reported.joined.advertise.clone(),
        flags: reported.flags.clone(),
    })
    .await?;
    shown.register(&worker);
    notify_ready();
    let ended = tokio::select! {
        () = signals.next() => {
            tracing::info!("stopping; containers keep running");
            Ok(WorkerEnd::Stopped)
        }
        ended = run_to_end(&worker, occasion) => ended,
        never = watch_known_managers(reported, worker.desired_state()) => match never {},
    };
    let stopped = worker.stop().await.inspect_err(|error| {
        tracing::warn!(error = error_chain(error), "worker did not stop cleanly");
    });
    match ended {
        Ok(WorkerEnd::Removed { removal, before_start: before }) => {
            stopped.map_err(|error| cleanup_failure(&error, RESUME_COMMAND))?;
            // Without a record, which a full disk may have prevented, the number of containers is unknown.
            let removal = removal_record.load().unwrap_or(removal);
            if !removal.cleared {
                return Err(cleanup_failure(&ContainerReappeared, RESUME_COMMAND));
            }
            tracing::info!(
                containers = removal.containers,
                "all containers of this node are stopped and removed"
            );
            Ok(WorkerEnd::Removed { removal, before_start: before })
        }
        other => other,
    }
}

/// Saves the known managers whenever they change: other copies are only caches.
async fn watch_known_managers(
    reported: &WorkerSettings,
    mut desired_state: watch::Receiver<DesiredState>,
) -> std::convert::Infallible {
    let mut kept = reported.joined.known_managers.clone();
    loop {
        let settings = desired_state.borrow_and_update().settings.clone();
        let known = settings.map(|settings| settings.managers).unwrap_or_default();
        if !known.is_empty() && known != kept {
            kept.clone_from(&known);
            let data_dir = reported.data_dir.clone();
            let remember = move || super::save_known_managers(&data_dir, known);
            let remembered = tokio::task::spawn_blocking(remember).await;
            if let Err(failure) = remembered.expect("writing a file does not panic") {
                tracing::warn!(why = failure.why, "cannot save known managers");
            }
        }
        if desired_state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A container existed again when the worker ended: its creation was in progress.
#[derive(Debug, thiserror::Error)]
#[error("a container reappeared during removal")]
pub(super) struct ContainerReappeared;

/// Waits until the worker ends; a signal may come first.
async fn run_to_end(worker: &Worker, occasion: WorkerStartReason) -> Result<WorkerEnd, CommandError> {
    let resumed = occasion == WorkerStartReason::Resumed;
    let greet = async {
        if let WorkerStartReason::Joined(mut text) = occasion {
            if let Err(lacks) = ready(worker).await {
                text += &format!("this node cannot run tasks yet: {lacks}\n");
            }
            // The reader of stdout may be gone, which must not stop the worker.
            let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
        }
        std::future::pending::<std::convert::Infallible>().await
    };
    let rejection = async {
        let mut known = None;
        loop {
            match worker.wait_for_rejection(known).await {
                SessionRejection::Removed { reason, never_connected: before } => {
                    return Some((reason, before));
                }
                SessionRejection::Unknown { before: true, .. } if resumed => return None,
                // The node may become known again, for example after a restore from a newer backup.
                unknown @ SessionRejection::Unknown { .. } => known = Some(unknown),
            }
        }
    };
    let rejection = tokio::select! {
        never = greet => match never {},
        rejection = rejection => rejection,
    };
    let Some((reason, before)) = rejection else { return Ok(WorkerEnd::UnknownNode) };
    worker.wait_for_cleanup().await.map_err(|error| cleanup_failure(&error, RESUME_COMMAND))?;
    Ok(WorkerEnd::Removed { removal: Removal { reason, containers: 0, cleared: true }, before_start: before })
}

/// The error for a node that was removed and cleaned up.
pub(super) fn removed_failure(removal: &Removal) -> CommandError {
    let why = format!("{}; {}", removal.reason, cleared_message(removal));
    let hint = "join again with `warren worker join HOST:PORT --token TOKEN`";
    CommandError::new(ExitKind::NotFound, "this node was removed from its cluster", why, hint)
}

/// Summary of the clean-up.
pub(super) fn cleared_message(removal: &Removal) -> String {
    match removal.containers {
        0 => "it had no containers".to_owned(),
        1 => "its container was stopped and removed".to_owned(),
        containers => format!("its {containers} containers were stopped and removed"),
    }
}

pub(super) fn cleanup_failure(error: &dyn std::error::Error, again: &str) -> CommandError {
    let what = "this node was removed from its cluster, but some local state could not be removed";
    CommandError::new(
        ExitKind::Failed,
        what,
        error_chain(error),
        format!("fix the cause, then complete it with `{again}`"),
    )
}
