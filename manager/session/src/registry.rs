//! The workers connected to this manager; in memory only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast, mpsc, watch};
use tokio::time::Instant;
use warren_proto::v1;
use warren_types::{CaDigest, CanonicalImage, MemberId, NodeId, TaskId, TaskReport};

use super::remote_progress::{RemoteProgress, report_order};
use super::task_telemetry::{NodeTelemetry, TaskTelemetry};

/// A frame for a worker. Boxed, since each session's queue allocates its slots in advance.
pub type BoxedFrame = Box<Result<v1::ManagerFrame, tonic::Status>>;

/// The send queue of a session.
pub type FrameSender = mpsc::Sender<BoxedFrame>;

/// Progress changes that may be queued for one watcher; a slower watcher must list again.
const MAX_QUEUED_PROGRESS: usize = 1024;

/// The sessions of this manager. Cheap to clone; all clones share one registry.
#[derive(Clone, Default)]
pub struct SessionRegistry {
    shared: Arc<SharedRegistry>,
}

struct SharedRegistry {
    sessions: Mutex<BTreeMap<NodeId, SessionEntry>>,
    /// Ids of tasks whose progress changed.
    progress_changes: broadcast::Sender<TaskId>,
    /// Counts acknowledgements of the network.
    network_acks: watch::Sender<u64>,
    /// Task progress reported by other managers.
    remote_progress: RemoteProgress,
}

impl Default for SharedRegistry {
    fn default() -> Self {
        Self {
            sessions: Mutex::default(),
            progress_changes: broadcast::Sender::new(MAX_QUEUED_PROGRESS),
            network_acks: watch::Sender::default(),
            remote_progress: RemoteProgress::default(),
        }
    }
}

/// The last contact with the node of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionContact {
    /// The node.
    pub node: NodeId,
    /// Its session here.
    pub session: u64,
    /// Time of the last received frame.
    pub at: Instant,
    /// Index of the state up to which the node has forgotten whatever was withdrawn.
    pub network_index: u64,
}

impl SessionContact {
    /// As other managers see it at `now`.
    pub fn as_of(&self, now: Instant) -> warren_replica::NodeContact {
        let Self { node, session, at, network_index } = *self;
        warren_replica::NodeContact { node, session, age: now.saturating_duration_since(at), network_index }
    }
}

struct SessionEntry {
    number: u64,
    frames: FrameSender,
    /// Notified when the node's assignment may have changed.
    wake: Arc<Notify>,
    last_contact: Instant,
    usage: Option<v1::NodeUsage>,
    /// The agent's background tasks in its last heartbeat.
    background_tasks: Vec<v1::BackgroundTask>,
    /// Newest reports on tasks between ASSIGNED and RUNNING, and on those that wait for the next attempt.
    progress: BTreeMap<TaskId, TaskReport>,
    /// Usage and health checks of its tasks.
    task_telemetry: NodeTelemetry,
    /// See [`SessionContact::network_index`].
    network_index: u64,
    /// Images that it reported last.
    images: Vec<v1::HeldImage>,
    /// Digest of its program that it reported last; empty before that.
    program_digest: String,
    authority: Option<CaDigest>,
}

/// The contents of a heartbeat, limited in size.
pub struct NodeHeartbeat {
    /// Usage of the node.
    pub usage: Option<v1::NodeUsage>,
    /// Background tasks of the agent.
    pub background_tasks: Vec<v1::BackgroundTask>,
    /// Usage and health checks of its tasks.
    pub task_telemetry: Vec<v1::TaskStats>,
}

/// A registered session; dropping it removes it, unless a newer session of the node replaced it.
pub struct RegisteredSession {
    registry: SessionRegistry,
    node: NodeId,
    number: u64,
    /// Notified when the node's assignment may have changed.
    pub wake: Arc<Notify>,
}

