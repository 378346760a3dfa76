//! The agent's end of a session: dial any manager, apply its assignments, report the observed state, and
//! leave a manager that does not answer.

use std::collections::BTreeSet;
use std::sync::Arc;

use warren_core::State;
use warren_core::session::{
    AssignmentDiff, AssignmentUpdate, NetworkHistory, SentAssignment, SentNetwork, contains_version,
};
use warren_task::{BaseMismatch, ReportBatch};
use warren_types::{AssignmentVersion, DesiredTaskState, NodeCondition, TaskAssignment, Timestamp};

use super::{SimActor, SimAgent, SimWorker};
use crate::event::{ManagerMessage, WorkerEvent, WorkerMessage};
use crate::network::SimHost;
use crate::simulation::{ClusterSimulation, PlantedDefect};

/// Interval of status reports.
const HEARTBEAT: u64 = 5_000;
/// Interval of checks that the assignment is current.
const SYNC: u64 = 3_000;
/// A manager that does not answer within this time is left.
const SILENCE: u64 = 3_000;
/// Interval at which the last contact with a manager is recorded.
const CONTACT_NOTE_EVERY: u64 = 2_000;
/// Longest back-off of a node that managers do not know.
const REJECTED_WAIT: u64 = 30_000;

/// The result of an assignment update.
enum UpdateResult {
    /// Its tasks must be reconciled.
    Applied,
    /// It changes nothing.
    Ignored,
    /// It lacks an earlier update.
    NeedsSync,
}

impl SimAgent {
    /// Applies a manager's update, unless the node has seen a newer one.
    fn apply_update(&mut self, update: &AssignmentUpdate) -> UpdateResult {
        let yes = |yes| if yes { UpdateResult::Applied } else { UpdateResult::Ignored };
        match update {
            AssignmentUpdate::Full(assignment) => yes(self.desired.apply_full(assignment.clone())),
            AssignmentUpdate::Current => yes(self.desired.confirm()),
            AssignmentUpdate::Diff(AssignmentDiff { base, version, changed, removed, retained }) => {
                let (changed, retained) = (changed.clone(), retained.clone());
                match self.desired.apply_update(*base, *version, changed, removed, retained) {
                    Ok(taken) => yes(taken),
                    Err(BaseMismatch) => UpdateResult::NeedsSync,
                }
            }
        }
    }

    /// Passes the assignments to the actors. Tasks without an assignment are not desired.
    fn reconcile(&mut self, now: Timestamp) {
        for (id, expected) in &self.desired.tasks {
            let actor = self.actors.entry(*id).or_insert_with(|| SimActor::new(None, now));
            let is_wanted = |task: &TaskAssignment| task.desired != DesiredTaskState::Remove;
            if is_wanted(expected) && !actor.desired.as_deref().is_some_and(is_wanted) {
                self.outbox.forget_removal(id);
            }
            actor.desired = Some(expected.clone());
            actor.is_dropped = false;
        }
        let confirmed = self.desired.is_confirmed;
        for (id, actor) in self.actors.iter_mut().filter(|_| confirmed) {
            if self.desired.tasks.contains_key(id) {
                continue;
            }
            actor.is_dropped = true;
            if let Some(expected) =
                actor.desired.as_mut().filter(|expected| expected.desired != DesiredTaskState::Remove)
            {
                Arc::make_mut(expected).desired = DesiredTaskState::Remove;
            }
        }
    }
}

impl ClusterSimulation {
    pub(super) fn dial_again(&mut self, worker: usize) {
        let pause = self.rng.between(50, 700);
        self.at_worker(worker, pause, WorkerEvent::Dial);
    }

