//! The invariants, one file each. Each is checked when something that it looks at changed.
//!
//! The oracle records what no process can: the first entry applied at each index, by any manager, is the one
//! that all others must apply there. Its newest state is the reference for the machines.

mod acknowledged_writes;
mod address_owners;
mod addresses;
mod assignment_version;
mod bootstrap;
pub mod convergence;
mod disconnected;
mod election_safety;
mod endpoints;
mod idempotent_plans;
mod label_values;
mod leader_completeness;
pub mod linearizable_reads;
mod membership;
mod monotone;
mod no_needless_replacement;
mod no_needless_stop;
mod one_image;
mod reasons;
mod rollouts;
mod room;
mod secret_versions;
mod slots;
mod stale_commands;
mod start_first;
pub mod state_consistency;
mod state_machine_safety;
mod taints;
mod volume_placement;
mod write_answers;

use std::collections::{BTreeMap, BTreeSet};

use address_owners::{AddressOwner, AddressOwners};
pub use leader_completeness::RecordedVote;
use warren_consensus::{ConfState, MemberChange};
use warren_core::{ApplyOutcome, ReconcilePlan, State, StateChange};
use warren_replica::ReconcileKey;
use warren_task::Action;
use warren_types::{AssignmentVersion, DesiredTaskState, NodeId, ServiceId, TaskId, Timestamp};

use crate::manager::RestoredMember;
use crate::simulation::ClusterSimulation;
use crate::worker::SimWorker;

/// The cluster clock jumped if it advanced by more than this many milliseconds over the elapsed time.
const MAX_CLOCK_JUMP: u64 = 1_000;
/// The whole state is checked every this many entries, otherwise only what changed.
const FULL_CHECK_EVERY: u64 = 32;

/// A violated invariant, and how to reproduce it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimViolation {
    /// The seed that reproduces the history.
    pub seed: u64,
    /// Milliseconds after the start.
    pub at: u64,
    /// The number of events so far.
    pub events: u64,
    /// The invariant, then what was observed.
    pub what: String,
}

impl std::fmt::Display for SimViolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, events, what } = self;
        writeln!(f, "seed {seed}, {at} ms, event {events}: {what}")?;
        write!(f, "reproduce it: WARREN_SIM_SEED={seed} cargo test -p warren-test-sim replay")
    }
}

/// Everything that became true, even if no process has a record of it.
#[derive(Default)]
pub struct InvariantOracle {
    /// What was applied at each index of the current incarnation.
    applied_log: state_machine_safety::AppliedLog,
    /// The state after the newest of them.
    pub newest: State,
    leaders: election_safety::TermLeaders,
    votes: leader_completeness::VoteLog,
    /// The member whose disk was the last to be restored from an older copy.
    pub restored_member: Option<RestoredMember>,
    /// The membership, by the index of the entry that made it.
    changes: BTreeMap<u64, ConfState>,
    /// The highest task number of each service.
    numbers: BTreeMap<ServiceId, u64>,
    /// Who has each address, subnet and node number.
    pub owners: address_owners::AddressOwners,
    /// Tasks that a worker reported as fully removed.
    gone: BTreeSet<(NodeId, TaskId)>,
    /// The image of each revision on the node that used it first.
    images: one_image::RevisionImages,
    /// Every version of every secret.
    versions: secret_versions::SecretVersionSet,
    /// The answers to writers of the shared objects.
    pub answers: write_answers::WriteAnswers,
    /// The last contact of each worker with a manager.
    record_contact: BTreeMap<usize, u64>,
    /// When tasks were ordered to leave their nodes.
    stop_requested_at: BTreeMap<TaskId, u64>,
    /// When the currently lost tasks were lost.
    lost: BTreeMap<TaskId, u64>,
    /// The lost tasks that were replaced since.
    given_up_tasks: BTreeMap<TaskId, u64>,
    /// When the cluster clock last jumped, and its last value with the time it was observed.
    jumped: u64,
    clock: (Timestamp, u64),
    /// The number of tasks stopped by their nodes after the disconnect timeout.
    pub stopped_disconnected: u64,
    /// The number of lost tasks that were replaced.
    pub tasks_replaced: u64,
    /// The number of tasks of lost nodes that ran beside their replacements.
    pub duplicate_tasks: u64,
    /// The number of unhealthy tasks that were replaced.
    pub replaced: u64,
    /// How many revisions were made because a secret has a new version.
    pub secret_revisions: u64,
    /// The number of updates that managers rolled back.
    pub updates_rolled_back: u64,
    /// The number of volumes bound to a node with a task.
    pub volumes_bound: u64,
    /// The most tasks without a node that a service had.
    pub most_unplaced: u64,
    /// The number of nodes that received their removal.
    pub nodes_removed: u64,
    /// The number of containers that kept running into a new incarnation.
    pub surviving_containers: u64,
    /// Terms led and membership changes in earlier incarnations.
    earlier_counts: (u64, u64, u64),
    /// The incarnation that the current one continues; 0 for the first.
    parent: u64,
}