impl SessionRegistry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, SessionEntry>> {
        self.shared.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers session `number` of `node`; an older session of the node is replaced and ends. `None` if a
    /// newer one is registered already: concurrent sessions may register in any order.
    pub fn register(
        &self,
        node: NodeId,
        number: u64,
        sender: FrameSender,
        now: Instant,
    ) -> Option<RegisteredSession> {
        let wake = Arc::new(Notify::new());
        let entry = SessionEntry {
            number,
            frames: sender,
            wake: wake.clone(),
            last_contact: now,
            usage: None,
            background_tasks: Vec::new(),
            progress: BTreeMap::new(),
            task_telemetry: NodeTelemetry::default(),
            network_index: 0,
            images: Vec::new(),
            program_digest: String::new(),
            authority: None,
        };
        let mut sessions = self.lock();
        if sessions.get(&node).is_some_and(|known| known.number > number) {
            return None;
        }
        if let Some(older) = sessions.insert(node, entry) {
            older.wake.notify_one();
        }
        Some(RegisteredSession { registry: self.clone(), node, number, wake })
    }

    /// Subscribes to the ids of tasks whose progress changes, on this or another manager. A change is a hint:
    /// read the task.
    pub fn watch_progress(&self) -> broadcast::Receiver<TaskId> {
        self.shared.progress_changes.subscribe()
    }

    /// The last contact with each connected node.
    pub fn contacts(&self) -> Vec<SessionContact> {
        let contact = |(node, entry): (&NodeId, &SessionEntry)| SessionContact {
            node: *node,
            session: entry.number,
            at: entry.last_contact,
            network_index: entry.network_index,
        };
        self.lock().iter().map(contact).collect()
    }

    /// Whether the node has a session with this manager.
    pub fn is_connected(&self, node: NodeId) -> bool {
        self.lock().contains_key(&node)
    }

    /// The nodes of `nodes` that have a session now, once each of them has applied the network up to this manager's
    /// version `index`. One that loses its session is waited for until it is back.
    pub(crate) async fn await_network(&self, index: u64, mut nodes: BTreeSet<NodeId>) -> BTreeSet<NodeId> {
        let mut acks = self.shared.network_acks.subscribe();
        nodes.retain(|node| self.is_connected(*node));
        let mut waiting = nodes.clone();
        loop {
            acks.borrow_and_update();
            {
                let sessions = self.lock();
                waiting.retain(|node| sessions.get(node).is_none_or(|entry| entry.network_index < index));
            }
            if waiting.is_empty() {
                return nodes;
            }
            // The sender is a field of this value.
            let _ = acks.changed().await;
        }
    }

    /// Number of connected nodes.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Reports of connected nodes that are not replicated: of the given nodes, or of all.
    pub fn node_reports(&self, of: Option<&BTreeSet<NodeId>>) -> Vec<v1::NodeReport> {
        let sessions = self.lock();
        let selected = sessions.iter().filter(|(node, _)| of.is_none_or(|of| of.contains(node)));
        selected.map(|(node, entry)| entry.node_report(*node)).collect()
    }

    /// Task progress reported by other managers.
    pub fn remote_progress(&self) -> &RemoteProgress {
        &self.shared.remote_progress
    }

    /// Records a progress report from the manager `member` on a task of its node.
    pub fn record_remote_progress(&self, member: MemberId, node: NodeId, report: TaskReport) {
        let task = report.task;
        if self.shared.remote_progress.record(member, node, report) {
            // There may be no watcher.
            let _ = self.shared.progress_changes.send(task);
        }
    }

    /// Notifies the node's session that its assignment may have changed.
    pub fn wake(&self, node: NodeId) {
        if let Some(entry) = self.lock().get(&node) {
            entry.wake.notify_one();
        }
    }

    /// Notifies all sessions that their assignments may have changed.
    pub fn wake_all(&self) {
        self.lock().values().for_each(|entry| entry.wake.notify_one());
    }

