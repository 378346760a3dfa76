//! `/events`: the cluster's events in Docker's form.

use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use warren_client::{Client, EventMessage, EventQuery, EventStart, EventStream};
use warren_proto::v1;

use crate::docker_error::DockerError;
use crate::filters::Filters;
use crate::request::DockerRequest;
use crate::response::{self, Answer, BodyError};
use crate::system::now_ms;

/// Kinds of objects that Docker has events of, which are the names of their filters as well.
const KINDS: [&str; 6] = ["config", "network", "node", "secret", "service", "volume"];
const FILTERS: [&str; 9] =
    ["config", "event", "network", "node", "scope", "secret", "service", "type", "volume"];

/// `GET /events`.
pub async fn stream(client: &Client, request: &DockerRequest) -> Answer {
    let filters = request.filters(&FILTERS)?;
    let now = now_ms();
    let since = request.text("since").map(|text| point_in_time("since", text)).transpose()?;
    let until = request.text("until").map(|text| point_in_time("until", text)).transpose()?;
    let is_past = until.is_some_and(|until| until <= now);
    let query = EventQuery {
        kind: String::new(),
        reference: String::new(),
        follow: !is_past,
        start: match (since, is_past) {
            (Some(since), _) => EventStart::Since(since),
            (None, true) => EventStart::Oldest,
            (None, false) => EventStart::New,
        },
    };
    // A stream of the past ends by itself.
    let wait = until.filter(|_| !is_past).map(|until| Duration::from_millis(until.saturating_sub(now)));
    let deadline = wait.and_then(|wait| Instant::now().checked_add(wait));
    let mut source = EventSource { events: client.cluster().events(query), filters, until, deadline };
    // The stream is open when the client gets the status: what happens from then on is in it.
    source.begin().await?;
    let lines = stream::unfold(Some(source), |source| async {
        let mut source = source?;
        match source.next().await {
            Ok(Some(line)) => Some((Ok(line), Some(source))),
            Ok(None) => None,
            Err(error) => Some((Err(BodyError::other(error)), None)),
        }
    });
    Ok(response::stream("application/json", lines))
}

struct EventSource {
    events: EventStream,
    filters: Filters,
    /// In milliseconds since the Unix epoch.
    until: Option<u64>,
    /// The same, of a stream that follows.
    deadline: Option<Instant>,
}

impl EventSource {
    /// Waits until the stream has begun, which its first message says.
    async fn begin(&mut self) -> Result<(), DockerError> {
        self.events.next().await?;
        Ok(())
    }

    /// The next event as a line; `None` at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, warren_client::Error> {
        loop {
            let next = match self.deadline {
                None => self.events.next().await?,
                Some(deadline) => match tokio::time::timeout_at(deadline, self.events.next()).await {
                    Ok(next) => next?,
                    Err(_) => return Ok(None),
                },
            };
            match next {
                None => return Ok(None),
                Some(EventMessage::Begin(_)) => {}
                Some(EventMessage::Event(_, event)) if self.until.is_some_and(|until| event.at > until) => {
                    return Ok(None);
                }
                Some(EventMessage::Event(_, event)) => {
                    if let Some(shown) = json(&event).filter(|_| self.accepts(&event)) {
                        return Ok(Some(Bytes::from(shown.to_string() + "\n")));
                    }
                }
            }
        }
    }

    fn accepts(&self, event: &v1::ClusterEvent) -> bool {
        // A filter of a kind accepts only events of its objects.
        let mut named =
            KINDS.into_iter().filter_map(|kind| Some((kind, self.filters.values(kind)?))).peekable();
        let is_object = named.peek().is_none()
            || named.any(|(kind, names)| {
                kind == event.kind
                    && names.iter().any(|name| *name == event.name || event.id.starts_with(name.as_str()))
            });
        is_object
            && self.filters.any("type", |kind| kind == event.kind)
            && self.filters.any("event", |action| Some(action) == action_of(event))
            && self.filters.any("scope", |scope| scope == "swarm")
    }
}

fn action_of(event: &v1::ClusterEvent) -> Option<&'static str> {
    Some(match event.action.as_str() {
        "created" => "create",
        "updated" => "update",
        "removed" if event.kind == "volume" => "destroy",
        "removed" => "remove",
        _ => return None,
    })
}

/// `None` for a change of an object that Docker has no events of, like a task.
fn json(event: &v1::ClusterEvent) -> Option<Value> {
    let action = action_of(event).filter(|_| KINDS.contains(&event.kind.as_str()))?;
    let mut attributes = Map::from_iter([("name".to_owned(), event.name.clone().into())]);
    for v1::FieldChange { field, from, to } in &event.changes {
        for (end, value) in [("old", from), ("new", to)].into_iter().filter(|(_, value)| !value.is_empty()) {
            attributes.insert(format!("{field}.{end}"), value.clone().into());
        }
    }
    Some(json!({
        "Type": event.kind, "Action": action, "Actor": {"ID": event.id, "Attributes": attributes}, "scope": "swarm",
        "time": event.at / 1000, "timeNano": event.at.saturating_mul(1_000_000),
    }))
}

/// A point in time in milliseconds: seconds since the Unix epoch with a fraction, as clients send it.
pub fn point_in_time(field: &str, text: &str) -> Result<u64, DockerError> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = || {
        let seconds: u64 = seconds.parse().ok()?;
        let millis: u64 = format!("{fraction:0<3.3}").parse().ok()?;
        seconds.checked_mul(1000)?.checked_add(millis)
    };
    let valid = is_number(seconds) && is_number(fraction);
    parsed().filter(|_| valid).ok_or_else(|| {
        let found: String = text.chars().take(64).collect();
        DockerError::invalid(format!("{field}: {found:?} is not a number of seconds since 1970"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_with_a_fraction() {
        let read = |text: &str| point_in_time("since", text).map_err(|error| error.message);
        assert_eq!(read("1700000000"), Ok(1_700_000_000_000));
        assert_eq!(read("1700000000.123456789"), Ok(1_700_000_000_123));
        assert_eq!(read("1.5"), Ok(1500));
        for wrong in ["", "-1", "1.x", "yesterday", "99999999999999999999"] {
            assert!(read(wrong).unwrap_err().starts_with("since: "), "{wrong}");
        }
    }

    #[test]
    fn events_have_the_words_of_docker() {
        let change = v1::FieldChange { field: "replicas".into(), from: "1".into(), to: "3".into() };
        let event = v1::ClusterEvent {
            at: 1_700_000_000_123,
            kind: "service".into(),
            id: "abc".into(),
            name: "web".into(),
            action: "updated".into(),
            changes: vec![change],
            ..Default::default()
        };
        let expected = json!({
            "Type": "service", "Action": "update", "scope": "swarm", "time": 1_700_000_000u64,
            "timeNano": 1_700_000_000_123_000_000u64,
            "Actor": {"ID": "abc", "Attributes": {"name": "web", "replicas.old": "1", "replicas.new": "3"}},
        });
        assert_eq!(json(&event), Some(expected));
        assert_eq!(json(&v1::ClusterEvent { kind: "task".into(), ..event.clone() }), None);
        let removed = v1::ClusterEvent { kind: "volume".into(), action: "removed".into(), ..event };
        assert_eq!(action_of(&removed), Some("destroy"));
    }
}
