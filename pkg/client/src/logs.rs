//! Streams logs of tasks, with resumption after lost connections and failover.

mod resume;

use tonic::transport::Channel;
use tonic::{Status, Streaming};
use warren_proto::v1;
use warren_proto::v1::logs_client::LogsClient;
use warren_types::Timestamp;

use crate::channel::ManagerChannel;
use crate::client::{Client, MAX_RESPONSE, error_from_status};
use crate::error::Error;
use crate::retry::StreamFailure;
use resume::LogPositions;

/// Calls for logs.
#[derive(Debug, Clone, Copy)]
pub struct LogApi<'a>(&'a Client);

/// Whose logs to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// All tasks of a service, by name or id.
    Service(String),
    /// One task, by id or `SERVICE.SLOT`.
    Task(String),
    /// A task of a service, by id, `SERVICE.SLOT` or the number of its slot; a slot has all its tasks.
    ServiceTask {
        /// The service, by name or id.
        service: String,
        /// The task.
        task: String,
    },
}

/// Selection of lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Follow new lines.
    pub follow: bool,
    /// Number of last lines of each task; `None` is all.
    pub tail: Option<u64>,
    /// Only lines since this time.
    pub since: Option<Timestamp>,
    /// The last ended task before the selected one.
    pub previous: bool,
}

impl Client {
    /// Calls for logs of tasks.
    pub fn logs(&self) -> LogApi<'_> {
        LogApi(self)
    }
}

impl LogApi<'_> {
    fn client(channel: Channel) -> LogsClient<Channel> {
        LogsClient::new(channel).max_decoding_message_size(MAX_RESPONSE)
    }

    /// Reads logs: without `follow` ordered by time, to the end.
    pub async fn read(&self, of: LogTarget, options: LogOptions) -> Result<LogStream, Error> {
        let (service, task) = match of {
            LogTarget::Service(service) => (service, String::new()),
            LogTarget::Task(task) => (String::new(), task),
            LogTarget::ServiceTask { service, task } => (service, task),
        };
        let LogOptions { follow, tail, since, previous } = options;
        let since = since.map(|at| at.0);
        let message = v1::ReadLogsRequest { service, task, follow, tail, since, previous };
        let call = |channel, request| async move { Self::client(channel).read(request).await };
        let (link, entries) = self.0.start_stream(message.clone(), call).await?;
        let (client, seen) = (self.0.clone(), LogPositions::default());
        Ok(LogStream { client, link, message, entries: Some(entries), positions: seen, failure: None })
    }
}

/// A stream of lines. Dropping it ends the call. A slow reader slows down the sender, never the task.
#[derive(Debug)]
pub struct LogStream {
    client: Client,
    /// Connection of the stream.
    link: ManagerChannel,
    message: v1::ReadLogsRequest,
    entries: Option<Streaming<v1::LogEntry>>,
    positions: LogPositions,
    failure: Option<StreamFailure>,
}

impl LogStream {
    /// The next line or warning; `None` at the end. After a lost connection it resumes behind the last line of each
    /// task, at another manager if there is one, and fails if that is impossible for 30 seconds. Waits while no line
    /// is written.
    pub async fn next(&mut self) -> Result<Option<v1::LogEntry>, Error> {
        loop {
            let Some(entries) = self.entries.as_mut() else {
                self.resume().await?;
                continue;
            };
            match entries.message().await {
                Ok(None) => return Ok(None),
                Ok(Some(entry)) => {
                    self.failure = None;
                    if self.positions.accept(&entry) {
                        return Ok(Some(entry));
                    }
                }
                Err(status) => self.handle_failure(&status)?,
            }
        }
    }

    async fn resume(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure {
            failure.wait().await;
            self.client.switch_manager(&self.link).await;
        }
        self.link = self.client.current_channel();
        self.positions.start_replay();
        let message = self.positions.remaining_request(&self.message);
        let mut logs = LogApi::client(self.link.channel.clone());
        match self.client.open(logs.read(self.client.request(message))).await {
            Ok(entries) => {
                self.entries = Some(entries);
                Ok(())
            }
            Err(status) => self.handle_failure(&status),
        }
    }

    /// Records the failure, or returns it if the stream cannot be resumed.
    fn handle_failure(&mut self, status: &Status) -> Result<(), Error> {
        self.entries = None;
        self.failure = StreamFailure::following(self.failure, status, self.client.manager_count());
        if self.failure.is_none() { Err(error_from_status(&self.link, status)) } else { Ok(()) }
    }
}
