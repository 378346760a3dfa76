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
use warren_proto::status::Problem;
use warren_proto::v1::log_entry::Entry;
use warren_proto::v1::{self, logs_server};
use warren_store::problem::{manager_stopping, status_of};
use warren_types::{Violation, Violations};

use self::source::{LogSelector, LogSource};
use super::Api;

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

fn not_assigned() -> Status {
    let message =
        "the task was never assigned to a node, so it has no logs; `warren task inspect` shows the reason";
    Problem::new(Code::FailedPrecondition, "TASK_NOT_ASSIGNED", message).into()
}

#[tonic::async_trait]
impl logs_server::Logs for Api {
    type ReadStream = ReceiverStream<Result<v1::LogEntry, Status>>;

    async fn read(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let query = LogQuery::parse(&request).map_err(status_of)?;
        let published = self.store.read();
        let selector = LogSelector::parse(&published.state, &request)?;
        let sources = selector.sources(&published.state);
        if sources.len() > MAX_SOURCES {
            return Err(too_many(sources.len()));
        }
        if sources.is_empty() && matches!(selector, LogSelector::Task(_)) && !query.follow {
            return Err(not_assigned());
        }
        let (entries, stream) = mpsc::channel(MAX_QUEUED_ENTRIES);
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("logs", async move {
            let read = async {
                if query.follow {
                    api.follow_logs(selector, query, published.index, &entries).await;
                } else {
                    api.merge_logs(sources, query, &entries).await;
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

    #[test]
    fn since_out_of_range_is_rejected() {
        let request = |since| v1::ReadLogsRequest { since: Some(since), ..Default::default() };
        assert_eq!(LogQuery::parse(&request(5)).unwrap().since_ns, Some(5_000_000));
        let refused = LogQuery::parse(&request(u64::MAX)).unwrap_err();
        assert_eq!(refused.0[0].path, "since");
    }
}
