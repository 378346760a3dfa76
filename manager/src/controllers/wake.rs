//! Turns what was applied into keys to look at, and nothing more.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;
use warren_control::{QueueFull, QueueHandle};
use warren_core::{Change, State};
use warren_types::{Mode, NodeId};

use super::key::Key;
use crate::session::Registry;
use crate::store::{Batch, Published, Store};

/// The scheduler waits this long for more to place, so that one plan holds what came together.
const DEBOUNCE: Duration = Duration::from_millis(2);
/// The loop that wakes everything.
pub const SWEEP_LOOP: &str = "sweep";
/// All keys are looked at this often, in case a wake-up was lost.
pub const SWEEP: Duration = Duration::from_secs(30);

/// Wakes the planners and the sessions.
pub struct Waker {
    store: Store,
    registry: Registry,
    keys: QueueHandle<Key>,
}

impl Waker {
    /// Wakes `keys` and the sessions in `registry` for what happens in `store`.
    pub fn new(store: Store, registry: Registry, keys: QueueHandle<Key>) -> Self {
        Self { store, registry, keys }
    }

    /// Wakes what changes, until it is dropped.
    pub async fn follow(&self) {
        let mut watch = self.store.watch(self.store.read().index);
        // Term in which everything was woken, because it may be planned there.
        let mut planned = 0;
        loop {
            let next = watch.next().await;
            let published = self.store.read();
            let new_term = published.role.may_plan && published.role.term != planned;
            match next {
                Ok(batches) if !new_term => self.wake_changed(&published, &batches),
                Ok(_) | Err(_) => {
                    planned = if published.role.may_plan { published.role.term } else { planned };
                    self.wake_all();
                }
            }
        }
    }

    /// Wakes everything.
    pub fn wake_all(&self) {
        let published = self.store.read();
        self.registry.wake_all();
        if !published.role.may_plan {
            // Who becomes leader wakes everything.
            return;
        }
        let services = published.state.services_after(None).map(|service| service.id);
        let keys = services.flat_map(|id| [Key::Service(id), Key::Reap(id)]);
        self.wake_scheduler();
        self.wake(keys.chain([Key::Level, Key::Members, Key::Liveness, Key::Tokens]).collect());
    }

    fn wake_changed(&self, published: &Published, batches: &[Batch]) {
        self.wake_sessions(batches);
        if published.role.may_plan {
            self.wake_planners(&published.state, batches);
        }
    }

    fn wake_sessions(&self, batches: &[Batch]) {
        let mut nodes = BTreeSet::new();
        for change in batches.iter().flat_map(|batch| batch.changes.iter()) {
            match *change {
                // What its session tells it of itself, name and labels; or it has a newer session elsewhere.
                Change::Node(id) | Change::Assignment(id) => drop(nodes.insert(id)),
                // Every worker is told where managers are.
                Change::Member(_) => return self.registry.wake_all(),
                Change::Service(_)
                | Change::Task(_)
                | Change::Cluster
                | Change::Token(_)
                | Change::Content(_)
                | Change::Volume(_) => {}
            }
        }
        nodes.into_iter().for_each(|node| self.registry.wake(node));
    }

    fn wake_planners(&self, state: &State, batches: &[Batch]) {
        let (mut keys, mut places_changed) = (BTreeSet::new(), false);
        for change in batches.iter().flat_map(|batch| batch.changes.iter()) {
            match *change {
                Change::Service(id) => keys.extend([Key::Service(id), Key::Reap(id)]),
                Change::Task(id) => keys.extend([Key::Service(id.service), Key::Reap(id.service)]),
                Change::Node(id) => {
                    // Whether it is silent is asked every second anyway.
                    places_changed = true;
                    keys.extend(services_on(state, &id));
                    keys.extend(services_everywhere(state));
                }
                // A task that waits for it may have a place now.
                Change::Volume(_) => places_changed = true,
                // The services that use it changed as well; an assignment follows from its tasks.
                Change::Content(_) | Change::Assignment(_) => {}
                Change::Token(_) => {
                    keys.insert(Key::Tokens);
                }
                Change::Cluster => {
                    keys.insert(Key::Level);
                }
                Change::Member(_) => keys.extend([Key::Level, Key::Members]),
            }
        }
        if places_changed || !keys.is_empty() {
            self.wake_scheduler();
        }
        self.wake(keys);
    }

