//! The session with a manager: dial one, say hello, apply its assignments, report the state of tasks.
//!
//! There is one session at a time. Its loss does not affect tasks: the next manager is dialled at once, and
//! unacknowledged reports are sent again. Only tasks that stop on disconnect are stopped if there is none for
//! too long ([`crate::connectivity`]). Start reading at `established`, which is one session from its first frame to
//! its last.

mod attach;
mod clock_probe;
mod dial;
mod established;
mod heartbeat_stats;
mod image_holders;
mod inventory;
mod periodic;
mod removal;
mod secret_fetcher;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::io::AsyncRead;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Channel;
use warren_control::{BackgroundTasks, Backoff, RandomSource};
use warren_daemon::error_chain;
use warren_image::ImportedName;
use warren_proto::v1;
use warren_runtime::Runtime;
use warren_security::{ReloadableCertificate, Revocations, Trust};
use warren_task::DesiredState;
use warren_types::{AssignmentVersion, ClusterId, ManagerId, NetworkView, NodeId, WireGuardKey};

pub(crate) use attach::{StreamServices, TaskLogs};
#[cfg(test)]
pub(crate) use dial::ManagerDialer;
pub(crate) use dial::{ManagerConnection, ManagerDialError, SharedDialer, TlsDialer};
pub(crate) use heartbeat_stats::HeartbeatStats;
pub(crate) use image_holders::ManagerImageHolders;
pub(crate) use removal::{Removal, RemovalRecord, SessionRejection, removal_file};
pub(crate) use secret_fetcher::ManagerSecretFetcher;

use crate::connectivity::ConnectivityMonitor;
use crate::image_gc::DiskPressure;
use crate::network::data_address::DataAddress;
use crate::node::NodeOverrides;
use crate::node::conditions::NodeConditions;
use crate::node::meter::NodeMeter;
use crate::tasks::reporter::TaskReporter;

/// First and longest delay after all managers were tried. Short, since a node without a session for
/// `node-down-after` is down, even if the managers were not available.
const MIN_BACKOFF: Duration = Duration::from_millis(250);
const MAX_BACKOFF: Duration = Duration::from_secs(3);
/// Delay of a node that the managers do not know.
const REJECTED_BACKOFF: Duration = Duration::from_secs(30);
/// Longest delay before the next manager is tried: spreads the nodes of a failed manager over time.
const MAX_FAILOVER_DELAY: Duration = Duration::from_millis(40);
/// A session of this length resets the failure count.
const MIN_GOOD_SESSION: Duration = Duration::from_secs(5);
/// The first failures in a row are logged each, later ones at this interval.
const LOGGED_FAILURES: u32 = 8;

/// A full assignment of thousands of tasks exceeds tonic's default of 4 MiB.
const MAX_FRAME: usize = 64 << 20;

/// An archive in transfer.
pub(crate) type ArchiveReader = Box<dyn AsyncRead + Send + Unpin>;
/// Stores the images of an archive.
pub(crate) type ImportFn = Arc<
    dyn Fn(ArchiveReader) -> BoxFuture<'static, Result<Vec<ImportedName>, warren_image::Error>> + Send + Sync,
>;

/// The inputs and outputs of a session.
pub(crate) struct SessionContext {
    /// Identity of this node's certificate.
    pub cluster: ClusterId,
    pub node: NodeId,
    /// What it shows to managers.
    pub certificate: Arc<ReloadableCertificate>,
    /// Which authorities the managers must have certificates of.
    pub trust: Arc<Trust>,
    pub desired_state: watch::Sender<DesiredState>,
    pub network_view: watch::Sender<NetworkView>,
    /// The version of the network view that the kernel, the DNS server and the cache have.
    pub applied_network: watch::Receiver<AssignmentVersion>,
    pub data_address: Arc<DataAddress>,
    /// The key with which other nodes encrypt packets for it.
    pub wireguard_key: WireGuardKey,
    pub reporter: Arc<TaskReporter>,
    pub runtime: Arc<dyn Runtime>,
    pub overrides: NodeOverrides,
    pub meter: Arc<NodeMeter>,
    pub conditions: Arc<NodeConditions>,
    /// Task statistics for heartbeats.
    pub heartbeat_stats: Arc<HeartbeatStats>,
    /// Services for streams that managers open.
    pub stream_services: Arc<StreamServices>,
    pub disk_pressure: DiskPressure,
    pub background_tasks: BackgroundTasks,
    pub random: RandomSource,
    /// Time without a manager.
    pub connectivity: Arc<ConnectivityMonitor>,
    /// Whether a manager has accepted a session.
    pub is_connected: watch::Sender<bool>,
    /// Connection to that manager, for calls outside of the session.
    pub manager_channel: watch::Sender<Option<Channel>>,
    /// Whether a manager refused the certificate of this node as expired since it was renewed.
    pub certificate_expired: watch::Sender<bool>,
    /// Rejection of this node by a manager, if any.
    pub rejection: watch::Sender<Option<SessionRejection>>,
    /// Record of the removal; `None` on a manager's own node, which no manager removes.
    pub removal_record: Option<RemovalRecord>,
}

