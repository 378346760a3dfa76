//! Watching: what changed, as objects, from an index on.

use std::collections::BTreeMap;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tonic::Status;
use warren_core::{Change, State};
use warren_proto::v1;
use warren_proto::v1::watch_event::Change as Shown;
use warren_types::{ServiceId, TaskId};

use super::Api;
use super::heard::Heard;
use super::problem::{status_of, stopping};
use crate::store::{Batch, Missed, ProposeError};

/// Events that may wait for one watcher; one that is slower is told to list again.
pub const BUFFER: usize = 256;

/// One watcher's wishes.
pub struct Watcher {
    /// Only what belongs to this service.
    pub service: Option<ServiceId>,
    /// Go on after this index.
    pub after: u64,
    /// Goes on while this manager applies nothing new.
    pub stale: bool,
}

impl Api {
    /// Feeds `events` until its receiver is gone or the manager stops.
    pub async fn feed(self, watcher: Watcher, events: mpsc::Sender<Result<v1::WatchEvent, Status>>) {
        let stop = self.shutdown.token();
        tokio::select! {
            () = self.follow(&watcher, &events) => {}
            () = events.closed() => {}
            held = self.store.held_among_others(), if !watcher.stale => {
                let _ = events.try_send(Err(status_of(ProposeError::NotCurrent(held))));
            }
            () = stop.cancelled() => {
                // One that has no room for it learns it from the connection's end.
                let _ = events.try_send(Err(stopping()));
            }
        }
    }

    async fn follow(&self, watcher: &Watcher, events: &mpsc::Sender<Result<v1::WatchEvent, Status>>) {
        let _listens = self.listen();
        let mut progress = self.registry.news();
        let mut watch = self.store.watch(watcher.after);
        let mut told = watcher.after;
        let mut news = vec![resync(told)];
        loop {
            for event in news {
                told = event.index;
                if events.send(Ok(event)).await.is_err() {
                    return;
                }
            }
            news = tokio::select! {
                next = watch.next() => match next {
                    Ok(batches) => self.show_changes(watcher, told, &batches),
                    Err(Missed(index)) => vec![resync(index)],
                },
                task = progress.recv() => match task {
                    Ok(task) => self.show_progress(watcher, told, task),
                    Err(RecvError::Lagged(_)) => vec![resync(told)],
                    Err(RecvError::Closed) => return,
                },
            };
        }
    }

    /// Objects are shown as they are now, each once: later changes of the same object follow as later events.
    ///
    /// An event's index is one from which a watch may be resumed. So of the events of one entry only the last has
    /// its index; those before it have that of the entry before.
    fn show_changes(&self, watcher: &Watcher, told: u64, batches: &[Batch]) -> Vec<v1::WatchEvent> {
        let published = self.store.read();
        let mut newest = BTreeMap::new();
        for batch in batches {
            let admitted = batch.changes.iter().filter(|change| watcher.admits(change));
            newest.extend(admitted.map(|change| (*change, batch.index)));
        }
        let mut changes: Vec<(u64, Change)> =
            newest.into_iter().map(|(change, index)| (index, change)).collect();
        changes.sort_unstable();
        let mut events = Vec::with_capacity(changes.len());
        let mut complete = told;
        for (place, (index, change)) in changes.iter().enumerate() {
            if changes.get(place + 1).is_none_or(|(next, _)| next != index) {
                complete = *index;
            }
            events.extend(self.show_change(&published.state, *change, complete));
        }
        events
    }

    /// What a worker said on the way of a task, which is not in the log.
    fn show_progress(&self, watcher: &Watcher, told: u64, task: TaskId) -> Vec<v1::WatchEvent> {
        let published = self.store.read();
        let change = Some(Change::Task(task)).filter(|change| watcher.admits(change));
        // A task that is gone is told of by the entry that removed it.
        let change = change.filter(|_| published.state.task(&task).is_some());
        change.and_then(|change| self.show_change(&published.state, change, told)).into_iter().collect()
    }

    fn show_change(&self, state: &State, change: Change, index: u64) -> Option<v1::WatchEvent> {
        let change = match change {
            Change::Service(id) => match state.service(&id) {
                Some(service) => Shown::Service(self.show_service(state, service)),
                None => Shown::RemovedService(id.to_string()),
            },
            Change::Task(id) => match state.task(&id) {
                Some(task) => Shown::Task(unmeasured_task(self.show_task(state, task, &Heard::default()))),
                None => Shown::RemovedTask(id.to_string()),
            },
            Change::Node(id) => match state.node(&id) {
                Some(node) => {
                    let shown = self.show_node(state, node, &Heard::default());
                    Shown::Node(v1::Node { usage: None, ..shown })
                }
                None => Shown::RemovedNode(id.to_string()),
            },
            Change::Cluster
            | Change::Assignment(_)
            | Change::Token(_)
            | Change::Content(_)
            | Change::Volume(_)
            | Change::Member(_) => return None,
        };
        Some(v1::WatchEvent { index, change: Some(change) })
    }
}

/// Without what its node measures. Of the tasks of other managers' workers nothing of that is heard here, and of none
/// is a change of it an event: what is shown once would stay as it was.
fn unmeasured_task(shown: v1::Task) -> v1::Task {
    v1::Task { checks: Vec::new(), usage: None, ..shown }
}

fn resync(index: u64) -> v1::WatchEvent {
    v1::WatchEvent { index, change: Some(Shown::Resync(v1::Resync {})) }
}

impl Watcher {
    fn admits(&self, change: &Change) -> bool {
        match (self.service, change) {
            (_, Change::Assignment(_) | Change::Cluster) => false,
            (_, Change::Token(_) | Change::Content(_) | Change::Volume(_) | Change::Member(_)) => false,
            (None, Change::Service(_) | Change::Task(_) | Change::Node(_)) => true,
            (Some(service), Change::Service(id)) => *id == service,
            (Some(service), Change::Task(id)) => id.service == service,
            (Some(_), Change::Node(_)) => false,
        }
    }
}
