//! Forwards writes to the leader: queued writes share a call, and several calls run concurrently.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Request, Status};
use warren_core::{AppliedIndex, Command};
use warren_proto::v1::not_proposed::Reason;
use warren_proto::v1::peers_client::PeersClient;
use warren_proto::v1::proposal_result::Result as Said;
use warren_proto::{Problem, v1};
use warren_store::codec;
use warren_store::{IndeterminateReason, ProposeError, WriteStall};
use warren_types::Timestamp;

use super::dial;

/// Maximum concurrent calls to one leader.
const MAX_CALLS_IN_FLIGHT: usize = 64;
/// A call ends with the command that reaches either limit.
const MAX_CALL_COMMANDS: usize = 512;
const MAX_CALL_BYTES: usize = 1 << 20;
/// Extra time for the response beyond the leader's time limit.
const REPLY_SLACK: Duration = Duration::from_millis(500);

/// The leader's result for one command.
pub type ForwardResult = Result<AppliedIndex, ProposeError>;

/// A batch of commands for the leader.
pub struct ForwardBatch {
    commands: Vec<Bytes>,
    /// The callers give up at this time.
    deadline: Instant,
    reply: oneshot::Sender<Vec<ForwardResult>>,
}

impl ForwardBatch {
    fn bytes(&self) -> usize {
        self.commands.iter().map(Bytes::len).sum()
    }
}

/// Queues `commands` on the link and waits for the results, one per command.
pub async fn forward(
    line: mpsc::Sender<ForwardBatch>,
    commands: Vec<Command>,
    within: Duration,
) -> Vec<ForwardResult> {
    let deadline = Instant::now() + within;
    let mut waits = Vec::new();
    let count = commands.len();
    let mut encoded: VecDeque<_> =
        commands.iter().map(|command| Bytes::from(codec::encode(command))).collect();
    drop(commands);
    while !encoded.is_empty() {
        let mut bytes = 0;
        let mut part = Vec::new();
        while part.len() < MAX_CALL_COMMANDS
            && bytes < MAX_CALL_BYTES
            && let Some(command) = encoded.pop_front()
        {
            bytes += command.len();
            part.push(command);
        }
        let (count, (reply, results)) = (part.len(), oneshot::channel());
        // Commands that are not queued in time are not proposed.
        let sent = timeout_at(deadline, line.send(ForwardBatch { commands: part, deadline, reply })).await;
        waits.push((count, sent.is_ok_and(|sent| sent.is_ok()).then_some(results)));
    }
    let mut positions = Vec::with_capacity(count);
    for (count, results) in waits {
        positions.extend(match results {
            None => fail_all(count, &ProposeError::Busy),
            Some(results) => {
                results.await.unwrap_or_else(|_| fail_all(count, &unanswered_error("the link was closed")))
            }
        });
    }
    positions
}

fn fail_all(count: usize, error: &ProposeError) -> Vec<ForwardResult> {
    vec![Err(error.clone()); count]
}

fn unanswered_error(reason: impl Into<Arc<str>>) -> ProposeError {
    ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered(reason.into()))
}

