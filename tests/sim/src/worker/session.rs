//! The agent's end of a session: dial any manager, take over what it wants, say what is, leave it when it is
//! silent.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_core::session::{Diff, Told, Word, contains};
use warren_task::{Batch, Gap};
use warren_types::{AssignmentVersion, Desired, NodeCondition, TaskAssignment, Timestamp};

use super::{Actor, Agent, Worker};
use crate::event::{OnWorker, ToManager, ToWorker};
use crate::network::End;
use crate::world::{Defect, World};

/// How often the agent tells how the node is.
const HEARTBEAT: u64 = 5_000;
/// How often it asks whether its assignment is current.
const SYNC: u64 = 3_000;
/// A manager that does not answer within this is left.
const SILENCE: u64 = 3_000;
/// How often the agent notes when a manager was last heard.
const NOTE_EVERY: u64 = 2_000;
/// Longest wait of a node that the managers do not know.
const OUTCAST_WAIT: u64 = 30_000;

/// What became of a word on the node's assignment.
enum Taken {
    /// Its tasks are to be looked at.
    Yes,
    /// It says nothing new.
    No,
    /// It lacks what came before.
    Lacks,
}

impl Agent {
    /// Takes over what a manager wants, unless it has seen something newer.
    fn take(&mut self, word: &Word) -> Taken {
        let yes = |yes| if yes { Taken::Yes } else { Taken::No };
        match word {
            Word::Full(assignment) => yes(self.wishes.take_full(assignment.clone())),
            Word::Current => yes(self.wishes.confirm()),
            Word::Diff(Diff { base, version, changed, removed }) => {
                match self.wishes.take_diff(*base, *version, changed.clone(), removed) {
                    Ok(taken) => yes(taken),
                    Err(Gap) => Taken::Lacks,
                }
            }
        }
    }

    /// Makes what the actors are told what is wanted. What a manager does not want is wanted by nobody.
    fn reconcile(&mut self, now: Timestamp) {
        for (id, wanted) in &self.wishes.tasks {
            let actor = self.actors.entry(*id).or_insert_with(|| Actor::new(None, now));
            let is_wanted = |task: &TaskAssignment| task.desired != Desired::Remove;
            if is_wanted(wanted) && !actor.wanted.as_deref().is_some_and(is_wanted) {
                self.outbox.forget_removal(id);
            }
            actor.wanted = Some(wanted.clone());
            actor.dismissed = false;
        }
        let confirmed = self.wishes.confirmed;
        for (id, actor) in self.actors.iter_mut().filter(|_| confirmed) {
            if self.wishes.tasks.contains_key(id) {
                continue;
            }
            actor.dismissed = true;
            if let Some(wanted) = actor.wanted.as_mut().filter(|wanted| wanted.desired != Desired::Remove) {
                Arc::make_mut(wanted).desired = Desired::Remove;
            }
        }
    }
}

impl World {
    pub(super) fn dial_again(&mut self, worker: usize) {
        let pause = self.chance.between(50, 700);
        self.at_worker(worker, pause, OnWorker::Dials);
    }

    pub(super) fn dials(&mut self, worker: usize) {
        let connected = self.workers[worker].agent.as_ref().is_some_and(|agent| agent.connection.is_some());
        if connected {
            return;
        }
        // It never forgets the first machine, whatever it was told.
        let known = self.workers[worker].managers.iter();
        let known = known.filter_map(|address| self.managers.iter().position(|it| it.address == *address));
        let known: Vec<usize> = known.chain([0]).collect();
        let host = self.chance.pick(&known);
        if host.is_some_and(|host| self.speaks_of_a_life_that_is_over(worker, host)) {
            return;
        }
        let connection = host.and_then(|host| self.connect(worker, host));
        let Some(connection) = connection else {
            self.stands(worker, false);
            return self.dial_again(worker);
        };
        if self.workers[worker].was_removed {
            self.say_up(connection, ToManager::Join);
        }
        let Some(agent) = &mut self.workers[worker].agent else { return };
        (agent.connection, agent.welcomed, agent.told) = (Some(connection), false, false);
        let (has, heard) = (agent.wishes.version, agent.heard);
        self.say_up(connection, ToManager::Hello(has));
        self.at_worker(worker, SILENCE, OnWorker::Listens { connection, heard });
    }

    fn is_current(&self, worker: usize, connection: u64) -> bool {
        self.workers[worker].agent.as_ref().is_some_and(|agent| agent.connection == Some(connection))
    }

    pub(super) fn heartbeat(&mut self, worker: usize, connection: u64) {
        if self.is_current(worker, connection) {
            let conditions = self.conditions(worker);
            self.say_up(connection, ToManager::Heartbeat(conditions));
            self.at_worker(worker, HEARTBEAT, OnWorker::Heartbeat { connection });
        }
    }

