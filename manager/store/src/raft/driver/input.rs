//! Collects inputs of the driver and converts them to events: everything queued is taken at once, so that it
//! shares writes and messages.

use warren_consensus::Event;

use super::RaftDriver;
use crate::store::{ChangeError, DriverRequest, ProposeError, QueuedProposal, RaftInput};

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
                let waiting = proposals.drain(..).filter(|proposal| !proposal.reply.is_closed());
                self.replica.propose(waiting.map(|QueuedProposal { data, reply }| (reply, data)));
                self.replica.start_read_round(self.started.elapsed(), |reply| reply.is_closed());
            }
        }
    }

    /// Handles a local request.
    pub(super) fn handle_request(&mut self, request: DriverRequest) {
        match request {
            DriverRequest::Read(reply) => self.replica.read(reply),
            DriverRequest::ChangeMembers { change, reply } => {
                if let Some(stall) = self.log_writer.stall() {
                    // The caller may have given up.
                    let _ = reply.send(Err(ChangeError::WriteStalled(stall.clone())));
                    return;
                }
                self.replica.change_members(reply, change);
            }
            DriverRequest::TransferLeadership(to) => self.replica.add_event(Event::TransferLeadership { to }),
            DriverRequest::RenewDataKey(reply) => self.begin_key_renewal(reply),
        }
    }

    /// Handles input from another manager or its connection.
    pub(super) fn handle_input(&mut self, input: RaftInput) {
        let event = match input {
            RaftInput::Message(message) => {
                self.inbox.release(&message);
                Event::MessageReceived(message)
            }
            RaftInput::SnapshotReceived { message, state, bytes, taken } => {
                if let Some(meta) = &message.snapshot {
                    self.received_snapshots.add((meta.index, meta.term), *state, bytes, taken);
                }
                Event::MessageReceived(message)
            }
            RaftInput::PeerUnreachable(to) => Event::PeerUnreachable { to },
            RaftInput::SnapshotSent { to, delivered } => Event::SnapshotSent { to, delivered },
        };
        self.replica.add_event(event);
    }
}
