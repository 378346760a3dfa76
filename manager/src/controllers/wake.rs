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
        let services = published.state.services_after(None).map(|service| service.id);
        let keys = services.flat_map(|id| [Key::Service(id), Key::Reap(id)]);
        self.wake_scheduler();
        self.wake(keys.chain([Key::Level, Key::Liveness, Key::Tokens]).collect());
    }

    fn wake_changed(&self, published: &Published, batches: &[Batch]) {
        let state = &published.state;
        let (mut keys, mut nodes, mut places_changed) = (BTreeSet::new(), BTreeSet::new(), false);
        for change in batches.iter().flat_map(|batch| batch.changes.iter()) {
            match *change {
                Change::Service(id) => keys.extend([Key::Service(id), Key::Reap(id)]),
                Change::Task(id) => keys.extend([Key::Service(id.service), Key::Reap(id.service)]),
                Change::Node(id) => {
                    places_changed = true;
                    // What its session tells it of itself: name and labels.
                    nodes.insert(id);
                    keys.insert(Key::Liveness);
                    keys.extend(services_on(state, &id));
                    keys.extend(services_everywhere(state));
                }
                Change::Assignment(id) => {
                    nodes.insert(id);
                }
                // A task that waits for it may have a place now.
                Change::Volume(_) => places_changed = true,
                // The services that use it changed as well.
                Change::Content(_) => {}
                Change::Token(_) => {
                    keys.insert(Key::Tokens);
                }
                Change::Cluster => {
                    keys.insert(Key::Level);
                }
            }
        }
        if places_changed || !keys.is_empty() {
            self.wake_scheduler();
        }
        self.wake(keys);
        nodes.into_iter().for_each(|node| self.registry.wake(node));
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
