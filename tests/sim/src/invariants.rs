//! What must be true, one file per invariant. Each is checked where something changed that it looks at.
//!
//! The oracle remembers what no process can: what was applied first at each index, by whatever manager, is
//! what every other one must apply there. Its newest state is the truth that machines are compared with.

mod acknowledged;
mod addresses;
mod alone;
mod answers;
mod at_home;
mod contents;
mod kept;
mod leader_completeness;
mod leaders;
mod left_alone;
mod membership;
mod monotone;
mod obeys;
mod one_image;
mod planning;
mod prefixes;
pub mod reads;
mod reasons;
pub mod rest;
mod slots;
mod stale;
mod start_first;
pub mod state;

use std::collections::{BTreeMap, BTreeSet};

pub use leader_completeness::Vote;
use warren_consensus::{ConfState, MemberChange};
use warren_core::{Change, Outcome, Plan, State};
use warren_task::Action;
use warren_types::{AssignmentVersion, Desired, NodeId, ServiceId, TaskId, Timestamp};

use crate::manager::{Key, WentBack};
use crate::worker::Worker;
use crate::world::World;

/// The cluster's time jumped if it went on by so many milliseconds more than passed.
const JUMP: u64 = 1_000;
/// Every so many entries the whole state is checked, not only what changed.
const WHOLE_EVERY: u64 = 32;

/// An invariant that did not hold, and how to see it again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Gives the same history again.
    pub seed: u64,
    /// Milliseconds after the start.
    pub at: u64,
    /// How many events had happened.
    pub events: u64,
    /// What was wrong: the invariant, then what was found.
    pub what: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, at, events, what } = self;
        writeln!(f, "seed {seed}, {at} ms, event {events}: {what}")?;
        write!(f, "see it again: WARREN_SIM_SEED={seed} cargo test -p warren-test-sim replay")
    }
}

/// What has become true, whoever has forgotten it meanwhile.
#[derive(Default)]
pub struct Oracle {
    /// What was applied at each index of the cluster's life.
    chosen: prefixes::Prefix,
    /// As of the newest of them.
    pub newest: State,
    leaders: leaders::Leaders,
    votes: leader_completeness::Votes,
    /// The member whose disk was the last to go back.
    pub went_back: Option<WentBack>,
    /// The members, by the entry that made them so.
    changes: BTreeMap<u64, ConfState>,
    /// The highest number of a task that each service has had.
    numbers: BTreeMap<ServiceId, u64>,
    /// Tasks of which a worker said that nothing is left there.
    gone: BTreeSet<(NodeId, TaskId)>,
    /// What the image of a revision was where it was first used.
    images: one_image::Images,
    /// Every version that secrets have had.
    versions: contents::Versions,
    /// What those were answered that write the same objects.
    pub answers: answers::Answers,
    /// When each worker last heard a manager.
    heard: BTreeMap<usize, u64>,
    /// Since when tasks are told to leave their nodes.
    told_to_go: BTreeMap<TaskId, u64>,
    /// When tasks were lost that are lost...
    lost: BTreeMap<TaskId, u64>,
    /// ...and of those that were given up since.
    given_up_tasks: BTreeMap<TaskId, u64>,
    /// When the cluster's time last went on by more than passed, and when it was seen.
    jumped: u64,
    clock: (Timestamp, u64),
    /// How many tasks their nodes stopped, as they had been without a manager for so long.
    pub left_off: u64,
    /// How many tasks got another one in their place when their node was lost.
    pub given_up: u64,
    /// How many tasks of lost nodes ran beside those in their place.
    pub beside: u64,
    /// How many times an unhealthy task got a replacement.
    pub replaced: u64,
    /// How many revisions were made because a secret has a new version.
    pub followed: u64,
    /// How many volumes got their place with a task.
    pub settled: u64,
    /// How many nodes heard that they were removed.
    pub nodes_removed: u64,
    /// How many containers ran on through the end of a cluster's life.
    pub kept: u64,
    /// Terms that were led and changes of members in lives that are over.
    lived: (u64, u64, u64),
    /// The number of the life that this one goes on with, as far as it is not lost; 0 for the first.
    parent: u64,
}

impl Oracle {
    /// Of a group that begins with these members.
    pub fn new(founders: ConfState) -> Self {
        Self { changes: BTreeMap::from([(0, founders)]), ..Self::default() }
    }

    /// As of the newest change.
    pub fn members(&self) -> &ConfState {
        self.changes.last_key_value().map(|(_, members)| members).expect("a group begins with some")
    }