    pub(super) fn dial(&mut self, worker: usize) {
        let connected = self.workers[worker].agent.as_ref().is_some_and(|agent| agent.connection.is_some());
        if connected {
            return;
        }
        // It always keeps the address of the first machine.
        let known = self.workers[worker].managers.iter();
        let known = known.filter_map(|address| self.managers.iter().position(|it| it.address == *address));
        let known: Vec<usize> = known.chain([0]).collect();
        let host = self.rng.pick(&known);
        if host.is_some_and(|host| self.is_superseded(worker, host)) {
            return;
        }
        let connection = host.and_then(|host| self.connect(worker, host));
        let Some(connection) = connection else {
            self.update_connectivity(worker, false);
            return self.dial_again(worker);
        };
        if self.workers[worker].was_removed {
            self.send_to_manager(connection, WorkerMessage::Join);
        }
        let Some(agent) = &mut self.workers[worker].agent else { return };
        (agent.connection, agent.is_welcome, agent.has_assignment) = (Some(connection), false, false);
        let (has, heard) = (agent.network.versions(agent.desired.version), agent.last_contact);
        self.send_to_manager(connection, WorkerMessage::Hello(has));
        self.at_worker(worker, SILENCE, WorkerEvent::CheckSilence { connection, heard });
    }

    fn is_current(&self, worker: usize, connection: u64) -> bool {
        self.workers[worker].agent.as_ref().is_some_and(|agent| agent.connection == Some(connection))
    }

    pub(super) fn heartbeat(&mut self, worker: usize, connection: u64) {
        if self.is_current(worker, connection) {
            let conditions = self.conditions(worker);
            self.send_to_manager(connection, WorkerMessage::Heartbeat(conditions));
            self.at_worker(worker, HEARTBEAT, WorkerEvent::Heartbeat { connection });
        }
    }

    /// The conditions of the node now; none after the faults.
    fn conditions(&mut self, worker: usize) -> BTreeSet<NodeCondition> {
        if !self.has_faults {
            self.workers[worker].conditions.clear();
        } else if self.rng.one_in(3) {
            let picked = self.rng.pick(&NodeCondition::ALL).unwrap_or(NodeCondition::ClockSkew);
            let conditions = &mut self.workers[worker].conditions;
            if !conditions.remove(&picked) {
                conditions.insert(picked);
            }
        }
        self.workers[worker].conditions.clone()
    }

    pub(super) fn sync(&mut self, worker: usize, connection: u64) {
        if !self.is_current(worker, connection) {
            return;
        }
        let Some(agent) = &self.workers[worker].agent else { return };
        let (version, heard) = (agent.desired.version, agent.last_contact);
        let network = agent.network.version();
        self.send_to_manager(connection, WorkerMessage::Sync(version, network));
        self.at_worker(worker, SILENCE, WorkerEvent::CheckSilence { connection, heard });
        self.at_worker(worker, SYNC, WorkerEvent::Sync { connection });
        self.send_reports(worker);
    }

    /// A manager that sent nothing since then is left for another one.
    pub(super) fn check_silence(&mut self, worker: usize, connection: u64, heard: u64) {
        let silent = self.workers[worker].agent.as_ref().is_some_and(|agent| agent.last_contact == heard);
        if silent && self.is_current(worker, connection) {
            self.send_to_manager(connection, WorkerMessage::Closed);
            self.leave(worker);
        }
    }

    fn leave(&mut self, worker: usize) {
        self.leave_with_delay(worker, 700);
    }

    fn leave_with_delay(&mut self, worker: usize, longest: u64) {
        self.update_connectivity(worker, false);
        if let Some(agent) = &mut self.workers[worker].agent {
            (agent.connection, agent.is_welcome) = (None, false);
            self.forget_connections();
            let pause = self.rng.between(50, longest);
            self.at_worker(worker, pause, WorkerEvent::Dial);
        }
    }

    /// The contact with managers changed. Tasks with a disconnect timeout are reconciled.
    fn update_connectivity(&mut self, worker: usize, heard: bool) {
        let elapsed = self.elapsed();
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let before = agent.contact.connectivity();
        match heard {
            true => agent.contact.record_contact(elapsed),
            false => agent.contact.record_disconnect(),
        }
        if before != agent.contact.connectivity() {
            self.step_disconnect_policies(worker);
        }
    }

