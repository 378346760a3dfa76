//! Task progress of nodes whose sessions are with other managers: while a watch is open here, one
//! subscription to each of those managers serves all watches.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use warren_proto::v1;
use warren_store::problem::manager_stopping;
use warren_types::{MemberId, NodeId, TaskReport};

use super::Api;

/// Interval at which membership changes are checked, and delay before a failed subscription is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Updates that may be queued for another manager.
const MAX_QUEUED_UPDATES: usize = 256;

/// The subscription to other managers' progress. Cheap to clone; all clones share one subscription.
#[derive(Debug, Clone, Default)]
pub struct ProgressSubscription(Arc<Mutex<Weak<DropGuard>>>);

/// Keeps the subscription open while at least one guard exists.
#[derive(Debug)]
pub struct ProgressSubscriptionGuard {
    _until_dropped: Arc<DropGuard>,
}

impl Api {
    /// Subscribes to the other managers until the guard is dropped; their updates go to the registry.
    pub(super) fn subscribe_progress(&self) -> ProgressSubscriptionGuard {
        let mut current = self.progress_subscription.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guard) = current.upgrade() {
            return ProgressSubscriptionGuard { _until_dropped: guard };
        }
        let stop = CancellationToken::new();
        let guard = Arc::new(stop.clone().drop_guard());
        *current = Arc::downgrade(&guard);
        let api = self.clone();
        self.shutdown.spawn_cancellable("progress-subscription", async move {
            let registry = api.registry.clone();
            tokio::select! {
                () = api.follow_all_managers() => {}
                () = stop.cancelled() => {}
            }
            // A new subscription may have started already; it receives the dropped progress again with its
            // next update.
            registry.remote_progress().clear();
        });
        ProgressSubscriptionGuard { _until_dropped: guard }
    }

    async fn follow_all_managers(self) {
        let (mut followed, mut followers) = (BTreeSet::new(), JoinSet::new());
        let mut pace = interval(RETRY_DELAY);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            while let Some(ended) = followers.try_join_next() {
                if let Ok(member) = ended {
                    followed.remove(&member);
                }
            }
            let published = self.store.read();
            let others = published.state.members().map(|member| member.member_id);
            for member in others.filter(|member| *member != self.member_id) {
                if followed.insert(member) {
                    followers.spawn(self.clone().follow_manager(member));
                }
            }
        }
    }

    /// Runs until the manager leaves the cluster.
    async fn follow_manager(self, member: MemberId) -> MemberId {
        while self.store.read().state.member(member).is_some() {
            if let Err(status) = self.receive_progress(member).await {
                tracing::debug!(member, %status, "progress stream failed");
            }
            self.registry.remote_progress().remove_manager(member);
            sleep(RETRY_DELAY).await;
        }
        member
    }

    async fn receive_progress(&self, member: MemberId) -> Result<(), Status> {
        let Some(mut client) = self.peers.client(member) else { return Ok(()) };
        let mut updates = client.watch_progress(v1::WatchProgressRequest {}).await?.into_inner();
        while let Some(v1::ProgressEvent { node_id, report }) = updates.message().await? {
            let report = report.map(TaskReport::try_from);
            // Skips reports of a later version that cannot be parsed.
            let (Ok(node), Some(Ok(report))) = (node_id.parse::<NodeId>(), report) else { continue };
            self.registry.remote_progress().prune(&self.store.read().state);
            self.registry.record_remote_progress(member, node, report);
        }
        Ok(())
    }

    /// Serves the progress received by the local sessions to another manager: the current progress, then
    /// changes.
    pub fn serve_progress(&self) -> ReceiverStream<Result<v1::ProgressEvent, Status>> {
        let (updates, stream) = mpsc::channel(MAX_QUEUED_UPDATES);
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("progress-serve", async move {
            tokio::select! {
                () = api.forward_progress(&updates) => {}
                () = updates.closed() => {}
                () = stop.cancelled() => drop(updates.try_send(Err(manager_stopping()))),
            }
        });
        ReceiverStream::new(stream)
    }

    async fn forward_progress(&self, out: &mpsc::Sender<Result<v1::ProgressEvent, Status>>) {
        let mut changes = self.registry.watch_progress();
        let mut updates = self.registry.all_progress();
        loop {
            for (node, report) in updates {
                let update = v1::ProgressEvent { node_id: node.to_string(), report: Some((&report).into()) };
                if out.send(Ok(update)).await.is_err() {
                    return;
                }
            }
            updates = match changes.recv().await {
                Ok(task) => {
                    let node = self.store.read().state.task(&task).and_then(|task| task.node);
                    // Remote progress is not forwarded: every manager subscribes to all others.
                    let update = node.and_then(|node| Some((node, self.registry.progress(node, &task)?)));
                    update.into_iter().collect()
                }
                Err(RecvError::Lagged(_)) => self.registry.all_progress(),
                Err(RecvError::Closed) => return,
            };
        }
    }
}