/// Refuses the managers that have left the cluster.
pub(crate) fn refuse_departed(trust: &Trust, desired: &DesiredState) {
    let left = desired.settings.iter().flat_map(|settings| settings.revoked_managers.iter().copied());
    trust.revoke(Revocations { managers: left.collect(), ..Revocations::default() });
}

/// Keeps a session until the agent stops, or until the node was removed from its cluster.
pub(crate) async fn run(context: Arc<SessionContext>, dial: SharedDialer, stop: CancellationToken) {
    let (mut tries, mut round) = (ConnectAttempts::new(), FailedRound::default());
    let mut was_ever_welcome = false;
    while !stop.is_cancelled() {
        if let Some(settings) = &context.desired_state.borrow().settings {
            dial.set_managers(&settings.managers);
        }
        context.trust_managers(&round);
        // From before the handshake: a manager that was verified by an earlier authority is left.
        let authorities = context.trust.changes();
        let session = async {
            let connected = dial.dial().await?;
            let (manager, begun) = (connected.manager.clone(), Instant::now());
            let watched = context.refused_once_departed(connected.id);
            let ended = established::run(&context, connected, watched, authorities, &stop).await;
            Ok::<_, ManagerDialError>((manager, begun.elapsed(), ended))
        };
        let attempt = tokio::select! {
            () = stop.cancelled() => return,
            attempt = session => attempt,
        };
        let was_welcome = context.is_connected.send_replace(false);
        context.manager_channel.send_replace(None);
        context.connectivity.record_disconnect();
        was_ever_welcome |= was_welcome;
        match attempt {
            Ok((manager, time, ended)) => {
                round = FailedRound::default();
                tracing::info!(manager, reason = %ended, was_welcome, ?time, "session ended");
                if was_welcome && time >= MIN_GOOD_SESSION {
                    dial.record_good_session(&manager);
                    tries = ConnectAttempts::new();
                } else {
                    tries.record_failure();
                }
                if let Some(status) = ended.refusal() {
                    context.handle_refusal(status, !was_ever_welcome).await;
                }
            }
            Err(error) => {
                if error.is_certificate_expired() {
                    // Notifies the renewal each time: its last attempt may have failed.
                    context.certificate_expired.send_replace(true);
                }
                if let Some(manager) = error.refused_by() {
                    let version = Some(context.desired_state.borrow().version.into());
                    let request = v1::CheckNodeRequest { node_id: context.node.to_string(), version };
                    if let Some(status) = dial.check_node(manager.to_owned(), request).await {
                        context.handle_refusal(&status, !was_ever_welcome).await;
                    }
                }
                round.record(error.is_departed_manager(), dial.manager_count());
                tries.record_failure();
                if tries.is_worth_logging() {
                    tracing::info!(%error, failures = tries.failures, "no session");
                }
            }
        }
        if context.is_removed() {
            return;
        }
        // An unknown node gets in only by joining, and must not load the managers meanwhile.
        let wait = match context.rejection.borrow().is_some() {
            true => REJECTED_BACKOFF,
            false => tries.next_delay(dial.manager_count(), (context.random)()),
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Failed attempts to get a lasting session.
struct ConnectAttempts {
    failures: u32,
    backoff: Backoff,
}

impl ConnectAttempts {
    fn new() -> Self {
        Self { failures: 0, backoff: Backoff::new(MIN_BACKOFF, MAX_BACKOFF) }
    }

    fn record_failure(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    fn is_worth_logging(&self) -> bool {
        self.failures <= LOGGED_FAILURES || self.failures.is_multiple_of(LOGGED_FAILURES)
    }

    /// Delay before the next try: none until all `known` managers were tried, then longer after each round.
    fn next_delay(&mut self, known: usize, random: u64) -> Duration {
        let round = u32::try_from(known.max(1)).unwrap_or(u32::MAX);
        if self.failures > 0 && self.failures.is_multiple_of(round) {
            return self.backoff.next_delay(random);
        }
        Backoff::new(MAX_FAILOVER_DELAY, MAX_FAILOVER_DELAY).next_delay(random)
    }
}

/// Dials since the last connection or the last round: each known manager once.
#[derive(Debug, Default, PartialEq, Eq)]
struct FailedRound {
    dials: usize,
    found_departed: bool,
    /// Whether managers that have left are accepted in this round. A new cluster that was forced from the wrong manager
    /// lists the right one as departed, which cannot tell this node so before the handshake.
    accepts_departed: bool,
}

impl FailedRound {
    /// Records a dial without a connection, with `known` managers.
    fn record(&mut self, is_departed: bool, known: usize) {
        self.dials += 1;
        self.found_departed |= is_departed;
        if self.dials >= known {
            *self = Self { accepts_departed: self.found_departed, ..Self::default() };
        }
    }
}

impl SessionContext {
    /// Refuses the managers that have left the cluster, unless no other one was reached.
    fn trust_managers(&self, round: &FailedRound) {
        // A manager's own node trusts what that manager does.
        if self.removal_record.is_none() {
            return;
        }
        if round.accepts_departed {
            self.trust.revoke(Revocations::default());
        } else {
            refuse_departed(&self.trust, &self.desired_state.borrow());
        }
    }

    /// The manager of a new connection, if its session ends once it is listed as departed. One that is listed already
    /// was accepted for want of another one. After a connection to any other one, the listed ones are refused again.
    fn refused_once_departed(&self, manager: Option<ManagerId>) -> Option<ManagerId> {
        let manager = manager.filter(|_| self.removal_record.is_some())?;
        let desired = self.desired_state.borrow();
        if desired.settings.iter().any(|settings| settings.revoked_managers.contains(&manager)) {
            return None;
        }
        refuse_departed(&self.trust, &desired);
        Some(manager)
    }

    fn is_removed(&self) -> bool {
        matches!(&*self.rejection.borrow(), Some(SessionRejection::Removed { .. }))
    }

    /// Whether this agent accepts a removal. Not from managers that did not know the node before, until one
    /// has accepted it: they may have lost their own record and written more since.
    fn can_be_removed(&self) -> bool {
        self.removal_record.is_some() && self.rejection.borrow().is_none()
    }

    /// Applies what a manager answered, if that is a rejection. `before`: no manager ever accepted this agent.
    async fn handle_refusal(&self, status: &Status, before: bool) {
        if let Some(rejection) = SessionRejection::from_status(status, before, self.can_be_removed()) {
            self.handle_rejection(rejection).await;
        }
    }

    /// Applies a rejection. A removal is recorded before anything is done, so that it is completed even if
    /// the agent is killed.
    async fn handle_rejection(&self, rejection: SessionRejection) {
        match (&rejection, &self.removal_record) {
            (SessionRejection::Removed { reason, .. }, Some(note)) => {
                tracing::warn!(
                    reason,
                    "node was removed from the cluster; stopping and removing its containers"
                );
                let removal = Removal { reason: reason.clone(), containers: 0, cleared: false };
                let note = note.clone();
                let written = tokio::task::spawn_blocking(move || note.store(&removal)).await;
                // Without the record, a restarted agent gets it from the managers again.
                if let Err(error) = written.expect("writing a file does not panic") {
                    tracing::warn!(error = error_chain(&error), "cannot write the removal record");
                }
                self.desired_state.send_modify(DesiredState::remove_all);
            }
            (SessionRejection::Removed { reason, .. } | SessionRejection::Unknown { reason, .. }, _) => {
                tracing::warn!(
                    reason,
                    "manager does not know this node; containers keep running until the node joins again or leaves"
                );
            }
        }
        self.rejection.send_replace(Some(rejection));
    }
}
