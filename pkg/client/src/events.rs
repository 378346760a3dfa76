//! The stream of events, which resumes at any manager without losing or repeating one.

use tonic::{Code, Status, Streaming};
use warren_proto::Problem;
use warren_proto::status::EVENTS_EXPIRED;
use warren_proto::v1;
use warren_proto::v1::cluster_client::ClusterClient;
use warren_proto::v1::stream_events_request::Start;
use warren_proto::v1::stream_events_response::Message;

use crate::channel::{ManagerChannel, incarnation_of};
use crate::client::{Client, error_from_status};
use crate::error::Error;
use crate::retry::StreamFailure;

/// Where events begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventStart {
    /// With the oldest that the manager keeps.
    #[default]
    Oldest,
    /// Now.
    New,
    /// After an entry of the log, or after one event of it.
    After {
        /// Index of the entry.
        index: u64,
        /// Number of the event; `None` for all of the entry.
        number: Option<u32>,
    },
    /// At this time, in milliseconds since the Unix epoch.
    Since(u64),
}

/// Which events are read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventQuery {
    /// Noun of a kind of object: `service`; empty for all.
    pub kind: String,
    /// Name or id of an object; empty for all.
    pub reference: String,
    /// Continue with new events.
    pub follow: bool,
    /// Where to begin.
    pub start: EventStart,
}

/// A message of the stream.
#[derive(Debug, Clone, PartialEq)]
pub enum EventMessage {
    /// The first one: what the manager keeps.
    Begin(v1::EventsBegin),
    /// An event and its position.
    Event(v1::EventPosition, Box<v1::ClusterEvent>),
}

/// Events in order, each once, across lost connections, restarts of managers and failover.
#[derive(Debug)]
pub struct EventStream {
    client: Client,
    /// Connection of the stream.
    link: ManagerChannel,
    query: EventQuery,
    /// All matching events up to here were returned.
    position: Option<v1::EventPosition>,
    /// Incarnation of the position: in another one the same index is another entry.
    incarnation: Option<u64>,
    stream: Option<Streaming<v1::StreamEventsResponse>>,
    failure: Option<StreamFailure>,
    /// How many managers in a row did not keep the events after the position.
    expired: usize,
    is_over: bool,
}

impl EventStream {
    pub(crate) fn new(client: Client, query: EventQuery) -> Self {
        let link = client.current_channel();
        Self {
            client,
            link,
            query,
            position: None,
            incarnation: None,
            stream: None,
            failure: None,
            expired: 0,
            is_over: false,
        }
    }

    /// The next message; `None` after the last event, without `follow`. Cancel safe. Fails if the managers refuse, for
    /// example because none of them keeps the events any more, or were unreachable for 30 seconds.
    pub async fn next(&mut self) -> Result<Option<EventMessage>, Error> {
        while !self.is_over {
            let Some(stream) = self.stream.as_mut() else {
                self.open().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(message)) => {
                    if let Some(message) = self.accept(message) {
                        return Ok(Some(message));
                    }
                }
                // A list ends with a message.
                Ok(None) => self.handle_failure(&Status::unavailable("the manager ended the stream"))?,
                Err(status) => self.handle_failure(&status)?,
            }
        }
        Ok(None)
    }

    /// Records the position. `None` if the caller needs no message.
    fn accept(&mut self, message: v1::StreamEventsResponse) -> Option<EventMessage> {
        let v1::StreamEventsResponse { position, message } = message;
        (self.failure, self.expired) = (None, 0);
        let is_resumed = self.position.is_some();
        self.position = position.or(self.position);
        match message? {
            Message::Begin(begin) => (!is_resumed).then_some(EventMessage::Begin(begin)),
            Message::Event(event) => Some(EventMessage::Event(position.unwrap_or_default(), Box::new(event))),
            Message::End(_) => {
                self.is_over = true;
                None
            }
        }
    }

    async fn open(&mut self) -> Result<(), Error> {
        if let Some(failure) = self.failure {
            failure.wait().await;
            self.client.switch_manager(&self.link).await;
        }
        self.link = self.client.current_channel();
        let EventQuery { kind, reference, follow, start } = self.query.clone();
        let start = match (self.position, start) {
            (Some(position), _) => Some(Start::After(position)),
            (None, EventStart::After { index, number }) => {
                Some(Start::After(v1::EventPosition { index, number }))
            }
            (None, EventStart::Since(at)) => Some(Start::Since(at)),
            (None, EventStart::New) => Some(Start::New(v1::NewEvents {})),
            (None, EventStart::Oldest) => None,
        };
        let message = v1::StreamEventsRequest { kind, reference, follow, start };
        let mut cluster = ClusterClient::new(self.link.channel.clone())
            .max_decoding_message_size(crate::client::MAX_RESPONSE);
        let opening = async {
            let answer = cluster.stream_events(self.client.read_request(message)).await?;
            let incarnation = incarnation_of(answer.metadata());
            Ok(answer.map(|stream| (incarnation, stream)))
        };
        match self.client.open(opening).await {
            Ok((incarnation, _)) if self.position.is_some() && incarnation != self.incarnation => {
                let message =
                    "the cluster was restored meanwhile, so its events are another sequence; start again";
                let problem = Problem::new(Code::OutOfRange, EVENTS_EXPIRED, message);
                Err(Error::Refused { problem })
            }
            Ok((incarnation, stream)) => {
                (self.incarnation, self.stream) = (incarnation, Some(stream));
                Ok(())
            }
            Err(status) => self.handle_failure(&status),
        }
    }

    /// Records the failure, or returns it if the stream cannot be resumed.
    fn handle_failure(&mut self, status: &Status) -> Result<(), Error> {
        self.stream = None;
        let managers = self.client.manager_count();
        let is_expired = Problem::from(status).reason == EVENTS_EXPIRED;
        self.expired += usize::from(is_expired);
        // Another manager may keep more.
        let retried = match is_expired && self.expired < managers {
            true => &Status::unavailable("the events are not kept here"),
            false => status,
        };
        self.failure = StreamFailure::following(self.failure, retried, managers);
        if self.failure.is_none() { Err(error_from_status(&self.link, status)) } else { Ok(()) }
    }
}