    /// Usage in the node's last heartbeat.
    pub fn usage(&self, node: NodeId) -> Option<v1::NodeUsage> {
        self.lock().get(&node).and_then(|entry| entry.usage.clone())
    }

    /// The digest of the program that a connected node runs, if it has reported it.
    pub fn program_digest(&self, node: NodeId) -> Option<String> {
        let digest = self.lock().get(&node).map(|entry| entry.program_digest.clone());
        digest.filter(|digest| !digest.is_empty())
    }

    /// The background tasks of every connected agent in its last heartbeat.
    pub fn background_tasks(&self) -> Vec<(NodeId, Vec<v1::BackgroundTask>)> {
        self.lock().iter().map(|(node, entry)| (*node, entry.background_tasks.clone())).collect()
    }

    /// Usage and health checks of a task in the node's last heartbeat.
    pub fn task_telemetry(&self, node: NodeId, task: &TaskId) -> Option<TaskTelemetry> {
        self.lock().get(&node).and_then(|entry| entry.task_telemetry.get(task).cloned())
    }

    /// The newest report on a task that is not replicated, from the node's local session.
    pub fn progress(&self, node: NodeId, task: &TaskId) -> Option<TaskReport> {
        self.lock().get(&node).and_then(|entry| entry.progress.get(task).cloned())
    }

    /// All reports of the local sessions that are not replicated.
    pub fn all_progress(&self) -> Vec<(NodeId, TaskReport)> {
        let sessions = self.lock();
        let of_node = |(node, entry): (&NodeId, &SessionEntry)| {
            let node = *node;
            entry.progress.values().map(move |report| (node, report.clone())).collect::<Vec<_>>()
        };
        sessions.iter().flat_map(of_node).collect()
    }

    /// The connected nodes that reported the image, and how they name it.
    pub fn image_holders(&self, image: &CanonicalImage) -> Vec<(NodeId, v1::HeldImage)> {
        let sessions = self.lock();
        let held = sessions.iter().filter_map(|(node, entry)| {
            let found = entry.images.iter().find(|held| image.matches(&held.reference, &held.digest));
            Some((*node, found?.clone()))
        });
        held.collect()
    }

    /// The send queue of a connected node.
    pub fn frame_sender(&self, node: NodeId) -> Option<FrameSender> {
        self.lock().get(&node).map(|entry| entry.frames.clone())
    }
}

impl SessionEntry {
    fn node_report(&self, node: NodeId) -> v1::NodeReport {
        v1::NodeReport {
            node_id: node.to_string(),
            usage: self.usage.clone(),
            // Background tasks are a separate query.
            background_tasks: Vec::new(),
            tasks: self.task_telemetry.to_wire(),
            progress: self.progress.values().map(Into::into).collect(),
            // Images are a separate query.
            images: Vec::new(),
            program_digest: self.program_digest.clone(),
        }
    }
}

impl RegisteredSession {
    /// Runs `change` on the entry, if this session is still the node's newest one here.
    fn update<T>(&self, change: impl FnOnce(&mut SessionEntry) -> T) -> Option<T> {
        self.registry.lock().get_mut(&self.node).filter(|entry| entry.number == self.number).map(change)
    }

    /// Whether the node has no newer session with this manager.
    pub fn is_current(&self) -> bool {
        self.update(|_| ()).is_some()
    }

    /// Records a frame from the node at `now`.
    pub fn record_contact(&self, now: Instant) {
        self.update(|entry| entry.last_contact = now);
    }

    /// Records a heartbeat of the node, which has the tasks `assigned`.
    pub fn record_heartbeat(&self, heartbeat: NodeHeartbeat, assigned: &BTreeSet<TaskId>) {
        let NodeHeartbeat { usage, background_tasks: tasks_run, task_telemetry: tasks } = heartbeat;
        self.update(|entry| {
            (entry.usage, entry.background_tasks) = (usage, tasks_run);
            entry.task_telemetry.update(tasks, assigned);
        });
    }

