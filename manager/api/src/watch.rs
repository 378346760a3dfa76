//! Watch: changed objects as events, resumable from an index.

use std::collections::BTreeMap;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tonic::Status;
use warren_core::{State, StateChange};
use warren_proto::v1;
use warren_proto::v1::watch_event::Change as Shown;
use warren_store::problem::{manager_stopping, status_of};
use warren_store::{ChangeBatch, HistoryGap, ProposeError};
use warren_types::{ServiceId, TaskId};

use super::Api;
use super::node_reports::RemoteNodeReports;

/// Events that may be queued for one watcher; a slower watcher must list again.
pub const MAX_QUEUED_EVENTS: usize = 256;

/// Parameters of one watch.
pub struct WatchFilter {
    /// Only objects of this service.
    pub service: Option<ServiceId>,
    /// Start after this index.
    pub after: u64,
    /// Whether the watch continues while this manager's log cannot be written.
    pub is_stale_allowed: bool,
}

impl Api {
    /// Sends events until the receiver is dropped or the manager stops.
    pub async fn stream_watch(
        self,
        watcher: WatchFilter,
        events: mpsc::Sender<Result<v1::WatchEvent, Status>>,
    ) {
        let stop = self.shutdown.token();
        tokio::select! {
            () = self.stream_changes(&watcher, &events) => {}
            () = events.closed() => {}
            stall = self.store.wait_stall_with_peers(), if !watcher.is_stale_allowed => {
                let _ = events.try_send(Err(status_of(ProposeError::Stale(stall))));
            }
            () = stop.cancelled() => {
                // If the queue is full, the watcher sees the connection close.
                let _ = events.try_send(Err(manager_stopping()));
            }
        }
    }

    async fn stream_changes(
        &self,
        watcher: &WatchFilter,
        events: &mpsc::Sender<Result<v1::WatchEvent, Status>>,
    ) {
        let mut progress = self.registry.watch_progress();
        let _subscription = self.subscribe_progress();
        let mut watch = self.store.watch(watcher.after);
        let mut last_index = watcher.after;
        let mut pending = vec![resync(last_index)];
        loop {
            for event in pending {
                last_index = event.index;
                if events.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            pending = tokio::select! {
                next = watch.next() => match next {
                    Ok(batches) => self.show_changes(watcher, last_index, &batches),
                    Err(HistoryGap(index)) => vec![resync(index)],
                },
                task = progress.recv() => match task {
                    Ok(task) => self.show_progress(watcher, last_index, task),
                    Err(RecvError::Lagged(_)) => vec![resync(last_index)],
                    Err(RecvError::Closed) => return,
                },
            };
        }
    }

    /// Objects are shown in their current state, each once: later changes of the same object follow as later
    /// events.
    ///
    /// A watch may be resumed from an event's index. So only the last event of an entry has the entry's
    /// index; those before it have the index of the previous entry.
    fn show_changes(
        &self,
        watcher: &WatchFilter,
        last_index: u64,
        batches: &[ChangeBatch],
    ) -> Vec<v1::WatchEvent> {
        let published = self.store.read();
        let mut newest = BTreeMap::new();
        for batch in batches {
            let admitted = batch.changes.iter().filter(|change| watcher.matches(change));
            newest.extend(admitted.map(|change| (*change, batch.index)));
        }
        let mut changes: Vec<(u64, StateChange)> =
            newest.into_iter().map(|(change, index)| (index, change)).collect();
        changes.sort_unstable();
        let mut events = Vec::with_capacity(changes.len());
        let mut complete = last_index;
        for (position, (index, change)) in changes.iter().enumerate() {
            if changes.get(position + 1).is_none_or(|(next, _)| next != index) {
                complete = *index;
            }
            events.extend(self.show_change(&published.state, *change, complete));
        }
        events
    }

    /// A task's progress report, which is not in the log.
    fn show_progress(&self, watcher: &WatchFilter, last_index: u64, task: TaskId) -> Vec<v1::WatchEvent> {
        let published = self.store.read();
        let change = Some(StateChange::Task(task)).filter(|change| watcher.matches(change));
        // The removal of a task is reported by the entry that removed it.
        let change = change.filter(|_| published.state.task(&task).is_some());
        change.and_then(|change| self.show_change(&published.state, change, last_index)).into_iter().collect()
    }

    fn show_change(&self, state: &State, change: StateChange, index: u64) -> Option<v1::WatchEvent> {
        let change = match change {
            StateChange::Service(id) => match state.service(&id) {
                Some(service) => Shown::Service(self.show_service(state, service)),
                None => Shown::RemovedService(id.to_string()),
            },
            StateChange::Task(id) => match state.task(&id) {
                Some(task) => {
                    Shown::Task(without_usage(self.show_task(state, task, &RemoteNodeReports::default())))
                }
                None => Shown::RemovedTask(id.to_string()),
            },
            StateChange::Node(id) => match state.node(&id) {
                Some(node) => {
                    let shown = self.show_node(state, node, &RemoteNodeReports::default());
                    Shown::Node(v1::Node { usage: None, program_digest: String::new(), ..shown })
                }
                None => Shown::RemovedNode(id.to_string()),
            },
            StateChange::Cluster
            | StateChange::Assignment(_)
            | StateChange::Token(_)
            | StateChange::User(_)
            | StateChange::SecretObject(_)
            | StateChange::Volume(_)
            | StateChange::Network(_)
            | StateChange::Addresses
            | StateChange::ImportedImages
            | StateChange::CaRenewals
            | StateChange::KeyRotation
            | StateChange::Member(_) => return None,
        };
        Some(v1::WatchEvent { index, change: Some(change) })
    }
}

/// Removes usage and health checks. They are not available for tasks of other managers' workers, and their
/// changes cause no events, so a shown value would never be updated.
fn without_usage(shown: v1::Task) -> v1::Task {
    v1::Task { checks: Vec::new(), usage: None, ..shown }
}

fn resync(index: u64) -> v1::WatchEvent {
    v1::WatchEvent { index, change: Some(Shown::Resync(v1::Resync {})) }
}

impl WatchFilter {
    fn matches(&self, change: &StateChange) -> bool {
        match (self.service, change) {
            (_, StateChange::Assignment(_) | StateChange::Cluster) => false,
            (
                _,
                StateChange::Token(_)
                | StateChange::User(_)
                | StateChange::SecretObject(_)
                | StateChange::Volume(_)
                | StateChange::Network(_)
                | StateChange::Addresses
                | StateChange::ImportedImages
                | StateChange::CaRenewals
                | StateChange::KeyRotation
                | StateChange::Member(_),
            ) => false,
            (None, StateChange::Service(_) | StateChange::Task(_) | StateChange::Node(_)) => true,
            (Some(service), StateChange::Service(id)) => *id == service,
            (Some(service), StateChange::Task(id)) => id.service == service,
            (Some(_), StateChange::Node(_)) => false,
        }
    }
}
