//! Collects inputs of the driver and converts them to events: everything queued is taken at once, so that it
//! shares writes and messages.

use std::sync::Arc;

use tokio::time::Instant;
use warren_consensus::{DropReason, Event, MessageKind};

use super::{RaftDriver, Waiter};
use crate::store::{
    ChangeError, DriverRequest, IndeterminateReason, ProposeError, QueuedProposal, RaftInput,
};

/// Maximum number of proposals in one write.
pub const MAX_PROPOSALS_PER_WRITE: usize = 4096;
/// Maximum number of messages per iteration.
const MAX_INPUTS_PER_TURN: usize = 1024;

impl RaftDriver {
    /// Takes queued inputs; proposals only if `with_proposals`. While the log write is stalled the machine
    /// receives nothing: messages of other managers stay queued or are dropped, and proposals are rejected.
    pub(super) fn take_inputs(&mut self, proposals: &mut Vec<QueuedProposal>, with_proposals: bool) {
        let stall = self.log_writer.stall().cloned();
        if stall.is_none() {
            for _ in 0..MAX_INPUTS_PER_TURN {
                let Ok(input) = self.inbox.inputs.try_recv() else { break };
                self.handle_input(input);
            }
        }
        while let Ok(request) = self.inbox.requests.try_recv() {
            self.handle_request(request);
        }
        while with_proposals
            && proposals.len() < MAX_PROPOSALS_PER_WRITE
            && let Ok(proposal) = self.inbox.proposals.try_recv()
        {
            proposals.push(proposal);
        }
        match stall {
            Some(stall) => proposals.drain(..).for_each(|QueuedProposal { reply, .. }| {
                // The caller may have given up.
                let _ = reply.send(Err(ProposeError::WriteStalled(stall.clone())));
            }),
            None => {
                self.propose(proposals);
                let context = self.pending_reads.next_context(Instant::now());
                self.pending_events.extend(context.map(|ctx| Event::ReadIndex { ctx }));
            }
        }
    }

    fn propose(&mut self, proposals: &mut Vec<QueuedProposal>) {
        let mut batch = Vec::with_capacity(proposals.len());
        for QueuedProposal { data, reply } in proposals.drain(..) {
            if !reply.is_closed() {
                let id = self.add_waiter(Waiter::Write(reply));
                batch.push(warren_consensus::Proposal { id, data });
            }
        }
        if !batch.is_empty() {
            self.pending_events.push(Event::Propose(batch));
        }
    }

    /// Registers a waiting caller and returns its proposal number.
    fn add_waiter(&mut self, waiting: Waiter) -> u64 {
        let id = self.next_proposal;
        self.next_proposal += 1;
        self.waiters.insert(id, waiting);
        id
    }

    /// Handles a local request.
    pub(super) fn handle_request(&mut self, request: DriverRequest) {
        match request {
            DriverRequest::Read(reply) => self.pending_reads.add(reply),
            DriverRequest::ChangeMembers { change, reply } => {
                if let Some(stall) = self.log_writer.stall() {
                    // The caller may have given up.
                    let _ = reply.send(Err(ChangeError::WriteStalled(stall.clone())));
                    return;
                }
                let id = self.add_waiter(Waiter::Change(reply));
                self.pending_events.push(Event::ChangeMembers { id, change });
            }
            DriverRequest::TransferLeadership(to) => {
                self.pending_events.push(Event::TransferLeadership { to })
            }
        }
    }

    /// Handles input from another manager or its connection.
    pub(super) fn handle_input(&mut self, input: RaftInput) {
        let event = match input {
            RaftInput::Message(message) => {
                self.inbox.release(&message);
                let leads = matches!(message.kind, MessageKind::Append | MessageKind::Heartbeat);
                if leads && message.term >= self.role.term {
                    self.publisher.record_leader_seen();
                }
                Event::MessageReceived(message)
            }
            RaftInput::SnapshotReceived { message, state, bytes, taken } => {
                self.publisher.record_leader_seen();
                if let Some(meta) = &message.snapshot {
                    self.received_snapshots.add((meta.index, meta.term), *state, bytes, taken);
                }
                Event::MessageReceived(message)
            }
            RaftInput::PeerUnreachable(to) => Event::PeerUnreachable { to },
            RaftInput::SnapshotSent { to, delivered } => Event::SnapshotSent { to, delivered },
        };
        self.pending_events.push(event);
    }

    /// Answers the caller of a proposal that the machine dropped.
    pub(super) fn fail_proposal(&mut self, proposal: u64, reason: DropReason) {
        match self.waiters.remove(&proposal) {
            Some(Waiter::Write(reply)) => {
                self.pending_publication.answers.push((reply, Err(propose_error(reason))))
            }
            Some(Waiter::Change(reply)) => {
                self.pending_publication.member_changes.push((reply, Err(change_error(reason))))
            }
            None => {}
        }
    }
}

fn propose_error(reason: DropReason) -> ProposeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
            ProposeError::NotLeader
        }
        DropReason::Busy | DropReason::ChangePending => ProposeError::Busy,
        DropReason::InvalidChange(why) => ProposeError::DriverFailed(why.to_string().into()),
        DropReason::Indeterminate => ProposeError::Indeterminate(IndeterminateReason::CoveredBySnapshot),
        DropReason::EmptyProposal => ProposeError::DriverFailed(Arc::from("the command is empty")),
    }
}

fn change_error(reason: DropReason) -> ChangeError {
    match reason {
        DropReason::NotLeader { .. } | DropReason::Superseded | DropReason::Transferring { .. } => {
            ChangeError::NotLeader
        }
        DropReason::Busy | DropReason::ChangePending => ChangeError::ChangeInProgress,
        DropReason::InvalidChange(why) => ChangeError::Invalid(why),
        DropReason::Indeterminate | DropReason::EmptyProposal => ChangeError::Indeterminate,
    }
}
