//! Any manager serves workers from its applied state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use warren_core::session::{Told, contains, is_old, is_pinned, must_replicate, was_removed};
use warren_core::{Answer, Command, Outcome, Refusal, State};
use warren_types::{AssignmentVersion, NodeCondition, NodeId, TaskReport};

use super::Who;
use super::writes::PATIENCE;
use crate::event::{Answered, ToManager, ToWorker};
use crate::world::World;

/// Silence after which a session is given up.
const SILENCE: u64 = 12_000;
/// So long a worker that knows more than this manager waits until it knows as much.
const CATCHES_UP_WITHIN: u64 = 5_000;

/// The sessions of one manager, by worker.
#[derive(Debug, Default)]
pub struct Sessions(BTreeMap<usize, Session>);

/// One worker's session.
#[derive(Debug)]
struct Session {
    /// As the state counts them.
    number: u64,
    connection: u64,
    since: u64,
    heard: u64,
    /// What the worker had when it came. It hears nothing before this manager has applied as much.
    has: AssignmentVersion,
    /// It did hear something.
    opened: bool,
    told: Told,
    /// Reports in the order in which they came; of the first it is tried to make facts.
    reports: VecDeque<(u64, Vec<TaskReport>)>,
    storing: bool,
}

impl Sessions {
    /// The worker's session runs over this connection.
    pub fn holds(&self, worker: usize, connection: u64) -> bool {
        self.0.get(&worker).is_some_and(|session| session.connection == connection)
    }

    fn of(&mut self, worker: usize, connection: u64) -> Option<&mut Session> {
        self.0.get_mut(&worker).filter(|session| session.connection == connection)
    }

    fn end(&mut self, worker: usize, connection: u64) {
        if self.holds(worker, connection) {
            self.0.remove(&worker);
        }
    }

    /// Each worker, and how long ago it was heard.
    pub fn ages(&self, now: u64) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(move |(worker, session)| (*worker, now - session.heard))
    }
}

