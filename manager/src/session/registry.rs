//! What this manager knows of the workers connected to it, in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast, mpsc};
use tokio::time::Instant;
use warren_proto::v1;
use warren_types::{MemberId, NodeId, TaskId, TaskReport, TaskState};

use super::elsewhere::Elsewhere;
use super::vitals::{NodeVitals, Vitals};

/// A frame on its way to a worker. In a box, since each session's queue has room for many, also when none is there.
pub type Parcel = Box<Result<v1::ManagerFrame, tonic::Status>>;

/// Frames on their way to a worker.
pub type Outbox = mpsc::Sender<Parcel>;

/// Tasks with news of their progress that may wait for one watcher; one that is slower has to list again.
const NEWS: usize = 1024;

/// The sessions of this manager. Cheap to clone; all clones are the same registry.
#[derive(Clone)]
pub struct Registry {
    sessions: Arc<Mutex<BTreeMap<NodeId, Entry>>>,
    /// Keys of tasks whose progress is another one now.
    news: broadcast::Sender<TaskId>,
    /// What other managers told of the progress of their nodes' tasks.
    elsewhere: Elsewhere,
}

impl Default for Registry {
    fn default() -> Self {
        Self { sessions: Arc::default(), news: broadcast::Sender::new(NEWS), elsewhere: Elsewhere::default() }
    }
}

/// When the node of a session was last heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contact {
    /// The node.
    pub node: NodeId,
    /// Its session here.
    pub session: u64,
    /// Its last word.
    pub at: Instant,
}

struct Entry {
    number: u64,
    outbox: Outbox,
    /// The node's assignment may have changed.
    wake: Arc<Notify>,
    last_contact: Instant,
    usage: Option<v1::NodeUsage>,
    /// The agent's background loops, as of its last heartbeat.
    loops: Vec<v1::Loop>,
    /// Newest word on tasks between ASSIGNED and RUNNING, and of waits for a next attempt.
    progress: BTreeMap<TaskId, TaskReport>,
    /// What its tasks use and how their checks go.
    vitals: NodeVitals,
}

/// What a heartbeat tells, bounded.
pub struct Heartbeat {
    /// Of the node.
    pub usage: Option<v1::NodeUsage>,
    /// Of the agent.
    pub loops: Vec<v1::Loop>,
    /// Of its tasks.
    pub tasks: Vec<v1::TaskVitals>,
}

/// A session in the registry; dropping it takes it out, unless a newer session of the node took its place.
pub struct Registered {
    registry: Registry,
    node: NodeId,
    number: u64,
    /// Woken when the node's assignment may have changed.
    pub wake: Arc<Notify>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, Entry>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters session `number` of `node`; an older session of the node is closed by losing its place. `None` when
    /// a newer one is here already: two that are opened at once may come in any order.
    pub fn register(&self, node: NodeId, number: u64, outbox: Outbox, now: Instant) -> Option<Registered> {
        let wake = Arc::new(Notify::new());
        let entry = Entry {
            number,
            outbox,
            wake: wake.clone(),
            last_contact: now,
            usage: None,
            loops: Vec::new(),
            progress: BTreeMap::new(),
            vitals: NodeVitals::default(),
        };
        let mut sessions = self.lock();
        if sessions.get(&node).is_some_and(|known| known.number > number) {
            return None;
        }
        if let Some(older) = sessions.insert(node, entry) {
            older.wake.notify_one();
        }
        Some(Registered { registry: self.clone(), node, number, wake })
    }

    /// Tasks whose progress is another one, from now on, here or elsewhere. It is a hint: look the task up.
    pub fn news(&self) -> broadcast::Receiver<TaskId> {
        self.news.subscribe()
    }

    /// When each connected node was last heard of.
    pub fn contacts(&self) -> Vec<Contact> {
        let contact = |(node, entry): (&NodeId, &Entry)| Contact {
            node: *node,
            session: entry.number,
            at: entry.last_contact,
        };
        self.lock().iter().map(contact).collect()
    }

    /// Whether the node is connected here.
    pub fn has(&self, node: NodeId) -> bool {
        self.lock().contains_key(&node)
    }

    /// How many nodes are connected.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// What connected nodes said that is not replicated: of these, or of all.
    pub fn told(&self, of: Option<&BTreeSet<NodeId>>) -> Vec<v1::HeardNode> {
        let sessions = self.lock();
        let asked = sessions.iter().filter(|(node, _)| of.is_none_or(|of| of.contains(node)));
        asked.map(|(node, entry)| entry.told(*node)).collect()
    }

    /// What other managers told of progress.
    pub fn elsewhere(&self) -> &Elsewhere {
        &self.elsewhere
    }

    /// Another manager, which is that member, told of the progress of a task of its node.
    pub fn note_elsewhere(&self, member: MemberId, node: NodeId, report: TaskReport) {
        let task = report.task;
        if self.elsewhere.note(member, node, report) {
            // Nobody may be watching.
            let _ = self.news.send(task);
        }
    }

    /// The node's assignment may have changed.
    pub fn wake(&self, node: NodeId) {
        if let Some(entry) = self.lock().get(&node) {
            entry.wake.notify_one();
        }
    }

    /// All assignments may have changed.
    pub fn wake_all(&self) {
        self.lock().values().for_each(|entry| entry.wake.notify_one());
    }

    /// Usage as of the node's last heartbeat.
    pub fn usage(&self, node: NodeId) -> Option<v1::NodeUsage> {
        self.lock().get(&node).and_then(|entry| entry.usage.clone())
    }

