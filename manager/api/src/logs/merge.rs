//! Reads the existing log lines of several tasks, ordered by time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

use super::super::Api;
use super::{EntrySender, LogQuery, LogSelector, LogSource, SourceBatch, send_entry};

/// Batches of one task that may be queued beside the current one.
const MAX_QUEUED_BATCHES: usize = 1;

impl Api {
    /// Sends all lines of these tasks. Lines of one task keep the order in which they were written.
    pub(super) async fn merge_logs(
        &self,
        selector: LogSelector,
        sources: Vec<LogSource>,
        query: LogQuery,
        entries: &EntrySender,
    ) {
        let mut readers = JoinSet::new();
        let mut inputs = Vec::with_capacity(sources.len());
        for source in sources {
            let (sink, batches) = mpsc::channel(MAX_QUEUED_BATCHES);
            inputs.push(batches);
            let api = self.clone();
            readers.spawn(async move {
                let end = api.read_task(&source, query, &sink, &mut None).await;
                if let Some(why) = end.failure(&source, selector) {
                    // The client may have disconnected.
                    let _ = sink.send((source, SourceBatch::Failure(why))).await;
                }
            });
        }
        merge(inputs, entries).await;
    }
}

/// The lines of one task.
struct MergeInput {
    batches: mpsc::Receiver<(LogSource, SourceBatch)>,
    source: Option<LogSource>,
    lines: VecDeque<v1::LogLine>,
}

impl MergeInput {
    /// Waits for the next line and returns its time; `None` at the end. Failures are sent at once.
    async fn next_time(&mut self, entries: &EntrySender) -> Option<u64> {
        loop {
            if let Some(line) = self.lines.front() {
                return Some(line.at_ns);
            }
            let (source, batch) = self.batches.recv().await?;
            match batch {
                SourceBatch::Lines(lines) => self.lines = lines.into(),
                SourceBatch::Failure(message) => {
                    send_entry(entries, &source, Entry::GapReason(message)).await.then_some(())?;
                }
            }
            self.source = Some(source);
        }
    }
}

/// Repeatedly sends the oldest of all next lines. A line that is older than its predecessor in the same task
/// comes after it, so each input must have a line before a later line is sent.
async fn merge(inputs: Vec<mpsc::Receiver<(LogSource, SourceBatch)>>, entries: &EntrySender) {
    let input = |batches| MergeInput { batches, source: None, lines: VecDeque::new() };
    let mut inputs: Vec<MergeInput> = inputs.into_iter().map(input).collect();
    let mut next = BinaryHeap::with_capacity(inputs.len());
    for (input_index, input) in inputs.iter_mut().enumerate() {
        next.extend(input.next_time(entries).await.map(|at| Reverse((at, input_index))));
    }
    while let Some(Reverse((_, input_index))) = next.pop() {
        let input = &mut inputs[input_index];
        if let (Some(source), Some(line)) = (&input.source, input.lines.pop_front())
            && !send_entry(entries, source, Entry::Line(line)).await
        {
            return;
        }
        next.extend(input.next_time(entries).await.map(|at| Reverse((at, input_index))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, NodeId, ServiceId, TaskId};

    fn source(number: u64) -> LogSource {
        LogSource {
            task: TaskId { service: ServiceId(Id(1)), number },
            service: "web".parse().unwrap(),
            slot: 1,
            node: NodeId(Id(1)),
            node_name: "n1".into(),
            is_retained: false,
            has_run: true,
        }
    }

    fn lines(times: &[u64]) -> SourceBatch {
        SourceBatch::Lines(
            times.iter().map(|at_ns| v1::LogLine { at_ns: *at_ns, ..Default::default() }).collect(),
        )
    }

    /// An input with these batches.
    fn input(number: u64, all: Vec<SourceBatch>) -> mpsc::Receiver<(LogSource, SourceBatch)> {
        let (sink, output) = mpsc::channel(MAX_QUEUED_BATCHES);
        tokio::spawn(async move {
            for one in all {
                if sink.send((source(number), one)).await.is_err() {
                    return;
                }
            }
        });
        output
    }

    /// `time@task` for each line, the message for failures.
    async fn merged(inputs: Vec<mpsc::Receiver<(LogSource, SourceBatch)>>) -> Vec<String> {
        let (entries, mut stream) = mpsc::channel(1);
        tokio::spawn(async move { merge(inputs, &entries).await });
        let mut seen = Vec::new();
        while let Some(entry) = stream.recv().await {
            let v1::LogEntry { task_id, entry, .. } = entry.unwrap();
            let task = task_id.rsplit('-').next().unwrap();
            seen.push(match entry.unwrap() {
                Entry::Line(line) => format!("{}@{task}", line.at_ns),
                Entry::GapReason(words) => words,
            });
        }
        seen
    }

    #[tokio::test]
    async fn lines_are_merged_by_time() {
        let one = input(1, vec![lines(&[1, 4]), lines(&[]), lines(&[5, 9])]);
        let two = input(2, vec![lines(&[2, 3, 6]), lines(&[7])]);
        let none = input(3, Vec::new());
        assert_eq!(
            merged(vec![one, two, none]).await,
            ["1@1", "2@2", "3@2", "4@1", "5@1", "6@2", "7@2", "9@1"]
        );
    }

    #[tokio::test]
    async fn clock_set_back_keeps_task_order() {
        let one = input(1, vec![lines(&[5, 1, 6])]);
        let two = input(2, vec![lines(&[4, 7])]);
        assert_eq!(merged(vec![one, two]).await, ["4@2", "5@1", "1@1", "6@1", "7@2"]);
    }

    #[tokio::test]
    async fn failed_source_does_not_stop_others() {
        let one = input(1, vec![SourceBatch::Failure("node n1 is down".into())]);
        let two = input(2, vec![lines(&[1]), SourceBatch::Failure("lines are missing".into()), lines(&[2])]);
        assert_eq!(merged(vec![one, two]).await, ["node n1 is down", "1@2", "lines are missing", "2@2"]);
    }
}
