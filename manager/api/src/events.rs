//! The stream of events for users: what is kept here, filtered, and then what follows.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};
use warren_core::events::{ClusterEvent, EventPosition};
use warren_core::state::ObjectKind;
use warren_proto::Problem;
use warren_proto::status::EVENTS_EXPIRED;
use warren_proto::v1;
use warren_proto::v1::stream_events_request::Start;
use warren_proto::v1::stream_events_response::Message;
use warren_store::problem::{manager_stopping, status_of};
use warren_store::{EventsExpired, ProposeError};
use warren_types::{Timestamp, Violation};

use super::Api;
use super::read::allows_stale;
use super::watch::MAX_QUEUED_EVENTS;

/// Events that are read at a time.
const PAGE: usize = 256;
/// The shortest prefix of an id that selects an object: what tables show of it.
const MIN_ID_PREFIX: usize = 10;

type Sender = mpsc::Sender<Result<v1::StreamEventsResponse, Status>>;

/// Which events are sent.
struct EventFilter {
    kind: Option<ObjectKind>,
    reference: String,
}

impl EventFilter {
    fn parse(kind: &str, reference: String) -> Result<Self, Status> {
        let kind = parse_kind(kind)?;
        Ok(Self { kind, reference })
    }

    fn matches(&self, event: &ClusterEvent) -> bool {
        let (kind, task) = (self.kind, event.task.as_ref());
        let is_kind = kind.is_none_or(|kind| kind == event.kind);
        let is_object = self.reference.is_empty()
            || event.name == self.reference
            || (self.reference.len() >= MIN_ID_PREFIX && event.id.starts_with(&self.reference));
        let belongs = task.is_some_and(|task| match kind {
            Some(ObjectKind::Service) => task.service == self.reference || self.is_id_of_service(event),
            Some(ObjectKind::Node) => task.node.as_ref() == Some(&self.reference),
            _ => false,
        });
        (is_kind && is_object) || (!self.reference.is_empty() && belongs)
    }

    /// The id of a task begins with that of its service.
    fn is_id_of_service(&self, event: &ClusterEvent) -> bool {
        self.reference.len() >= MIN_ID_PREFIX && event.id.starts_with(&self.reference)
    }
}

/// The kind with that noun; `None` for an empty text.
pub(super) fn parse_kind(noun: &str) -> Result<Option<ObjectKind>, Status> {
    if noun.is_empty() {
        return Ok(None);
    }
    let unknown = || {
        let known: Vec<&str> = ObjectKind::ALL.iter().map(|kind| kind.noun()).collect();
        status_of(Violation::new(
            "kind",
            format!("{noun:?} is not a kind of object; give {}", known.join(", ")),
        ))
    };
    ObjectKind::of_noun(noun).map(Some).ok_or_else(unknown)
}

/// A stream that was requested.
struct EventStreamer {
    filter: EventFilter,
    follow: bool,
    position: EventPosition,
    is_truncated: bool,
}

