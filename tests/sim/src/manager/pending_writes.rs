//! Writes of callers: proposed here or forwarded to the leader, as [`write_route`] decides, and answered with their
//! own outcome. The callers and their deadlines are here; what they are answered is the product's decision.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_core::{AppliedIndex, Command, CommandResponse};
use warren_replica::{
    AppliedWrite, AttemptResult, IndeterminateReason, ProposeError, RETRY_DELAY, ReconcileKey, WriteRoute,
    deadline_error, timeout_error, write_route,
};

use super::planner::millis;
use crate::event::{ClientEvent, ManagerEvent, PeerMessage, SimEvent, WorkerVersions, WriteAnswer};
use crate::simulation::ClusterSimulation;
use crate::writers::SharedObject;

/// How long a caller waits for a write, in milliseconds.
pub const WRITE_TIMEOUT: u64 = 2_000;

/// The origin of a write, which gets the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WriteOrigin {
    Nobody,
    Client {
        client: usize,
        sending: u64,
    },
    Writer {
        writer: usize,
        sending: u64,
        object: SharedObject,
    },
    Hello {
        connection: u64,
        has: Box<WorkerVersions>,
    },
    Reports {
        connection: u64,
        number: u64,
    },
    /// A machine that asks to join.
    Joiner {
        host: usize,
        wiped: u64,
    },
}

/// What proposed a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proposer {
    Nobody,
    /// A write of a caller, by its number.
    Call(u64),
    /// The planner of that key.
    Planner(ReconcileKey),
    /// Another manager, in that run.
    Peer {
        host: usize,
        boot: u64,
        request: u64,
    },
}

/// A write that was not answered yet.
#[derive(Debug)]
struct PendingWrite {
    who: WriteOrigin,
    command: Command,
    deadline: u64,
    /// It is forwarded, since that applied index.
    forward: Option<u64>,
}

/// A manager's writes in flight.
#[derive(Debug, Default)]
pub struct ManagerWrites {
    calls: BTreeMap<u64, PendingWrite>,
    newest: u64,
}

impl ClusterSimulation {
    /// Writes on behalf of `who`, here or through the leader.
    pub(crate) fn submit(&mut self, host: usize, who: WriteOrigin, command: Command, deadline: u64) {
        let Some(run) = &mut self.managers[host].run else { return };
        run.writes.newest += 1;
        let id = run.writes.newest;
        run.writes.calls.insert(id, PendingWrite { who, command, deadline, forward: None });
        self.attempt_write(host, id);
    }

    fn attempt_write(&mut self, host: usize, id: u64) {
        let own = self.managers[host].id;
        let Some(run) = self.process(host) else { return };
        let Some(write) = run.writes.calls.get(&id) else { return };
        match write_route(&run.replica.role(), own, None, false) {
            WriteRoute::Local => self.propose(host, Proposer::Call(id), write.command.clone()),
            WriteRoute::Forward(leader) => self.forward(host, id, leader),
            WriteRoute::None(ended) => self.attempt_ended(host, id, ended),
        }
    }

    fn forward(&mut self, host: usize, id: u64, leader: u64) {
        let Some(leader) = self.reachable_host(host, leader) else {
            return self.attempt_ended(host, id, AttemptResult::Retry(ProposeError::NotLeader));
        };
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(write) = run.writes.calls.get_mut(&id) else { return };
        write.forward = Some(run.outcomes.begin_forward());
        let (command, deadline) = (Box::new(write.command.clone()), write.deadline);
        self.forwarded += 1;
        self.send_peer(host, leader, PeerMessage::Forward { request: id, command, deadline });
    }

    fn attempt_ended(&mut self, host: usize, id: u64, ended: AttemptResult) {
        let reason = match ended {
            AttemptResult::Done(result) => return self.answer_write(host, id, result),
            AttemptResult::Retry(reason) => reason,
        };
        let Some(run) = self.process(host) else { return };
        let Some(deadline) = run.writes.calls.get(&id).map(|write| write.deadline) else { return };
        let delay = millis(RETRY_DELAY).min(deadline.saturating_sub(self.now));
        self.at_manager(host, delay, ManagerEvent::RetryWrite { id, reason: Box::new(reason) });
    }

    pub(super) fn retry_write(&mut self, host: usize, id: u64, reason: ProposeError) {
        let Some(run) = self.process(host) else { return };
        if run.writes.calls.get(&id).is_some_and(|write| write.deadline <= self.now) {
            return self.answer_write(host, id, Err(deadline_error(reason, timeout())));
        }
        self.attempt_write(host, id);
    }

    /// Proposes, with this manager's timestamp.
    pub(super) fn propose(&mut self, host: usize, proposer: Proposer, mut command: Command) {
        command.set_at(self.wall_time(host));
        let data = (self.commands.len() as u64).to_be_bytes().to_vec().into();
        self.commands.push(command);
        let Some(run) = &mut self.managers[host].run else { return };
        run.replica.propose([(proposer, data)]);
        self.wake_driver(host);
    }