    /// Records [`SessionContact::network_index`].
    pub fn record_network(&self, index: u64) {
        let before = self.update(|entry| std::mem::replace(&mut entry.network_index, index));
        if before.is_some_and(|before| before < index) {
            self.registry.shared.network_acks.send_modify(|count| *count += 1);
        }
    }

    /// Records the images that the node has, and the digest of its program.
    pub fn record_inventory(&self, images: Vec<v1::HeldImage>, program_digest: String) {
        self.update(|entry| (entry.images, entry.program_digest) = (images, program_digest));
    }

    /// Records the only certificate authority that the node trusts; `None` if it trusts several.
    pub fn record_authority(&self, authority: Option<CaDigest>) {
        self.update(|entry| entry.authority = authority);
    }

    /// The only certificate authority that the node trusts.
    pub fn authority(&self) -> Option<CaDigest> {
        self.update(|entry| entry.authority).flatten()
    }

    /// Records a report that need not be replicated, unless a newer one is recorded.
    pub fn record_progress(&self, report: TaskReport) {
        let task = report.task;
        let kept = self.update(|entry| {
            let newer =
                entry.progress.get(&task).is_none_or(|known| report_order(known) <= report_order(&report));
            if newer {
                entry.progress.insert(task, report);
            }
            newer
        });
        if kept == Some(true) {
            // There may be no watcher.
            let _ = self.registry.shared.progress_changes.send(task);
        }
    }

    /// Removes progress that is not newer than the replicated report `fact`.
    pub fn remove_replicated_progress(&self, fact: &TaskReport) {
        self.update(|entry| {
            if entry.progress.get(&fact.task).is_some_and(|known| report_order(known) <= report_order(fact)) {
                entry.progress.remove(&fact.task);
            }
        });
    }
}

impl Drop for RegisteredSession {
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
    use warren_types::fixtures::task_report;
    use warren_types::{Id, ServiceId, TaskState};

    fn outbox() -> FrameSender {
        mpsc::channel(1).0
    }

    #[test]
    fn older_session_cannot_change_newer() {
        let registry = SessionRegistry::default();
        let node = NodeId(Id(1));
        let now = Instant::now();
        let old = registry.register(node, 1, outbox(), now).unwrap();
        let new = registry.register(node, 2, outbox(), now).unwrap();
        assert!(registry.register(node, 1, outbox(), now).is_none());
        old.record_contact(now + std::time::Duration::from_secs(1));
        assert!(!old.is_current());
        assert_eq!(registry.contacts(), [SessionContact { node, session: 2, at: now, network_index: 0 }]);
        drop(old);
        assert!(new.is_current());
        drop(new);
        assert_eq!(registry.contacts(), []);
    }

    fn report(attempt: u32, state: TaskState) -> TaskReport {
        task_report(TaskId { service: ServiceId(Id(1)), number: 1 }, attempt, state)
    }

    #[test]
    fn progress_only_advances_until_replicated() {
        let (registry, node) = (SessionRegistry::default(), NodeId(Id(1)));
        let mut news = registry.watch_progress();
        let session = registry.register(node, 1, outbox(), Instant::now()).unwrap();
        let shown = || registry.progress(node, &report(0, TaskState::New).task).map(|known| known.state);
        session.record_progress(report(1, TaskState::Starting));
        session.record_progress(report(1, TaskState::Preparing));
        assert_eq!(shown(), Some(TaskState::Starting));
        session.remove_replicated_progress(&report(0, TaskState::Running));
        assert_eq!(shown(), Some(TaskState::Starting));
        session.remove_replicated_progress(&report(1, TaskState::Running));
        assert_eq!(shown(), None);
        assert!(news.try_recv().is_ok() && news.try_recv().is_err(), "sent once: only one report was new");
    }
}