impl InvariantOracle {
    /// The oracle of a group with these first members.
    pub fn new(founders: ConfState) -> Self {
        Self { changes: BTreeMap::from([(0, founders)]), ..Self::default() }
    }

    /// The oracle of a cluster that begins with this state.
    pub fn founded(state: State, founders: ConfState) -> Self {
        Self {
            changes: BTreeMap::from([(state.applied().index, founders)]),
            applied_log: state_machine_safety::AppliedLog::from(&state),
            newest: state,
            ..Self::default()
        }
    }

    /// The membership as of the newest change.
    pub fn members(&self) -> &ConfState {
        self.changes.last_key_value().map(|(_, members)| members).expect("a group has first members")
    }

    /// Index of the entry that made the current membership; 0 for the first members.
    pub fn newest_change(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// The current incarnation; 0 before the first.
    pub fn incarnation(&self) -> u64 {
        self.newest.cluster().map_or(0, |cluster| cluster.incarnation)
    }

    /// The current incarnation, and the one that it continues.
    fn incarnations(&self) -> [u64; 2] {
        [self.incarnation(), self.parent]
    }

    pub fn entries(&self) -> u64 {
        self.earlier_counts.0 + self.applied_log.len()
    }

    pub fn membership_changes(&self) -> u64 {
        self.earlier_counts.1 + self.changes.len() as u64 - 1
    }

    pub fn terms_led(&self) -> u64 {
        self.earlier_counts.2 + self.leaders.count()
    }

    /// A run of the member begins.
    pub fn candidate_restarted(&mut self, candidate: u64) {
        self.votes.candidate_restarted(candidate);
    }

    /// A member granted its vote to a candidate.
    pub fn record_vote(&mut self, term: u64, candidate: u64, vote: RecordedVote) {
        self.votes.granted(term, candidate, vote);
    }

    /// The vote arrived at the candidate.
    pub fn vote_arrived(&mut self, term: u64, candidate: u64, voter: u64) {
        self.votes.arrived(term, candidate, voter);
    }

    /// The first entry of a term below `term` that was applied by some manager and is not in a log.
    pub fn first_missing(&self, log: &warren_log::StoredLog, term: u64) -> Option<u64> {
        leader_completeness::first_missing(&self.applied_log, log, term)
    }

    /// Whether a paused leader of an older term commits an entry that was replaced meanwhile, because it counts the
    /// acknowledgement of a member whose disk was restored since. No member could know that: it was not committed yet.
    fn was_forgotten(&self, index: u64, term: u64) -> bool {
        let is_replaced = self.applied_log.term_at(index).is_some_and(|first| first > term);
        is_replaced && self.restored_member.is_some_and(|it| index <= it.last)
    }

    /// A manager received its removal.
    pub fn is_removed(&self, id: u64) -> Result<(), String> {
        match self.newest.member(id) {
            None => Ok(()),
            Some(member) => {
                Err(format!("only removed members and nodes are told of it: {member:?} is a member"))
            }
        }
    }

    /// The cluster clock advanced.
    fn observe_clock(&mut self, clock: Timestamp, now: u64) {
        let (before, seen) = std::mem::replace(&mut self.clock, (clock, now));
        if clock.0 > before.0 + (now - seen) + MAX_CLOCK_JUMP {
            self.jumped = now;
        }
    }

    /// A worker received a message of a manager that accepted its session.
    pub fn heard(&mut self, worker: usize, now: u64) {
        self.record_contact.insert(worker, now);
    }

    /// How long a worker has had no contact with a manager; `None` if it never had any.
    fn silent_for(&self, worker: usize, now: u64) -> Option<u64> {
        self.record_contact.get(&worker).map(|heard| now - heard)
    }

    /// Counts the running containers that the state of the new incarnation desires.
    fn count_surviving(&mut self, workers: &[SimWorker], state: &State) {
        for worker in workers {
            let expected =
                |id: &TaskId| state.task(id).filter(|it| it.is_live() && it.node == Some(worker.id));
            let running = worker.machine.iter().filter(|(_, remains)| remains.container.is_running());
            self.surviving_containers += running.filter(|(id, _)| expected(id).is_some()).count() as u64;
        }
    }

    /// A new incarnation begins with this state and these members. Acknowledged writes of the old one may be
    /// lost; the numbers of its tasks are not used again.
    pub fn begin_incarnation(
        &mut self,
        workers: &[SimWorker],
        parent: u64,
        state: State,
        members: ConfState,
    ) {
        self.count_surviving(workers, &state);
        let lived = (self.entries(), self.membership_changes(), self.terms_led());
        let changes = BTreeMap::from([(state.applied().index, members)]);
        let mut versions = secret_versions::SecretVersionSet::default();
        state.secret_objects().for_each(|content| versions.record_object(content));
        // Includes superseded versions that are still used.
        state.tasks().for_each(|task| versions.record_revision(&task.revision));
        let owners = AddressOwners::of(&state, self.owners.reassigned);
        let revisions = state.services().flat_map(|it| it.history.iter().chain([&it.revision]));
        revisions.for_each(|revision| versions.record_revision(revision));
        *self = Self {
            applied_log: state_machine_safety::AppliedLog::from(&state),
            newest: state,
            changes,
            numbers: std::mem::take(&mut self.numbers),
            owners: owners.expect("a state has one owner of each address"),
            versions,
            replaced: self.replaced,
            secret_revisions: self.secret_revisions,
            updates_rolled_back: self.updates_rolled_back,
            volumes_bound: self.volumes_bound,
            most_unplaced: self.most_unplaced,
            nodes_removed: self.nodes_removed,
            surviving_containers: self.surviving_containers,
            record_contact: std::mem::take(&mut self.record_contact),
            stopped_disconnected: self.stopped_disconnected,
            tasks_replaced: self.tasks_replaced,
            duplicate_tasks: self.duplicate_tasks,
            earlier_counts: lived,
            parent,
            ..Self::default()
        };
    }
}

impl ClusterSimulation {
    /// A manager leads in a term.
    pub(crate) fn oracle_elected(&mut self, host: usize, term: u64) {
        let held = self.election(host, term);
        self.excused |= matches!(held, Ok(leader_completeness::ElectionVerdict::Excused));
        self.accepted |= matches!(held, Ok(leader_completeness::ElectionVerdict::Accepted));
        self.check(held.map(drop));
    }

