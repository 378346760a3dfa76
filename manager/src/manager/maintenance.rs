//! The periodic work of a manager.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use rand::RngExt;
use tokio::task::JoinSet;
use warren_api::why::MANAGER_RENEWAL;
use warren_bootstrap::autolock::open_unlock_key;
use warren_bootstrap::ca::{CaError, ManagerKeys};
use warren_control::{BackgroundTasks, BoxError, Clock, RunnerSettings, Shutdown, WorkQueue};
use warren_core::{CaCommand, Command, ManagerAuthority, ManagerCaStep, RevokedObjects};
use warren_peers::{MAX_PEER_MESSAGE, Peers};
use warren_proto::v1;
use warren_replica::ReconcileKey;
use warren_security::Revocations;
use warren_session::SessionRegistry;
use warren_session::withdrawals::AwaitAtPeers;
use warren_store::Store;
use warren_store::timestamp::TimestampSource;
use warren_types::{CaHolder, NodeId};

use crate::controllers::liveness::FetchContacts;
use crate::controllers::planner::Planner;
use crate::controllers::wake_up_dispatcher::{RESYNC_INTERVAL, RESYNC_TASK, WakeUpDispatcher};
use crate::manager::follow_state::{IDLE, follow_state};
use crate::manager::registration::ensure_administrator;

/// Keys that may be queued for the planners; each service has two.
const MAX_QUEUED_KEYS: usize = 1 << 16;

/// Renews this machine's certificates in time, by the wall clock.
pub(super) fn renew_certificates(
    keys: &Arc<ManagerKeys>,
    clock: Arc<dyn Clock>,
    store: &Store,
    background_tasks: &BackgroundTasks,
    interval: Duration,
) {
    let (keys, store, chance) = (keys.clone(), store.clone(), rand::rng().random());
    background_tasks.spawn(MANAGER_RENEWAL, interval, move || {
        let (keys, clock, store) = (keys.clone(), clock.clone(), store.clone());
        async move {
            let lifetime = certificate_lifetime(&store).await;
            let now = UNIX_EPOCH + Duration::from_millis(clock.wall_millis());
            let renewed = tokio::task::spawn_blocking(move || keys.renew(now, chance, lifetime)).await;
            Ok::<(), BoxError>(renewed??)
        }
    });
}

/// How long certificates of machines are to be valid; `None` if the newest setting is not known, as when this manager
/// starts: its state may be one from before the last change.
async fn certificate_lifetime(store: &Store) -> Option<Duration> {
    store.read().role.leader_id?;
    let published = store.read_linearizable().await.ok()?;
    published.state.cluster().map(|cluster| cluster.settings.node_certificate_lifetime)
}

/// Does what the replacement of the certificate authority asks of this manager.
///
/// # Errors
/// An authority that was replaced cannot be used.
pub(super) fn follow_ca_rotation(
    keys: &Arc<ManagerKeys>,
    clock: &TimestampSource,
    store: &Store,
    background_tasks: &BackgroundTasks,
    shutdown: &Shutdown,
) -> Result<(), CaError> {
    if let Some(rotation) = store.read().state.ca_rotation() {
        // Before the first connection.
        keys.accept_replaced(rotation)?;
    }
    let (keys, clock, read) = (keys.clone(), clock.clone(), store.clone());
    follow_state("ca-rotation", store, background_tasks, shutdown, move || {
        let (keys, clock, store) = (keys.clone(), clock.clone(), read.clone());
        async move { follow_ca_step(&keys, &clock, &store).await }
    });
    Ok(())
}

/// Locks the keys on the disk with the unlock key of the cluster, or no more; also what an earlier process, which was
/// killed between two files, has left.
pub(super) fn follow_autolock(
    keys: &Arc<ManagerKeys>,
    store: &Store,
    background_tasks: &BackgroundTasks,
    shutdown: &Shutdown,
) {
    let (keys, read) = (keys.clone(), store.clone());
    follow_state("autolock", store, background_tasks, shutdown, move || {
        let (keys, store) = (keys.clone(), read.clone());
        async move { follow_unlock_key(keys, &store).await.map(|()| IDLE) }
    });
}

fn revocations(revoked: &RevokedObjects) -> Revocations {
    let (nodes, managers) = (revoked.nodes().collect(), revoked.managers().collect());
    Revocations { nodes, managers, keys: revoked.keys().collect() }
}

/// Refuses in the handshake what is revoked in the state, and replaces the key of this machine's administrator if that
/// is revoked.
pub(super) fn follow_revocations(
    keys: &Arc<ManagerKeys>,
    clock: &TimestampSource,
    store: &Store,
    shutdown: &Shutdown,
) {
    let (keys, clock, store) = (keys.clone(), clock.clone(), store.clone());
    let mut publications = store.publications();
    // Before the first connection. When this manager starts, its registration sees to the key.
    let mut known = store.read().state.revoked();
    keys.trust.revoke(revocations(&known));
    shutdown.spawn_cancellable("revocations", async move {
        let mut is_settled = true;
        while publications.changed().await.is_ok() {
            let published = store.read();
            if !known.is_of(&published.state) {
                known = published.state.revoked();
                keys.trust.revoke(revocations(&known));
                is_settled = false;
            }
            if is_settled || published.role.leader_id.is_none() {
                continue;
            }
            // The next change tries again.
            match ensure_administrator(&keys, &clock, &store).await {
                Ok(()) => is_settled = true,
                Err(error) => {
                    tracing::warn!(%error, "replacing the key of this machine's administrator failed")
                }
            }
        }
    });
}