    /// The background loops of every connected agent, as of its last heartbeat.
    pub fn loops(&self) -> Vec<(NodeId, Vec<v1::Loop>)> {
        self.lock().iter().map(|(node, entry)| (*node, entry.loops.clone())).collect()
    }

    /// What the node last said of a task's usage and checks.
    pub fn vitals(&self, node: NodeId, task: &TaskId) -> Option<Vitals> {
        self.lock().get(&node).and_then(|entry| entry.vitals.get(task).cloned())
    }

    /// The newest unreplicated word on a task, by the node's session here.
    pub fn progress(&self, node: NodeId, task: &TaskId) -> Option<TaskReport> {
        self.lock().get(&node).and_then(|entry| entry.progress.get(task).cloned())
    }

    /// All unreplicated words of the sessions here.
    pub fn all_progress(&self) -> Vec<(NodeId, TaskReport)> {
        let sessions = self.lock();
        let of_node = |(node, entry): (&NodeId, &Entry)| {
            let node = *node;
            entry.progress.values().map(move |report| (node, report.clone())).collect::<Vec<_>>()
        };
        sessions.iter().flat_map(of_node).collect()
    }

    /// Where frames to a connected node go.
    pub fn outbox(&self, node: NodeId) -> Option<Outbox> {
        self.lock().get(&node).map(|entry| entry.outbox.clone())
    }
}

impl Entry {
    fn told(&self, node: NodeId) -> v1::HeardNode {
        v1::HeardNode {
            node_id: node.to_string(),
            usage: self.usage.clone(),
            // Who asks for loops asks for nothing else.
            loops: Vec::new(),
            tasks: self.vitals.told(),
            progress: self.progress.values().map(Into::into).collect(),
        }
    }
}

impl Registered {
    /// Runs `change` on the entry, if this session still is the node's newest one here.
    fn update<T>(&self, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.registry.lock().get_mut(&self.node).filter(|entry| entry.number == self.number).map(change)
    }

    /// The node has not opened a newer session here.
    pub fn is_current(&self) -> bool {
        self.update(|_| ()).is_some()
    }

    /// The node was heard of at `now`.
    pub fn contact(&self, now: Instant) {
        self.update(|entry| entry.last_contact = now);
    }

    /// The node, which has the tasks `there`, sent a heartbeat.
    pub fn heartbeat(&self, heartbeat: Heartbeat, there: &BTreeSet<TaskId>) {
        let Heartbeat { usage, loops, tasks } = heartbeat;
        self.update(|entry| {
            (entry.usage, entry.loops) = (usage, loops);
            entry.vitals.take(tasks, there);
        });
    }

    /// Keeps a report that is not worth replicating, unless it is older than what is kept.
    pub fn keep_progress(&self, report: TaskReport) {
        let task = report.task;
        let kept = self.update(|entry| {
            let newer = entry.progress.get(&task).is_none_or(|known| order(known) <= order(&report));
            if newer {
                entry.progress.insert(task, report);
            }
            newer
        });
        if kept == Some(true) {
            // Nobody may be watching.
            let _ = self.registry.news.send(task);
        }
    }

    /// Forgets what was replicated since, by `fact` or before it.
    pub fn forget_progress(&self, fact: &TaskReport) {
        self.update(|entry| {
            if entry.progress.get(&fact.task).is_some_and(|known| order(known) <= order(fact)) {
                entry.progress.remove(&fact.task);
            }
        });
    }
}

/// Later words come after earlier ones.
pub(super) fn order(report: &TaskReport) -> (bool, u32, TaskState) {
    (report.removed, report.attempt, report.state)
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut sessions = self.registry.lock();
        if sessions.get(&self.node).is_some_and(|entry| entry.number == self.number) {
            sessions.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Health, Id, ServiceId, Timestamp};

    fn outbox() -> Outbox {
        mpsc::channel(1).0
    }

    #[test]
    fn an_older_session_cannot_touch_a_newer_one() {
        let registry = Registry::default();
        let node = NodeId(Id(1));
        let now = Instant::now();
        let old = registry.register(node, 1, outbox(), now).unwrap();
        let new = registry.register(node, 2, outbox(), now).unwrap();
        assert!(registry.register(node, 1, outbox(), now).is_none());
        old.contact(now + std::time::Duration::from_secs(1));
        assert!(!old.is_current());
        assert_eq!(registry.contacts(), [Contact { node, session: 2, at: now }]);
        drop(old);
        assert!(new.is_current());
        drop(new);
        assert_eq!(registry.contacts(), []);
    }

    fn report(attempt: u32, state: TaskState) -> TaskReport {
        TaskReport {
            task: TaskId { service: ServiceId(Id(1)), number: 1 },
            attempt,
            state,
            since: Timestamp(0),
            reason: String::new(),
            ready: false,
            exit: None,
            removed: false,
            next_attempt: None,
            image: None,
            health: Health::None,
        }
    }

    #[test]
    fn progress_only_rises_and_goes_with_the_fact_that_follows_it() {
        let (registry, node) = (Registry::default(), NodeId(Id(1)));
        let mut news = registry.news();
        let session = registry.register(node, 1, outbox(), Instant::now()).unwrap();
        let shown = || registry.progress(node, &report(0, TaskState::New).task).map(|known| known.state);
        session.keep_progress(report(1, TaskState::Starting));
        session.keep_progress(report(1, TaskState::Preparing));
        assert_eq!(shown(), Some(TaskState::Starting));
        session.forget_progress(&report(0, TaskState::Running));
        assert_eq!(shown(), Some(TaskState::Starting));
        session.forget_progress(&report(1, TaskState::Running));
        assert_eq!(shown(), None);
        assert!(news.try_recv().is_ok() && news.try_recv().is_err(), "told once: only one word was new");
    }
}
