//! Writes: the leader proposes, a follower forwards to it and answers after it applied the write itself.

use std::collections::BTreeMap;

use warren_consensus::{DropReason, Event as RaftEvent, Proposal};
use warren_core::{Answer, Command, Outcome};
use warren_types::AssignmentVersion;

use super::Key;
use crate::event::{Answered, Event, OnClient, ToPeer, Unanswered};
use crate::world::World;
use crate::writers::Object;

/// How long anyone waits for a write, in milliseconds.
pub const PATIENCE: u64 = 2_000;

/// Who is answered when a write was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    Nobody,
    Client {
        client: usize,
        sending: u64,
    },
    Writer {
        writer: usize,
        sending: u64,
        object: Object,
    },
    /// A planner, which planned in that term.
    Planner {
        key: Key,
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
    /// A machine that wants to become a manager.
    Joiner {
        host: usize,
        wiped: u64,
    },
    /// Another manager, in that life.
    Peer {
        host: usize,
        boot: u64,
        request: u64,
    },
}

/// A manager's writes that are under way.
#[derive(Debug, Default)]
pub struct Writing {
    /// Proposed here, with the moment after which nobody waits any more.
    proposed: BTreeMap<u64, (Who, u64)>,
    /// Sent to the leader.
    forwarded: BTreeMap<u64, (Who, u64)>,
    /// Answered by the leader, by the index that must be applied here first.
    applied_there: BTreeMap<(u64, u64), (Who, Box<Outcome>)>,
    newest: u64,
}

impl Writing {
    pub fn take_proposed(&mut self, id: u64) -> Option<Who> {
        self.proposed.remove(&id).map(|(who, _)| who)
    }

    /// A number that no other write of this life has.
    pub fn number(&mut self) -> u64 {
        self.newest += 1;
        self.newest
    }

    /// Those that have waited for too long.
    fn take_late(&mut self, now: u64) -> Vec<Who> {
        let mut late = Vec::new();
        for waiting in [&mut self.proposed, &mut self.forwarded] {
            let over = |(_, (_, deadline)): &(&u64, &(Who, u64))| *deadline < now;
            let ids: Vec<u64> = waiting.iter().filter(over).map(|(id, _)| *id).collect();
            late.extend(ids.into_iter().filter_map(|id| waiting.remove(&id)).map(|(who, _)| who));
        }
        late
    }
}

impl World {
    /// Writes on behalf of `who`, here or through the leader.
    pub(crate) fn submit(&mut self, host: usize, who: Who, command: Command, deadline: u64) {
        let Some(role) = self.life(host).map(|run| run.role) else { return };
        if role.leads {
            return self.propose(host, who, command, deadline);
        }
        let leader = role.leader.and_then(|id| self.reach(host, id)).filter(|leader| *leader != host);
        let Some(leader) = leader else { return self.answer(host, who, Err(Unanswered::NotProposed)) };
        let Some(run) = &mut self.managers[host].run else { return };
        let request = run.writing.number();
        run.writing.forwarded.insert(request, (who, deadline));
        self.forwarded += 1;
        let command = Box::new(command);
        self.send_peer(host, leader, ToPeer::Forward { request, command, deadline });
    }

    /// Proposes, with this manager's time.
    pub(super) fn propose(&mut self, host: usize, who: Who, mut command: Command, deadline: u64) {
        command.set_at(self.stamp(host));
        let Some(run) = &mut self.managers[host].run else { return };
        let id = run.writing.number();
        run.writing.proposed.insert(id, (who, deadline));
        let data = (self.commands.len() as u64).to_be_bytes().to_vec().into();
        self.commands.push(command);
        self.raft(host, RaftEvent::Propose(vec![Proposal { id, data }]));
    }

    pub(super) fn dropped(&mut self, host: usize, proposal: u64, reason: DropReason) {
        let who = self.managers[host].run.as_mut().and_then(|run| run.writing.take_proposed(proposal));
        let why = match reason {
            DropReason::Unknown => Unanswered::Unknown,
            DropReason::NotLeader { .. }
            | DropReason::Busy
            | DropReason::Transferring { .. }
            | DropReason::ChangePending
            | DropReason::InvalidChange(_)
            | DropReason::Empty
            | DropReason::Superseded => Unanswered::NotProposed,
        };
        if let Some(who) = who {
            self.answer(host, who, Err(why));
        }
    }

    /// A follower asks the leader to propose.
    pub(super) fn forwarded(&mut self, host: usize, from: Who, command: Command, deadline: u64) {
        let leads = self.life(host).is_some_and(|run| run.role.leads);
        if let Who::Peer { host: asker, .. } = &from
            && !self.lets_in(host, self.managers[*asker].id)
        {
            return;
        }
        // Whoever asked has given up, and may have asked elsewhere since.
        if !leads || self.now > deadline {
            return self.answer(host, from, Err(Unanswered::NotProposed));
        }
        self.propose(host, from, command, deadline);
    }

    /// The leader answers.
    pub(super) fn leader_answered(&mut self, host: usize, request: u64, answer: Answered) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some((who, _)) = run.writing.forwarded.remove(&request) else { return };
        match answer {
            Err(why) => self.answer(host, who, Err(why)),
            Ok((index, outcome)) => {
                run.writing.applied_there.insert((index, request), (who, outcome));
                self.answer_what_was_applied(host);
            }
        }
    }

    /// Answers what the leader had applied, as far as it is applied here.
    pub(super) fn answer_what_was_applied(&mut self, host: usize) {
        loop {
            let Some(run) = &mut self.managers[host].run else { return };
            let applied = run.state.applied().index;
            let first = run.writing.applied_there.first_entry().filter(|entry| entry.key().0 <= applied);
            let Some(((index, _), (who, outcome))) = first.map(|entry| entry.remove_entry()) else { return };
            self.answer(host, who, Ok((index, outcome)));
        }
    }

    /// Nobody waits for a write for ever.
    pub(super) fn give_up_writes(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        for who in run.writing.take_late(now) {
            self.answer(host, who, Err(Unanswered::Unknown));
        }
    }

    pub(super) fn answer(&mut self, host: usize, who: Who, answer: Answered) {
        match who {
            Who::Nobody => {}
            Who::Client { client, sending } => self.answer_client(client, sending, answer),
            Who::Writer { writer, sending, object } => {
                self.answer_writer(host, (writer, sending, object), answer);
            }
            Who::Planner { key, term } => self.plan_carried_out(host, key, term),
            Who::Joiner { host: from, wiped } => self.join_answered(host, from, wiped, answer),
            Who::Hello { connection, has } => self.session_opened(host, connection, has, answer),
            Who::Reports { connection, number } => self.reports_stored(host, connection, number, answer),
            Who::Peer { host: follower, boot, request } => {
                if self.managers[follower].boot() == Some(boot) {
                    self.send_peer(host, follower, ToPeer::Answer { request, answer });
                }
            }
        }
    }

    pub(crate) fn answer_client(&mut self, client: usize, sending: u64, answer: Answered) {
        let delay = self.chance.between(1, 5);
        self.after(delay, Event::Client { client, what: OnClient::Answer { sending, answer } });
    }

    /// The defect: clients are told before anything is durable.
    pub(super) fn answer_early(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        let index = run.state.applied().index + 1;
        let clients = run.writing.proposed.values().map(|(who, _)| who.clone());
        let clients: Vec<Who> = clients.filter(|who| matches!(who, Who::Client { .. })).collect();
        for who in clients {
            let outcome = Outcome::Unchanged { answer: Answer::Done };
            self.answer(host, who, Ok((index, Box::new(outcome))));
        }
    }
}