async fn follow_unlock_key(keys: Arc<ManagerKeys>, store: &Store) -> Result<(), BoxError> {
    let published = store.read();
    let is_locked_as_wanted =
        keys.files().unlock_key() == published.state.unlock_key().map(|sealed| sealed.id);
    if keys.files().is_complete() && is_locked_as_wanted || published.role.leader_id.is_none() {
        return Ok(());
    }
    // A state from before the last change would bring an earlier key back.
    let published = store.read_linearizable().await?;
    let sealed = published.state.unlock_key();
    let key =
        sealed.map(|sealed| open_unlock_key(&keys.secret_object_key, keys.cluster, sealed)).transpose()?;
    tokio::task::spawn_blocking(move || keys.lock_with(key.as_ref())).await??;
    Ok(())
}

/// Returns the delay until the next look.
async fn follow_ca_step(
    keys: &Arc<ManagerKeys>,
    clock: &TimestampSource,
    store: &Store,
) -> Result<Duration, BoxError> {
    let published = store.read();
    let Some(rotation) = published.state.ca_rotation() else { return Ok(IDLE) };
    let authority = keys.authority.load();
    let own =
        ManagerAuthority { digest: authority.digest(), trusts_predecessor: authority.trusts_predecessors() };
    match published.state.manager_ca_step(store.own_id(), own) {
        None => {
            keys.accept_replaced(rotation)?;
            // This manager also renews the contexts of its machine's administrator.
            let key = keys.admin().borrow().key().public_hash().ok();
            if let Some(key) = key.filter(|key| rotation.keys.contains(key)) {
                let (holder, at) = (CaHolder::User(key), clock.now());
                record_renewal(store, CaCommand::RecordRenewal { digest: rotation.digest, holder, at })
                    .await?;
            }
        }
        Some(ManagerCaStep::Record) => {
            let (holder, at) = (CaHolder::Manager(store.own_id()), clock.now());
            record_renewal(store, CaCommand::RecordRenewal { digest: rotation.digest, holder, at }).await?;
        }
        Some(step) => {
            let (keys, rotation) = (keys.clone(), rotation.clone());
            let now = UNIX_EPOCH + Duration::from_millis(clock.local_now().0);
            let followed = move || keys.follow_rotation(&rotation, step, now);
            tokio::task::spawn_blocking(followed).await??;
            return Ok(Duration::ZERO);
        }
    }
    Ok(IDLE)
}

/// Proposes it, unless no leader is known: the run after the next election tries again.
async fn record_renewal(store: &Store, renewal: CaCommand) -> Result<(), BoxError> {
    if store.read().role.leader_id.is_some() {
        store.propose(Command::Ca(renewal)).await?;
    }
    Ok(())
}

/// Triggers `planner` for each change in `store`, and periodically for everything.
pub(super) fn start_controllers(
    planner: Planner,
    store: &Store,
    registry: &SessionRegistry,
    background_tasks: &BackgroundTasks,
    shutdown: &Shutdown,
) {
    let queue: WorkQueue<ReconcileKey> = WorkQueue::new(MAX_QUEUED_KEYS);
    let keys = queue.handle();
    let planner = Arc::new(planner);
    background_tasks.spawn_queue("planner", queue, RunnerSettings::default(), move |key| {
        let planner = planner.clone();
        async move { planner.run(key).await }
    });
    let dispatcher = Arc::new(WakeUpDispatcher::new(store.clone(), registry.clone(), keys));
    let resync = dispatcher.clone();
    background_tasks.spawn(RESYNC_TASK, RESYNC_INTERVAL, move || {
        resync.wake_all();
        std::future::ready(Ok::<(), BoxError>(()))
    });
    shutdown.spawn_cancellable("wake-up-dispatcher", async move { dispatcher.run().await });
}

/// Asks the other managers over the peer links, until all of the nodes are found.
pub(super) fn await_at_peers(peers: Peers) -> AwaitAtPeers {
    Arc::new(move |(index, networks), nodes| {
        let request = v1::AwaitNetworkRequest {
            index,
            nodes: nodes.iter().map(ToString::to_string).collect(),
            networks: networks.iter().map(ToString::to_string).collect(),
        };
        let clients: Vec<_> = peers.others().into_iter().filter_map(|member| peers.client(member)).collect();
        Box::pin(async move {
            let mut calls = JoinSet::new();
            for mut client in clients {
                let request = request.clone();
                calls.spawn(async move { client.await_network(request).await });
            }
            let mut applied = BTreeSet::new();
            while !nodes.is_subset(&applied) {
                let Some(answer) = calls.join_next().await else { break };
                let answered = answer.ok().and_then(Result::ok);
                let found = answered.map(|answer| answer.into_inner().nodes).unwrap_or_default();
                applied.extend(found.iter().filter_map(|node| node.parse::<NodeId>().ok()));
            }
            applied
        })
    })
}

/// Fetches contacts over the peer links.
pub(super) fn fetch_from_peers(peers: Peers) -> FetchContacts {
    Arc::new(move |member, term| {
        let client = peers.control_client(member);
        Box::pin(async move {
            let answer = client?
                .max_decoding_message_size(MAX_PEER_MESSAGE)
                .list_contacts(v1::ListContactsRequest { term })
                .await;
            let failed = |status: &tonic::Status| tracing::debug!(member, %status, "contacts unavailable");
            Some(answer.inspect_err(failed).ok()?.into_inner().contacts)
        })
    })
}

#[cfg(test)]
mod tests;