    fn wake(&self, keys: BTreeSet<Key>) {
        for key in keys {
            self.dropped(self.keys.wake(key));
        }
    }

    fn wake_scheduler(&self) {
        self.dropped(self.keys.wake_at(Key::Schedule, Instant::now() + DEBOUNCE));
    }

    /// A wake-up that finds no room is made up for by the next sweep.
    fn dropped(&self, woken: Result<(), QueueFull>) {
        if let Err(full) = woken {
            tracing::debug!(%full, "a wake-up waits for the next sweep");
        }
    }
}

/// Those whose tasks may have to leave the node.
fn services_on(state: &State, node: &NodeId) -> BTreeSet<Key> {
    state.tasks_on(node).map(|task| Key::Service(task.id.service)).collect()
}

/// Global services: they may want a task on a node that has none of them.
fn services_everywhere(state: &State) -> impl Iterator<Item = Key> {
    let global = state.services().filter(|service| service.spec.mode == Mode::Global);
    global.map(|service| Key::Service(service.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;
    use tokio::time::timeout;
    use warren_control::Queue;
    use warren_types::{Id, ServiceId};

    use super::*;
    use crate::session::registry::Registered;
    use crate::store::{Publisher, Role};

    const NODE: NodeId = NodeId(Id(7));

    struct World {
        publisher: Publisher,
        waker: Waker,
        keys: QueueHandle<Key>,
        session: Registered,
    }

    impl World {
        fn new() -> Self {
            let (store, publisher, _) = Store::new(Published::first(State::new()), 1, 100);
            let (registry, keys) = (Registry::default(), Queue::new(100).handle());
            let session = registry.register(NODE, 1, mpsc::channel(1).0, Instant::now()).unwrap();
            let waker = Waker::new(store, registry, keys.clone());
            Self { publisher, waker, keys, session }
        }

        /// Publishes an entry with this change, and lets the waker see it.
        async fn sees(&self, role: Role, index: u64, change: Change) {
            let published = Published { index, role, ..Published::first(State::new()) };
            let batch = Batch { index, changes: Arc::new([change]) };
            let publish = async {
                tokio::task::yield_now().await;
                self.publisher.publish(published, vec![batch]);
                std::future::pending::<()>().await
            };
            tokio::select! {
                () = self.waker.follow() => {}
                () = publish => {}
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }

        async fn session_is_woken(&self) -> bool {
            timeout(Duration::from_secs(1), self.session.wake.notified()).await.is_ok()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_wakes_its_sessions_and_plans_nothing() {
        let (world, follows) = (World::new(), Role { term: 1, leader_id: Some(2), ..Role::default() });
        for (index, change, wakes) in [
            (1, Change::Service(ServiceId(Id(1))), false),
            (2, Change::Assignment(NODE), true),
            (3, Change::Node(NODE), true),
            (4, Change::Node(NodeId(Id(8))), false),
            (5, Change::Member(2), true),
        ] {
            world.sees(follows, index, change).await;
            assert_eq!(world.session_is_woken().await, wakes, "{change:?}");
        }
        world.waker.wake_all();
        assert!(world.session_is_woken().await);
        assert!(world.keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_wakes_everything() {
        let leads = Role { leader: true, leader_id: Some(1), term: 2, may_plan: true };
        let world = World::new();
        world.sees(leads, 1, Change::Token(warren_types::TokenId(Id(1)))).await;
        assert_eq!(world.keys.len(), 5, "all but those of services");
        assert!(world.session_is_woken().await);
    }
}
