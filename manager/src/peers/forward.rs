//! Writes on their way to the leader: those that wait together share a call, and several calls are under way at once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Request, Status};
use warren_core::{Applied, Command};
use warren_proto::v1::forwarded::Result as Said;
use warren_proto::v1::not_proposed::Why;
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::{Problem, v1};
use warren_types::Timestamp;

use super::dial;
use super::line::Ends;
use crate::raft::codec;
use crate::store::{Doubt, Held, ProposeError};

/// Calls to one leader at once.
const IN_FLIGHT: usize = 64;
/// A call ends with the command that reaches either.
const CALL_COMMANDS: usize = 512;
const CALL_BYTES: usize = 1 << 20;
/// What the way back may take, beyond the time that the leader has.
const SLACK: Duration = Duration::from_millis(500);

/// What a leader says of one command.
pub type Place = Result<Applied, ProposeError>;

/// Some commands for the leader.
pub struct Forward {
    commands: Vec<Bytes>,
    /// After which nobody waits any more.
    until: Instant,
    reply: oneshot::Sender<Vec<Place>>,
}

impl Forward {
    fn bytes(&self) -> usize {
        self.commands.iter().map(Bytes::len).sum()
    }
}

/// Sends `commands` into `line`, and waits for what becomes of them; one answer for each.
pub async fn forward(line: mpsc::Sender<Forward>, commands: Vec<Command>, within: Duration) -> Vec<Place> {
    let until = Instant::now() + within;
    let mut waits = Vec::new();
    let count = commands.len();
    let mut encoded: VecDeque<_> =
        commands.iter().map(|command| Bytes::from(codec::encode(command))).collect();
    drop(commands);
    while !encoded.is_empty() {
        let mut bytes = 0;
        let mut part = Vec::new();
        while part.len() < CALL_COMMANDS
            && bytes < CALL_BYTES
            && let Some(command) = encoded.pop_front()
        {
            bytes += command.len();
            part.push(command);
        }
        let (count, (reply, said)) = (part.len(), oneshot::channel());
        // What finds no room in time is not proposed.
        let sent = timeout_at(until, line.send(Forward { commands: part, until, reply })).await;
        waits.push((count, sent.is_ok_and(|sent| sent.is_ok()).then_some(said)));
    }
    let mut places = Vec::with_capacity(count);
    for (count, said) in waits {
        places.extend(match said {
            None => all(count, &ProposeError::Busy),
            Some(said) => {
                said.await.unwrap_or_else(|_| all(count, &unanswered("this manager gave up on it")))
            }
        });
    }
    places
}

fn all(count: usize, error: &ProposeError) -> Vec<Place> {
    vec![Err(error.clone()); count]
}

fn unanswered(words: impl Into<Arc<str>>) -> ProposeError {
    ProposeError::Unconfirmed(Doubt::Unanswered(words.into()))
}

/// Takes what waits and calls the leader, until the line ends.
pub(super) async fn run(
    ends: Ends,
    mut forwards: mpsc::Receiver<Forward>,
    channel: watch::Receiver<Option<Channel>>,
) {
    let mut calls = JoinSet::new();
    let mut held: Option<Forward> = None;
    loop {
        let first = match held.take() {
            Some(first) => Some(first),
            None => tokio::select! {
                () = ends.end.cancelled() => break,
                Some(_) = calls.join_next() => continue,
                first = forwards.recv() => first,
            },
        };
        let Some(first) = first else { break };
        while calls.len() >= IN_FLIGHT && !ends.end.is_cancelled() {
            tokio::select! {
                () = ends.end.cancelled() => {}
                _ = calls.join_next() => {}
            }
        }
        // Those who were woken by the same answer get the chance to share the next call.
        tokio::task::yield_now().await;
        let (mut count, mut bytes) = (first.commands.len(), first.bytes());
        let mut call = vec![first];
        while count < CALL_COMMANDS
            && bytes < CALL_BYTES
            && let Ok(more) = forwards.try_recv()
        {
            (count, bytes) = (count + more.commands.len(), bytes + more.bytes());
            if count > CALL_COMMANDS || bytes > CALL_BYTES {
                held = Some(more);
                break;
            }
            call.push(more);
        }
        let channel = channel.borrow().clone();
        match channel {
            Some(channel) => drop(calls.spawn(ask(PeersClient::new(channel), call))),
            None => call.into_iter().for_each(give_back),
        }
    }
    forwards.close();
    while let Ok(part) = forwards.try_recv() {
        give_back(part);
    }
}

/// It was certainly not proposed.
fn give_back(part: Forward) {
    let count = part.commands.len();
    // The caller may have given up waiting, here and below.
    let _ = part.reply.send(all(count, &ProposeError::NotLeader));
}

/// One call, for all of `parts`.
async fn ask(mut client: PeersClient<Channel>, parts: Vec<Forward>) {
    let now = Instant::now();
    // The earliest of them: after that nothing may be proposed that somebody has given up on.
    let until = parts.iter().map(|part| part.until).min().unwrap_or(now);
    let within = until.saturating_duration_since(now);
    let mut commands = Vec::new();
    let mut waiting = Vec::with_capacity(parts.len());
    for part in parts {
        waiting.push((part.commands.len(), part.reply));
        commands.extend(part.commands);
    }
    let count = commands.len();
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let mut request = Request::new(v1::ForwardRequest { commands, within_ms });
    request.set_timeout(within + SLACK);
    let mut places = match timeout_at(until + SLACK, client.forward(request)).await {
        Ok(Ok(response)) => read(response.into_inner(), count),
        Ok(Err(status)) => all(count, &refused(&status)),
        Err(_) => all(count, &unanswered("it did not answer in time")),
    }
    .into_iter();
    for (count, reply) in waiting {
        let _ = reply.send(places.by_ref().take(count).collect());
    }
}

