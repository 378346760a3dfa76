//! The controllers: changes enqueue keys, one key is never processed twice at once, and plans are proposed.

use std::collections::{BTreeMap, BTreeSet};

use warren_core::{Command, ReconcilePlan, State, StateChange, reap, reconcile_service, schedule};
use warren_types::{ServiceId, Timestamp};

use super::WriteOrigin;
use crate::event::ManagerEvent;
use crate::simulation::ClusterSimulation;

/// One item of the work queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannerKey {
    Liveness,
    Members,
    Schedule,
    Replicas(ServiceId),
    Reap(ServiceId),
}

/// A manager's work queue.
#[derive(Debug, Default)]
pub struct PlannerQueue {
    /// Enqueued keys, and when each is due.
    scheduled: BTreeMap<PlannerKey, u64>,
    /// The number of commands in flight of a key's plan.
    running: BTreeMap<PlannerKey, usize>,
    /// Enqueued again while in progress.
    again: BTreeSet<PlannerKey>,
}

/// Calls the planner of a key, except for liveness and membership, which need the contacts.
pub fn compute_plan(state: &State, key: PlannerKey, now: Timestamp) -> ReconcilePlan {
    match key {
        PlannerKey::Replicas(id) => reconcile_service(state, &id, now),
        PlannerKey::Reap(id) => reap(state, &id),
        PlannerKey::Schedule => {
            let placement = schedule(state, now);
            let commands = placement.command(state, now).into_iter().collect();
            ReconcilePlan { commands, recheck_after: placement.recheck_after }
        }
        PlannerKey::Liveness | PlannerKey::Members => ReconcilePlan::default(),
    }
}

impl ClusterSimulation {
    /// In a new term, work of older terms is dropped and everything is enqueued.
    pub(super) fn restart_planning(&mut self, host: usize) {
        if let Some(run) = &mut self.managers[host].run {
            run.planning = PlannerQueue::default();
        }
        self.wake_all(host);
    }

    pub(super) fn wake_all(&mut self, host: usize) {
        let Some(run) = self.process(host) else { return };
        let services: Vec<ServiceId> = run.state.services().map(|service| service.id).collect();
        let keys = services.into_iter().flat_map(|id| [PlannerKey::Replicas(id), PlannerKey::Reap(id)]);
        for key in
            keys.chain([PlannerKey::Liveness, PlannerKey::Members, PlannerKey::Schedule]).collect::<Vec<_>>()
        {
            self.wake_key(host, key);
        }
    }

    /// Maps applied changes to keys.
    pub(super) fn wake(&mut self, host: usize, changes: &[StateChange]) {
        let Some(run) = self.process(host).filter(|run| run.role.may_plan) else { return };
        let mut keys = BTreeSet::new();
        for change in changes {
            match *change {
                StateChange::Service(id) => {
                    keys.extend([PlannerKey::Replicas(id), PlannerKey::Reap(id), PlannerKey::Schedule])
                }
                StateChange::Task(task) => {
                    keys.extend([
                        PlannerKey::Replicas(task.service),
                        PlannerKey::Reap(task.service),
                        PlannerKey::Schedule,
                    ]);
                }
                StateChange::Node(id) => {
                    keys.extend([PlannerKey::Liveness, PlannerKey::Schedule]);
                    keys.extend(run.state.affected_services(&id).into_iter().map(PlannerKey::Replicas));
                }
                // Nodes where a task can be.
                StateChange::Volume(_) => drop(keys.insert(PlannerKey::Schedule)),
                StateChange::Member(_) => drop(keys.insert(PlannerKey::Members)),
                StateChange::Assignment(_)
                | StateChange::Cluster
                | StateChange::Token(_)
                | StateChange::SecretObject(_) => {}
            }
        }
        for key in keys {
            self.wake_key(host, key);
        }
    }

    /// Membership may need a step, if this manager leads.
    pub(super) fn wake_members(&mut self, host: usize) {
        if self.process(host).is_some_and(|run| run.role.may_plan) {
            self.wake_key(host, PlannerKey::Members);
        }
    }

    fn wake_key(&mut self, host: usize, key: PlannerKey) {
        let delay = self.rng.between(0, 8);
        self.wake_later(host, key, delay);
    }

    /// Equal keys collapse, and the earlier time wins.
    fn wake_later(&mut self, host: usize, key: PlannerKey, delay: u64) {
        let at = self.now + delay;
        let Some(run) = &mut self.managers[host].run else { return };
        let sooner = run.planning.scheduled.get(&key).is_none_or(|planned| at < *planned);
        if sooner {
            run.planning.scheduled.insert(key, at);
            self.at_manager(host, delay, ManagerEvent::Plan(key));
        }
    }

    pub(super) fn plan(&mut self, host: usize, key: PlannerKey) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        // An event that was replaced by an earlier one finds nothing to do, or is too early.
        if run.planning.scheduled.get(&key).is_none_or(|planned| *planned > now) {
            return;
        }
        run.planning.scheduled.remove(&key);
        if !run.role.may_plan {
            return;
        }
        if run.planning.running.contains_key(&key) {
            run.planning.again.insert(key);
            return;
        }
        let stamp = self.wall_time(host);
        let Some(run) = self.process(host) else { return };
        let term = run.role.term;
        let plan = match key {
            PlannerKey::Liveness => self.plan_liveness(host),
            PlannerKey::Members => self.reconfigure(host),
            _ => compute_plan(&run.state, key, stamp),
        };
        self.oracle_planned(host, key, stamp, &plan);
        if let (count @ 1.., Some(run)) = (plan.commands.len(), &mut self.managers[host].run) {
            run.planning.running.insert(key, count);
        }
        let mut delay = 0;
        for command in plan.commands {
            delay += self.planner_delay();
            let command = Box::new(command);
            self.at_manager(host, delay, ManagerEvent::Propose { key, term, command });
        }
        if let Some(after) = plan.recheck_after {
            let after = u64::try_from(after.as_millis()).unwrap_or(u64::MAX >> 1).clamp(1, 60_000);
            self.wake_later(host, key, after);
        }
    }

    /// The time between two commands of a planner. Meanwhile another manager may lead, and this one again.
    fn planner_delay(&mut self) -> u64 {
        let slow = self.has_faults && self.rng.one_in(self.fault_rates.slow_one_in);
        let longest = if slow { 4_000 } else { 3 };
        self.rng.between(0, longest)
    }

    pub(super) fn propose_planned(&mut self, host: usize, key: PlannerKey, term: u64, command: Command) {
        self.propose(host, WriteOrigin::Planner { key, term }, command, u64::MAX);
    }

    /// One command of a plan was applied, or will not be.
    pub(super) fn plan_carried_out(&mut self, host: usize, key: PlannerKey, term: u64) {
        let Some(run) = self.managers[host].run.as_mut().filter(|run| run.role.term == term) else { return };
        let Some(left) = run.planning.running.get_mut(&key) else { return };
        *left -= 1;
        if *left == 0 {
            run.planning.running.remove(&key);
            if run.planning.again.remove(&key) {
                self.wake_key(host, key);
            }
        }
    }
}
