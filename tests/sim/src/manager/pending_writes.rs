//! Writes: the leader proposes, a follower forwards to it and answers after it applied the write itself.

use std::collections::BTreeMap;

use warren_consensus::{DropReason, Event as RaftEvent, Proposal};
use warren_core::{ApplyOutcome, Command, CommandResponse};
use warren_types::AssignmentVersion;

use super::PlannerKey;
use crate::event::{ClientEvent, PeerMessage, SimEvent, WriteFailure, WriteResult};
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
    /// A planner, with the term of its plan.
    Planner {
        key: PlannerKey,
        term: u64,
    },
    Hello {
        connection: u64,
        has: AssignmentVersion,
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
    /// Another manager, in that run.
    Peer {
        host: usize,
        boot: u64,
        request: u64,
    },
}

/// A manager's writes in flight.
#[derive(Debug, Default)]
pub struct ManagerWrites {
    /// Proposed here, with the deadline.
    proposed: BTreeMap<u64, (WriteOrigin, u64)>,
    /// Forwarded to the leader.
    forwarded: BTreeMap<u64, (WriteOrigin, u64)>,
    /// Answered by the leader, by the index that must be applied here first.
    applied_by_leader: BTreeMap<(u64, u64), (WriteOrigin, Box<ApplyOutcome>)>,
    newest: u64,
}

impl ManagerWrites {
    pub fn take_proposed(&mut self, id: u64) -> Option<WriteOrigin> {
        self.proposed.remove(&id).map(|(who, _)| who)
    }

    /// A number that is unique in this run.
    pub fn number(&mut self) -> u64 {
        self.newest += 1;
        self.newest
    }

    /// Expired writes.
    fn take_expired(&mut self, now: u64) -> Vec<WriteOrigin> {
        let mut late = Vec::new();
        for waiting in [&mut self.proposed, &mut self.forwarded] {
            let over = |(_, (_, deadline)): &(&u64, &(WriteOrigin, u64))| *deadline < now;
            let ids: Vec<u64> = waiting.iter().filter(over).map(|(id, _)| *id).collect();
            late.extend(ids.into_iter().filter_map(|id| waiting.remove(&id)).map(|(who, _)| who));
        }
        late
    }
}

impl ClusterSimulation {
    /// Writes on behalf of `who`, here or through the leader.
    pub(crate) fn submit(&mut self, host: usize, who: WriteOrigin, command: Command, deadline: u64) {
        let Some(role) = self.process(host).map(|run| run.role) else { return };
        if role.is_leader {
            return self.propose(host, who, command, deadline);
        }
        let leader =
            role.leader.and_then(|id| self.reachable_host(host, id)).filter(|leader| *leader != host);
        let Some(leader) = leader else { return self.answer(host, who, Err(WriteFailure::NotProposed)) };
        let Some(run) = &mut self.managers[host].run else { return };
        let request = run.writes.number();
        run.writes.forwarded.insert(request, (who, deadline));
        self.forwarded += 1;
        let command = Box::new(command);
        self.send_peer(host, leader, PeerMessage::Forward { request, command, deadline });
    }

    /// Proposes, with this manager's timestamp.
    pub(super) fn propose(&mut self, host: usize, who: WriteOrigin, mut command: Command, deadline: u64) {
        command.set_at(self.wall_time(host));
        let Some(run) = &mut self.managers[host].run else { return };
        let id = run.writes.number();
        run.writes.proposed.insert(id, (who, deadline));
        let data = (self.commands.len() as u64).to_be_bytes().to_vec().into();
        self.commands.push(command);
        self.raft(host, RaftEvent::Propose(vec![Proposal { id, data }]));
    }

