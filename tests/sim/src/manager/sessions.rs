//! Any manager serves workers from its applied state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use warren_core::session::{
    SentAssignment, contains_version, is_duplicate, is_pinned, must_replicate, was_removed,
};
use warren_core::{ApplyOutcome, Command, CommandResponse, Refusal, State};
use warren_types::{AssignmentVersion, NodeCondition, NodeId, TaskReport};

use super::WriteOrigin;
use super::pending_writes::WRITE_TIMEOUT;
use crate::event::{ManagerMessage, WorkerMessage, WriteResult};
use crate::simulation::ClusterSimulation;

/// A session without messages for this long is closed.
const SILENCE: u64 = 12_000;
/// How long a worker that is ahead of this manager waits for it to catch up.
const CATCH_UP_DEADLINE: u64 = 5_000;

/// The sessions of one manager, by worker.
#[derive(Debug, Default)]
pub struct ManagerSessions(BTreeMap<usize, SimWorkerSession>);

/// One worker's session.
#[derive(Debug)]
struct SimWorkerSession {
    /// The session number in the state.
    number: u64,
    connection: u64,
    since: u64,
    last_contact: u64,
    /// The version of the worker at its start. It gets no update before this manager has applied as much.
    version: AssignmentVersion,
    /// It got an update.
    opened: bool,
    sent: SentAssignment,
    /// Reports in the order of arrival; the first is being written.
    reports: VecDeque<(u64, Vec<TaskReport>)>,
    is_storing: bool,
}

impl ManagerSessions {
    /// The worker's session runs over this connection.
    pub fn holds(&self, worker: usize, connection: u64) -> bool {
        self.0.get(&worker).is_some_and(|session| session.connection == connection)
    }

    fn of(&mut self, worker: usize, connection: u64) -> Option<&mut SimWorkerSession> {
        self.0.get_mut(&worker).filter(|session| session.connection == connection)
    }

    fn end(&mut self, worker: usize, connection: u64) {
        if self.holds(worker, connection) {
            self.0.remove(&worker);
        }
    }

    /// Each worker, and the age of its last message.
    pub fn ages(&self, now: u64) -> impl Iterator<Item = (usize, u64)> {
        self.0.iter().map(move |(worker, session)| (*worker, now - session.last_contact))
    }
}