/// A call that was refused as a whole: by the other manager before it looked at it, or by the connection.
fn refused(status: &Status) -> ProposeError {
    let problem = Problem::from(status);
    let is_certain = !problem.reason.is_empty() || dial::was_not_sent(status);
    if is_certain { ProposeError::NotLeader } else { unanswered(problem.message) }
}

fn read(response: v1::ForwardResponse, count: usize) -> Vec<Place> {
    if response.results.len() != count {
        let words = format!("it answered {} of {count} writes", response.results.len());
        return all(count, &unanswered(words));
    }
    response.results.into_iter().map(from_wire).collect()
}

fn from_wire(said: v1::Forwarded) -> Place {
    match said.result {
        Some(Said::Applied(v1::LogPlace { term, index })) => Ok(Applied { term, index }),
        Some(Said::NotProposed(not)) => Err(match Why::try_from(not.why) {
            Ok(Why::NotLeader) => ProposeError::NotLeader,
            Ok(Why::Busy | Why::Late) => ProposeError::Busy,
            Ok(Why::Stopping) => ProposeError::Stopping,
            Ok(Why::Held) => {
                let (since, why) = (Timestamp(not.since), not.words.into());
                ProposeError::Held(Arc::new(Held { since, why, full: not.full }))
            }
            Err(_) => {
                unanswered(format!("it was not proposed, for a reason that is not known here: {}", not.why))
            }
        }),
        Some(Said::Unknown(words)) => Err(unanswered(words)),
        None => Err(unanswered("it answered nothing")),
    }
}

/// What becomes of one command, for whoever forwarded it.
pub(super) fn to_wire(place: Place) -> v1::Forwarded {
    let not = |why: Why| v1::NotProposed { why: why as i32, ..v1::NotProposed::default() };
    let result = match place {
        Ok(Applied { term, index }) => Said::Applied(v1::LogPlace { term, index }),
        Err(ProposeError::NotLeader | ProposeError::NoLeader(_)) => Said::NotProposed(not(Why::NotLeader)),
        Err(ProposeError::Busy) => Said::NotProposed(not(Why::Busy)),
        Err(ProposeError::Stopping | ProposeError::Log(_)) => Said::NotProposed(not(Why::Stopping)),
        Err(ProposeError::Held(held) | ProposeError::NotCurrent(held)) => {
            let Held { since, why, full } = &*held;
            Said::NotProposed(v1::NotProposed {
                words: why.to_string(),
                full: *full,
                since: since.0,
                ..not(Why::Held)
            })
        }
        Err(ProposeError::Unconfirmed(doubt)) => Said::Unknown(doubt.to_string()),
        Err(ProposeError::Rejected(refusal)) => {
            Said::Unknown(format!("it was applied somewhere, and refused: {refusal}"))
        }
    };
    v1::Forwarded { result: Some(result) }
}

/// Nobody waits for it any more.
pub(super) fn late() -> v1::Forwarded {
    let late = v1::NotProposed { why: Why::Late as i32, ..v1::NotProposed::default() };
    v1::Forwarded { result: Some(Said::NotProposed(late)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_leader_says_comes_back() {
        let held = Arc::new(Held { since: Timestamp(7), why: "the disk is full".into(), full: true });
        for place in [
            Ok(Applied { term: 3, index: 9 }),
            Err(ProposeError::NotLeader),
            Err(ProposeError::Busy),
            Err(ProposeError::Stopping),
            Err(ProposeError::Held(held)),
        ] {
            assert_eq!(format!("{:?}", from_wire(to_wire(place.clone()))), format!("{place:?}"));
        }
        let late = from_wire(to_wire(Err(ProposeError::Unconfirmed(Doubt::Overtaken)))).unwrap_err();
        assert!(late.to_string().contains("another manager took over"), "{late}");
        assert!(matches!(from_wire(super::late()), Err(ProposeError::Busy)));
    }

    #[test]
    fn whatever_else_is_said_leaves_a_doubt() {
        let why = v1::NotProposed { why: 99, ..v1::NotProposed::default() };
        for result in [None, Some(Said::NotProposed(why)), Some(Said::Unknown("?".into()))] {
            let error = from_wire(v1::Forwarded { result }).unwrap_err();
            assert!(matches!(error, ProposeError::Unconfirmed(Doubt::Unanswered(_))), "{error:?}");
        }
        let one = v1::ForwardResponse { results: vec![late()] };
        let places = read(one, 2);
        assert_eq!(places.len(), 2);
        assert!(places.iter().all(|place| matches!(place, Err(ProposeError::Unconfirmed(_)))));
    }

    #[test]
    fn only_a_refusal_in_our_own_words_was_certainly_before_the_proposal() {
        assert!(matches!(refused(&Status::unavailable("connection reset")), ProposeError::Unconfirmed(_)));
        let unknown = super::super::roster::Refused::MemberIdMismatch {
            member: 3,
            found: warren_types::ManagerId(warren_types::Id(13)),
        };
        assert!(matches!(refused(&unknown.into()), ProposeError::NotLeader));
    }
}
