//! Maps applied changes to reconcile keys.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use warren_control::{WorkQueueFull, WorkQueueHandle};
use warren_core::{State, StateChange};
use warren_types::{NodeId, ServiceMode};

use super::key::ReconcileKey;
use crate::session::SessionRegistry;
use crate::store::{ChangeBatch, PublishedState, Store};

/// Delay of the scheduler, so that one run assigns all tasks created together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// Name of the background task that enqueues all keys.
pub const SWEEP_TASK: &str = "sweep";
/// Interval at which all keys are enqueued, in case a wake-up was lost.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// Enqueues keys and wakes sessions.
pub struct ReconcileTrigger {
    store: Store,
    registry: SessionRegistry,
    keys: WorkQueueHandle<ReconcileKey>,
}

impl ReconcileTrigger {
    /// Enqueues `keys` and wakes the sessions in `registry` for changes in `store`.
    pub fn new(store: Store, registry: SessionRegistry, keys: WorkQueueHandle<ReconcileKey>) -> Self {
        Self { store, registry, keys }
    }

    /// Handles changes until it is dropped.
    pub async fn run(&self) {
        let mut watch = self.store.watch(self.store.read().index);
        // The term in which everything was enqueued because this manager may plan.
        let mut planned = 0;
        loop {
            let next = watch.next().await;
            let published = self.store.read();
            let new_term = published.role.can_plan && published.role.term != planned;
            match next {
                Ok(batches) if !new_term => self.wake_for_changes(&published, &batches),
                Ok(_) | Err(_) => {
                    planned = if published.role.can_plan { published.role.term } else { planned };
                    self.wake_all();
                }
            }
        }
    }

    /// Enqueues all keys and wakes all sessions.
    pub fn wake_all(&self) {
        let published = self.store.read();
        self.registry.wake_all();
        if !published.role.can_plan {
            // A new leader enqueues everything.
            return;
        }
        let services = published.state.services_after(None).map(|service| service.id);
        let keys = services.flat_map(|id| [ReconcileKey::Service(id), ReconcileKey::Reap(id)]);
        self.wake_scheduler();
        self.wake_keys(
            keys.chain([
                ReconcileKey::Level,
                ReconcileKey::Members,
                ReconcileKey::Liveness,
                ReconcileKey::Tokens,
            ])
            .collect(),
        );
    }

    fn wake_for_changes(&self, published: &PublishedState, batches: &[ChangeBatch]) {
        self.wake_sessions(batches);
        if published.role.can_plan {
            self.wake_planners(&published.state, batches);
        }
    }

    fn wake_sessions(&self, batches: &[ChangeBatch]) {
        let mut nodes = BTreeSet::new();
        for change in batches.iter().flat_map(|batch| batch.changes.iter()) {
            match *change {
                // The node's settings, name and labels, or a newer session on another manager.
                StateChange::Node(id) | StateChange::Assignment(id) => drop(nodes.insert(id)),
                // Every worker receives the manager addresses.
                StateChange::Member(_) => return self.registry.wake_all(),
                StateChange::Service(_)
                | StateChange::Task(_)
                | StateChange::Cluster
                | StateChange::Token(_)
                | StateChange::SecretObject(_)
                | StateChange::Volume(_) => {}
            }
        }
        nodes.into_iter().for_each(|node| self.registry.wake(node));
    }

    fn wake_planners(&self, state: &State, batches: &[ChangeBatch]) {
        let (mut keys, mut places_changed) = (BTreeSet::new(), false);
        for change in batches.iter().flat_map(|batch| batch.changes.iter()) {
            match *change {
                StateChange::Service(id) => keys.extend([ReconcileKey::Service(id), ReconcileKey::Reap(id)]),
                StateChange::Task(id) => {
                    keys.extend([ReconcileKey::Service(id.service), ReconcileKey::Reap(id.service)])
                }
                StateChange::Node(id) => {
                    // Liveness is checked every second anyway.
                    places_changed = true;
                    keys.extend(services_on(state, &id));
                    keys.extend(global_services(state));
                }
                // A task that waits for the volume may fit on a node now.
                StateChange::Volume(_) => places_changed = true,
                // The services that use it changed as well; an assignment follows from its tasks.
                StateChange::SecretObject(_) | StateChange::Assignment(_) => {}
                StateChange::Token(_) => {
                    keys.insert(ReconcileKey::Tokens);
                }
                StateChange::Cluster => {
                    keys.insert(ReconcileKey::Level);
                }
                StateChange::Member(_) => keys.extend([ReconcileKey::Level, ReconcileKey::Members]),
            }
        }
        if places_changed || !keys.is_empty() {
            self.wake_scheduler();
        }
        self.wake_keys(keys);
    }