    /// Index of the entry that made them so; 0 for those that the group began with.
    pub fn newest_change(&self) -> u64 {
        self.changes.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// The number of the cluster's present life; 0 before the first.
    pub fn life(&self) -> u64 {
        self.newest.cluster().map_or(0, |cluster| cluster.incarnation)
    }

    /// The present life, and the one that it goes on with.
    fn lives(&self) -> [u64; 2] {
        [self.life(), self.parent]
    }

    pub fn entries(&self) -> u64 {
        self.lived.0 + self.chosen.len()
    }

    pub fn membership_changes(&self) -> u64 {
        self.lived.1 + self.changes.len() as u64 - 1
    }

    pub fn terms_led(&self) -> u64 {
        self.lived.2 + self.leaders.count()
    }

    /// A member votes for a candidate.
    pub fn granted(&mut self, term: u64, candidate: u64, vote: Vote) {
        self.votes.granted(term, candidate, vote);
    }

    /// That vote came there.
    pub fn vote_arrived(&mut self, term: u64, candidate: u64, voter: u64) {
        self.votes.arrived(term, candidate, voter);
    }

    /// The first entry of a term below `term` that was applied somewhere and is not in a log.
    pub fn first_missing(&self, log: &warren_log::Loaded, term: u64) -> Option<u64> {
        leader_completeness::first_missing(&self.chosen, log, term)
    }

    /// A manager was told that it is a member no more.
    pub fn is_removed(&self, id: u64) -> Result<(), String> {
        match self.newest.member(id) {
            None => Ok(()),
            Some(member) => Err(format!("only who was removed is told so: {member:?} is a member")),
        }
    }

    /// The cluster's time stands there now.
    fn sees_time(&mut self, clock: Timestamp, now: u64) {
        let (before, seen) = std::mem::replace(&mut self.clock, (clock, now));
        if clock.0 > before.0 + (now - seen) + JUMP {
            self.jumped = now;
        }
    }

    /// A worker hears a manager that has welcomed it.
    pub fn heard(&mut self, worker: usize, now: u64) {
        self.heard.insert(worker, now);
    }

    /// For how long a worker has heard no manager; `None` if it never did.
    fn silent_for(&self, worker: usize, now: u64) -> Option<u64> {
        self.heard.get(&worker).map(|heard| now - heard)
    }

    /// Counts the containers that run and are wanted by the state with which the cluster goes on.
    fn count_kept(&mut self, workers: &[Worker], state: &State) {
        for worker in workers {
            let wanted = |id: &TaskId| state.task(id).filter(|it| it.is_live() && it.node == Some(worker.id));
            let running = worker.machine.iter().filter(|(_, remains)| remains.container.is_running());
            self.kept += running.filter(|(id, _)| wanted(id).is_some()).count() as u64;
        }
    }

    /// The cluster goes on with this state and these members. What it acknowledged before may be lost; the numbers of
    /// its tasks are not given again.
    pub fn begins_new_life(&mut self, workers: &[Worker], parent: u64, state: State, members: ConfState) {
        self.count_kept(workers, &state);
        let lived = (self.entries(), self.membership_changes(), self.terms_led());
        let changes = BTreeMap::from([(state.applied().index, members)]);
        let mut versions = contents::Versions::default();
        state.contents().for_each(|content| versions.made(content));
        // Those that are gone by now, and still used.
        state.tasks().for_each(|task| versions.used(&task.revision));
        let revisions = state.services().flat_map(|it| it.history.iter().chain([&it.revision]));
        revisions.for_each(|revision| versions.used(revision));
        *self = Self {
            chosen: prefixes::Prefix::from(&state),
            newest: state,
            changes,
            numbers: std::mem::take(&mut self.numbers),
            versions,
            replaced: self.replaced,
            followed: self.followed,
            settled: self.settled,
            nodes_removed: self.nodes_removed,
            kept: self.kept,
            heard: std::mem::take(&mut self.heard),
            left_off: self.left_off,
            given_up: self.given_up,
            beside: self.beside,
            lived,
            parent,
            ..Self::default()
        };
    }
}

impl World {
    /// A manager leads in a term.
    pub(crate) fn oracle_elected(&mut self, host: usize, term: u64) {
        let held = self.election(host, term);
        self.excused |= matches!(held, Ok(leader_completeness::Election::Excused));
        self.accepted |= matches!(held, Ok(leader_completeness::Election::Accepted));
        self.demand(held.map(drop));
    }