    /// The replica answers a proposal.
    pub(super) fn proposal_ended(
        &mut self,
        host: usize,
        proposer: Proposer,
        written: Result<AppliedWrite, ProposeError>,
    ) {
        match proposer {
            Proposer::Nobody => {}
            Proposer::Call(id) => self.attempt_ended(host, id, AttemptResult::of_proposal(written)),
            Proposer::Planner(key) => self.planned_command_ended(host, key, written),
            Proposer::Peer { host: follower, boot, request } => {
                if self.managers[follower].boot() == Some(boot) {
                    let position = Box::new(written.map(|written| written.position));
                    self.send_peer(host, follower, PeerMessage::Answer { request, position });
                }
            }
        }
    }

    /// A follower asks the leader to propose.
    pub(super) fn forwarded_write(
        &mut self,
        host: usize,
        from: (usize, u64),
        request: u64,
        command: Command,
        deadline: u64,
    ) {
        if !self.accepts_member(host, self.managers[from.0].id) {
            return;
        }
        let proposer = Proposer::Peer { host: from.0, boot: from.1, request };
        // The caller has timed out, and may have asked another manager since.
        if self.now > deadline {
            return self.proposal_ended(host, proposer, Err(ProposeError::Busy));
        }
        self.propose(host, proposer, command);
    }

    /// The leader answers where it applied a write; the outcome is that of the entry here.
    pub(super) fn leader_answered(
        &mut self,
        host: usize,
        request: u64,
        position: Result<AppliedIndex, ProposeError>,
    ) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(write) = run.writes.calls.get_mut(&request) else { return };
        let begun = write.forward.take();
        let waited = AttemptResult::of_forward(Some(position))
            .map(|position| run.outcomes.wait_for(position, request));
        begun.into_iter().for_each(|begun| run.outcomes.end_forward(begun));
        match waited {
            Ok(known) => self.answer_writes(host, known),
            Err(ended) => self.attempt_ended(host, request, ended),
        }
    }

    pub(super) fn answer_writes(
        &mut self,
        host: usize,
        answers: Vec<(u64, Result<CommandResponse, ProposeError>)>,
    ) {
        for (id, result) in answers {
            self.answer_write(host, id, result);
        }
    }

    fn answer_write(&mut self, host: usize, id: u64, result: Result<CommandResponse, ProposeError>) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(PendingWrite { who, command, forward, .. }) = run.writes.calls.remove(&id) else { return };
        forward.into_iter().for_each(|begun| run.outcomes.end_forward(begun));
        let index = run.replica.applied().index;
        // Reports are repeated while their session exists.
        if let (WriteOrigin::Reports { connection, .. }, Err(error)) = (&who, &result)
            && error.is_transient()
            && self
                .connections
                .get(*connection)
                .is_some_and(|line| run.sessions.holds(line.worker, *connection))
        {
            return self.submit(host, who, command, self.now + WRITE_TIMEOUT);
        }
        self.answer(host, who, WriteAnswer { index, result });
    }

    /// Expires writes after their deadline.
    pub(super) fn expire_writes(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let late = run.writes.calls.iter().filter(|(_, write)| write.deadline < self.now);
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.answer_write(host, id, Err(timeout_error(None, timeout())));
        }
    }

    pub(super) fn answer(&mut self, host: usize, who: WriteOrigin, answer: WriteAnswer) {
        match who {
            WriteOrigin::Nobody => {}
            WriteOrigin::Client { client, sending } => self.answer_client(client, sending, answer),
            WriteOrigin::Writer { writer, sending, object } => {
                self.answer_writer(host, (writer, sending, object), answer.result);
            }
            WriteOrigin::Joiner { host: from, wiped } => self.join_answered(host, from, wiped, answer.result),
            WriteOrigin::Hello { connection, has } => {
                self.session_opened(host, connection, *has, answer.result)
            }
            WriteOrigin::Reports { connection, number } => {
                self.reports_stored(host, connection, number, answer.result.is_ok())
            }
        }
    }

    /// The process that had the write has failed: its connections are closed.
    pub(super) fn answer_closed(&mut self, host: usize, who: WriteOrigin) {
        let unknown = ProposeError::Indeterminate(IndeterminateReason::DriverEnded);
        self.answer(host, who, WriteAnswer { index: 0, result: Err(unknown) });
    }

    pub(crate) fn answer_client(&mut self, client: usize, sending: u64, answer: WriteAnswer) {
        let (delay, answer) = (self.rng.between(1, 5), Box::new(answer));
        self.after(delay, SimEvent::Client { client, what: ClientEvent::Answer { sending, answer } });
    }

    /// The defect: clients are answered before anything is durable.
    pub(super) fn answer_early(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let index = run.replica.applied().index + 1;
        let here = run.writes.calls.values().filter(|write| write.forward.is_none());
        let clients: Vec<WriteOrigin> = here
            .map(|write| write.who.clone())
            .filter(|who| matches!(who, WriteOrigin::Client { .. }))
            .collect();
        for who in clients {
            self.answer(host, who, WriteAnswer { index, result: Ok(CommandResponse::Done) });
        }
    }
}

fn timeout() -> Duration {
    Duration::from_millis(WRITE_TIMEOUT)
}