impl ClusterSimulation {
    pub(crate) fn receive_from_worker(
        &mut self,
        host: usize,
        worker: usize,
        connection: u64,
        message: WorkerMessage,
    ) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        if let Some(session) = run.sessions.of(worker, connection) {
            session.last_contact = now;
        }
        match message {
            WorkerMessage::Join => {
                let join = self.workers[worker].registers(self.wall_time(host));
                self.submit(host, WriteOrigin::Nobody, join, now + WRITE_TIMEOUT);
            }
            WorkerMessage::Hello(has) => self.welcome(host, worker, connection, has),
            WorkerMessage::Closed => run.sessions.end(worker, connection),
            WorkerMessage::Heartbeat(conditions) => {
                self.note_conditions(host, worker, connection, conditions)
            }
            WorkerMessage::Sync(version) => self.handle_sync(host, worker, connection, version),
            WorkerMessage::Reports(number, reports) => {
                self.enqueue_reports(host, worker, connection, number, reports)
            }
        }
    }

    fn welcome(&mut self, host: usize, worker: usize, connection: u64, has: AssignmentVersion) {
        let leader_heard = self.process(host).map_or(0, |run| run.leader_contact_at);
        if self.now - leader_heard > super::LEADERLESS_TIMEOUT {
            return self.send_to_worker(connection, ManagerMessage::TryOtherManager);
        }
        let (node, at) = (self.workers[worker].id, self.wall_time(host));
        let manager = self.managers[host].id;
        let description = self.workers[worker].description();
        let open = Command::OpenSession { node, description, manager, at };
        self.submit(host, WriteOrigin::Hello { connection, has }, open, self.now + WRITE_TIMEOUT);
    }

    pub(super) fn session_opened(
        &mut self,
        host: usize,
        connection: u64,
        has: AssignmentVersion,
        answer: WriteResult,
    ) {
        let opened = match answer.as_ref().map(|(_, outcome)| &**outcome) {
            Ok(ApplyOutcome::Applied { response: CommandResponse::Session { number }, .. }) => Ok(*number),
            Ok(ApplyOutcome::Rejected(Refusal::NotFound { .. })) => Err(true),
            _ => Err(false),
        };
        let since = self.now;
        let Some(worker) = self.connections.get(connection).map(|line| line.worker) else { return };
        let number = match opened {
            Ok(number) => number,
            Err(is_unknown) => {
                let message = self.why_no_session(host, worker, has, is_unknown);
                return self.send_to_worker(connection, message);
            }
        };
        let Some(run) = &mut self.managers[host].run else { return };
        // Two sessions that are opened at once may be answered in any order.
        let newer = run.sessions.0.get(&worker).filter(|session| session.number > number);
        if newer.is_some() {
            return self.send_to_worker(connection, ManagerMessage::Closed);
        }
        let (opened, sent_assignment, reports, storing) =
            (false, SentAssignment::default(), VecDeque::new(), false);
        let heard = since;
        let session = SimWorkerSession {
            number,
            connection,
            since,
            last_contact: heard,
            version: has,
            opened,
            sent: sent_assignment,
            reports,
            is_storing: storing,
        };
        run.sessions.0.insert(worker, session);
        self.sessions_opened += 1;
        self.send_to_worker(connection, ManagerMessage::Welcome);
        self.push_managers(host, worker);
        self.push_assignment(host, worker);
    }

    /// Only a node that is known to be removed is told so: an unknown one may be new, or older than a
    /// restored backup.
    fn why_no_session(
        &self,
        host: usize,
        worker: usize,
        has: AssignmentVersion,
        is_unknown: bool,
    ) -> ManagerMessage {
        let node = self.workers[worker].id;
        let state = self.process(host).map(|run| &run.state);
        match state.filter(|_| is_unknown) {
            Some(state) if was_removed(state, &node, has) => ManagerMessage::Removed,
            Some(_) => ManagerMessage::Unknown,
            None => ManagerMessage::Closed,
        }
    }

    /// Sends a worker the addresses of managers, if it has a session here.
    fn push_managers(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get(&worker) else { return };
        let Some(settings) = run.state.node_settings(&node) else { return };
        self.send_to_worker(session.connection, ManagerMessage::Managers(Arc::new(settings.managers)));
    }

    /// Managers were added, removed or moved: every session here gets the addresses.
    pub(super) fn managers_changed(&mut self, host: usize) {
        for worker in self.worker_keys() {
            self.push_managers(host, worker);
        }
    }

    /// Closes sessions of nodes that have a newer session elsewhere, or are removed.
    pub(super) fn end_old_sessions(&mut self, host: usize) {
        let ids: Vec<_> = self.workers.iter().map(|worker| worker.id).collect();
        let Some(run) = &mut self.managers[host].run else { return };
        let newest = |worker: &usize| run.state.node(&ids[*worker]).map(|node| node.session);
        let is_over = |(worker, session): (&usize, &SimWorkerSession)| {
            newest(worker).is_none_or(|it| it > session.number)
        };
        let over: Vec<usize> =
            run.sessions.0.iter().filter(|it| is_over(*it)).map(|(worker, _)| *worker).collect();
        for worker in over {
            let session = self.managers[host].run.as_mut().and_then(|run| run.sessions.0.remove(&worker));
            session
                .into_iter()
                .for_each(|session| self.send_to_worker(session.connection, ManagerMessage::Closed));
        }
    }

    /// Sends a worker the changes of its assignments, if it has a session here; at first all of them, once
    /// this manager has applied the worker's version.
    pub(super) fn push_assignment(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get_mut(&worker) else { return };
        let word = if session.opened {
            session.sent.update_if_changed(&run.state, &node).flatten()
        } else if contains_version(&run.state, session.version) {
            session.opened = true;
            session.sent.first_update(&run.state, &node, session.version)
        } else {
            None
        };
        let connection = session.connection;
        if let Some(word) = word {
            self.send_to_worker(connection, ManagerMessage::Assignment(Arc::new(word)));
        }
    }

    /// Workers that are ahead of this manager get an update as soon as it has caught up.
    pub(super) fn open_sessions(&mut self, host: usize) {
        let Some(run) = &self.managers[host].run else { return };
        let waiting = run.sessions.0.iter().filter(|(_, session)| !session.opened);
        for worker in waiting.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            self.push_assignment(host, worker);
        }
    }

    fn handle_sync(&mut self, host: usize, worker: usize, connection: u64, version: AssignmentVersion) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else {
            return self.send_to_worker(connection, ManagerMessage::Closed);
        };
        // The log is not loaded before that.
        if !session.opened {
            return;
        }
        let word = session.sent.next_update(&run.state, &node, version);
        if let Some(word) = word {
            self.send_to_worker(connection, ManagerMessage::Assignment(Arc::new(word)));
        }
    }

    /// The conditions of a node are written to the state when they change.
    fn note_conditions(
        &mut self,
        host: usize,
        worker: usize,
        connection: u64,
        conditions: BTreeSet<NodeCondition>,
    ) {
        let (node, at) = (self.workers[worker].id, self.wall_time(host));
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection).map(|session| session.number) else { return };
        if run.state.node(&node).is_some_and(|known| known.conditions != conditions) {
            let command = Command::SetNodeConditions { node, session, conditions, at };
            self.submit(host, WriteOrigin::Nobody, command, self.now + WRITE_TIMEOUT);
        }
    }

    /// Reports are handled in the order of arrival, one frame after the other.
    fn enqueue_reports(
        &mut self,
        host: usize,
        worker: usize,
        connection: u64,
        number: u64,
        reports: Vec<TaskReport>,
    ) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else { return };
        session.reports.push_back((number, reports));
        self.propose_reports(host, worker);
    }

    /// Reports that must survive a failover are written through raft and confirmed then; the rest is
    /// confirmed at once.
    fn propose_reports(&mut self, host: usize, worker: usize) {
        loop {
            let (node, at) = (self.workers[worker].id, self.wall_time(host));
            let Some(run) = &mut self.managers[host].run else { return };
            let Some(session) = run.sessions.0.get_mut(&worker).filter(|session| !session.is_storing) else {
                return;
            };
            let Some((number, reports)) = session.reports.pop_front() else { return };
            let (connection, session_number) = (session.connection, session.number);
            let facts = reports_to_store(&run.state, node, reports);
            if facts.is_empty() {
                self.send_to_worker(connection, ManagerMessage::ReportsStored(number));
                continue;
            }
            session.is_storing = true;
            let report = Command::ReportTasks { node, session: session_number, reports: facts, at };
            return self.submit(
                host,
                WriteOrigin::Reports { connection, number },
                report,
                self.now + WRITE_TIMEOUT,
            );
        }
    }

    pub(super) fn reports_stored(&mut self, host: usize, connection: u64, number: u64, answer: WriteResult) {
        let stored = matches!(&answer, Ok((_, outcome)) if !matches!(**outcome, ApplyOutcome::Rejected(_)));
        let worker = self.connections.get(connection).map(|line| line.worker);
        let run = self.managers[host].run.as_mut();
        if let (Some(worker), Some(run)) = (worker, run) {
            if let Some(session) = run.sessions.of(worker, connection) {
                session.is_storing = false;
            }
            if stored {
                self.send_to_worker(connection, ManagerMessage::ReportsStored(number));
                return self.propose_reports(host, worker);
            }
            run.sessions.end(worker, connection);
            self.send_to_worker(connection, ManagerMessage::Closed);
        }
    }

    /// Without contact with a leader: another manager may have contact.
    pub(super) fn redirect_workers(&mut self, host: usize) {
        let Some(run) = &mut self.managers[host].run else { return };
        for session in std::mem::take(&mut run.sessions.0).into_values() {
            self.send_to_worker(session.connection, ManagerMessage::TryOtherManager);
        }
    }

    pub(super) fn close_silent_sessions(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        run.sessions.0.retain(|_, session| now - session.last_contact <= SILENCE);
        let lacks = |(_, session): &(&usize, &SimWorkerSession)| {
            !session.opened && now - session.since > CATCH_UP_DEADLINE
        };
        let late: Vec<usize> = run.sessions.0.iter().filter(lacks).map(|(worker, _)| *worker).collect();
        for worker in late {
            let session = self.managers[host].run.as_mut().and_then(|run| run.sessions.0.remove(&worker));
            session
                .into_iter()
                .for_each(|session| self.send_to_worker(session.connection, ManagerMessage::TryOtherManager));
        }
    }
}

/// The reports that must be stored.
fn reports_to_store(state: &State, node: NodeId, reports: Vec<TaskReport>) -> Vec<TaskReport> {
    let is_fact = |report: &TaskReport| {
        let Some(task) = state.task(&report.task).filter(|task| task.node == Some(node)) else {
            return false;
        };
        let pins = report.image.is_some() && !is_pinned(state, task);
        pins || (!is_duplicate(&task.observed, report) && must_replicate(task, report))
    };
    reports.into_iter().filter(is_fact).collect()
}