    /// What is wrong with the node now; nothing in peace.
    fn conditions(&mut self, worker: usize) -> BTreeSet<NodeCondition> {
        if !self.faulty {
            self.workers[worker].conditions.clear();
        } else if self.chance.one_in(3) {
            let picked = self.chance.pick(&NodeCondition::ALL).unwrap_or(NodeCondition::ClockOff);
            let conditions = &mut self.workers[worker].conditions;
            if !conditions.remove(&picked) {
                conditions.insert(picked);
            }
        }
        self.workers[worker].conditions.clone()
    }

    pub(super) fn syncs(&mut self, worker: usize, connection: u64) {
        if !self.is_current(worker, connection) {
            return;
        }
        let Some(agent) = &self.workers[worker].agent else { return };
        let (version, heard) = (agent.wishes.version, agent.heard);
        self.say_up(connection, ToManager::Sync(version));
        self.at_worker(worker, SILENCE, OnWorker::Listens { connection, heard });
        self.at_worker(worker, SYNC, OnWorker::Syncs { connection });
        self.send_reports(worker);
    }

    /// A manager that said nothing since is left for another one.
    pub(super) fn listens(&mut self, worker: usize, connection: u64, heard: u64) {
        let silent = self.workers[worker].agent.as_ref().is_some_and(|agent| agent.heard == heard);
        if silent && self.is_current(worker, connection) {
            self.say_up(connection, ToManager::Closed);
            self.leave(worker);
        }
    }

    fn leave(&mut self, worker: usize) {
        self.leave_for(worker, 700);
    }

    fn leave_for(&mut self, worker: usize, longest: u64) {
        self.stands(worker, false);
        if let Some(agent) = &mut self.workers[worker].agent {
            (agent.connection, agent.welcomed) = (None, false);
            self.forget_connections();
            let pause = self.chance.between(50, longest);
            self.at_worker(worker, pause, OnWorker::Dials);
        }
    }

    /// A manager was heard, or there is none. Tasks that mind look when that is news.
    fn stands(&mut self, worker: usize, heard: bool) {
        let elapsed = self.elapsed();
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let before = agent.contact.standing();
        match heard {
            true => agent.contact.heard(elapsed),
            false => agent.contact.lost(),
        }
        if before != agent.contact.standing() {
            self.those_who_mind_step(worker);
        }
    }