/// Takes queued batches and calls the leader until the link is closed.
pub(super) async fn run(
    mut forwards: mpsc::Receiver<ForwardBatch>,
    channel: watch::Receiver<Option<Channel>>,
    closed: CancellationToken,
) {
    let mut calls = JoinSet::new();
    let mut carried_over: Option<ForwardBatch> = None;
    loop {
        let first = match carried_over.take() {
            Some(first) => Some(first),
            None => tokio::select! {
                () = closed.cancelled() => break,
                Some(_) = calls.join_next() => continue,
                first = forwards.recv() => first,
            },
        };
        let Some(first) = first else { break };
        while calls.len() >= MAX_CALLS_IN_FLIGHT && !closed.is_cancelled() {
            tokio::select! {
                () = closed.cancelled() => {}
                _ = calls.join_next() => {}
            }
        }
        // Tasks woken by the same response get the chance to share the next call.
        tokio::task::yield_now().await;
        let (mut count, mut bytes) = (first.commands.len(), first.bytes());
        let mut call = vec![first];
        while count < MAX_CALL_COMMANDS
            && bytes < MAX_CALL_BYTES
            && let Ok(more) = forwards.try_recv()
        {
            (count, bytes) = (count + more.commands.len(), bytes + more.bytes());
            if count > MAX_CALL_COMMANDS || bytes > MAX_CALL_BYTES {
                carried_over = Some(more);
                break;
            }
            call.push(more);
        }
        let channel = channel.borrow().clone();
        match channel {
            Some(channel) => drop(calls.spawn(call_leader(PeersClient::new(channel), call))),
            None => call.into_iter().for_each(return_unproposed),
        }
    }
    forwards.close();
    while let Ok(part) = forwards.try_recv() {
        return_unproposed(part);
    }
}

/// The batch was certainly not proposed.
fn return_unproposed(part: ForwardBatch) {
    let count = part.commands.len();
    // The caller may have given up, here and below.
    let _ = part.reply.send(fail_all(count, &ProposeError::NotLeader));
}

/// One call for all `parts`.
async fn call_leader(mut client: PeersClient<Channel>, parts: Vec<ForwardBatch>) {
    let now = Instant::now();
    // The earliest deadline: nothing may be proposed after a caller gave up.
    let deadline = parts.iter().map(|part| part.deadline).min().unwrap_or(now);
    let within = deadline.saturating_duration_since(now);
    let mut commands = Vec::new();
    let mut waiting = Vec::with_capacity(parts.len());
    for part in parts {
        waiting.push((part.commands.len(), part.reply));
        commands.extend(part.commands);
    }
    let count = commands.len();
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let mut request = Request::new(v1::ForwardProposalsRequest { commands, within_ms });
    request.set_timeout(within + REPLY_SLACK);
    let mut positions = match timeout_at(deadline + REPLY_SLACK, client.forward_proposals(request)).await {
        Ok(Ok(response)) => read_response(response.into_inner(), count),
        Ok(Err(status)) => fail_all(count, &refusal_error(&status)),
        Err(_) => fail_all(count, &unanswered_error("no response in time")),
    }
    .into_iter();
    for (count, reply) in waiting {
        let _ = reply.send(positions.by_ref().take(count).collect());
    }
}

/// Converts the failure of a whole call: rejected by the other manager before it processed the call, or a
/// connection error.
fn refusal_error(status: &Status) -> ProposeError {
    let problem = Problem::from(status);
    let is_certain = !problem.reason.is_empty() || dial::was_not_sent(status);
    if is_certain { ProposeError::NotLeader } else { unanswered_error(problem.message) }
}

fn read_response(response: v1::ForwardProposalsResponse, count: usize) -> Vec<ForwardResult> {
    if response.results.len() != count {
        let reason = format!("the response has {} results for {count} writes", response.results.len());
        return fail_all(count, &unanswered_error(reason));
    }
    response.results.into_iter().map(from_wire).collect()
}

fn from_wire(output: v1::ProposalResult) -> ForwardResult {
    match output.result {
        Some(Said::Applied(v1::LogPosition { term, index })) => Ok(AppliedIndex { term, index }),
        Some(Said::NotProposed(not)) => Err(match Reason::try_from(not.reason) {
            Ok(Reason::NotLeader) => ProposeError::NotLeader,
            Ok(Reason::Busy | Reason::DeadlineExceeded) => ProposeError::Busy,
            Ok(Reason::Stopping) => ProposeError::Stopping,
            Ok(Reason::WriteStalled) => {
                let (since, why) = (Timestamp(not.since), not.message.into());
                ProposeError::WriteStalled(Arc::new(WriteStall {
                    since,
                    reason: why,
                    is_disk_full: not.full,
                }))
            }
            Err(_) => unanswered_error(format!("not proposed for an unknown reason: {}", not.reason)),
        }),
        Some(Said::Unknown(words)) => Err(unanswered_error(words)),
        None => Err(unanswered_error("empty response")),
    }
}

