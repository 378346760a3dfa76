//! Who has an actor, and what each is told.
//!
//! The supervisor looks at two truths, what managers want and what containerd lists, and compares them with
//! its actors. It never acts on a container itself. Events only say which actor should look sooner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use warren_control::{Chance, Clock, LoopHandle, Loops, Shutdown};
use warren_runtime::RuntimeEvent;
use warren_task::Wishes;
use warren_types::{Desired, NodeCondition, NodeSettings, TaskAssignment, TaskId};

use crate::node::health::Health;
use crate::node::metrics::WorkerMetrics;
use crate::session::Standing;
use crate::tasks::actor::{Actor, Handle, Orders, kind};
use crate::tasks::container::{self, Listed};
use crate::tasks::driver::Driver;
use crate::tasks::failure::Failure;
use crate::tasks::ground::Ground;
use crate::tasks::reporter::Reporter;

/// The loop that asks containerd for everything.
pub(crate) const RELIST: &str = "worker.relist";
/// How often containerd is asked for everything, whatever its events said.
const RELIST_EVERY: Duration = Duration::from_secs(20);
/// How often what nobody owns is looked for, whatever was heard.
const SWEEP_EVERY: Duration = Duration::from_secs(15);
/// How often the node's network is compared with what it should be.
const REPAIR_EVERY: Duration = Duration::from_secs(30);
/// Before the events are subscribed to again, should their stream end.
const RESUBSCRIBE_AFTER: Duration = Duration::from_secs(1);

/// What a supervisor works with.
pub(crate) struct Parts {
    pub driver: Driver,
    pub clock: Arc<dyn Clock>,
    pub shutdown: Shutdown,
    pub wishes: watch::Receiver<Wishes>,
    pub health: Arc<Health>,
    pub metrics: WorkerMetrics,
    /// The sender of what [`Driver::ground`] receives.
    pub ground: watch::Sender<Ground>,
    /// Whether the node has a manager.
    pub standing: watch::Receiver<Standing>,
}

/// The actors, and what they are compared with.
pub(crate) struct Supervisor {
    pub(super) driver: Arc<Driver>,
    pub(super) wishes: watch::Receiver<Wishes>,
    pub(super) health: Arc<Health>,
    pub(super) ground: watch::Sender<Ground>,
    /// The settings that the node's network was made with.
    pub(super) made_with: Mutex<Option<NodeSettings>>,
    reporter: Arc<Reporter>,
    clock: Arc<dyn Clock>,
    standing: watch::Receiver<Standing>,
    pub(super) shutdown: Shutdown,
    actors: Mutex<BTreeMap<TaskId, Handle>>,
}

/// Takes an actor that ended off the list, also when it panicked.
struct Listing {
    supervisor: Arc<Supervisor>,
    task: TaskId,
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.supervisor.ended(&self.task);
    }
}

impl Supervisor {
    /// A supervisor without actors.
    pub fn new(parts: Parts) -> Arc<Self> {
        let Parts { driver, clock, shutdown, wishes, health, metrics, ground, standing } = parts;
        let (actors, made_with) = (Mutex::default(), Mutex::default());
        let reporter = Arc::new(Reporter::new(metrics));
        let driver = Arc::new(driver);
        Arc::new(Self {
            driver,
            wishes,
            health,
            ground,
            made_with,
            reporter,
            clock,
            standing,
            shutdown,
            actors,
        })
    }

    /// Where the actors report to.
    pub fn reporter(&self) -> Arc<Reporter> {
        Arc::clone(&self.reporter)
    }