    fn those_who_mind_step(&mut self, worker: usize) {
        let Some(agent) = &self.workers[worker].agent else { return };
        let minds =
            |actor: &Actor| actor.wanted.as_ref().is_some_and(|wanted| !wanted.spec.on_disconnect.is_keep());
        let minding = agent.actors.iter().filter(|(_, actor)| minds(actor));
        for task in minding.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.soon_at_worker(worker, OnWorker::Steps(task));
        }
    }

    /// Keeps the file while a task minds, and sees when a start is over that found no manager.
    pub(super) fn notes(&mut self, worker: usize) {
        self.at_worker(worker, NOTE_EVERY, OnWorker::Notes);
        let (now, elapsed) = (self.now, self.elapsed());
        let place = &mut self.workers[worker];
        let Some(agent) = &mut place.agent else { return };
        let before = agent.contact.standing();
        agent.contact.look(elapsed);
        let minds = agent.wishes.tasks.values().any(|task| !task.spec.on_disconnect.is_keep());
        if let Some(word) = agent.contact.last_word().filter(|_| minds) {
            let ago = u64::try_from((elapsed - word).as_millis()).unwrap_or(u64::MAX);
            place.noted = Some(now - ago);
        }
        if before != agent.contact.standing() {
            self.those_who_mind_step(worker);
        }
        self.oracle_looks_at(worker);
    }

    pub(crate) fn agent_hears(&mut self, worker: usize, connection: u64, said: ToWorker) {
        if !self.is_current(worker, connection) {
            return;
        }
        let Some(agent) = &mut self.workers[worker].agent else { return };
        agent.heard += 1;
        if agent.welcomed || matches!(said, ToWorker::Welcome) {
            self.stands(worker, true);
            self.oracle.heard(worker, self.now);
        }
        let now = self.now;
        let Some(agent) = &mut self.workers[worker].agent else { return };
        match said {
            ToWorker::Welcome => {
                (agent.welcomed, agent.welcomed_at, agent.outcast) = (true, now, false);
                agent.outbox.restart();
                self.workers[worker].was_removed = false;
                self.heartbeat(worker, connection);
                self.at_worker(worker, SYNC, OnWorker::Syncs { connection });
            }
            ToWorker::Stored(number) => agent.outbox.stored(number),
            ToWorker::Told(word) => self.is_told(worker, connection, &word),
            ToWorker::Managers(all) => self.workers[worker].managers = all.to_vec(),
            ToWorker::Elsewhere | ToWorker::Closed => self.leave(worker),
            // Whoever does not know the node may be wrong: it keeps what it has. So may whoever says that it was
            // removed, behind that.
            ToWorker::Removed if !agent.outcast && !self.workers[worker].was_removed => {
                self.oracle_node_removed(worker, connection);
                return self.leaves_the_cluster(worker);
            }
            ToWorker::Unknown | ToWorker::Removed => return self.is_outcast(worker),
        }
        self.send_reports(worker);
    }

    /// No manager gives the node a session before it joins again. In the end somebody makes it do that.
    fn is_outcast(&mut self, worker: usize) {
        let is_noticed = !self.faulty && self.chance.one_in(3);
        let place = &mut self.workers[worker];
        if place.was_removed {
            return self.leave(worker);
        }
        if is_noticed {
            return self.leaves_the_cluster(worker);
        }
        if let Some(agent) = &mut place.agent {
            agent.outcast = true;
        }
        self.leave_for(worker, OUTCAST_WAIT);
    }

    /// One of the managers of a life that was given up is where the worker looks for one, and goes on with the others
    /// that were. Its session is over as soon as it began.
    fn speaks_of_a_life_that_is_over(&mut self, worker: usize, host: usize) -> bool {
        let (now, id) = (self.now, self.workers[worker].id);
        let ghost = self.ghost.clone().filter(|ghost| ghost.host == host && now < ghost.until);
        let open = self.ways.is_open(End::Worker(worker), End::Manager(host));
        let Some(ghost) = ghost.filter(|ghost| open && ghost.state.node(&id).is_some()) else { return false };
        // Who remembers no life at all obeys anybody.
        if self.workers[worker].life() == 0 {
            return false;
        }
        if !self.chance.one_in(2) {
            return false;
        }
        self.ghosts_dialled += 1;
        let forgets = self.defect == Some(Defect::ObeysAnybody);
        let has = self.workers[worker].told().filter(|_| !forgets).unwrap_or_default();
        self.stands(worker, true);
        self.oracle.heard(worker, now);
        let word = contains(&ghost.state, has).then(|| Told::default().open(&ghost.state, &id, has));
        if let Some(word) = word.flatten() {
            self.ghosts_obeyed += 1;
            self.is_told(worker, 0, &word);
        }
        self.leave(worker);
        true
    }

    /// A manager says what the node should have.
    fn is_told(&mut self, worker: usize, connection: u64, word: &Word) {
        let now = self.wall(self.workers[worker].clock_off);
        let place = &mut self.workers[worker];
        let had = place.remembers();
        let Some(agent) = &mut place.agent else { return };
        if self.defect == Some(Defect::ObeysAnybody) {
            agent.wishes.version = AssignmentVersion::default();
        }
        let taken = agent.take(word);
        agent.told |= matches!(word, Word::Current) || matches!(taken, Taken::Yes);
        match taken {
            Taken::Yes => {
                agent.reconcile(now);
                let has = agent.wishes.version;
                place.cache = Some(agent.wishes.clone());
                self.differences += u64::from(matches!(word, Word::Diff(_)));
                self.oracle_obeys(worker, had, has);
                self.everybody_steps(worker);
            }
            Taken::No => {}
            Taken::Lacks => {
                let version = agent.wishes.version;
                self.say_up(connection, ToManager::Sync(version));
            }
        }
    }

    /// Every task is looked at, once it is known what is wanted. What is left without a record, of a task that nobody
    /// knows, goes.
    fn everybody_steps(&mut self, worker: usize) {
        let Worker { agent, machine, .. } = &mut self.workers[worker];
        let Some(agent) = agent else { return };
        machine.retain(|task, remains| remains.has_record() || agent.actors.contains_key(task));
        for task in agent.actors.keys().copied().collect::<Vec<_>>() {
            self.soon_at_worker(worker, OnWorker::Steps(task));
        }
    }

    pub(super) fn send_reports(&mut self, worker: usize) {
        let elapsed = self.elapsed();
        let Some(agent) = self.workers[worker].agent.as_mut().filter(|agent| agent.told) else { return };
        let Some(connection) = agent.connection else { return };
        let batches: Vec<Batch> = std::iter::from_fn(|| agent.outbox.next_batch(elapsed)).collect();
        let wishes = agent.wishes.clone();
        for Batch { number, mut reports } in batches {
            reports.retain(|report| !wishes.contradict(report));
            self.say_up(connection, ToManager::Reports(number, reports));
        }
    }
}
