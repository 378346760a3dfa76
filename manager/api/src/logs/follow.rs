//! Follows the logs of tasks as they are written, including tasks created later.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use warren_proto::v1::log_entry::Entry;
use warren_types::{NodeId, TaskId};

use super::super::Api;
use super::reader::LogReadEnd;
use super::source::LogSelector;
use super::{BatchSender, EntrySender, LogQuery, LogSource, MAX_SOURCES, SourceBatch, send_entry};

/// Batches of all tasks that may be queued for the client.
const MAX_QUEUED_BATCHES: usize = 4;
/// Delay before a lost node is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(2);

impl Api {
    /// Sends the logs of ended tasks, ordered by time, then batches until no more can follow or the client
    /// disconnects. Changes after `index` are watched for new tasks.
    pub(super) async fn follow_logs(
        &self,
        selector: LogSelector,
        ended: Vec<LogSource>,
        query: LogQuery,
        index: u64,
        entries: &EntrySender,
    ) {
        let known = ended.iter().map(|source| (source.task, source.node)).collect();
        self.merge_logs(selector, ended, LogQuery { follow: false, ..query }, entries).await;
        let (sink, mut batches) = mpsc::channel(MAX_QUEUED_BATCHES);
        // Owns the receiver, so that readers notice when the client is gone.
        let forward = async move {
            while let Some((source, batch)) = batches.recv().await {
                let entries_of = match batch {
                    SourceBatch::Lines(lines) => lines.into_iter().map(Entry::Line).collect(),
                    SourceBatch::Failure(message) => vec![Entry::GapReason(message)],
                };
                for entry in entries_of {
                    if !send_entry(entries, &source, entry).await {
                        return;
                    }
                }
            }
        };
        tokio::join!(self.read_all(selector, known, query, index, sink), forward);
    }

    /// One reader per task. Readers of existing tasks start as requested, those of later tasks at their first
    /// line.
    async fn read_all(
        &self,
        selector: LogSelector,
        mut known: BTreeSet<(TaskId, NodeId)>,
        query: LogQuery,
        index: u64,
        sink: BatchSender,
    ) {
        let mut watch = self.store.watch(index);
        let mut readers = JoinSet::new();
        let mut begin = query;
        loop {
            let published = self.store.read();
            let sources = selector.sources(&published.state);
            let present: BTreeSet<_> = sources.iter().map(|source| (source.task, source.node)).collect();
            known.retain(|read| present.contains(read));
            for source in sources {
                // A task above the limit gets its reader when another one ends.
                if readers.len() < MAX_SOURCES && known.insert((source.task, source.node)) {
                    readers.spawn(self.clone().follow_task(selector, source, begin, sink.clone()));
                }
            }
            if readers.is_empty() && selector.is_finished(&published.state) {
                return;
            }
            begin = LogQuery { tail: None, ..query };
            tokio::select! {
                // Missed changes do not matter: each pass looks at the whole state.
                _ = watch.next() => {}
                Some(_) = readers.join_next() => {}
                () = sink.closed() => return,
            }
        }
    }

    /// Follows one task. A lost node is tried again from the last line while the task is on it.
    async fn follow_task(
        self,
        selector: LogSelector,
        source: LogSource,
        mut query: LogQuery,
        sink: BatchSender,
    ) {
        let mut last_failure = String::new();
        loop {
            let mut last_ns = None;
            let end = self.read_task(&source, query, &sink, &mut last_ns).await;
            if let Some(last) = last_ns {
                (query.tail, query.since_ns) = (None, Some(last.saturating_add(1)));
                last_failure.clear();
            }
            let again = matches!(end, LogReadEnd::Lost(_));
            let Some(why) = end.failure(&source, selector) else { return };
            // Each failure is reported once.
            if why != last_failure
                && sink.send((source.clone(), SourceBatch::Failure(why.clone()))).await.is_err()
            {
                return;
            }
            last_failure = why;
            if !again || !self.is_still_on_node(&source) {
                return;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    fn is_still_on_node(&self, source: &LogSource) -> bool {
        let state = &self.store.read().state;
        let task = state.task(&source.task).filter(|task| task.node == Some(source.node));
        task.is_some_and(|task| task.holds_resources())
    }
}