    /// A manager reports the membership from an entry on.
    pub(crate) fn oracle_members(&mut self, host: usize, index: u64, members: ConfState) {
        let own = self.managers[host].id;
        let held = state_machine_safety::check_members(&mut self.oracle.changes, index, members, own);
        self.check(held);
    }

    /// A leader proposes a membership change.
    pub(crate) fn oracle_changes(&mut self, host: usize, change: &MemberChange) {
        let held = membership::may_change(self, host, change);
        self.check(held);
    }

    /// A node was told of its removal, by a manager that runs or by one that failed since, perhaps in an
    /// earlier incarnation.
    pub(crate) fn oracle_node_removed(&mut self, worker: usize, connection: u64) {
        self.oracle.nodes_removed += 1;
        let id = self.workers[worker].id;
        let line = self.connections.get(connection);
        let lives = line.is_some_and(|line| self.managers[line.host].boot() == Some(line.manager_boot));
        let held = match self.oracle.newest.node(&id) {
            Some(node) if lives && node.session > 0 => {
                Err(format!("only removed members and nodes are told of it: {node:?} is there"))
            }
            _ => Ok(()),
        };
        self.check(held);
    }

    /// An agent acts on a task.
    pub(crate) fn oracle_action_started(&mut self, worker: usize, task: TaskId, action: &Action) {
        let held = no_needless_stop::holds(&self.oracle, &self.workers[worker], task, action);
        self.check(held);
        if *action == Action::Start {
            let held = disconnected::check_started(&self.oracle, &self.workers, task);
            self.oracle.duplicate_tasks += held.as_ref().copied().unwrap_or_default();
            self.check(held.map(drop));
        }
    }

