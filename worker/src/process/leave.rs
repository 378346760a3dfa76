//! Leaves the cluster: drains the node, removes it from the cluster, stops its containers, and finally
//! removes the local membership. With `--offline`, for a cluster that no longer exists, only the latter two.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};
use warren_daemon::{CommandError, ExitKind, HostInfo, MetricsArgs, error_chain};
use warren_network::NamespaceLock;
use warren_proto::v1;
use warren_proto::v1::membership_client::MembershipClient;
use warren_security::{Credentials, ReloadableCertificate, client_config};

use super::run::{WorkerEnd, WorkerStartReason};
use super::{WorkerFlags, WorkerLeaveArgs, WorkerSettings, WorkerTelemetry, failed, join, not_a_worker, run};
use crate::cache::{AssignmentCache, cache_files};
use crate::certificate::{RenewalError, request_certificate};
use crate::session::{ManagerConnection, Removal, RemovalRecord, SessionRejection, SharedDialer, TlsDialer};
use crate::worker::node_identity;

const NOT_LEFT: &str = "cannot leave the cluster";
/// Hint when no manager answers.
const NO_MANAGER: &str = "check that a manager runs, then try again; if its cluster is gone for good, \
                          `warren worker leave --offline` clears this machine";
/// Hint when managers refuse to renew the certificate.
const NOT_RENEWED: &str =
    "remove the node with `warren node rm`; then `warren worker leave --offline` clears this machine";
const REASON: &str = "node left the cluster";
/// Error summary when the cluster part is done and the local part failed.
const LEFT_INCOMPLETE: &str = "left the cluster, but some local state could not be removed";
/// Interval between queries of the remaining tasks.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

pub(super) async fn leave(args: WorkerLeaveArgs) -> Result<(), CommandError> {
    let WorkerLeaveArgs { dirs, force, offline, deadline } = args;
    let data_dir = dirs.data_dir.clone();
    let settings = WorkerSettings::load(dirs, MetricsArgs::default(), WorkerFlags::default())?
        .ok_or_else(|| not_a_worker(&data_dir))?;
    HostInfo::detect()?.ensure_root("run it as root")?;
    let (credentials, roots) = settings.load_membership()?;
    let removal_record = settings.removal_record(&credentials)?;
    // A removed node has left, and its managers may not exist any more.
    if offline {
        ensure_not_running()?;
    } else if removal_record.load().is_none() {
        let certificate = ReloadableCertificate::new(&credentials);
        let tls = client_config(&roots, Some(Arc::clone(&certificate)));
        let tls = tls.map_err(|error| failed(NOT_LEFT, &error, ""))?;
        let (cluster, node) =
            node_identity(credentials.identity()).map_err(|error| failed(NOT_LEFT, &error, ""))?;
        let dial = Arc::new(TlsDialer::new(node, settings.managers(), tls));
        let [assignment_file, _] = cache_files(&data_dir);
        let known = AssignmentCache::new(assignment_file, cluster, node).load().await;
        let check = v1::CheckNodeRequest { node_id: node.to_string(), version: Some(known.version.into()) };
        let mut leaving = LeavingNode { dial, check, credentials, certificate, is_renewed: false };
        leaving.leave_cluster(force, deadline).await?;
    }
    let removal = clear(&settings, &removal_record, deadline).await?;
    let undone = |error: &dyn std::error::Error| failed(NOT_LEFT, error, "remove the data directory by hand");
    settings.membership().remove().map_err(|error| undone(&error))?;
    join::clear_earlier_membership(&settings).map_err(|error| undone(&error))?;
    let mut text = format!("left the cluster: {}\n", run::cleared_message(&removal));
    if offline {
        text +=
            "the cluster was not informed; if it still exists, remove the node there with `warren node rm`\n";
    }
    // If stdout is closed, the exit code is sufficient.
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
    Ok(())
}

/// An offline removal would not reach a running worker.
fn ensure_not_running() -> Result<(), CommandError> {
    let taken = NamespaceLock::acquire().map(drop);
    taken.map_err(|error| {
        CommandError::new(ExitKind::Conflict, NOT_LEFT, error, "then repeat `warren worker leave --offline`")
    })
}

/// What a node that leaves shows to managers, and asks them.
struct LeavingNode {
    dial: SharedDialer,
    /// Asks a manager that refuses the node whether it was removed.
    check: v1::CheckNodeRequest,
    /// As they are stored.
    credentials: Credentials,
    /// The certificate that is shown.
    certificate: Arc<ReloadableCertificate>,
    is_renewed: bool,
}

impl LeavingNode {
    /// Whether the cluster does not have this node any more, as a manager says that refused it. The refusal is no
    /// proof: a manager that lags refuses a node that joined again.
    async fn was_removed(&self, manager: &str) -> bool {
        let answer = self.dial.check_node(manager.to_owned(), self.check.clone()).await;
        answer.is_some_and(|status| SessionRejection::from_status(&status, false, true).is_some())
    }

