//! What must be true, one file per invariant. Each is checked where something changed that it looks at.
//!
//! The oracle remembers what no process can: what was applied first at each index, by whatever manager, is
//! what every other one must apply there. Its newest state is the truth that machines are compared with.

mod acknowledged;
mod addresses;
mod at_home;
mod contents;
mod leaders;
mod left_alone;
mod monotone;
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

use warren_consensus::ConfState;
use warren_core::{Change, Outcome, Plan, State};
use warren_types::{ServiceId, TaskId, Timestamp};

use crate::manager::Key;
use crate::worker::Worker;
use crate::world::World;

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
    /// What was applied at each index, from 1 on.
    chosen: Vec<prefixes::Chosen>,
    /// As of the newest of them.
    pub newest: State,
    leaders: leaders::Leaders,
    /// The members, by the entry that made them so.
    changes: BTreeMap<u64, ConfState>,
    /// The highest number of a task that each service has had.
    numbers: BTreeMap<ServiceId, u64>,
    /// Tasks of which a worker said that nothing is left.
    gone: BTreeSet<TaskId>,
    /// What the image of a revision was where it was first used.
    images: one_image::Images,
    /// Every version that secrets have had.
    versions: contents::Versions,
    /// How many times an unhealthy task got a replacement.
    pub replaced: u64,
    /// How many revisions were made because a secret has a new version.
    pub followed: u64,
    /// How many volumes got their place with a task.
    pub settled: u64,
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

    pub fn entries(&self) -> u64 {
        self.chosen.len() as u64
    }

    pub fn membership_changes(&self) -> u64 {
        self.changes.len() as u64 - 1
    }

    pub fn terms_led(&self) -> u64 {
        self.leaders.count()
    }
}

impl World {
    /// A manager leads in a term.
    pub(crate) fn oracle_elected(&mut self, host: usize, term: u64) {
        let id = self.managers[host].id;
        let held = self.oracle.leaders.elected(term, id);
        self.demand(held);
    }

    /// A manager says who is in the group from an entry on.
    pub(crate) fn oracle_members(&mut self, host: usize, index: u64, members: ConfState) {
        let own = self.managers[host].id;
        let held = prefixes::members(&mut self.oracle.changes, index, members, own);
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
                Change::Service(_) | Change::Assignment(_) | Change::Cluster | Change::Token(_) => {}
            }
        }
        Ok(())
    }

    fn check_task(&mut self, before: &State, id: TaskId) -> Result<(), String> {
        let Self { oracle, workers, .. } = self;
        let old = before.task(&id);
        let Some(new) = oracle.newest.task(&id) else {
            return monotone::forgotten(old.map(AsRef::as_ref), id);
        };
        match old {
            Some(old) => monotone::task(old, new)?,
            None => monotone::created(&mut oracle.numbers, id)?,
        }
        slots::holds(&oracle.newest, new)?;
        oracle.versions.known(new)?;
        reasons::holds(&oracle.newest, new)?;
        let machine = new.node.and_then(|node| workers.iter().find(|worker| worker.id == node));
        let Some(machine) = machine.map(|worker| &worker.machine) else { return Ok(()) };
        if new.observed.removed {
            oracle.gone.insert(id);
            addresses::removed(machine, id)?;
        } else if old.is_none_or(|old| old.address.is_none()) {
            addresses::given(machine, new)?;
        }
        Ok(())
    }

    /// Something changed on a worker's machine.
    pub(crate) fn oracle_machine(&mut self, worker: usize, task: TaskId) {
        let Worker { id, machine, .. } = &self.workers[worker];
        let mut held = addresses::on_machine(machine, task, &self.oracle.gone);
        if let Some(remains) = machine.get(&task) {
            held = held.and_then(|()| self.oracle.images.used(task, remains));
            held = held.and_then(|()| at_home::holds(&self.oracle.newest, *id, task, remains));
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