    /// An agent chose an action for a task.
    pub(crate) fn oracle_action_decided(&mut self, worker: usize, task: TaskId, action: &Action) {
        let held =
            disconnected::check_action(&self.oracle, worker, &self.workers[worker], task, action, self.now);
        self.oracle.stopped_disconnected += u64::from(held == Ok(true));
        self.check(held.map(drop));
    }

    /// An agent has run for a while.
    pub(crate) fn oracle_agent_checked(&mut self, worker: usize) {
        let held = disconnected::check_running(&self.oracle, worker, &self.workers[worker], self.now);
        self.check(held);
    }

    /// A worker accepted assignments.
    pub(crate) fn oracle_assignment_applied(
        &mut self,
        worker: usize,
        had: AssignmentVersion,
        has: AssignmentVersion,
    ) {
        let held = assignment_version::holds(self.workers[worker].id, had, has);
        self.check(held);
    }

    /// A manager loaded its state from a snapshot.
    pub(crate) fn oracle_restored(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let held = state_machine_safety::check_restored(&self.oracle.applied_log, run.state());
        self.check(held);
    }

    /// A manager applied an entry: the command at that position among all proposals, or none.
    pub(crate) fn oracle_applied(&mut self, host: usize, place: Option<u64>, outcome: Option<&ApplyOutcome>) {
        let Some(run) = self.process(host) else { return };
        let state = run.state().clone();
        let applied = state.applied();
        let found = state_machine_safety::AppliedEntry::of(&state, place);
        let index = applied.index;
        if self.oracle.was_forgotten(index, applied.term) {
            self.excused = true;
            return;
        }
        match state_machine_safety::check_applied(&mut self.oracle.applied_log, index, found) {
            Err(what) => return self.check(Err(what)),
            Ok(false) => return,
            Ok(true) => {}
        }
        self.trace(index ^ found.digest);
        self.oracle.observe_clock(state.clock(), self.now);
        let before = std::mem::replace(&mut self.oracle.newest, state);
        if let Some(outcome) = outcome {
            let command = place.and_then(|place| self.commands.get(usize::try_from(place).ok()?));
            let held =
                command.map_or(Ok(()), |command| stale_commands::holds(command, outcome, &before, applied));
            self.check(held);
            let held = self.check_changes(&before, outcome);
            self.check(held);
        }
        if index.is_multiple_of(FULL_CHECK_EVERY) {
            let held = state_consistency::holds(&self.oracle.newest, &before);
            self.check(held);
        }
    }

