//! The agent's end of a session: dial any manager, take over what it wants, say what is, leave it when it is
//! silent.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_types::{AssignmentVersion, Desired, NodeCondition, TaskAssignment};

use super::{Actor, Agent, Reports, Worker};
use crate::event::{OnWorker, ToManager, ToWorker};
use crate::world::World;

/// How often the agent tells how the node is.
const HEARTBEAT: u64 = 5_000;
/// How often it asks whether its assignment is current.
const SYNC: u64 = 3_000;
/// A manager that does not answer within this is left.
const SILENCE: u64 = 3_000;
/// Reports that are not confirmed after this are said again.
const CONFIRMED_WITHIN: u64 = 4_000;

impl Reports {
    /// The next frame, unless one is under way or there is nothing to say. One at a time keeps the order.
    fn next_frame(&mut self, now: u64) -> Option<ToManager> {
        if let Some((_, since, _)) = self.in_flight
            && now - since >= CONFIRMED_WITHIN
        {
            let (_, _, late) = self.in_flight.take()?;
            let same = late.iter().filter(|report| self.newest.get(&report.task) == Some(report));
            self.unsent.extend(same.map(|report| report.task));
        }
        if self.in_flight.is_some() || self.unsent.is_empty() {
            return None;
        }
        let unsent = std::mem::take(&mut self.unsent);
        let reports: Vec<_> = unsent.iter().filter_map(|task| self.newest.get(task)).cloned().collect();
        self.frames += 1;
        self.in_flight = Some((self.frames, now, reports.clone()));
        Some(ToManager::Reports(self.frames, reports))
    }

    fn stored(&mut self, number: u64) {
        self.in_flight.take_if(|(frame, _, _)| *frame == number);
    }

    /// Another manager may know less: everything is said again.
    fn restart(&mut self) {
        self.in_flight = None;
        self.unsent = self.newest.keys().copied().collect();
    }
}

impl Agent {
    /// Takes over an assignment, unless it has seen a newer one. Tells which tasks' actors must look.
    fn take_over(&mut self, version: AssignmentVersion, tasks: &[TaskAssignment], now: u64) -> bool {
        if version < self.wishes.version {
            return false;
        }
        let now = warren_types::Timestamp(now);
        if version.incarnation > self.wishes.version.incarnation {
            // What was said in another life of the cluster is not what this one was told.
            self.reports = Reports { frames: self.reports.frames, ..Reports::default() };
        }
        self.wishes.version = version;
        self.wishes.tasks = tasks.iter().map(|task| (task.id, Arc::new(task.clone()))).collect();
        for (id, wanted) in &self.wishes.tasks {
            let actor = self.actors.entry(*id).or_insert_with(|| Actor::new(None, now));
            actor.wanted = Some(wanted.clone());
            actor.dismissed = false;
        }
        self.confirm();
        true
    }

    /// What a manager does not want is wanted by nobody.
    fn confirm(&mut self) {
        self.wishes.confirmed = true;
        for (id, actor) in &mut self.actors {
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
        let connection = self.chance.pick(&known).and_then(|host| self.connect(worker, host));
        let Some(connection) = connection else { return self.dial_again(worker) };
        if self.workers[worker].was_removed {
            self.say_up(connection, ToManager::Join);
        }
        let Some(agent) = &mut self.workers[worker].agent else { return };
        (agent.connection, agent.welcomed) = (Some(connection), false);
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
        if let Some(agent) = &mut self.workers[worker].agent {
            (agent.connection, agent.welcomed) = (None, false);
            self.forget_connections();
            self.dial_again(worker);
        }
    }

    pub(crate) fn agent_hears(&mut self, worker: usize, connection: u64, said: ToWorker) {
        if !self.is_current(worker, connection) {
            return;
        }
        let now = self.wall(self.workers[worker].clock_off);
        let Some(agent) = &mut self.workers[worker].agent else { return };
        agent.heard += 1;
        match said {
            ToWorker::Welcome => {
                self.workers[worker].was_removed = false;
                let Some(agent) = &mut self.workers[worker].agent else { return };
                agent.welcomed = true;
                agent.reports.restart();
                self.heartbeat(worker, connection);
                self.at_worker(worker, SYNC, OnWorker::Syncs { connection });
            }
            ToWorker::Stored(number) => agent.reports.stored(number),
            ToWorker::Current => {
                let before = std::mem::replace(&mut agent.wishes.confirmed, true);
                agent.confirm();
                if !before {
                    self.everybody_steps(worker);
                }
            }
            ToWorker::Assignment(version, tasks) => {
                if agent.take_over(version, &tasks, now.0) {
                    self.workers[worker].cache =
                        self.workers[worker].agent.as_ref().map(|agent| agent.wishes.clone());
                    self.everybody_steps(worker);
                }
            }
            ToWorker::Managers(all) => self.workers[worker].managers = all.to_vec(),
            // Whoever does not know the node may be wrong: it keeps what it has.
            ToWorker::Elsewhere | ToWorker::Closed | ToWorker::Unknown => self.leave(worker),
            ToWorker::Removed if self.workers[worker].was_removed => self.leave(worker),
            ToWorker::Removed => {
                self.oracle_node_removed(worker, connection);
                return self.leaves_the_cluster(worker);
            }
        }
        self.send_reports(worker);
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
        let now = self.now;
        let Some(agent) = self.workers[worker].agent.as_mut().filter(|agent| agent.welcomed) else { return };
        let Some(connection) = agent.connection else { return };
        if let Some(frame) = agent.reports.next_frame(now) {
            self.say_up(connection, frame);
        }
    }
}