    fn step_disconnect_policies(&mut self, worker: usize) {
        let Some(agent) = &self.workers[worker].agent else { return };
        let minds = |actor: &SimActor| {
            actor.desired.as_ref().is_some_and(|expected| !expected.spec.on_disconnect.is_keep())
        };
        let minding = agent.actors.iter().filter(|(_, actor)| minds(actor));
        for task in minding.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.after_short_delay(worker, WorkerEvent::StepTask(task));
        }
    }

    /// Keeps the contact file while a task has a disconnect timeout, and ends the start period without a
    /// manager.
    pub(super) fn persist_contact(&mut self, worker: usize) {
        self.at_worker(worker, CONTACT_NOTE_EVERY, WorkerEvent::PersistContact);
        let (now, elapsed) = (self.now, self.elapsed());
        let place = &mut self.workers[worker];
        let Some(agent) = &mut place.agent else { return };
        let before = agent.contact.connectivity();
        agent.contact.update(elapsed);
        let minds = agent.desired.tasks.values().any(|task| !task.spec.on_disconnect.is_keep());
        if let Some(last) = agent.contact.last_contact().filter(|_| minds) {
            let ago = u64::try_from((elapsed - last).as_millis()).unwrap_or(u64::MAX);
            place.contact_noted_at = Some(now - ago);
        }
        if before != agent.contact.connectivity() {
            self.step_disconnect_policies(worker);
        }
        self.oracle_agent_checked(worker);
    }

    pub(crate) fn receive_from_manager(&mut self, worker: usize, connection: u64, message: ManagerMessage) {
        if !self.is_current(worker, connection) {
            return;
        }
        let Some(agent) = &mut self.workers[worker].agent else { return };
        agent.last_contact += 1;
        if agent.is_welcome || matches!(message, ManagerMessage::Welcome) {
            self.update_connectivity(worker, true);
            self.oracle.heard(worker, self.now);
        }
        let now = self.now;
        let Some(agent) = &mut self.workers[worker].agent else { return };
        match message {
            ManagerMessage::Welcome => {
                (agent.is_welcome, agent.welcomed_at, agent.is_rejected) = (true, now, false);
                agent.outbox.resend_all();
                self.workers[worker].was_removed = false;
                self.acknowledge_network(worker);
                self.heartbeat(worker, connection);
                self.at_worker(worker, SYNC, WorkerEvent::Sync { connection });
            }
            ManagerMessage::ReportsStored(number) => agent.outbox.acknowledge(number),
            ManagerMessage::Assignment(update) => self.receive_assignment(worker, connection, &update),
            ManagerMessage::Network(update) => self.receive_network(worker, connection, &update),
            ManagerMessage::Managers(all) => self.workers[worker].managers = all.to_vec(),
            ManagerMessage::TryOtherManager | ManagerMessage::Closed => self.leave(worker),
            // A manager that does not know the node, or took it for removed, may be behind: the node keeps
            // its data.
            ManagerMessage::Removed if !agent.is_rejected && !self.workers[worker].was_removed => {
                self.oracle_node_removed(worker, connection);
                return self.leaves_the_cluster(worker);
            }
            ManagerMessage::Unknown | ManagerMessage::Removed => return self.reject_session(worker),
        }
        self.send_reports(worker);
    }

    /// No manager accepts the node's session before it joins again. An operator eventually makes it join.
    fn reject_session(&mut self, worker: usize) {
        let is_noticed = !self.has_faults && self.rng.one_in(3);
        let place = &mut self.workers[worker];
        if place.was_removed {
            return self.leave(worker);
        }
        if is_noticed {
            return self.leaves_the_cluster(worker);
        }
        if let Some(agent) = &mut place.agent {
            agent.is_rejected = true;
        }
        self.leave_with_delay(worker, REJECTED_WAIT);
    }

    /// A superseded manager is at an address that the worker dials, and still works with its own group. Its
    /// session ends as soon as it began.
    fn is_superseded(&mut self, worker: usize, host: usize) -> bool {
        let (now, id) = (self.now, self.workers[worker].id);
        let stale = self.stale_manager.clone().filter(|stale| stale.host == host && now < stale.until);
        let open = self.links.is_open(SimHost::Worker(worker), SimHost::Manager(host));
        let Some(stale) = stale.filter(|stale| open && stale.state.node(&id).is_some()) else { return false };
        // A worker without a recorded incarnation accepts any.
        if self.workers[worker].incarnation() == 0 {
            return false;
        }
        if !self.rng.one_in(2) {
            return false;
        }
        self.stale_managers_dialled += 1;
        let forgets = self.defect == Some(PlantedDefect::IgnoreAssignmentVersion);
        let has = self.workers[worker].assignment_from_manager().filter(|_| !forgets).unwrap_or_default();
        self.update_connectivity(worker, true);
        self.oracle.heard(worker, now);
        let update = contains_version(&stale.state, has)
            .then(|| SentAssignment::default().first_update(&stale.state, &id, has));
        if let Some(update) = update.flatten() {
            self.stale_managers_obeyed += 1;
            self.receive_assignment(worker, 0, &update);
            self.receive_superseded_network(worker, &stale.state);
        }
        self.leave(worker);
        true
    }

    /// A superseded manager sends the network as it knows it, unless the node has a newer view.
    fn receive_superseded_network(&mut self, worker: usize, state: &State) {
        let Some(agent) = &self.workers[worker].agent else { return };
        let has = agent.network.versions(agent.desired.version);
        if !contains_version(state, has.network) {
            return;
        }
        let history = NetworkHistory::new(state);
        let mut sent = SentNetwork::new(&history, has.network, &has.networks);
        if let Some(parts) = sent.next_update(&history, state, &self.workers[worker].id) {
            self.receive_network(worker, 0, &history.network_update(&parts));
        }
    }

    /// A manager sent assignments.
    fn receive_assignment(&mut self, worker: usize, connection: u64, update: &AssignmentUpdate) {
        let now = self.wall_clock(self.workers[worker].clock_off);
        let place = &mut self.workers[worker];
        let had = place.assignment_version();
        let Some(agent) = &mut place.agent else { return };
        if self.defect == Some(PlantedDefect::IgnoreAssignmentVersion) {
            agent.desired.version = AssignmentVersion::default();
        }
        let taken = agent.apply_update(update);
        agent.has_assignment |=
            matches!(update, AssignmentUpdate::Current) || matches!(taken, UpdateResult::Applied);
        match taken {
            UpdateResult::Applied => {
                agent.reconcile(now);
                let has = agent.desired.version;
                place.cached_state = Some(agent.desired.clone());
                self.differences += u64::from(matches!(update, AssignmentUpdate::Diff(_)));
                self.oracle_assignment_applied(worker, had, has);
                self.step_all_tasks(worker);
            }
            UpdateResult::Ignored => {}
            UpdateResult::NeedsSync => {
                let (version, network) = (agent.desired.version, agent.network.version());
                self.send_to_manager(connection, WorkerMessage::Sync(version, network));
            }
        }
    }

    /// Reconciles every task once the assignments are known. Leftovers of unknown tasks without a record are
    /// removed.
    fn step_all_tasks(&mut self, worker: usize) {
        let SimWorker { agent, machine, .. } = &mut self.workers[worker];
        let Some(agent) = agent else { return };
        machine.retain(|task, remains| remains.has_record() || agent.actors.contains_key(task));
        for task in agent.actors.keys().copied().collect::<Vec<_>>() {
            self.after_short_delay(worker, WorkerEvent::StepTask(task));
        }
    }

    pub(super) fn send_reports(&mut self, worker: usize) {
        let elapsed = self.elapsed();
        let Some(agent) = self.workers[worker].agent.as_mut().filter(|agent| agent.has_assignment) else {
            return;
        };
        let Some(connection) = agent.connection else { return };
        let batches: Vec<ReportBatch> = std::iter::from_fn(|| agent.outbox.next_batch(elapsed)).collect();
        let desired_state = agent.desired.clone();
        for ReportBatch { number, mut reports } in batches {
            reports.retain(|report| !desired_state.contradicts(report));
            self.send_to_manager(connection, WorkerMessage::Reports(number, reports));
        }
    }
}