    pub(super) fn proposal_dropped(&mut self, host: usize, proposal: u64, reason: DropReason) {
        let who = self.managers[host].run.as_mut().and_then(|run| run.writes.take_proposed(proposal));
        let why = match reason {
            DropReason::Indeterminate => WriteFailure::Indeterminate,
            DropReason::NotLeader { .. }
            | DropReason::Busy
            | DropReason::Transferring { .. }
            | DropReason::ChangePending
            | DropReason::InvalidChange(_)
            | DropReason::EmptyProposal
            | DropReason::Superseded => WriteFailure::NotProposed,
        };
        if let Some(who) = who {
            self.answer(host, who, Err(why));
        }
    }

    /// A follower asks the leader to propose.
    pub(super) fn forward_write(&mut self, host: usize, from: WriteOrigin, command: Command, deadline: u64) {
        let leads = self.process(host).is_some_and(|run| run.role.is_leader);
        if let WriteOrigin::Peer { host: asker, .. } = &from
            && !self.accepts_member(host, self.managers[*asker].id)
        {
            return;
        }
        // The caller has timed out, and may have asked another manager since.
        if !leads || self.now > deadline {
            return self.answer(host, from, Err(WriteFailure::NotProposed));
        }
        self.propose(host, from, command, deadline);
    }

    /// The leader answers.
    pub(super) fn leader_answered(&mut self, host: usize, request: u64, answer: WriteResult) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some((who, _)) = run.writes.forwarded.remove(&request) else { return };
        match answer {
            Err(why) => self.answer(host, who, Err(why)),
            Ok((index, outcome)) => {
                run.writes.applied_by_leader.insert((index, request), (who, outcome));
                self.answer_applied(host);
            }
        }
    }

    /// Answers writes that the leader had applied, as far as they are applied here.
    pub(super) fn answer_applied(&mut self, host: usize) {
        loop {
            let Some(run) = &mut self.managers[host].run else { return };
            let applied = run.state.applied().index;
            let first = run.writes.applied_by_leader.first_entry().filter(|entry| entry.key().0 <= applied);
            let Some(((index, _), (who, outcome))) = first.map(|entry| entry.remove_entry()) else { return };
            self.answer(host, who, Ok((index, outcome)));
        }
    }

    /// Expires writes after their deadline.
    pub(super) fn expire_writes(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        for who in run.writes.take_expired(now) {
            self.answer(host, who, Err(WriteFailure::Indeterminate));
        }
    }

    pub(super) fn answer(&mut self, host: usize, who: WriteOrigin, answer: WriteResult) {
        match who {
            WriteOrigin::Nobody => {}
            WriteOrigin::Client { client, sending } => self.answer_client(client, sending, answer),
            WriteOrigin::Writer { writer, sending, object } => {
                self.answer_writer(host, (writer, sending, object), answer);
            }
            WriteOrigin::Planner { key, term } => self.plan_carried_out(host, key, term),
            WriteOrigin::Joiner { host: from, wiped } => self.join_answered(host, from, wiped, answer),
            WriteOrigin::Hello { connection, has } => self.session_opened(host, connection, has, answer),
            WriteOrigin::Reports { connection, number } => {
                self.reports_stored(host, connection, number, answer)
            }
            WriteOrigin::Peer { host: follower, boot, request } => {
                if self.managers[follower].boot() == Some(boot) {
                    self.send_peer(host, follower, PeerMessage::Answer { request, answer });
                }
            }
        }
    }

    pub(crate) fn answer_client(&mut self, client: usize, sending: u64, answer: WriteResult) {
        let delay = self.rng.between(1, 5);
        self.after(delay, SimEvent::Client { client, what: ClientEvent::Answer { sending, answer } });
    }

    /// The defect: clients are answered before anything is durable.
    pub(super) fn answer_early(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        let index = run.state.applied().index + 1;
        let clients = run.writes.proposed.values().map(|(who, _)| who.clone());
        let clients: Vec<WriteOrigin> =
            clients.filter(|who| matches!(who, WriteOrigin::Client { .. })).collect();
        for who in clients {
            let outcome = ApplyOutcome::Unchanged { answer: CommandResponse::Done };
            self.answer(host, who, Ok((index, Box::new(outcome))));
        }
    }
}
