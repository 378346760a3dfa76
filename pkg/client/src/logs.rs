//! What tasks wrote, as a stream.

use tonic::Streaming;
use tonic::transport::Channel;
use warren_proto::v1;
use warren_proto::v1::logs_client::LogsClient;
use warren_types::Timestamp;

use crate::client::{Client, MAX_ANSWER};
use crate::error::Error;

/// What tasks wrote.
#[derive(Debug, Clone, Copy)]
pub struct Logs<'a>(pub(crate) &'a Client);

/// Whose lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogsOf {
    /// Of all tasks of a service, by its name or id.
    Service(String),
    /// Of one task, by its id or as `SERVICE.SLOT`.
    Task(String),
}

/// Which lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogsWish {
    /// Go on with what is written from now on.
    pub follow: bool,
    /// Only so many of the last lines of each task.
    pub tail: Option<u64>,
    /// Only from then on.
    pub since: Option<Timestamp>,
}

impl Logs<'_> {
    /// Reads what tasks wrote: without `follow` in the order of time, to its end.
    pub async fn read(&self, of: LogsOf, wish: LogsWish) -> Result<LogEntries, Error> {
        let (service, task) = match of {
            LogsOf::Service(service) => (service, String::new()),
            LogsOf::Task(task) => (String::new(), task),
        };
        let LogsWish { follow, tail, since } = wish;
        let message = v1::ReadLogsRequest { service, task, follow, tail, since: since.map(|at| at.0) };
        let mut logs = LogsClient::<Channel>::new(self.0.channel()).max_decoding_message_size(MAX_ANSWER);
        let entries = self.0.open(logs.read(message)).await.map_err(|status| self.0.error(&status))?;
        Ok(LogEntries { client: self.0.clone(), entries })
    }
}

/// Lines that arrive. Dropping it ends the call; one that is not read holds back whoever writes into it, never
/// the task.
#[derive(Debug)]
pub struct LogEntries {
    client: Client,
    entries: Streaming<v1::LogEntry>,
}

impl LogEntries {
    /// The next line, or the next thing there is to say about missing ones; `None` when that was all. When the
    /// connection is lost it fails within seconds, else it waits as long as nothing is written.
    pub async fn next(&mut self) -> Result<Option<v1::LogEntry>, Error> {
        self.entries.message().await.map_err(|status| self.client.error(&status))
    }
}
