//! Any manager serves workers from its applied state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use warren_core::session::{ReportUse, SentAssignment, SentNetwork, contains_version, is_newest, report_use};
use warren_core::{Command, CommandResponse};
use warren_replica::{CATCH_UP_TIMEOUT, NodeContact, ProposeError, SESSION_TIMEOUT, SessionAnswer};
use warren_types::{AssignmentVersion, ManagerAddress, NodeCondition, NodeId, TaskReport};

use super::WriteOrigin;
use super::pending_writes::WRITE_TIMEOUT;
use super::planner::millis;
use crate::event::{ManagerMessage, WorkerMessage, WorkerVersions};
use crate::simulation::ClusterSimulation;

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
    /// What the worker had at its start. It gets no update before this manager has applied as much.
    has: WorkerVersions,
    /// It got an update.
    opened: bool,
    sent: SentAssignment,
    network: SentNetwork,
    /// The addresses of managers that were sent last.
    managers: Option<Vec<ManagerAddress>>,
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

    /// The workers that are connected; `ids` are those of all.
    pub fn contacts(&self, now: u64, ids: &[NodeId]) -> Vec<NodeContact> {
        let contact = |(worker, session): (&usize, &SimWorkerSession)| NodeContact {
            node: ids[*worker],
            session: session.number,
            age: Duration::from_millis(now - session.last_contact),
            network_index: session.network.acknowledged(),
        };
        self.0.iter().map(contact).collect()
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
            WorkerMessage::NetworkAck(version) => {
                if let Some(session) = run.sessions.of(worker, connection).filter(|session| session.opened) {
                    session.network.acknowledge(version);
                }
            }
            WorkerMessage::Closed => run.sessions.end(worker, connection),
            WorkerMessage::Heartbeat(conditions) => {
                self.note_conditions(host, worker, connection, conditions)
            }
            WorkerMessage::Sync(version, network) => {
                self.handle_sync(host, worker, connection, version, network)
            }
            WorkerMessage::Reports(number, reports) => {
                self.enqueue_reports(host, worker, connection, number, reports)
            }
        }
    }

    fn welcome(&mut self, host: usize, worker: usize, connection: u64, has: Box<WorkerVersions>) {
        if self.is_leader_lost(host) {
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
        has: WorkerVersions,
        answer: Result<CommandResponse, ProposeError>,
    ) {
        let since = self.now;
        let Some(worker) = self.connections.get(connection).map(|line| line.worker) else { return };
        let node = self.workers[worker].id;
        // Only a running process has an opened session.
        let Some(run) = &mut self.managers[host].run else {
            return self.send_to_worker(connection, ManagerMessage::Closed);
        };
        let number = match SessionAnswer::new(answer, run.replica.state(), &node, has.assignment) {
            SessionAnswer::Opened(number) => number,
            SessionAnswer::NodeRemoved => return self.send_to_worker(connection, ManagerMessage::Removed),
            SessionAnswer::NodeUnknown => return self.send_to_worker(connection, ManagerMessage::Unknown),
            SessionAnswer::Failed(_) | SessionAnswer::Unexpected(_) => {
                return self.send_to_worker(connection, ManagerMessage::Closed);
            }
        };
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
            has,
            opened,
            sent: sent_assignment,
            network: SentNetwork::default(),
            managers: None,
            reports,
            is_storing: storing,
        };
        run.sessions.0.insert(worker, session);
        self.sessions_opened += 1;
        self.send_to_worker(connection, ManagerMessage::Welcome);
        self.push_managers(host, worker);
        self.push_assignment(host, worker);
    }

    /// Sends a worker the addresses of managers, if it has a session here.
    fn push_managers(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get_mut(&worker) else { return };
        let Some(settings) = run.replica.state().node_settings(&node) else { return };
        if session.managers.as_ref() == Some(&settings.managers) {
            return;
        }
        session.managers = Some(settings.managers.clone());
        let connection = session.connection;
        self.send_to_worker(connection, ManagerMessage::Managers(Arc::new(settings.managers)));
    }

    /// Sends these nodes, or all, what changed for them, and those that wait for this manager what they get first.
    pub(super) fn wake_sessions(&mut self, host: usize, nodes: Option<&BTreeSet<NodeId>>) {
        for worker in 0..self.workers.len() {
            let node = self.workers[worker].id;
            let Some(run) = &mut self.managers[host].run else { return };
            let Some(session) = run.sessions.0.get(&worker) else { continue };
            let (number, connection, opened) = (session.number, session.connection, session.opened);
            let is_woken = nodes.is_none_or(|nodes| nodes.contains(&node));
            if is_woken && !is_newest(run.replica.state(), &node, number) {
                run.sessions.0.remove(&worker);
                self.send_to_worker(connection, ManagerMessage::Closed);
                continue;
            }
            if is_woken {
                self.push_managers(host, worker);
                self.push_network(host, worker);
            }
            if is_woken || !opened {
                self.push_assignment(host, worker);
            }
        }
    }

    /// Sends a worker the changes of its assignments, if it has a session here; at first all of them, once
    /// this manager has applied the worker's version.
    pub(super) fn push_assignment(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get_mut(&worker) else { return };
        let state = run.replica.state();
        let (mut begins, has) = (false, &session.has);
        let update = if session.opened {
            session.sent.update_if_changed(state, &node).flatten()
        } else if contains_version(state, has.assignment.max(has.network)) {
            begins = true;
            session.sent.first_update(state, &node, has.assignment)
        } else {
            None
        };
        if begins {
            session.opened = true;
            session.network = run.network.begin(state, has);
        }
        let connection = session.connection;
        if let Some(update) = update {
            self.send_to_worker(connection, ManagerMessage::Assignment(Arc::new(update)));
        }
        if begins {
            self.push_network(host, worker);
        }
    }

    /// Sends these nodes what changed for them in the cluster's network.
    pub(super) fn wake_for_network(&mut self, host: usize, nodes: &BTreeSet<NodeId>) {
        for worker in 0..self.workers.len() {
            let node = self.workers[worker].id;
            let Some(run) = &self.managers[host].run else { return };
            let session = run.sessions.0.get(&worker).filter(|_| nodes.contains(&node));
            if session.is_some_and(|session| is_newest(run.replica.state(), &node, session.number)) {
                self.push_network(host, worker);
            }
        }
    }

    /// Sends a worker what changed for it in the cluster's network.
    fn push_network(&mut self, host: usize, worker: usize) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.0.get_mut(&worker).filter(|session| session.opened) else { return };
        let update = run.network.next_update(&mut session.network, run.replica.state(), &node);
        let connection = session.connection;
        if let Some(update) = update {
            self.send_to_worker(connection, ManagerMessage::Network(Arc::new(update)));
        }
    }

    fn handle_sync(
        &mut self,
        host: usize,
        worker: usize,
        connection: u64,
        version: AssignmentVersion,
        network: AssignmentVersion,
    ) {
        let node = self.workers[worker].id;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else {
            return self.send_to_worker(connection, ManagerMessage::Closed);
        };
        // The log is not loaded before that.
        if !session.opened {
            return;
        }
        if network == AssignmentVersion::default() {
            session.network.reset();
        }
        self.push_network(host, worker);
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(session) = run.sessions.of(worker, connection) else { return };
        let update = session.sent.next_update(run.replica.state(), &node, version);
        if let Some(update) = update {
            self.send_to_worker(connection, ManagerMessage::Assignment(Arc::new(update)));
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
        if run.replica.state().node(&node).is_some_and(|known| known.conditions != conditions) {
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
            let state = run.replica.state();
            let is_stored = |report: &TaskReport| report_use(state, &node, report) == ReportUse::Store;
            let facts: Vec<TaskReport> = reports.into_iter().filter(is_stored).collect();
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

    pub(super) fn reports_stored(&mut self, host: usize, connection: u64, number: u64, stored: bool) {
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
        run.sessions.0.retain(|_, session| now - session.last_contact <= millis(SESSION_TIMEOUT));
        let lacks = |(_, session): &(&usize, &SimWorkerSession)| {
            !session.opened && now - session.since > millis(CATCH_UP_TIMEOUT)
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