impl World {
    pub(crate) fn manager_hears(&mut self, host: usize, worker: usize, connection: u64, said: ToManager) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        if let Some(session) = run.sessions.of(worker, connection) {
            session.heard = now;
        }
        match said {
            ToManager::Join => {
                let join = self.workers[worker].registers(self.stamp(host));
                self.submit(host, Who::Nobody, join, now + PATIENCE);
            }
            ToManager::Hello(has) => self.welcome(host, worker, connection, has),
            ToManager::Closed => run.sessions.end(worker, connection),
            ToManager::Heartbeat(conditions) => self.note_conditions(host, worker, connection, conditions),
            ToManager::Sync(version) => self.answer_sync(host, worker, connection, version),
            ToManager::Reports(number, reports) => self.store(host, worker, connection, number, reports),
        }
    }

    fn welcome(&mut self, host: usize, worker: usize, connection: u64, has: AssignmentVersion) {
        let leader_heard = self.life(host).map_or(0, |run| run.leader_heard);
        if self.now - leader_heard > super::LEADERLESS {
            return self.say_down(connection, ToWorker::Elsewhere);
        }
        let (node, at) = (self.workers[worker].id, self.stamp(host));
        let manager = self.managers[host].id;
        let description = self.workers[worker].description();
        let open = Command::OpenSession { node, description, manager, at };
        self.submit(host, Who::Hello { connection, has }, open, self.now + PATIENCE);
    }

    pub(super) fn session_opened(
        &mut self,
        host: usize,
        connection: u64,
        has: AssignmentVersion,
        answer: Answered,
    ) {
        let opened = match answer.as_ref().map(|(_, outcome)| &**outcome) {
            Ok(Outcome::Applied { answer: Answer::Session { number }, .. }) => Ok(*number),
            Ok(Outcome::Rejected(Refusal::NotFound { .. })) => Err(true),
            _ => Err(false),
        };
        let since = self.now;
        let Some(worker) = self.connections.get(connection).map(|line| line.worker) else { return };
        let number = match opened {
            Ok(number) => number,
            Err(is_unknown) => {
                let said = self.why_no_session(host, worker, has, is_unknown);
                return self.say_down(connection, said);
            }
        };
        let Some(run) = &mut self.managers[host].run else { return };
        // Two that are opened at once may be answered in any order.
        let newer = run.sessions.0.get(&worker).filter(|session| session.number > number);
        if newer.is_some() {
            return self.say_down(connection, ToWorker::Closed);
        }
        let (opened, told, reports, storing) = (false, Told::default(), VecDeque::new(), false);
        let heard = since;
        let session = Session { number, connection, since, heard, has, opened, told, reports, storing };
        run.sessions.0.insert(worker, session);
        self.sessions_opened += 1;
        self.say_down(connection, ToWorker::Welcome);
        self.push_managers(host, worker);
        self.push_assignment(host, worker);
    }

    /// Only a node of which it is known that it was removed is told so: another one may be new, or older than a backup
    /// that was restored.
    fn why_no_session(
        &self,
        host: usize,
        worker: usize,
        has: AssignmentVersion,
        is_unknown: bool,
    ) -> ToWorker {
        let node = self.workers[worker].id;
        let state = self.life(host).map(|run| &run.state);
        match state.filter(|_| is_unknown) {
            Some(state) if was_removed(state, &node, has) => ToWorker::Removed,
            Some(_) => ToWorker::Unknown,
            None => ToWorker::Closed,
        }
    }

    /// Tells a worker where managers are reached, if it has a session here.
    fn push_managers(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get(&worker) else { return };
        let Some(settings) = run.state.node_settings(&node) else { return };
        self.say_down(session.connection, ToWorker::Managers(Arc::new(settings.managers)));
    }

    /// Managers come, go or move: everybody with a session here is told.
    pub(super) fn managers_changed(&mut self, host: usize) {
        for worker in self.worker_keys() {
            self.push_managers(host, worker);
        }
    }

    /// Sessions whose node has a newer one elsewhere, or is gone, are over.
    pub(super) fn end_old_sessions(&mut self, host: usize) {
        let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
        let Some(run) = &mut self.managers[host].run else { return };
        let newest = |worker: &usize| run.state.node(&ids[*worker]).map(|node| node.session);
        let is_over =
            |(worker, session): (&usize, &Session)| newest(worker).is_none_or(|it| it > session.number);
        let over: Vec<usize> =
            run.sessions.0.iter().filter(|it| is_over(*it)).map(|(worker, _)| *worker).collect();
        for worker in over {
            let session = self.managers[host].run.as_mut().and_then(|run| run.sessions.0.remove(&worker));
            session.into_iter().for_each(|session| self.say_down(session.connection, ToWorker::Closed));
        }
    }

    /// Tells a worker what changed of what it should have, if it has a session here; in the beginning everything, once
    /// this manager has applied what the worker has seen.
    pub(super) fn push_assignment(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get_mut(&worker) else { return };
        let word = if session.opened {
            session.told.news(&run.state, &node).flatten()
        } else if contains(&run.state, session.has) {
            session.opened = true;
            session.told.open(&run.state, &node, session.has)
        } else {
            None
        };
        let connection = session.connection;
        if let Some(word) = word {
            self.say_down(connection, ToWorker::Told(Arc::new(word)));
        }
    }

    /// Those that know more than this manager did hear something as soon as it has applied as much.
    pub(super) fn open_sessions(&mut self, host: usize) {
        let Some(run) = &self.managers[host].run else { return };
        let waiting = run.sessions.0.iter().filter(|(_, session)| !session.opened);
        for worker in waiting.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.push_assignment(host, worker);
        }
    }

    fn answer_sync(&mut self, host: usize, worker: usize, connection: u64, version: AssignmentVersion) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else {
            return self.say_down(connection, ToWorker::Closed);
        };
        // Before that nothing is read.
        if !session.opened {
            return;
        }
        let word = session.told.answer(&run.state, &node, version);
        if let Some(word) = word {
            self.say_down(connection, ToWorker::Told(Arc::new(word)));
        }
    }

    /// What is wrong with a node becomes a fact when it changes.
    fn note_conditions(
        &mut self,
        host: usize,
        worker: usize,
        connection: u64,
        conditions: BTreeSet<NodeCondition>,
    ) {
        let (node, at) = (self.workers[worker].id, self.stamp(host));
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection).map(|session| session.number) else { return };
        if run.state.node(&node).is_some_and(|known| known.conditions != conditions) {
            let said = Command::SetNodeConditions { node, session, conditions, at };
            self.submit(host, Who::Nobody, said, self.now + PATIENCE);
        }
    }

    /// Reports are taken in the order in which they come, one frame after the other.
    fn store(&mut self, host: usize, worker: usize, connection: u64, number: u64, reports: Vec<TaskReport>) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else { return };
        session.reports.push_back((number, reports));
        self.store_next(host, worker);
    }

    /// What must survive a failover becomes a fact through raft, and is confirmed when it is; the rest at once.
    fn store_next(&mut self, host: usize, worker: usize) {
        loop {
            let (node, at) = (self.workers[worker].id, self.stamp(host));
            let Some(run) = &mut self.managers[host].run else { return };
            let Some(session) = run.sessions.0.get_mut(&worker).filter(|session| !session.storing) else {
                return;
            };
            let Some((number, reports)) = session.reports.pop_front() else { return };
            let (connection, session_number) = (session.connection, session.number);
            let facts = facts(&run.state, node, reports);
            if facts.is_empty() {
                self.say_down(connection, ToWorker::Stored(number));
                continue;
            }
            session.storing = true;
            let report = Command::ReportTasks { node, session: session_number, reports: facts, at };
            return self.submit(host, Who::Reports { connection, number }, report, self.now + PATIENCE);
        }
    }

    pub(super) fn reports_stored(&mut self, host: usize, connection: u64, number: u64, answer: Answered) {
        let stored = matches!(&answer, Ok((_, outcome)) if !matches!(**outcome, Outcome::Rejected(_)));
        let worker = self.connections.get(connection).map(|line| line.worker);
        let run = self.managers[host].run.as_mut();
        if let (Some(worker), Some(run)) = (worker, run) {
            if let Some(session) = run.sessions.of(worker, connection) {
                session.storing = false;
            }
            if stored {
                self.say_down(connection, ToWorker::Stored(number));
                return self.store_next(host, worker);
            }
            run.sessions.end(worker, connection);
            self.say_down(connection, ToWorker::Closed);
        }
    }

    /// No leader is heard: another manager may hear one.
    pub(super) fn send_workers_elsewhere(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        for session in std::mem::take(&mut run.sessions.0).into_values() {
            self.say_down(session.connection, ToWorker::Elsewhere);
        }
    }

    pub(super) fn give_up_silent_workers(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        run.sessions.0.retain(|_, session| now - session.heard <= SILENCE);
        let lacks =
            |(_, session): &(&usize, &Session)| !session.opened && now - session.since > CATCHES_UP_WITHIN;
        let late: Vec<usize> = run.sessions.0.iter().filter(lacks).map(|(worker, _)| *worker).collect();
        for worker in late {
            let session = self.managers[host].run.as_mut().and_then(|run| run.sessions.0.remove(&worker));
            session.into_iter().for_each(|session| self.say_down(session.connection, ToWorker::Elsewhere));
        }
    }
}

/// Those of the reports that are to be kept.
fn facts(state: &State, node: NodeId, reports: Vec<TaskReport>) -> Vec<TaskReport> {
    let is_fact = |report: &TaskReport| {
        let Some(task) = state.task(&report.task).filter(|task| task.node == Some(node)) else {
            return false;
        };
        let pins = report.image.is_some() && !is_pinned(state, task);
        pins || (!is_old(&task.observed, report) && must_replicate(task, report))
    };
    reports.into_iter().filter(is_fact).collect()
}
