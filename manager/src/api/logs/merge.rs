//! What is already written, of several tasks, in the order of time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use warren_proto::v1;
use warren_proto::v1::log_entry::Entry;

use super::super::Api;
use super::reader::End;
use super::{Entries, Said, Source, Wish, tell};

/// Batches of one task that may wait beside the one that is being given out.
const BATCHES: usize = 1;

impl Api {
    /// Gives out everything of these tasks. Each task's lines stay in the order in which it wrote them.
    pub(super) async fn merge_logs(&self, sources: Vec<Source>, wish: Wish, entries: &Entries) {
        let mut readers = JoinSet::new();
        let mut inputs = Vec::with_capacity(sources.len());
        for source in sources {
            let (sink, said) = mpsc::channel(BATCHES);
            inputs.push(said);
            let api = self.clone();
            readers.spawn(async move {
                let end = api.read_task(&source, wish, &sink, &mut None).await;
                if let End::Refused(why) | End::Lost(why) = end {
                    // The client may have left.
                    let _ = sink.send((source, Said::Trouble(why))).await;
                }
            });
        }
        merge(inputs, entries).await;
    }
}

/// One task's lines.
struct Input {
    said: mpsc::Receiver<(Source, Said)>,
    source: Option<Source>,
    lines: VecDeque<v1::LogLine>,
}

impl Input {
    /// Waits until there is a line, and answers its time; `None` when there are no more. Says what is wrong at once.
    async fn ready(&mut self, entries: &Entries) -> Option<u64> {
        loop {
            if let Some(line) = self.lines.front() {
                return Some(line.at_ns);
            }
            let (source, said) = self.said.recv().await?;
            match said {
                Said::Lines(lines) => self.lines = lines.into(),
                Said::Trouble(words) => {
                    tell(entries, &source, Entry::Trouble(words)).await.then_some(())?;
                }
            }
            self.source = Some(source);
        }
    }
}

/// The oldest of all next lines, again and again. A line that is older than one before it in its task waits for that
/// one, so each input is waited for before anything later is given out.
async fn merge(inputs: Vec<mpsc::Receiver<(Source, Said)>>, entries: &Entries) {
    let input = |said| Input { said, source: None, lines: VecDeque::new() };
    let mut inputs: Vec<Input> = inputs.into_iter().map(input).collect();
    let mut next = BinaryHeap::with_capacity(inputs.len());
    for (place, input) in inputs.iter_mut().enumerate() {
        next.extend(input.ready(entries).await.map(|at| Reverse((at, place))));
    }
    while let Some(Reverse((_, place))) = next.pop() {
        let input = &mut inputs[place];
        if let (Some(source), Some(line)) = (&input.source, input.lines.pop_front())
            && !tell(entries, source, Entry::Line(line)).await
        {
            return;
        }
        next.extend(input.ready(entries).await.map(|at| Reverse((at, place))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, NodeId, ServiceId, TaskId};

    fn source(number: u64) -> Source {
        Source {
            task: TaskId { service: ServiceId(Id(1)), number },
            service: "web".parse().unwrap(),
            slot: 1,
            node: NodeId(Id(1)),
            node_name: "n1".into(),
        }
    }

    fn lines(times: &[u64]) -> Said {
        Said::Lines(times.iter().map(|at_ns| v1::LogLine { at_ns: *at_ns, ..Default::default() }).collect())
    }

    /// An input that says all this and ends.
    fn input(number: u64, all: Vec<Said>) -> mpsc::Receiver<(Source, Said)> {
        let (sink, said) = mpsc::channel(BATCHES);
        tokio::spawn(async move {
            for one in all {
                if sink.send((source(number), one)).await.is_err() {
                    return;
                }
            }
        });
        said
    }

    /// `time@task` for each line, words for trouble.
    async fn merged(inputs: Vec<mpsc::Receiver<(Source, Said)>>) -> Vec<String> {
        let (entries, mut stream) = mpsc::channel(1);
        tokio::spawn(async move { merge(inputs, &entries).await });
        let mut seen = Vec::new();
        while let Some(entry) = stream.recv().await {
            let v1::LogEntry { task_id, entry, .. } = entry.unwrap();
            let task = task_id.rsplit('-').next().unwrap();
            seen.push(match entry.unwrap() {
                Entry::Line(line) => format!("{}@{task}", line.at_ns),
                Entry::Trouble(words) => words,
            });
        }
        seen
    }

    #[tokio::test]
    async fn lines_come_in_the_order_of_time_whatever_the_batches() {
        let one = input(1, vec![lines(&[1, 4]), lines(&[]), lines(&[5, 9])]);
        let two = input(2, vec![lines(&[2, 3, 6]), lines(&[7])]);
        let none = input(3, Vec::new());
        assert_eq!(
            merged(vec![one, two, none]).await,
            ["1@1", "2@2", "3@2", "4@1", "5@1", "6@2", "7@2", "9@1"]
        );
    }

    #[tokio::test]
    async fn a_tasks_own_order_stays_when_its_clock_went_back() {
        let one = input(1, vec![lines(&[5, 1, 6])]);
        let two = input(2, vec![lines(&[4, 7])]);
        assert_eq!(merged(vec![one, two]).await, ["4@2", "5@1", "1@1", "6@1", "7@2"]);
    }

    #[tokio::test]
    async fn trouble_with_one_does_not_stop_the_others() {
        let one = input(1, vec![Said::Trouble("node n1 is down".into())]);
        let two = input(2, vec![lines(&[1]), Said::Trouble("lines are missing".into()), lines(&[2])]);
        assert_eq!(merged(vec![one, two]).await, ["node n1 is down", "1@2", "lines are missing", "2@2"]);
    }
}
