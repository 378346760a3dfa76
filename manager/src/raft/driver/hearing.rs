//! What the driver is told, and what it makes of it for the machine: which takes together whatever waits together, and
//! so shares writes and messages.

use std::sync::Arc;

use tokio::time::Instant;
use warren_consensus::{DropReason, Event, MessageKind};

use super::{Driver, Waiting};
use crate::store::{ChangeError, Doubt, Heard, Proposal, ProposeError, Request};

/// Proposals taken into one write, at most.
pub const MAX_BATCH: usize = 4096;
/// Messages taken together, at most.
const MAX_HEARD: usize = 1024;

impl Driver {
    /// Takes what waits, of proposals only if they are `wanted`. While the log is held nothing comes to the machine:
    /// what others say waits, or is lost as in any network; whoever wants to write is told.
    pub(super) fn gather(&mut self, proposals: &mut Vec<Proposal>, wanted: bool) {
        let held = self.log.held().cloned();
        if held.is_none() {
            for _ in 0..MAX_HEARD {
                let Ok(heard) = self.inbox.heard.try_recv() else { break };
                self.hear(heard);
            }
        }
        while let Ok(request) = self.inbox.requests.try_recv() {
            self.request(request);
        }
        while wanted
            && proposals.len() < MAX_BATCH
            && let Ok(proposal) = self.inbox.proposals.try_recv()
        {
            proposals.push(proposal);
        }
        match held {
            Some(held) => proposals.drain(..).for_each(|Proposal { reply, .. }| {
                // The caller may have given up waiting.
                let _ = reply.send(Err(ProposeError::Held(held.clone())));
            }),
            None => {
                self.propose(proposals);
                let question = self.reads.question(Instant::now());
                self.done.extend(question.map(|ctx| Event::ReadIndex { ctx }));
            }
        }
    }

    fn propose(&mut self, proposals: &mut Vec<Proposal>) {
        let mut batch = Vec::with_capacity(proposals.len());
        for Proposal { data, reply } in proposals.drain(..) {
            if !reply.is_closed() {
                let id = self.wait(Waiting::Write(reply));
                batch.push(warren_consensus::Proposal { id, data });
            }
        }
        if !batch.is_empty() {
            self.done.push(Event::Propose(batch));
        }
    }

    /// The number under which the machine will answer.
    fn wait(&mut self, waiting: Waiting) -> u64 {
        let id = self.next_proposal;
        self.next_proposal += 1;
        self.waiting.insert(id, waiting);
        id
    }

    /// Somebody here wants something.
    pub(super) fn request(&mut self, request: Request) {
        match request {
            Request::Read(reply) => self.reads.add(reply),
            Request::Change { change, reply } => {
                if let Some(held) = self.log.held() {
                    // The caller may have given up waiting.
                    let _ = reply.send(Err(ChangeError::Held(held.clone())));
                    return;
                }
                let id = self.wait(Waiting::Change(reply));
                self.done.push(Event::ChangeMembers { id, change });
            }
            Request::Transfer(to) => self.done.push(Event::TransferLeader { to }),
        }
    }

    /// Another manager said something, or the way to it did.
    pub(super) fn hear(&mut self, heard: Heard) {
        let event = match heard {
            Heard::Message(message) => {
                self.inbox.took(&message);
                let leads = matches!(message.kind, MessageKind::Append | MessageKind::Heartbeat);
                if leads && message.term >= self.role.term {
                    self.publisher.heard_leader();
                }
                Event::Message(message)
            }
            Heard::Snapshot { message, state, bytes, taken } => {
                self.publisher.heard_leader();
                if let Some(meta) = &message.snapshot {
                    self.arrivals.add((meta.index, meta.term), *state, bytes, taken);
                }
                Event::Message(message)
            }
            Heard::Unreachable(to) => Event::Unreachable { to },
            Heard::SnapshotSent { to, delivered } => Event::SnapshotSent { to, delivered },
        };
        self.done.push(event);
    }

    /// The machine will not carry out what was given to it under this number.
    pub(super) fn dropped(&mut self, proposal: u64, reason: DropReason) {
        match self.waiting.remove(&proposal) {
            Some(Waiting::Write(reply)) => self.news.answers.push((reply, Err(dropped(reason)))),
            Some(Waiting::Change(reply)) => self.news.changes.push((reply, Err(unchanged(reason)))),
            None => {}
        }
    }
}

fn dropped(reason: DropReason) -> ProposeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
            ProposeError::NotLeader
        }
        DropReason::Busy | DropReason::ChangePending => ProposeError::Busy,
        DropReason::InvalidChange(why) => ProposeError::Log(why.to_string().into()),
        DropReason::Unknown => ProposeError::Unconfirmed(Doubt::Overtaken),
        DropReason::Empty => ProposeError::Log(Arc::from("an empty command was proposed")),
    }
}

fn unchanged(reason: DropReason) -> ChangeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
            ChangeError::NotLeader
        }
        DropReason::Busy | DropReason::ChangePending => ChangeError::Pending,
        DropReason::InvalidChange(why) => ChangeError::Invalid(why),
        DropReason::Unknown | DropReason::Empty => ChangeError::Unconfirmed,
    }
}
