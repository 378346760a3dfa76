//! Enqueues the reconcile keys of applied changes, and wakes sessions.

use std::time::Duration;

use tokio::time::Instant;
use warren_control::WorkQueueHandle;
use warren_replica::{ReconcileKey, ReconcileTrigger, WakeUps};
use warren_session::SessionRegistry;
use warren_store::Store;

/// Name of the background task that enqueues all keys.
pub const RESYNC_TASK: &str = "resync";
/// Interval at which all keys are enqueued, in case a wake-up was lost.
pub const RESYNC_INTERVAL: Duration = Duration::from_secs(30);

/// Enqueues keys and wakes sessions.
pub struct WakeUpDispatcher {
    store: Store,
    registry: SessionRegistry,
    keys: WorkQueueHandle<ReconcileKey>,
}

impl WakeUpDispatcher {
    /// Enqueues `keys` and wakes the sessions in `registry` for changes in `store`.
    pub fn new(store: Store, registry: SessionRegistry, keys: WorkQueueHandle<ReconcileKey>) -> Self {
        Self { store, registry, keys }
    }

    /// Handles changes until it is dropped.
    pub async fn run(&self) {
        let mut watch = self.store.watch(self.store.read().index);
        let mut trigger = ReconcileTrigger::default();
        loop {
            let next = watch.next().await;
            let published = self.store.read();
            let changes = next.as_ref().ok().map(|batches| batches.iter().flat_map(|it| it.changes.iter()));
            self.wake(trigger.wake(&published.role, &published.state, changes));
        }
    }

    /// Enqueues all keys and wakes all sessions.
    pub fn wake_all(&self) {
        let published = self.store.read();
        self.wake(WakeUps::all(&published.role, &published.state));
    }

    fn wake(&self, WakeUps { keys, sessions }: WakeUps) {
        match sessions {
            None => self.registry.wake_all(),
            Some(nodes) => nodes.into_iter().for_each(|node| self.registry.wake(node)),
        }
        let now = Instant::now();
        for key in keys {
            // A lost wake-up is repeated by the next resync.
            if let Err(full) = self.keys.wake_at(key, now + key.debounce()) {
                tracing::debug!(%full, "queue full: wake-up postponed to the next resync");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use warren_control::WorkQueue;
    use warren_core::{State, StateChange};
    use warren_session::registry::RegisteredSession;
    use warren_store::{ChangeBatch, PublishedState, ReplicaRole, StatePublisher};
    use warren_types::{Id, NodeId, ServiceId};

    use super::*;

    const NODE: NodeId = NodeId(Id(7));

    struct DispatcherFixture {
        publisher: StatePublisher,
        dispatcher: WakeUpDispatcher,
        keys: WorkQueueHandle<ReconcileKey>,
        session: RegisteredSession,
    }

    impl DispatcherFixture {
        fn new() -> Self {
            let (store, publisher, _) = Store::new(PublishedState::initial(State::new()), 1, 100);
            let (registry, keys) = (SessionRegistry::default(), WorkQueue::new(100).handle());
            let session = registry.register(NODE, 1, mpsc::channel(1).0, Instant::now()).unwrap();
            let dispatcher = WakeUpDispatcher::new(store, registry, keys.clone());
            Self { publisher, dispatcher, keys, session }
        }

        /// Publishes an entry with this change, and runs the dispatcher.
        async fn publish_change(&self, role: ReplicaRole, index: u64, change: StateChange) {
            let published = PublishedState { index, role, ..PublishedState::initial(State::new()) };
            let batch = ChangeBatch { index, changes: Arc::new([change]) };
            let publish = async {
                tokio::task::yield_now().await;
                self.publisher.publish(published, vec![batch]);
                std::future::pending::<()>().await
            };
            tokio::select! {
                () = self.dispatcher.run() => {}
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
            (DispatcherFixture::new(), ReplicaRole { term: 1, leader_id: Some(2), ..ReplicaRole::default() });
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
        world.dispatcher.wake_all();
        assert!(world.is_session_woken().await);
        assert!(world.keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn new_leader_wakes_all_keys() {
        let leads = ReplicaRole { is_leader: true, leader_id: Some(1), term: 2, can_plan: true };
        let world = DispatcherFixture::new();
        world.publish_change(leads, 1, StateChange::Token(warren_types::TokenId(Id(1)))).await;
        assert_eq!(world.keys.len(), 7, "all but those of services");
        assert!(world.is_session_woken().await);
    }
}