    fn wake_keys(&self, keys: BTreeSet<ReconcileKey>) {
        for key in keys {
            self.report_queue_full(self.keys.wake(key));
        }
    }

    fn wake_scheduler(&self) {
        self.report_queue_full(self.keys.wake_at(ReconcileKey::Schedule, Instant::now() + DEBOUNCE));
    }

    /// A lost wake-up is repeated by the next sweep.
    fn report_queue_full(&self, woken: Result<(), WorkQueueFull>) {
        if let Err(full) = woken {
            tracing::debug!(%full, "queue full: wake-up postponed to the next sweep");
        }
    }
}

/// Services whose tasks may have to leave the node.
fn services_on(state: &State, node: &NodeId) -> BTreeSet<ReconcileKey> {
    state.tasks_on(node).map(|task| ReconcileKey::Service(task.id.service)).collect()
}

/// Global services: they may need a task on a node without one.
fn global_services(state: &State) -> impl Iterator<Item = ReconcileKey> {
    let global = state.services().filter(|service| service.spec.mode == ServiceMode::Global);
    global.map(|service| ReconcileKey::Service(service.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use warren_control::WorkQueue;
    use warren_types::{Id, ServiceId};

    use super::*;
    use crate::session::registry::RegisteredSession;
    use crate::store::{ReplicaRole, StatePublisher};

    const NODE: NodeId = NodeId(Id(7));

    struct TriggerFixture {
        publisher: StatePublisher,
        waker: ReconcileTrigger,
        keys: WorkQueueHandle<ReconcileKey>,
        session: RegisteredSession,
    }

    impl TriggerFixture {
        fn new() -> Self {
            let (store, publisher, _) = Store::new(PublishedState::initial(State::new()), 1, 100);
            let (registry, keys) = (SessionRegistry::default(), WorkQueue::new(100).handle());
            let session = registry.register(NODE, 1, mpsc::channel(1).0, Instant::now()).unwrap();
            let waker = ReconcileTrigger::new(store, registry, keys.clone());
            Self { publisher, waker, keys, session }
        }

        /// Publishes an entry with this change, and runs the trigger.
        async fn publish_change(&self, role: ReplicaRole, index: u64, change: StateChange) {
            let published = PublishedState { index, role, ..PublishedState::initial(State::new()) };
            let batch = ChangeBatch { index, changes: Arc::new([change]) };
            let publish = async {
                tokio::task::yield_now().await;
                self.publisher.publish(published, vec![batch]);
                std::future::pending::<()>().await
            };
            tokio::select! {
                () = self.waker.run() => {}
                () = publish => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }

        async fn is_session_woken(&self) -> bool {
            timeout(Duration::from_secs(1), self.session.wake.notified()).await.is_ok()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn follower_wakes_sessions_only() {
        let (world, follows) =
            (TriggerFixture::new(), ReplicaRole { term: 1, leader_id: Some(2), ..ReplicaRole::default() });
        for (index, change, wakes) in [
            (1, StateChange::Service(ServiceId(Id(1))), false),
            (2, StateChange::Assignment(NODE), true),
            (3, StateChange::Node(NODE), true),
            (4, StateChange::Node(NodeId(Id(8))), false),
            (5, StateChange::Member(2), true),
        ] {
            world.publish_change(follows, index, change).await;
            assert_eq!(world.is_session_woken().await, wakes, "{change:?}");
        }
        world.waker.wake_all();
        assert!(world.is_session_woken().await);
        assert!(world.keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn new_leader_wakes_all_keys() {
        let leads = ReplicaRole { is_leader: true, leader_id: Some(1), term: 2, can_plan: true };
        let world = TriggerFixture::new();
        world.publish_change(leads, 1, StateChange::Token(warren_types::TokenId(Id(1)))).await;
        assert_eq!(world.keys.len(), 5, "all but those of services");
        assert!(world.is_session_woken().await);
    }
}
