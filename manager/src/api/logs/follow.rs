//! What tasks write from now on, as it arrives, also of tasks that come later.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;
use warren_proto::v1::log_entry::Entry;
use warren_types::{NodeId, TaskId};

use super::super::Api;
use super::reader::End;
use super::source::Of;
use super::{Entries, MAX_SOURCES, Said, Sink, Source, Wish, tell};

/// Batches of all tasks that may wait for the client.
const BATCHES: usize = 4;
/// A node that was lost is tried again after this.
const AGAIN: Duration = Duration::from_secs(2);

impl Api {
    /// Gives out what is said until there can be no more of it, or the client leaves. Changes after `index` are
    /// watched for tasks that come later.
    pub(super) async fn follow_logs(&self, of: Of, wish: Wish, index: u64, entries: &Entries) {
        let (sink, mut said) = mpsc::channel(BATCHES);
        // Takes the receiver with it, so that readers see that nobody listens any more.
        let give_out = async move {
            while let Some((source, said)) = said.recv().await {
                let entries_of = match said {
                    Said::Lines(lines) => lines.into_iter().map(Entry::Line).collect(),
                    Said::Trouble(words) => vec![Entry::Trouble(words)],
                };
                for entry in entries_of {
                    if !tell(entries, &source, entry).await {
                        return;
                    }
                }
            }
        };
        tokio::join!(self.read_all(of, wish, index, sink), give_out);
    }

    /// One reader for each task. Those that are there at first begin as asked for, later ones with their first line.
    async fn read_all(&self, of: Of, wish: Wish, index: u64, sink: Sink) {
        let mut watch = self.store.watch(index);
        let mut known: BTreeSet<(TaskId, NodeId)> = BTreeSet::new();
        let mut readers = JoinSet::new();
        let mut begin = wish;
        loop {
            let published = self.store.read();
            let sources = of.sources(&published.state);
            let there: BTreeSet<_> = sources.iter().map(|source| (source.task, source.node)).collect();
            known.retain(|read| there.contains(read));
            for source in sources {
                // What finds no room comes when another has ended.
                if readers.len() < MAX_SOURCES && known.insert((source.task, source.node)) {
                    readers.spawn(self.clone().follow_task(source, begin, sink.clone()));
                }
            }
            if readers.is_empty() && of.is_over(&published.state) {
                return;
            }
            begin = Wish { tail: None, ..wish };
            tokio::select! {
                // What was missed is seen by looking at everything again.
                _ = watch.next() => {}
                Some(_) = readers.join_next() => {}
                () = sink.closed() => return,
            }
        }
    }

    /// Follows one task; a node that was lost is asked again from where it broke off, as long as it has the task.
    async fn follow_task(self, source: Source, mut wish: Wish, sink: Sink) {
        let mut last_words = String::new();
        loop {
            let mut last_ns = None;
            let end = self.read_task(&source, wish, &sink, &mut last_ns).await;
            if let Some(last) = last_ns {
                (wish.tail, wish.since_ns) = (None, Some(last.saturating_add(1)));
                last_words.clear();
            }
            let (again, why) = match end {
                End::Complete | End::Unwanted => return,
                End::Refused(why) => (false, why),
                End::Lost(why) => (true, why),
            };
            // Said once, however often it stays so.
            if why != last_words && sink.send((source.clone(), Said::Trouble(why.clone()))).await.is_err() {
                return;
            }
            last_words = why;
            if !again || !self.still_has(&source) {
                return;
            }
            sleep(AGAIN).await;
        }
    }

    fn still_has(&self, source: &Source) -> bool {
        let state = &self.store.read().state;
        let task = state.task(&source.task).filter(|task| task.node == Some(source.node));
        task.is_some_and(|task| task.holds_node())
    }
}