/// The result of one command in its wire form.
pub(super) fn to_wire(place: ForwardResult) -> v1::ProposalResult {
    let not = |why: Reason| v1::NotProposed { reason: why as i32, ..v1::NotProposed::default() };
    let result = match place {
        Ok(AppliedIndex { term, index }) => Said::Applied(v1::LogPosition { term, index }),
        Err(ProposeError::NotLeader | ProposeError::NoLeader(_)) => Said::NotProposed(not(Reason::NotLeader)),
        Err(ProposeError::Busy) => Said::NotProposed(not(Reason::Busy)),
        Err(ProposeError::Stopping | ProposeError::DriverFailed(_)) => {
            Said::NotProposed(not(Reason::Stopping))
        }
        Err(ProposeError::WriteStalled(stall) | ProposeError::Stale(stall)) => {
            let WriteStall { since, reason: why, is_disk_full: full } = &*stall;
            Said::NotProposed(v1::NotProposed {
                message: why.to_string(),
                full: *full,
                since: since.0,
                ..not(Reason::WriteStalled)
            })
        }
        Err(ProposeError::Indeterminate(reason)) => Said::Unknown(reason.to_string()),
        Err(ProposeError::Rejected(refusal)) => Said::Unknown(format!("applied and rejected: {refusal}")),
    };
    v1::ProposalResult { result: Some(result) }
}

/// The result of a command whose caller has given up.
pub(super) fn expired() -> v1::ProposalResult {
    let late = v1::NotProposed { reason: Reason::DeadlineExceeded as i32, ..v1::NotProposed::default() };
    v1::ProposalResult { result: Some(Said::NotProposed(late)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leader_result_round_trips() {
        let held = Arc::new(WriteStall {
            since: Timestamp(7),
            reason: "the disk is full".into(),
            is_disk_full: true,
        });
        for place in [
            Ok(AppliedIndex { term: 3, index: 9 }),
            Err(ProposeError::NotLeader),
            Err(ProposeError::Busy),
            Err(ProposeError::Stopping),
            Err(ProposeError::WriteStalled(held)),
        ] {
            assert_eq!(format!("{:?}", from_wire(to_wire(place.clone()))), format!("{place:?}"));
        }
        let late =
            from_wire(to_wire(Err(ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot))))
                .unwrap_err();
        assert!(late.to_string().contains("leadership changed"), "{late}");
        assert!(matches!(from_wire(super::expired()), Err(ProposeError::Busy)));
    }

    #[test]
    fn unknown_result_is_indeterminate() {
        let why = v1::NotProposed { reason: 99, ..v1::NotProposed::default() };
        for result in [None, Some(Said::NotProposed(why)), Some(Said::Unknown("?".into()))] {
            let error = from_wire(v1::ProposalResult { result }).unwrap_err();
            assert!(
                matches!(error, ProposeError::Indeterminate(IndeterminateReason::LeaderUnanswered(_))),
                "{error:?}"
            );
        }
        let one = v1::ForwardProposalsResponse { results: vec![expired()] };
        let places = read_response(one, 2);
        assert_eq!(places.len(), 2);
        assert!(places.iter().all(|place| matches!(place, Err(ProposeError::Indeterminate(_)))));
    }

    #[test]
    fn only_known_refusal_means_not_proposed() {
        assert!(matches!(
            refusal_error(&Status::unavailable("connection reset")),
            ProposeError::Indeterminate(_)
        ));
        let unknown = warren_replica::PeerRejection::MemberIdMismatch {
            member: 3,
            found: warren_types::ManagerId(warren_types::Id(13)),
        };
        assert!(matches!(
            refusal_error(&super::super::rejection::rejection_status(unknown)),
            ProposeError::NotLeader
        ));
    }
}