    /// Runs all checks that depend on what an entry changed.
    fn check_changes(&mut self, before: &State, outcome: &ApplyOutcome) -> Result<(), String> {
        let ApplyOutcome::Applied { changes, .. } = outcome else { return Ok(()) };
        let changes: BTreeSet<StateChange> = changes.iter().copied().collect();
        if changes.iter().any(|change| matches!(change, StateChange::SecretObject(_))) {
            let follows = |change: &&StateChange| matches!(change, StateChange::Service(_));
            self.oracle.secret_revisions += changes.iter().filter(follows).count() as u64;
        }
        for change in changes {
            self.check_owner(change)?;
            match change {
                StateChange::Task(id) => {
                    let unplaced = room::count_unplaced(&self.oracle.newest, id.service)?;
                    self.oracle.most_unplaced = self.oracle.most_unplaced.max(unplaced);
                    self.check_task(before, id)?;
                }
                StateChange::Node(id) => monotone::node(before, &self.oracle.newest, id)?,
                StateChange::SecretObject(id) => {
                    let InvariantOracle { newest, versions, .. } = &mut self.oracle;
                    newest.secret_object(&id).into_iter().for_each(|content| versions.record_object(content));
                }
                StateChange::Volume(id) => {
                    let place = |state: &State| state.volume(&id).and_then(|volume| volume.node);
                    let settled = place(before).is_none() && place(&self.oracle.newest).is_some();
                    self.oracle.volumes_bound += u64::from(settled);
                }
                StateChange::Service(id) => {
                    if rollouts::rolled_back(before, &self.oracle.newest, id)? {
                        self.oracle.updates_rolled_back += 1;
                        let newest = &self.oracle.newest;
                        self.clients.iter_mut().for_each(|client| client.resync_rolled_back(newest, id));
                    }
                }
                StateChange::Assignment(_)
                | StateChange::Cluster
                | StateChange::Token(_)
                | StateChange::User(_)
                | StateChange::Network(_)
                | StateChange::Addresses
                | StateChange::ImportedImages
                | StateChange::CaRenewals
                | StateChange::KeyRotation
                | StateChange::Member(_) => {}
            }
        }
        Ok(())
    }

    /// What changed may have got an address, which nobody else has, and no node takes for that of another owner.
    fn check_owner(&mut self, change: StateChange) -> Result<(), String> {
        let owner = match change {
            StateChange::Task(id) => AddressOwner::Task(id),
            StateChange::Service(id) => AddressOwner::Service(id),
            StateChange::Node(id) => AddressOwner::Node(id),
            _ => return Ok(()),
        };
        let InvariantOracle { owners, newest, .. } = &mut self.oracle;
        if !owners.update(newest, owner)? {
            return Ok(());
        }
        self.workers.iter().try_for_each(|worker| endpoints::check_owners(newest, owners, worker))
    }

    fn check_task(&mut self, before: &State, id: TaskId) -> Result<(), String> {
        let Self { oracle, workers, now, .. } = self;
        let old = before.task(&id);
        let Some(new) = oracle.newest.task(&id) else {
            return monotone::forgotten(old.map(AsRef::as_ref), id);
        };
        match old {
            Some(old) => monotone::task(old, new)?,
            None => monotone::created(&mut oracle.numbers, id)?,
        }
        if new.desired == DesiredTaskState::Remove
            && old.is_some_and(|old| old.desired < DesiredTaskState::Remove)
        {
            oracle.stop_requested_at.insert(id, *now);
            if let Some(lost) = oracle.lost.get(&id).filter(|_| new.lost_since().is_some()) {
                oracle.tasks_replaced += 1;
                oracle.given_up_tasks.insert(id, *lost);
            }
        }
        match new.lost_since() {
            Some(_) => drop(oracle.lost.entry(id).or_insert(*now)),
            None => drop((oracle.lost.remove(&id), oracle.given_up_tasks.remove(&id))),
        }
        slots::holds(&oracle.newest, new)?;
        taints::check_placed(&oracle.newest, old.map(AsRef::as_ref), new)?;
        oracle.versions.check_task(new)?;
        reasons::holds(&oracle.newest, new)?;
        // It is unknown what is left on a removed node.
        let node = new.node.filter(|node| oracle.newest.node(node).is_some());
        let machine = node.and_then(|node| workers.iter().find(|worker| worker.id == node));
        let Some(machine) = machine.map(|worker| &worker.machine) else { return Ok(()) };
        if new.observed.removed {
            oracle.gone.extend(node.map(|node| (node, id)));
            addresses::check_removed(machine, id)?;
        } else if old.is_none_or(|old| old.address.is_none()) {
            addresses::check_assigned(machine, new, oracle.incarnations())?;
        }
        Ok(())
    }

