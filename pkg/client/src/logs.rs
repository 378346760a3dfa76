//! What tasks wrote, as a stream, across broken connections and from one manager to another.

mod resume;

use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::logs_client::LogsClient;
use warren_types::Timestamp;

use crate::client::{Client, MAX_ANSWER, error};
use crate::error::Error;
use crate::link::Link;
use crate::retry::Trouble;
use resume::Seen;

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
    fn client(channel: Channel) -> LogsClient<Channel> {
        LogsClient::new(channel).max_decoding_message_size(MAX_ANSWER)
    }

    /// Reads what tasks wrote: without `follow` in the order of time, to its end.
    pub async fn read(&self, of: LogsOf, wish: LogsWish) -> Result<LogEntries, Error> {
        let (service, task) = match of {
            LogsOf::Service(service) => (service, String::new()),
            LogsOf::Task(task) => (String::new(), task),
        };
        let LogsWish { follow, tail, since } = wish;
        let message = v1::ReadLogsRequest { service, task, follow, tail, since: since.map(|at| at.0) };
        let call = |channel, request| async move { Self::client(channel).read(request).await };
        let (link, entries) = self.0.start(message.clone(), call).await?;
        let (client, seen) = (self.0.clone(), Seen::default());
        Ok(LogEntries { client, link, message, entries: Some(entries), seen, trouble: None })
    }
}

/// Lines that arrive. Dropping it ends the call; one that is not read holds back whoever writes into it, never
/// the task.
#[derive(Debug)]
pub struct LogEntries {
    client: Client,
    /// The connection that the stream is of.
    link: Link,
    message: v1::ReadLogsRequest,
    entries: Option<Streaming<v1::LogEntry>>,
    seen: Seen,
    trouble: Option<Trouble>,
}

impl LogEntries {
    /// The next line, or the next thing there is to say about missing ones; `None` when that was all. When the
    /// connection is lost it goes on behind the last line of each task, at another manager if there is one; it fails
    /// when that is not possible for half a minute. It waits as long as nothing is written.
    pub async fn next(&mut self) -> Result<Option<v1::LogEntry>, Error> {
        loop {
            let Some(entries) = self.entries.as_mut() else {
                self.resume().await?;
                continue;
            };
            match entries.message().await {
                Ok(None) => return Ok(None),
                Ok(Some(entry)) => {
                    self.trouble = None;
                    if self.seen.take(&entry) {
                        return Ok(Some(entry));
                    }
                }
                Err(status) => self.broke(&status)?,
            }
        }
    }

    async fn resume(&mut self) -> Result<(), Error> {
        if let Some(trouble) = self.trouble {
            trouble.wait().await;
            self.client.follow(&self.link).await;
        }
        self.link = self.client.link();
        self.seen.begin_again();
        let message = self.seen.rest_of(&self.message);
        let mut logs = Logs::client(self.link.channel.clone());
        match self.client.open(logs.read(self.client.request(message))).await {
            Ok(entries) => {
                self.entries = Some(entries);
                Ok(())
            }
            Err(status) => self.broke(&status),
        }
    }

    /// Notes that the stream is broken, or answers that it stays so.
    fn broke(&mut self, status: &Status) -> Result<(), Error> {
        self.entries = None;
        self.trouble = Trouble::after(self.trouble, status, self.client.count());
        if self.trouble.is_none() { Err(error(&self.link, status)) } else { Ok(()) }
    }
}