    /// A manager says who is in the group from an entry on.
    pub(crate) fn oracle_members(&mut self, host: usize, index: u64, members: ConfState) {
        let own = self.managers[host].id;
        let held = prefixes::members(&mut self.oracle.changes, index, members, own);
        self.demand(held);
    }

    /// A leader is about to change the members.
    pub(crate) fn oracle_changes(&mut self, host: usize, change: &MemberChange) {
        let held = membership::may_change(self, host, change);
        self.demand(held);
    }

    /// A node was told that it was removed, by a manager that lives or by one that died since, maybe with its cluster's
    /// life.
    pub(crate) fn oracle_node_removed(&mut self, worker: usize, connection: u64) {
        self.oracle.nodes_removed += 1;
        let id = self.workers[worker].id;
        let line = self.connections.get(connection);
        let lives = line.is_some_and(|line| self.managers[line.host].boot() == Some(line.manager_boot));
        let held = match self.oracle.newest.node(&id) {
            Some(node) if lives && node.session > 0 => {
                Err(format!("only who was removed is told so: {node:?} is there"))
            }
            _ => Ok(()),
        };
        self.demand(held);
    }

    /// An agent does something to a task.
    pub(crate) fn oracle_acts(&mut self, worker: usize, task: TaskId, action: &Action) {
        let held = kept::holds(&self.oracle, &self.workers[worker], task, action);
        self.demand(held);
        if *action == Action::Start {
            let held = alone::started(&self.oracle, &self.workers, task);
            self.oracle.beside += held.as_ref().copied().unwrap_or_default();
            self.demand(held.map(drop));
        }
    }

    /// An agent decides what to do to a task.
    pub(crate) fn oracle_decides(&mut self, worker: usize, task: TaskId, action: &Action) {
        let held = alone::decides(&self.oracle, worker, &self.workers[worker], task, action, self.now);
        self.oracle.left_off += u64::from(held == Ok(true));
        self.demand(held.map(drop));
    }

    /// An agent has been there for a while.
    pub(crate) fn oracle_looks_at(&mut self, worker: usize) {
        let held = alone::looks(&self.oracle, worker, &self.workers[worker], self.now);
        self.demand(held);
    }

    /// A worker takes over what it is told.
    pub(crate) fn oracle_obeys(&mut self, worker: usize, had: AssignmentVersion, has: AssignmentVersion) {
        let held = obeys::holds(self.workers[worker].id, had, has);
        self.demand(held);
    }

    /// A manager's state is that of a snapshot.
    pub(crate) fn oracle_restored(&mut self, host: usize) {
        let Some(run) = self.life(host) else { return };
        let held = prefixes::restored(&self.oracle.chosen, &run.state);
        self.demand(held);
    }

    /// A manager applied an entry: the command at that place among all, or none.
    pub(crate) fn oracle_applied(&mut self, host: usize, place: Option<u64>, outcome: Option<&Outcome>) {
        let Some(run) = self.life(host) else { return };
        let state = run.state.clone();
        let applied = state.applied();
        let found = prefixes::Chosen::of(&state, place);
        let index = applied.index;
        match prefixes::applied(&mut self.oracle.chosen, index, found) {
            Err(what) => return self.demand(Err(what)),
            Ok(false) => return,
            Ok(true) => {}
        }
        self.trace(index ^ found.digest);
        self.oracle.sees_time(state.clock(), self.now);
        let before = std::mem::replace(&mut self.oracle.newest, state);
        if let Some(outcome) = outcome {
            let command = place.and_then(|place| self.commands.get(usize::try_from(place).ok()?));
            let held = command.map_or(Ok(()), |command| stale::holds(command, outcome, &before, applied));
            self.demand(held);
            let held = self.check_changes(&before, outcome);
            self.demand(held);
        }
        if index.is_multiple_of(WHOLE_EVERY) {
            let held = state::holds(&self.oracle.newest, &before);
            self.demand(held);
        }
    }

