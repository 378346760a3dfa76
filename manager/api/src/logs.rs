//! Task logs, read from the nodes that store them: each task's node opens a stream, and the client receives
//! one merged stream.
//!
//! Nothing is stored here: a few batches of lines per task are buffered between a worker and the client. A
//! client that reads slowly slows the workers' readers down; a client that disconnects ends them.

mod follow;
mod merge;
mod reader;
mod source;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};
use warren_core::State;
use warren_core::state::ObjectKind;
use warren_proto::status::Problem;
use warren_proto::v1::log_entry::Entry;
use warren_proto::v1::{self, logs_server};
use warren_store::problem::{manager_stopping, status_of};
use warren_types::{TaskId, Violation, Violations};

use self::source::{LogSelector, LogSource};
use super::Api;
use super::audited_call::AuditedCall;

/// Entries that may be queued for one client.
const MAX_QUEUED_ENTRIES: usize = 64;
/// Maximum number of tasks read at once for one client.
const MAX_SOURCES: usize = 128;

type EntrySender = mpsc::Sender<Result<v1::LogEntry, Status>>;

/// Which lines of each task to read.
#[derive(Debug, Clone, Copy)]
struct LogQuery {
    follow: bool,
    tail: Option<u64>,
    /// Nanoseconds since the Unix epoch.
    since_ns: Option<u64>,
}

impl LogQuery {
    fn parse(request: &v1::ReadLogsRequest) -> Result<Self, Violations> {
        let nanos = |millis: u64| millis.checked_mul(1_000_000);
        let late = || Violation::new("since", "is later than any line can be; give Unix milliseconds");
        let since_ns = request.since.map(|since| nanos(since).ok_or_else(late)).transpose()?;
        Ok(Self { follow: request.follow, tail: request.tail, since_ns })
    }
}

/// One batch of a task's stream.
#[derive(Debug)]
enum SourceBatch {
    Lines(Vec<v1::LogLine>),
    /// Why lines are missing.
    Failure(String),
}

/// Where readers send batches with their source. A full channel blocks the reader.
type BatchSender = mpsc::Sender<(LogSource, SourceBatch)>;

fn too_many(count: usize) -> Status {
    let message = format!("{count} tasks match; at most {MAX_SOURCES} can be read at once; name one task");
    Problem::new(Code::FailedPrecondition, "TOO_MANY_TASKS", message).into()
}

fn not_assigned(state: &State, task: &TaskId) -> Status {
    let mut message =
        "the task was never assigned to a node, so it has no logs; `warren task inspect` shows the reason"
            .to_owned();
    if let Some(earlier) = state.task(task).and_then(|task| state.previous_task(task)) {
        message += &format!(", `warren task logs {}` what the task before it wrote", earlier.id);
    }
    Problem::new(Code::FailedPrecondition, "TASK_NOT_ASSIGNED", message).into()
}

/// Splits off the newest logs of ended tasks, beside those of all other tasks. Also returns how many more
/// there are.
fn split_retained(sources: Vec<LogSource>) -> Result<(Vec<LogSource>, Vec<LogSource>, usize), Status> {
    let (mut retained, current): (Vec<_>, Vec<_>) =
        sources.into_iter().partition(|source| source.is_retained);
    let room = MAX_SOURCES.checked_sub(current.len()).ok_or_else(|| too_many(current.len()))?;
    let left_out = retained.len().saturating_sub(room);
    retained.sort_unstable_by_key(|source| source.task);
    retained.drain(..left_out);
    Ok((retained, current, left_out))
}

fn left_out_entry(service: &str, count: usize) -> v1::LogEntry {
    let why = format!("the logs of {count} earlier tasks are not shown; name one: --task ID");
    v1::LogEntry {
        // No task, so that it stands for all.
        node_name: service.to_owned(),
        entry: Some(Entry::GapReason(why)),
        ..v1::LogEntry::default()
    }
}

#[tonic::async_trait]
impl logs_server::Logs for Api {
    type ReadStream = ReceiverStream<Result<v1::LogEntry, Status>>;

    async fn read(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let call = AuditedCall::of(&request);
        let request = request.into_inner();
        match request.task.is_empty() {
            true => call.named(ObjectKind::Service, &request.service),
            false => call.named(ObjectKind::Task, &request.task),
        }
        let query = LogQuery::parse(&request).map_err(status_of)?;
        // Logs are on the nodes: they can be read without a leader as well.
        let published = self.read_latest().await.unwrap_or_else(|_| self.store.read());
        let selector = LogSelector::parse(&published.state, &request)?;
        let sources = selector.sources(&published.state);
        if let (LogSelector::Task(task), true, false) = (selector, sources.is_empty(), query.follow) {
            return Err(not_assigned(&published.state, &task));
        }
        let (mut retained, current, left_out) = split_retained(sources)?;
        let (entries, stream) = mpsc::channel(MAX_QUEUED_ENTRIES);
        if left_out > 0 {
            let _ = entries.try_send(Ok(left_out_entry(&request.service, left_out)));
        }
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("logs", async move {
            let read = async {
                if query.follow {
                    api.follow_logs(selector, retained, query, published.index, &entries).await;
                } else {
                    retained.extend(current);
                    api.merge_logs(selector, retained, query, &entries).await;
                }
            };
            tokio::select! {
                () = read => {}
                // Dropping the readers closes the streams of the workers.
                () = entries.closed() => {}
                () = stop.cancelled() => {
                    let _ = entries.try_send(Err(manager_stopping()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Sends one entry to the client; false when it has disconnected.
async fn send_entry(entries: &EntrySender, source: &LogSource, entry: Entry) -> bool {
    let entry = v1::LogEntry {
        task_id: source.task.to_string(),
        service_name: source.service.to_string(),
        slot: source.slot,
        node_name: source.node_name.clone(),
        entry: Some(entry),
    };
    entries.send(Ok(entry)).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_types::{Id, NodeId, ServiceId};

    #[test]
    fn oldest_retained_logs_beyond_limit_are_left_out() {
        let source = |number: u64, is_retained| LogSource {
            task: TaskId { service: ServiceId(Id(1)), number },
            service: "web".parse().unwrap(),
            slot: 1,
            node: NodeId(Id(1)),
            node_name: "n1".into(),
            is_retained,
            has_run: true,
        };
        let numbers =
            |sources: &[LogSource]| sources.iter().map(|source| source.task.number).collect::<Vec<_>>();
        let of = |retained: u64, current: u64| {
            let sources = (1..=retained).map(|number| source(number, true));
            split_retained(sources.chain((1..=current).map(|number| source(1000 + number, false))).collect())
        };
        let (retained, current, left_out) = of(200, 28).unwrap();
        assert_eq!((numbers(&retained), current.len(), left_out), ((101..=200).collect(), 28, 100));
        let (retained, current, left_out) = of(2, 126).unwrap();
        assert_eq!((numbers(&retained), current.len(), left_out), (vec![1, 2], 126, 0));
        assert!(of(0, 129).unwrap_err().message().contains("129 tasks match"));
    }

    #[test]
    fn since_out_of_range_is_rejected() {
        let request = |since| v1::ReadLogsRequest { since: Some(since), ..Default::default() };
        assert_eq!(LogQuery::parse(&request(5)).unwrap().since_ns, Some(5_000_000));
        let refused = LogQuery::parse(&request(u64::MAX)).unwrap_err();
        assert_eq!(refused.0[0].path, "since");
    }
}
