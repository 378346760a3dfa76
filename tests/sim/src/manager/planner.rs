//! The controllers: keys are woken by changes, one key is never looked at twice at once, and plans are
//! proposed.

use std::collections::{BTreeMap, BTreeSet};

use warren_core::{Change, Command, Plan, State, reap, reconcile_service, schedule};
use warren_types::{ServiceId, Timestamp};

use super::Who;
use crate::event::OnManager;
use crate::world::World;

/// One thing to look at again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    Liveness,
    Members,
    Schedule,
    Replicas(ServiceId),
    Reap(ServiceId),
}

/// A manager's keys.
#[derive(Debug, Default)]
pub struct Planning {
    /// Those that a planner will look at, and when first.
    woken: BTreeMap<Key, u64>,
    /// How many commands of a key's plan are under way.
    under_way: BTreeMap<Key, usize>,
    /// Woken meanwhile.
    again: BTreeSet<Key>,
}

/// Asks the planner of a key, except for liveness and members, which need to know who was heard.
pub fn ask(state: &State, key: Key, now: Timestamp) -> Plan {
    match key {
        Key::Replicas(id) => reconcile_service(state, &id, now),
        Key::Reap(id) => reap(state, &id),
        Key::Schedule => {
            let placement = schedule(state, now);
            let commands = placement.command(state, now).into_iter().collect();
            Plan { commands, recheck_after: placement.recheck_after }
        }
        Key::Liveness | Key::Members => Plan::default(),
    }
}

impl World {
    /// In a new term nothing of an older one is waited for, and everything is looked at.
    pub(super) fn restart_planning(&mut self, host: usize) {
        if let Some(run) = &mut self.managers[host].run {
            run.planning = Planning::default();
        }
        self.wake_all(host);
    }

    pub(super) fn wake_all(&mut self, host: usize) {
        let Some(run) = self.life(host) else { return };
        let services: Vec<ServiceId> = run.state.services().map(|service| service.id).collect();
        let keys = services.into_iter().flat_map(|id| [Key::Replicas(id), Key::Reap(id)]);
        for key in keys.chain([Key::Liveness, Key::Members, Key::Schedule]).collect::<Vec<_>>() {
            self.wake_key(host, key);
        }
    }

    /// Turns what was applied into keys.
    pub(super) fn wake(&mut self, host: usize, changes: &[Change]) {
        let Some(run) = self.life(host).filter(|run| run.role.may_plan) else { return };
        let mut keys = BTreeSet::new();
        for change in changes {
            match *change {
                Change::Service(id) => keys.extend([Key::Replicas(id), Key::Reap(id), Key::Schedule]),
                Change::Task(task) => {
                    keys.extend([Key::Replicas(task.service), Key::Reap(task.service), Key::Schedule]);
                }
                Change::Node(id) => {
                    keys.extend([Key::Liveness, Key::Schedule]);
                    keys.extend(run.state.services_concerned(&id).into_iter().map(Key::Replicas));
                }
                // Where a task can be.
                Change::Volume(_) => drop(keys.insert(Key::Schedule)),
                Change::Member(_) => drop(keys.insert(Key::Members)),
                Change::Assignment(_) | Change::Cluster | Change::Token(_) | Change::Content(_) => {}
            }
        }
        for key in keys {
            self.wake_key(host, key);
        }
    }

    /// Something may be to do about the members, if this manager leads.
    pub(super) fn wake_members(&mut self, host: usize) {
        if self.life(host).is_some_and(|run| run.role.may_plan) {
            self.wake_key(host, Key::Members);
        }
    }

    fn wake_key(&mut self, host: usize, key: Key) {
        let delay = self.chance.between(0, 8);
        self.wake_later(host, key, delay);
    }

    /// Equal keys collapse, and the earlier moment wins.
    fn wake_later(&mut self, host: usize, key: Key, delay: u64) {
        let at = self.now + delay;
        let Some(run) = &mut self.managers[host].run else { return };
        let sooner = run.planning.woken.get(&key).is_none_or(|planned| at < *planned);
        if sooner {
            run.planning.woken.insert(key, at);
            self.at_manager(host, delay, OnManager::Plan(key));
        }
    }

    pub(super) fn plan(&mut self, host: usize, key: Key) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        // An event whose moment was replaced by an earlier one finds nothing to do, or that it is too early.
        if run.planning.woken.get(&key).is_none_or(|planned| *planned > now) {
            return;
        }
        run.planning.woken.remove(&key);
        if !run.role.may_plan {
            return;
        }
        if run.planning.under_way.contains_key(&key) {
            run.planning.again.insert(key);
            return;
        }
        let stamp = self.stamp(host);
        let Some(run) = self.life(host) else { return };
        let term = run.role.term;
        let plan = match key {
            Key::Liveness => self.judge(host),
            Key::Members => self.guide(host),
            _ => ask(&run.state, key, stamp),
        };
        self.oracle_planned(host, key, stamp, &plan);
        if let (count @ 1.., Some(run)) = (plan.commands.len(), &mut self.managers[host].run) {
            run.planning.under_way.insert(key, count);
        }
        let mut delay = 0;
        for command in plan.commands {
            delay += self.pause_of_a_planner();
            let command = Box::new(command);
            self.at_manager(host, delay, OnManager::Propose { key, term, command });
        }
        if let Some(after) = plan.recheck_after {
            let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX >> 1).clamp(1, 60_000);
            self.wake_later(host, key, after);
        }
    }

    /// How long a planner takes from one command to the next. Meanwhile another may lead, and this manager
    /// again.
    fn pause_of_a_planner(&mut self) -> u64 {
        let slow = self.faulty && self.chance.one_in(self.climate.slow_one_in);
        let longest = if slow { 4_000 } else { 3 };
        self.chance.between(0, longest)
    }

    pub(super) fn propose_planned(&mut self, host: usize, key: Key, term: u64, command: Command) {
        self.propose(host, Who::Planner { key, term }, command, u64::MAX);
    }

    /// One command of a plan was applied, or will not be.
    pub(super) fn plan_carried_out(&mut self, host: usize, key: Key, term: u64) {
        let Some(run) = self.managers[host].run.as_mut().filter(|run| run.role.term == term) else { return };
        let Some(left) = run.planning.under_way.get_mut(&key) else { return };
        *left -= 1;
        if *left == 0 {
            run.planning.under_way.remove(&key);
            if run.planning.again.remove(&key) {
                self.wake_key(host, key);
            }
        }
    }
}