    /// Something changed on a worker's machine.
    pub(crate) fn oracle_machine(&mut self, worker: usize, task: TaskId) {
        let SimWorker { id, machine, .. } = &self.workers[worker];
        let is_gone = self.oracle.gone.contains(&(*id, task));
        let mut held = addresses::check_machine(machine, task, is_gone, self.oracle.incarnations());
        // A container of an earlier incarnation is removed unless the current one desires it too.
        if let Some(remains) =
            machine.get(&task).filter(|remains| remains.incarnation == self.oracle.incarnation())
        {
            held = held.and_then(|()| self.oracle.images.record(task, remains));
            // A removed node that is not told yet may run anything.
            let newest = &self.oracle.newest;
            if newest.task(&task).is_some_and(|known| known.node == Some(*id) && !known.observed.removed) {
                held = held.and_then(|()| volume_placement::holds(newest, *id, task, remains));
            }
        }
        self.check(held);
    }

    /// A container started.
    pub(crate) fn oracle_started(&mut self, worker: usize, task: TaskId) {
        let workers = &self.workers;
        let held = endpoints::check_container(&self.oracle.newest, workers, &workers[worker], task);
        self.check(held);
    }

    /// The kernel of a worker has another view of the cluster's network.
    pub(crate) fn oracle_kernel(&mut self, worker: usize) {
        let InvariantOracle { newest, owners, .. } = &self.oracle;
        let held = endpoints::check_kernel(newest, owners, &self.workers, &self.workers[worker]);
        self.check(held);
    }

    /// A leader computed a plan.
    pub(crate) fn oracle_planned(
        &mut self,
        host: usize,
        key: ReconcileKey,
        now: Timestamp,
        plan: &ReconcilePlan,
    ) {
        let Some(run) = self.process(host) else { return };
        let held = idempotent_plans::again_is_empty(run.state(), key, now, plan);
        let held = held.and_then(|()| start_first::holds(run.state(), plan));
        let held = held.and_then(|()| rollouts::keeps_order(run.state(), plan));
        let held = held.and_then(|()| room::bounds_created(run.state(), plan));
        let held = held.and_then(|()| bootstrap::holds(run.state(), plan));
        let left = no_needless_replacement::holds(run.state(), plan);
        self.oracle.replaced += left.as_ref().copied().unwrap_or_default();
        self.check(held.and(left.map(drop)));
    }

    /// A write of a client was acknowledged: every manager that has applied its index must hold it.
    pub(crate) fn oracle_acknowledged(&mut self, client: usize, service: ServiceId) {
        let Some(promise) = self.clients[client].expected.get(&service).cloned() else { return };
        for host in 0..self.managers.len() {
            let state = self.process(host).map(|run| run.state());
            let held = state.map_or(Ok(()), |state| acknowledged_writes::one(state, service, &promise));
            self.check(held);
        }
        let held = acknowledged_writes::chosen(&self.oracle.newest, &promise);
        self.check(held);
    }

    /// A manager applied an entry: it must hold the acknowledged writes.
    pub(crate) fn oracle_check_acknowledged(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let held = self.clients.iter().try_for_each(|client| acknowledged_writes::all(run.state(), client));
        self.check(held);
    }
}
