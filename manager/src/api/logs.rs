//! What tasks wrote, as their nodes keep it: each task's node dials a stream for it, and the client gets them as one.
//!
//! Nothing is kept here: between a worker and the client there are a few batches of lines per task, so a client that
//! reads slowly slows the workers' readers down, and one that leaves ends them.

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
use warren_types::{Violation, Violations};

use self::source::{Of, Source};
use super::Api;
use super::problem::{status_of, stopping};

/// Entries that may wait for one client.
const ENTRIES: usize = 64;
/// Tasks that are read at once for one client.
const MAX_SOURCES: usize = 128;

type Entries = mpsc::Sender<Result<v1::LogEntry, Status>>;

/// Which lines of each task.
#[derive(Debug, Clone, Copy)]
struct Wish {
    follow: bool,
    tail: Option<u64>,
    /// Nanoseconds since the Unix epoch.
    since_ns: Option<u64>,
}

impl Wish {
    fn parse(request: &v1::ReadLogsRequest) -> Result<Self, Violations> {
        let nanos = |millis: u64| millis.checked_mul(1_000_000);
        let late = || Violation::new("since", "is later than any line can be; give Unix milliseconds");
        let since_ns = request.since.map(|since| nanos(since).ok_or_else(late)).transpose()?;
        Ok(Self { follow: request.follow, tail: request.tail, since_ns })
    }
}

/// What one task's stream gives.
#[derive(Debug)]
enum Said {
    Lines(Vec<v1::LogLine>),
    /// Why there is less than was written, or nothing.
    Trouble(String),
}

/// Where readers put it: with whose it is, and where the reader waits while nobody takes it.
type Sink = mpsc::Sender<(Source, Said)>;

fn too_many(found: usize) -> Status {
    let message =
        format!("{found} tasks are more than the {MAX_SOURCES} that can be read at once; name one task");
    Problem::new(Code::FailedPrecondition, "TOO_MANY_TASKS", message).into()
}

fn not_placed() -> Status {
    let message = "the task never had a node, so it has written nothing; `warren task inspect` shows why";
    Problem::new(Code::FailedPrecondition, "NOT_PLACED", message).into()
}

#[tonic::async_trait]
impl logs_server::Logs for Api {
    type ReadStream = ReceiverStream<Result<v1::LogEntry, Status>>;

    async fn read(
        &self,
        request: Request<v1::ReadLogsRequest>,
    ) -> Result<Response<Self::ReadStream>, Status> {
        let request = request.into_inner();
        let wish = Wish::parse(&request).map_err(status_of)?;
        let published = self.store.read();
        let of = Of::parse(&published.state, &request)?;
        let found = of.sources(&published.state);
        if found.len() > MAX_SOURCES {
            return Err(too_many(found.len()));
        }
        if found.is_empty() && matches!(of, Of::Task(_)) && !wish.follow {
            return Err(not_placed());
        }
        let (entries, stream) = mpsc::channel(ENTRIES);
        let (api, stop) = (self.clone(), self.shutdown.token());
        self.shutdown.spawn("logs", async move {
            let read = async {
                if wish.follow {
                    api.follow_logs(of, wish, published.index, &entries).await;
                } else {
                    api.merge_logs(found, wish, &entries).await;
                }
            };
            tokio::select! {
                () = read => {}
                // What it reads from is dropped here, and ends at the workers.
                () = entries.closed() => {}
                () = stop.cancelled() => {
                    let _ = entries.try_send(Err(stopping()));
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

/// Tells the client; false when it left.
async fn tell(entries: &Entries, source: &Source, entry: Entry) -> bool {
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
    fn a_time_beyond_all_lines_is_refused() {
        let request = |since| v1::ReadLogsRequest { since: Some(since), ..Default::default() };
        assert_eq!(Wish::parse(&request(5)).unwrap().since_ns, Some(5_000_000));
        let refused = Wish::parse(&request(u64::MAX)).unwrap_err();
        assert_eq!(refused.0[0].path, "since");
    }
}
