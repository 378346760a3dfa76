//! Tells a node that no other node sends its stopping tasks new clients.
//!
//! The entry by which a node stops a task also withdraws the task from the networks of all nodes. The node sends the
//! stop signal after the others have acknowledged that, so that no client connects to a process that has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OnceCell;
use tokio::time::timeout;
use warren_control::Shutdown;
use warren_core::State;
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_store::Store;
use warren_types::spec::WITHDRAWAL_TIMEOUT;
use warren_types::{NetworkId, NodeId, NodeStatus, TaskId};

use super::frames::send;
use super::registry::FrameSender;
use super::{NetworkPublisher, SessionRegistry};

/// Asks the other managers which of the nodes have a session there, once those have applied the change.
pub type AwaitAtPeers = Arc<
    dyn Fn(AwaitedChanges, BTreeSet<NodeId>) -> Pin<Box<dyn Future<Output = BTreeSet<NodeId>> + Send>>
        + Send
        + Sync,
>;

/// All changes of some networks until an index.
pub type AwaitedChanges = (u64, BTreeSet<NetworkId>);

/// Waits for acknowledgements. Cheap to clone; sessions that wait for the same ones wait once.
#[derive(Clone)]
pub struct Withdrawals {
    parts: Arc<WithdrawalParts>,
    /// Whether all nodes have acknowledged a change, once that is known.
    pending: Arc<Mutex<BTreeMap<AwaitedChanges, Weak<OnceCell<bool>>>>>,
}

/// Dependencies of [`Withdrawals`].
pub struct WithdrawalParts {
    /// The replicated state.
    pub store: Store,
    /// The sessions of this manager.
    pub registry: SessionRegistry,
    /// What nodes are told about the cluster's network.
    pub networks: NetworkPublisher,
    /// The sessions of the other managers.
    pub await_at_peers: AwaitAtPeers,
    /// Ends what waits.
    pub shutdown: Shutdown,
}

impl Withdrawals {
    /// Nothing waits yet.
    pub fn new(parts: WithdrawalParts) -> Self {
        Self { parts: Arc::new(parts), pending: Arc::default() }
    }

    /// Sends the frame for `tasks`, which a node was told to stop at `index`, when the other nodes have acknowledged
    /// it. What they do not acknowledge in time is not sent: the node goes on by itself then.
    pub fn announce(&self, index: u64, tasks: Vec<TaskId>, frames: &FrameSender) {
        let published = self.parts.store.read();
        let mut groups: BTreeMap<BTreeSet<NetworkId>, Vec<String>> = BTreeMap::new();
        for task in tasks {
            groups.entry(published.state.task_networks(&task)).or_default().push(task.to_string());
        }
        for (networks, task_ids) in groups.into_iter().filter(|(networks, _)| !networks.is_empty()) {
            let (withdrawals, frames) = (self.clone(), frames.clone());
            self.parts.shutdown.spawn_cancellable("withdrawal", async move {
                if timeout(WITHDRAWAL_TIMEOUT, withdrawals.acknowledged((index, networks))).await == Ok(true)
                {
                    // The session may have ended.
                    let _ = send(&frames, Frame::Withdrawn(v1::EndpointsWithdrawn { task_ids })).await;
                }
            });
        }
    }

    /// Whether the nodes in the networks have acknowledged the change. Resolves when those with a session have.
    async fn acknowledged(&self, change: AwaitedChanges) -> bool {
        let cell = self.shared(change.clone());
        *cell.get_or_init(|| self.await_nodes(change)).await
    }

    fn shared(&self, change: AwaitedChanges) -> Arc<OnceCell<bool>> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = pending.get(&change).and_then(Weak::upgrade) {
            return cell;
        }
        pending.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::default();
        pending.insert(change, Arc::downgrade(&cell));
        cell
    }

    async fn await_nodes(&self, change: AwaitedChanges) -> bool {
        let WithdrawalParts { store, registry, networks: publisher, await_at_peers, .. } = &*self.parts;
        let (index, networks) = &change;
        let nodes = ready_nodes(&store.read().state, networks);
        let elsewhere: BTreeSet<NodeId> =
            nodes.iter().copied().filter(|node| !registry.is_connected(*node)).collect();
        let at_peers = async {
            if elsewhere.is_empty() {
                BTreeSet::new()
            } else {
                await_at_peers(change.clone(), elsewhere).await
            }
        };
        let local = publisher.await_nodes(registry, *index, networks, nodes.clone());
        let (local, remote) = tokio::join!(local, at_peers);
        nodes.iter().all(|node| local.contains(node) || remote.contains(node))
    }
}

/// The nodes with clients in any of the networks. One that is not READY is not waited for.
fn ready_nodes(state: &State, networks: &BTreeSet<NetworkId>) -> BTreeSet<NodeId> {
    let ready = state.nodes().filter(|node| node.status == NodeStatus::Ready);
    ready.map(|node| node.id).filter(|node| !state.node_networks(node).is_disjoint(networks)).collect()
}