    /// Everything that looks at what an entry changed.
    fn check_changes(&mut self, before: &State, outcome: &Outcome) -> Result<(), String> {
        let Outcome::Applied { changes, .. } = outcome else { return Ok(()) };
        let changes: BTreeSet<Change> = changes.iter().copied().collect();
        if changes.iter().any(|change| matches!(change, Change::Content(_))) {
            let follows = |change: &&Change| matches!(change, Change::Service(_));
            self.oracle.followed += changes.iter().filter(follows).count() as u64;
        }
        for change in changes {
            match change {
                Change::Task(id) => self.check_task(before, id)?,
                Change::Node(id) => monotone::node(before, &self.oracle.newest, id)?,
                Change::Content(id) => {
                    let Oracle { newest, versions, .. } = &mut self.oracle;
                    newest.content(&id).into_iter().for_each(|content| versions.made(content));
                }
                Change::Volume(id) => {
                    let place = |state: &State| state.volume(&id).and_then(|volume| volume.node);
                    let settled = place(before).is_none() && place(&self.oracle.newest).is_some();
                    self.oracle.settled += u64::from(settled);
                }
                Change::Service(_)
                | Change::Assignment(_)
                | Change::Cluster
                | Change::Token(_)
                | Change::Member(_) => {}
            }
        }
        Ok(())
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
        if new.desired == Desired::Remove && old.is_some_and(|old| old.desired < Desired::Remove) {
            oracle.told_to_go.insert(id, *now);
            if let Some(lost) = oracle.lost.get(&id).filter(|_| new.lost_since().is_some()) {
                oracle.given_up += 1;
                oracle.given_up_tasks.insert(id, *lost);
            }
        }
        match new.lost_since() {
            Some(_) => drop(oracle.lost.entry(id).or_insert(*now)),
            None => drop((oracle.lost.remove(&id), oracle.given_up_tasks.remove(&id))),
        }
        slots::holds(&oracle.newest, new)?;
        oracle.versions.known(new)?;
        reasons::holds(&oracle.newest, new)?;
        // Nobody knows what is left on a node that was removed.
        let node = new.node.filter(|node| oracle.newest.node(node).is_some());
        let machine = node.and_then(|node| workers.iter().find(|worker| worker.id == node));
        let Some(machine) = machine.map(|worker| &worker.machine) else { return Ok(()) };
        if new.observed.removed {
            oracle.gone.extend(node.map(|node| (node, id)));
            addresses::removed(machine, id)?;
        } else if old.is_none_or(|old| old.address.is_none()) {
            addresses::given(machine, new, oracle.lives())?;
        }
        Ok(())
    }

    /// Something changed on a worker's machine.
    pub(crate) fn oracle_machine(&mut self, worker: usize, task: TaskId) {
        let Worker { id, machine, .. } = &self.workers[worker];
        let is_gone = self.oracle.gone.contains(&(*id, task));
        let mut held = addresses::on_machine(machine, task, is_gone, self.oracle.lives());
        // What was made for a wish of a life that is over goes, if it is not wanted in this one too.
        if let Some(remains) = machine.get(&task).filter(|remains| remains.life == self.oracle.life()) {
            held = held.and_then(|()| self.oracle.images.used(task, remains));
            // On a node that was removed, and does not know it, anything runs.
            let newest = &self.oracle.newest;
            if newest.task(&task).is_some_and(|known| known.node == Some(*id) && !known.observed.removed) {
                held = held.and_then(|()| at_home::holds(newest, *id, task, remains));
            }
        }
        self.demand(held);
    }

    /// A leader planned.
    pub(crate) fn oracle_planned(&mut self, host: usize, key: Key, now: Timestamp, plan: &Plan) {
        let Some(run) = self.life(host) else { return };
        let held = planning::again_is_empty(&run.state, key, now, plan);
        let held = held.and_then(|()| start_first::holds(&run.state, plan));
        let left = left_alone::holds(&run.state, plan);
        self.oracle.replaced += left.as_ref().copied().unwrap_or_default();
        self.demand(held.and(left.map(drop)));
    }

    /// A client was promised something: whoever has applied as much must hold it.
    pub(crate) fn oracle_promised(&mut self, client: usize, service: ServiceId) {
        let Some(promise) = self.clients[client].promises.get(&service).cloned() else { return };
        for host in 0..self.managers.len() {
            let state = self.life(host).map(|run| &run.state);
            let held = state.map_or(Ok(()), |state| acknowledged::one(state, service, &promise));
            self.demand(held);
        }
        let held = acknowledged::chosen(&self.oracle.newest, &promise);
        self.demand(held);
    }

    /// A manager applied something: it must hold what clients were promised.
    pub(crate) fn oracle_keeps_promises(&mut self, host: usize) {
        let Some(run) = self.life(host) else { return };
        let held = self.clients.iter().try_for_each(|client| acknowledged::all(&run.state, client));
        self.demand(held);
    }
}
