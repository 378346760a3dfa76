//! Start-up checks: a running driver, the raft membership, and a log of the manager's own cluster.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use warren_bootstrap::ca::{CaError, ManagerKeys};
use warren_bootstrap::member_identity::{self, MemberIdentity};
use warren_control::Shutdown;
use warren_core::{Refusal, State};
use warren_peers::{Peers, RemovalReason};
use warren_store::raft::driver::DriverError;
use warren_store::raft::open::DriverExit;
use warren_store::{ProposeError, Store};

use super::{FailureReceiver, ManagerFailure, ManagerStartError};

/// How long a sole voter may take to become leader.
const LEAD_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes the shutdown wait for the driver, and stops everything if the driver fails.
pub(super) fn supervise_driver(
    ended: DriverExit,
    failing: mpsc::Sender<ManagerFailure>,
    shutdown: &Shutdown,
) {
    let stop = shutdown.token();
    shutdown.spawn("raft", async move {
        let error = match ended.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => DriverError::Panicked,
        };
        tracing::error!(%error, "the raft driver failed; stopping the manager");
        stop.cancel();
        // The receiver may be gone.
        let _ = failing.try_send(error.into());
    });
}

/// Records the removal of this manager when it happens, and stops everything.
pub(super) fn record_removal(
    peers: &Peers,
    keys: &Arc<ManagerKeys>,
    identity: MemberIdentity,
    failing: mpsc::Sender<ManagerFailure>,
    shutdown: &Shutdown,
) {
    let (peers, keys, stop) = (peers.clone(), keys.clone(), shutdown.token());
    shutdown.spawn_cancellable("end", async move {
        let (failed, written) = match peers.wait_removed().await {
            RemovalReason::Removed => (ManagerFailure::Removed, keys.mark_removed(&identity)),
            RemovalReason::Superseded { newer, .. } => (
                ManagerFailure::Superseded(newer),
                member_identity::mark_superseded(keys.files().dir(), &identity, newer).map(drop),
            ),
        };
        if let Err(error) = written {
            // The other managers report it again at the next start.
            tracing::error!(%error, "recording the removal failed");
        }
        tracing::error!("stopping: {failed}");
        // The receiver may be gone.
        let _ = failing.try_send(failed);
        stop.cancel();
    });
}

/// Waits until a manager that is the only voter leads and has applied its whole log; returns whether it
/// leads. A manager that cannot write its log does not lead: it serves stale reads until there is room,
/// unless it is to create a cluster.
pub(super) async fn lead_if_sole_voter(
    store: &Store,
    create: bool,
    failure: &mut FailureReceiver,
) -> Result<bool, ManagerStartError> {
    let mut watch = store.watch(0);
    let leads = async {
        loop {
            let published = store.read();
            let group = &published.members;
            if group.voters != [store.own_id()] || !group.voters_outgoing.is_empty() {
                return Ok(false);
            }
            if let Some(stall) = &published.write_stall {
                let is_new = create && published.state.cluster().is_none();
                return if is_new {
                    Err(ProposeError::WriteStalled(stall.clone()).into())
                } else {
                    Ok(false)
                };
            }
            if published.role.can_plan {
                return Ok(true);
            }
            // A missed change also leads to another check.
            let _ = watch.next().await;
        }
    };
    tokio::select! {
        leads = leads => leads,
        Some(failed) = failure.recv() => Err(match failed {
            ManagerFailure::Driver(error) => ManagerStartError::Driver(error),
            ManagerFailure::Removed => ManagerStartError::Removed,
            ManagerFailure::Superseded(newer) => ManagerStartError::Superseded(newer),
        }),
        () = tokio::time::sleep(LEAD_TIMEOUT) => Err(ManagerStartError::NoLeader(LEAD_TIMEOUT)),
    }
}

/// Checks that keys and log belong to one cluster. A lost log must not look like a new cluster: workers would
/// be told to stop all tasks. `may_be_empty`: the cluster is not created yet, or other members have the log.
pub(super) fn check_cluster(
    state: &State,
    keys: &ManagerKeys,
    dir: &Path,
    may_be_empty: bool,
) -> Result<(), ManagerStartError> {
    match state.cluster() {
        None if may_be_empty => Ok(()),
        None => Err(CaError::NoCluster(dir.to_owned()).into()),
        Some(cluster) if cluster.id == keys.cluster => Ok(()),
        Some(cluster) => {
            let other = Refusal::ClusterMismatch { wanted: keys.cluster, found: cluster.id };
            Err(ProposeError::Rejected(other).into())
        }
    }
}