    /// Starts everything: the lists, the sweeps, the network, the events, and the actors as tasks become known.
    pub fn start(self: &Arc<Self>, loops: &Loops, chance: &Chance) {
        let supervisor = Arc::clone(self);
        let network = loops.spawn("worker.network", jittered(REPAIR_EVERY, chance()), move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.tend_ground().await }
        });
        let supervisor = Arc::clone(self);
        let relist = loops.spawn(RELIST, jittered(RELIST_EVERY, chance()), move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.relist().await }
        });
        let supervisor = Arc::clone(self);
        let sweep = loops.spawn("worker.sweep", jittered(SWEEP_EVERY, chance()), move || {
            let supervisor = Arc::clone(&supervisor);
            async move { supervisor.sweep().await }
        });
        let follow = Arc::clone(self).follow_wishes(network.clone(), relist.clone());
        self.shutdown.spawn("worker.assignments", follow);
        self.shutdown.spawn("worker.standing", Arc::clone(self).follow_standing());
        let follow = Arc::clone(self).follow_events(network, relist, sweep);
        self.shutdown.spawn("worker.events", follow);
    }

    fn actors(&self) -> MutexGuard<'_, BTreeMap<TaskId, Handle>> {
        self.actors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every actor that what made its actions fail may be over.
    pub(super) fn retry_all(&self) {
        for handle in self.actors().values() {
            handle.order(|orders| {
                orders.retries += 1;
                true
            });
        }
    }

    /// Makes the actors' orders those of the wishes. Does nothing the second time.
    fn reconcile(self: &Arc<Self>) {
        let wishes = self.wishes.borrow().clone();
        let mut actors = self.actors();
        for (id, wanted) in &wishes.tasks {
            let handle = actors.entry(*id).or_insert_with(|| self.hire(*id, Some(Arc::clone(wanted))));
            handle.order(|orders| {
                let same = orders.wanted.as_ref() == Some(wanted) && !orders.dismissed;
                orders.wanted = Some(Arc::clone(wanted));
                orders.dismissed = false;
                !same
            });
        }
        if wishes.confirmed {
            for (_, handle) in actors.iter().filter(|(id, _)| !wishes.tasks.contains_key(id)) {
                handle.order(dismiss);
            }
        }
    }

    /// Looks at every container of ours: takes over those without an actor, wakes actors that saw another
    /// state.
    async fn relist(self: &Arc<Self>) -> Result<(), warren_runtime::Error> {
        let listed = self.list().await?;
        self.compare(&listed);
        self.reconcile();
        if self.wishes.borrow().confirmed {
            let swept = self.driver.directories.sweep(|task| self.actors().contains_key(task)).await;
            match swept {
                Ok(0) => (),
                Ok(removed) => tracing::info!(removed, "removed directories that no task owned"),
                Err(error) => tracing::warn!(%error, "could not sweep the directories of tasks"),
            }
            let swept = self.driver.contents.sweep(&|task| self.actors().contains_key(task)).await;
            match swept {
                Ok(0) => (),
                Ok(removed) => tracing::info!(removed, "removed secrets and configs that no task owned"),
                Err(Failure { reason, .. }) => tracing::warn!(reason, "could not sweep secrets and configs"),
            }
        }
        Ok(())
    }

    /// The containers that agents of this cluster made; whether containerd answers becomes the node's
    /// condition.
    pub(super) async fn list(&self) -> Result<Vec<Listed>, warren_runtime::Error> {
        match self.driver.runtime.list().await {
            Ok(found) => {
                if self.health.note(NodeCondition::RuntimeDown, None) {
                    self.retry_all();
                }
                Ok(found.iter().filter_map(|found| container::listed(found, self.driver.cluster)).collect())
            }
            Err(error) => {
                let sentence = format!("containerd does not answer ({error}); tasks keep their state");
                self.health.note(NodeCondition::RuntimeDown, Some(sentence));
                Err(error)
            }
        }
    }

    fn compare(self: &Arc<Self>, listed: &[Listed]) {
        let confirmed = self.wishes.borrow().confirmed;
        let mut actors = self.actors();
        for found in listed {
            match actors.get(&found.task) {
                Some(handle) if looks_like(found) == Some(handle.kind()) => (),
                Some(handle) => handle.order(look),
                // What cannot be read is removed once it is known that nobody wants it.
                None if found.assignment.is_none() && !confirmed => (),
                None => {
                    let wanted = found.assignment.clone().map(Arc::new);
                    actors.insert(found.task, self.hire(found.task, wanted));
                }
            }
        }
        let there: BTreeSet<TaskId> = listed.iter().map(|found| found.task).collect();
        let absent = kind(&warren_task::Container::Absent);
        for (_, handle) in actors.iter().filter(|(id, handle)| !there.contains(id) && handle.kind() != absent)
        {
            handle.order(look);
        }
    }

    fn hire(self: &Arc<Self>, task: TaskId, wanted: Option<Arc<TaskAssignment>>) -> Handle {
        let orders = Orders { wanted, standing: *self.standing.borrow(), ..Orders::default() };
        let (driver, reporter) = (Arc::clone(&self.driver), Arc::clone(&self.reporter));
        let (clock, stop) = (Arc::clone(&self.clock), self.shutdown.token());
        let (actor, handle) = Actor::new(task, orders, driver, reporter, clock, stop);
        let listing = Listing { supervisor: Arc::clone(self), task };
        self.shutdown.spawn(format!("task {task}"), async move {
            let _listing = listing;
            actor.run().await;
        });
        handle
    }

    /// An actor that panicked gets a successor at the next re-list. So does one that ended just when its task was
    /// wanted again, in the cluster's next life: what that one said last would pass for the last word of its successor.
    fn ended(&self, task: &TaskId) {
        self.actors().remove(task);
        let is_gone = self.reporter.newest(task).is_some_and(|last| last.removed);
        if is_gone || !self.wishes.borrow().tasks.contains_key(task) {
            self.driver.checking.results.forget(task);
            self.reporter.forget(task);
        }
    }

    async fn follow_wishes(self: Arc<Self>, network: LoopHandle, relist: LoopHandle) {
        let (mut wishes, stop) = (self.wishes.clone(), self.shutdown.token());
        let mut was_confirmed = false;
        loop {
            let confirmed = wishes.borrow_and_update().confirmed;
            self.reconcile();
            network_if_other_settings(&self, &network);
            if confirmed && !was_confirmed {
                relist.wake();
            }
            was_confirmed = confirmed;
            tokio::select! {
                () = stop.cancelled() => return,
                changed = wishes.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Tells those who mind that managers went or came.
    async fn follow_standing(self: Arc<Self>) {
        let (mut standing, stop) = (self.standing.clone(), self.shutdown.token());
        loop {
            for handle in self.actors().values() {
                let now = *standing.borrow_and_update();
                handle.order(|orders| {
                    let news = orders.standing != now;
                    orders.standing = now;
                    news && orders.minds()
                });
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = standing.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn follow_events(self: Arc<Self>, network: LoopHandle, relist: LoopHandle, sweep: LoopHandle) {
        let stop = self.shutdown.token();
        loop {
            let mut events = self.driver.runtime.events();
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.driver.botched.notified() => {
                        sweep.wake();
                        continue;
                    }
                    event = events.next() => event,
                };
                match event {
                    Some(RuntimeEvent::Exited { id, .. } | RuntimeEvent::OutOfMemory { id }) => {
                        let task = id.as_str().parse().ok();
                        task.and_then(|task: TaskId| self.actors().get(&task).map(|h| h.order(look)));
                    }
                    Some(RuntimeEvent::Lost) => relist.wake(),
                    Some(RuntimeEvent::Resumed) => {
                        relist.wake();
                        network.wake();
                        sweep.wake();
                    }
                    None => break,
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RESUBSCRIBE_AFTER) => relist.wake(),
            }
        }
    }
}

fn network_if_other_settings(supervisor: &Supervisor, network: &LoopHandle) {
    let made_with = supervisor.made_with.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if supervisor.wishes.borrow().settings != made_with {
        network.wake();
    }
}

/// The kind of container that an actor should have seen; `None` when the runtime did not say.
fn looks_like(found: &Listed) -> Option<u8> {
    use warren_runtime::Process;
    Some(match found.process {
        Process::Unknown { .. } => return None,
        Process::None => 1,
        Process::Created { .. } => 2,
        Process::Running { .. } => 3,
        Process::Stopped(_) => 4,
    })
}

fn look(orders: &mut Orders) -> bool {
    orders.looks += 1;
    true
}

fn dismiss(orders: &mut Orders) -> bool {
    let news = !orders.dismissed;
    orders.dismissed = true;
    if let Some(wanted) = orders.wanted.as_ref().filter(|wanted| wanted.desired != Desired::Remove) {
        orders.wanted = Some(Arc::new(TaskAssignment { desired: Desired::Remove, ..(**wanted).clone() }));
    }
    news
}

/// A period spread by a tenth to either side, so that nodes that started together drift apart.
fn jittered(period: Duration, chance: u64) -> Duration {
    let tenths = u128::from(chance) * 200 / u128::from(u64::MAX);
    period * (900 + u32::try_from(tenths).expect("at most 200")) / 1000
}