    /// Shows another certificate instead of one that has expired; `false` if the cluster does not have this node.
    async fn renew(&self) -> Result<bool, CommandError> {
        let (dial, key) = (&self.dial, self.credentials.key());
        let mut asked = 0;
        loop {
            asked += 1;
            let requested = async { request_certificate(dial.dial_anonymously().await?, key).await };
            let error = match requested.await {
                Ok(issued) => {
                    let renewed = Credentials::new(issued.certificate, key.clone());
                    self.certificate.replace(&renewed.map_err(|error| failed(NOT_LEFT, &error, ""))?);
                    return Ok(true);
                }
                Err(error) => error,
            };
            if let RenewalError::Refused { manager, .. } = &error
                && self.was_removed(manager).await
            {
                return Ok(false);
            }
            if asked >= dial.manager_count() {
                return Err(renewal_failure(&error));
            }
        }
    }

    /// Requests removal until the cluster has removed this node.
    async fn leave_cluster(&mut self, force: bool, deadline: Duration) -> Result<(), CommandError> {
        let until = Instant::now() + deadline;
        let mut output = 0;
        loop {
            let left = self.request_leave(force).await?;
            if left == 0 {
                return Ok(());
            }
            if Instant::now() >= until {
                let why = format!("{left} tasks could not be moved to other nodes within {deadline:?}");
                let hint = "see `warren node ps`, make room elsewhere, or give them up with --force; \
                            it stays drained until `warren node update NODE --availability active`";
                return Err(CommandError::new(ExitKind::TimedOut, NOT_LEFT, why, hint));
            }
            if left != output {
                tracing::info!(tasks = left, "waiting until the tasks of this node run on other nodes");
                output = left;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Asks one manager after another, until one answers. A certificate that has expired, by the clock of a manager, is
    /// renewed once.
    async fn request_leave(&mut self, force: bool) -> Result<u32, CommandError> {
        let mut asked = 0;
        loop {
            asked += 1;
            let failure = match self.dial.dial().await {
                Ok(connected) => match request_leave_from(connected, force).await {
                    Ok(left) => return Ok(left),
                    Err(failure) => failure,
                },
                Err(error) if error.is_certificate_expired() && !self.is_renewed => {
                    self.is_renewed = true;
                    if !self.renew().await? {
                        return Ok(0);
                    }
                    asked = 0;
                    continue;
                }
                Err(error) => {
                    if let Some(manager) = error.refused_by()
                        && self.was_removed(manager).await
                    {
                        return Ok(0);
                    }
                    CommandError::new(ExitKind::Unreachable, NOT_LEFT, error, NO_MANAGER)
                }
            };
            if asked >= self.dial.manager_count() || failure.kind != ExitKind::Unreachable {
                return Err(failure);
            }
        }
    }
}

/// A manager that refuses to renew the certificate refuses it again.
fn renewal_failure(error: &RenewalError) -> CommandError {
    let is_refusal = |status: &Status| {
        matches!(status.code(), Code::PermissionDenied | Code::FailedPrecondition | Code::InvalidArgument)
    };
    let (kind, hint) = match error {
        RenewalError::Refused { status, .. } if is_refusal(status) => (ExitKind::Denied, NOT_RENEWED),
        _ => (ExitKind::Unreachable, NO_MANAGER),
    };
    CommandError::new(kind, NOT_LEFT, error_chain(error), hint)
}

async fn request_leave_from(connected: ManagerConnection, force: bool) -> Result<u32, CommandError> {
    let mut client = MembershipClient::new(connected.channel);
    let answer = timeout(ANSWER_DEADLINE, client.leave(v1::LeaveRequest { force })).await;
    let answer = answer.map_err(|_| {
        let why = format!("no answer within {ANSWER_DEADLINE:?}");
        CommandError::new(ExitKind::Unreachable, NOT_LEFT, why, "try again in a moment")
    })?;
    let answer =
        answer.map_err(|status| CommandError { what: NOT_LEFT.to_owned(), ..join::join_failure(&status) })?;
    Ok(answer.into_inner().tasks)
}

/// Has all containers of this node stopped: by the running worker, which gets the removal as well, or else by
/// this process.
async fn clear(
    settings: &WorkerSettings,
    removal_record: &RemovalRecord,
    deadline: Duration,
) -> Result<Removal, CommandError> {
    let until = Instant::now() + deadline;
    if removal_record.load().is_none() {
        // If this process is killed, the next `worker run` or `worker leave` continues from here.
        let removal = Removal { reason: REASON.to_owned(), containers: 0, cleared: false };
        let hint = "free some disk space, then repeat `warren worker leave`";
        removal_record.store(&removal).map_err(|error| failed(LEFT_INCOMPLETE, &error, hint))?;
    }
    let mut waits = false;
    // Dropped at once: this only tests whether another process holds the lock.
    while let Err(error) = NamespaceLock::acquire() {
        if Instant::now() >= until {
            let why = format!("the running worker did not stop within {deadline:?}: {error}");
            return Err(CommandError::new(
                ExitKind::TimedOut,
                LEFT_INCOMPLETE,
                why,
                "stop it, then repeat `warren worker leave`",
            ));
        }
        if !waits {
            tracing::info!("waiting until the running worker has stopped its containers");
            waits = true;
        }
        sleep(POLL_INTERVAL).await;
    }
    match run::run_joined(settings, WorkerStartReason::Run, &WorkerTelemetry::disabled()).await? {
        WorkerEnd::Removed { removal, .. } => Ok(removal),
        WorkerEnd::Stopped | WorkerEnd::UnknownNode => {
            let hint = "repeat `warren worker leave`";
            Err(CommandError::new(ExitKind::Failed, LEFT_INCOMPLETE, "interrupted", hint))
        }
    }
}

#[cfg(test)]
mod tests;