impl Api {
    pub(super) async fn open_event_stream(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Result<ReceiverStream<Result<v1::StreamEventsResponse, Status>>, Status> {
        let stale = allows_stale(request.metadata())?;
        let v1::StreamEventsRequest { kind, reference, follow, start } = request.into_inner();
        let filter = EventFilter::parse(&kind, reference)?;
        if let Some(stall) = self.store.read().stall_with_peers(self.member_id).filter(|_| !stale) {
            return Err(status_of(ProposeError::Stale(stall.clone())));
        }
        let (position, is_truncated) = self.event_start(start, follow, stale).await?;
        // So that the client gets the rejection as the response.
        self.store.events_after(position, 0).map_err(expired)?;
        let streamer = EventStreamer { filter, follow, position, is_truncated };
        let (messages, stream) = mpsc::channel(MAX_QUEUED_EVENTS);
        self.shutdown.spawn("events", self.clone().send_events(streamer, messages, stale));
        Ok(ReceiverStream::new(stream))
    }

    /// Where the stream begins, and whether events are missing there.
    async fn event_start(
        &self,
        start: Option<Start>,
        follow: bool,
        stale: bool,
    ) -> Result<(EventPosition, bool), Status> {
        match start {
            Some(Start::After(v1::EventPosition { index, number })) => {
                // A list contains all events up to its request; a stream that goes on gets them in time.
                let published = match follow || stale {
                    true => self.read_from_index(index).await?,
                    false => self.read_latest().await?,
                };
                if index > published.index {
                    let message = format!(
                        "no entry of the log has the index {index}: the newest has {}; the cluster was restored, or \
                         the index is that of another cluster",
                        published.index
                    );
                    return Err(Problem::new(Code::OutOfRange, EVENTS_EXPIRED, message).into());
                }
                let number = number.unwrap_or(u32::MAX);
                Ok((EventPosition { index, number }, false))
            }
            other => {
                if !stale {
                    self.read_latest().await?;
                }
                Ok(match other {
                    Some(Start::Since(at)) => self.store.events_since(Timestamp(at)),
                    Some(Start::New(_)) => (self.store.events_end(), false),
                    _ => self.store.events_since(Timestamp(0)),
                })
            }
        }
    }

    async fn send_events(self, streamer: EventStreamer, messages: Sender, stale: bool) {
        let stop = self.shutdown.token();
        tokio::select! {
            ended = self.stream_pages(streamer, &messages) => {
                if let Err(status) = ended {
                    // The client may have left.
                    let _ = messages.send(Err(status)).await;
                }
            }
            () = messages.closed() => {}
            stall = self.store.wait_stall_with_peers(), if !stale => {
                let _ = messages.try_send(Err(status_of(ProposeError::Stale(stall))));
            }
            () = stop.cancelled() => {
                // If the queue is full, the client sees a stream that ends early.
                let _ = messages.try_send(Err(manager_stopping()));
            }
        }
    }

    /// Sends pages until the end, or for ever. Ends early if the client has left.
    async fn stream_pages(&self, streamer: EventStreamer, messages: &Sender) -> Result<(), Status> {
        let EventStreamer { filter, follow, mut position, is_truncated } = streamer;
        let mut publications = self.store.publications();
        let (oldest_index, oldest_at) = self.store.events_begin();
        let begin = v1::EventsBegin { oldest_index, oldest_at: oldest_at.0, truncated: is_truncated };
        let end = self.store.events_end();
        if !send(messages, position, Some(Message::Begin(begin))).await {
            return Ok(());
        }
        loop {
            publications.mark_unchanged();
            let page = self.store.events_after(position, PAGE).map_err(expired)?;
            let mut told = position;
            for event in page.events.iter().filter(|event| filter.matches(event)) {
                told = event.position;
                if !send(messages, told, Some(Message::Event(show_event(event)))).await {
                    return Ok(());
                }
            }
            let is_full = page.events.len() == PAGE;
            position = page.next;
            if !follow && position >= end && !is_full {
                send(messages, position, Some(Message::End(v1::EventsEnd {}))).await;
                return Ok(());
            }
            // Without this position, a client of rare events would resume before what is kept.
            let is_behind = !page.events.is_empty() && told < position;
            if is_behind && !send(messages, position, None).await {
                return Ok(());
            }
            if !is_full && publications.changed().await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Whether the client is still there.
async fn send(messages: &Sender, position: EventPosition, message: Option<Message>) -> bool {
    let EventPosition { index, number } = position;
    // After all events of an entry.
    let number = (number != u32::MAX).then_some(number);
    let position = Some(v1::EventPosition { index, number });
    messages.send(Ok(v1::StreamEventsResponse { position, message })).await.is_ok()
}

fn expired(why: EventsExpired) -> Status {
    Problem::new(Code::OutOfRange, EVENTS_EXPIRED, why).into()
}

fn show_event(event: &Arc<ClusterEvent>) -> v1::ClusterEvent {
    let ClusterEvent { position: _, at, kind, id, name, action, changes, reason, task } = &**event;
    let changes = changes.iter().map(|it| v1::FieldChange {
        field: it.field.to_string(),
        from: it.from.clone(),
        to: it.to.clone(),
    });
    let (service_name, slot, node_name, exit) = match task {
        Some(it) => (it.service.clone(), it.slot, it.node.clone().unwrap_or_default(), it.exit),
        None => Default::default(),
    };
    v1::ClusterEvent {
        at: at.0,
        kind: kind.noun().to_owned(),
        id: id.clone(),
        name: name.clone(),
        action: action.as_str().to_owned(),
        changes: changes.collect(),
        reason: reason.to_string(),
        service_name,
        slot,
        node_name,
        exit: exit.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use warren_core::events::{EventAction, TaskEventContext};

    use super::*;

    fn event(kind: ObjectKind, id: &str, name: &str, task: Option<TaskEventContext>) -> ClusterEvent {
        ClusterEvent {
            position: EventPosition::default(),
            at: Timestamp(0),
            kind,
            id: id.into(),
            name: name.into(),
            action: EventAction::Created,
            changes: Vec::new(),
            reason: Arc::default(),
            task,
        }
    }

    #[test]
    fn filter_selects_objects_and_their_tasks() {
        let context =
            TaskEventContext { service: "web".into(), slot: 1, node: Some("w1".into()), exit: None };
        let task = event(ObjectKind::Task, "0123456789abc-1", "web.1", Some(context));
        let service = event(ObjectKind::Service, "0123456789abc", "web", None);
        let network = event(ObjectKind::Network, "zzz", "web", None);
        let check = |kind: &str, reference: &str, expected: [bool; 3]| {
            let filter = EventFilter::parse(kind, reference.to_owned()).unwrap();
            let found = [&task, &service, &network].map(|event| filter.matches(event));
            assert_eq!(found, expected, "{kind}/{reference}");
        };
        check("", "", [true; 3]);
        check("service", "", [false, true, false]);
        check("service", "web", [true, true, false]);
        check("service", "0123456789", [true, true, false]);
        check("service", "012", [false; 3]);
        check("", "web", [false, true, true]);
        check("task", "web.1", [true, false, false]);
        check("node", "w1", [true, false, false]);
        check("network", "web", [false, false, true]);
        let refused = EventFilter::parse("servce", String::new()).err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
}
