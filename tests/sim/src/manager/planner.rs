//! The runner of the work queue: a due key is planned, and its commands are proposed one after the other.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_control::KeySchedule;
use warren_core::{ImageStep, ReconcilePlan, image_step, pin_command};
use warren_replica::{AppliedWrite, PlanErrorAction, ProposeError, ReconcileKey, WakeUps};
use warren_types::{ServiceId, Timestamp};

use crate::event::ManagerEvent;
use crate::simulation::ClusterSimulation;

/// The most keys in a queue.
const MAX_KEYS: usize = 1_000;
/// Time before a failed plan is made again.
const RETRY_AFTER: Duration = Duration::from_millis(200);

/// A manager's work queue.
#[derive(Debug)]
pub struct PlannerQueue {
    keys: KeySchedule<ReconcileKey, u64>,
    /// When the next [`ManagerEvent::Plan`] comes.
    event_at: Option<u64>,
    /// What is left of a plan.
    running: BTreeMap<ReconcileKey, ReconcilePlan>,
}

impl Default for PlannerQueue {
    fn default() -> Self {
        Self { keys: KeySchedule::new(MAX_KEYS), event_at: None, running: BTreeMap::new() }
    }
}

impl ClusterSimulation {
    /// Enqueues keys, and wakes sessions of workers.
    pub(super) fn wake(&mut self, host: usize, WakeUps { keys, sessions }: WakeUps) {
        for key in keys {
            let delay = self.rng.between(0, 8) + millis(key.debounce());
            let due = self.now + delay;
            let Some(run) = &mut self.managers[host].run else { return };
            let woken = run.planning.keys.wake_at(key, due).map_err(|full| full.to_string());
            self.check(woken);
        }
        self.await_due(host);
        self.wake_sessions(host, sessions.as_ref());
    }

    fn await_due(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(due) = run.planning.keys.next_due() else { return };
        if run.planning.event_at.is_none_or(|at| due < at) {
            run.planning.event_at = Some(due);
            self.at_manager(host, due.saturating_sub(now), ManagerEvent::Plan);
        }
    }

    /// Plans all keys that are due.
    pub(super) fn plan_due(&mut self, host: usize) {
        let now = self.now;
        let Some(run) = &mut self.managers[host].run else { return };
        // An event that was replaced by an earlier one finds nothing to do, or is too early.
        if run.planning.event_at.take_if(|at| *at <= now).is_none() {
            return;
        }
        while let Some(key) = self.managers[host].run.as_mut().and_then(|run| run.planning.keys.take_due(now))
        {
            self.plan(host, key);
        }
        self.await_due(host);
    }

    fn plan(&mut self, host: usize, key: ReconcileKey) {
        let stamp = self.wall_time(host);
        let Some(run) = self.process(host) else { return };
        if !run.role().can_plan {
            return self.finish_key(host, key, None);
        }
        let plan = match key {
            ReconcileKey::Liveness => return self.request_contacts(host),
            ReconcileKey::Members => self.reconfigure(host),
            ReconcileKey::Image(id) => self.resolve_image(host, &id, stamp),
            _ => key.plan(run.state(), stamp).unwrap_or_default(),
        };
        if key == ReconcileKey::Level {
            self.found_cluster(host);
        }
        self.start_plan(host, key, plan);
    }

    /// The registry of the managers answers at once, and not as those of the workers.
    fn resolve_image(&self, host: usize, id: &ServiceId, now: Timestamp) -> ReconcilePlan {
        let Some(run) = self.process(host) else { return ReconcilePlan::default() };
        let state = run.state();
        let Some(ImageStep { revision, image, import }) = image_step(state, id) else {
            return ReconcilePlan::default();
        };
        let digest = import.unwrap_or_else(|| {
            let reference = format!("{image}-of-managers").parse().expect("a valid reference");
            self.workers[0].resolve(&reference)
        });
        let command = pin_command(state, *id, revision, digest, now);
        ReconcilePlan { commands: vec![command], ..ReconcilePlan::default() }
    }

    pub(super) fn start_plan(&mut self, host: usize, key: ReconcileKey, plan: ReconcilePlan) {
        let stamp = self.wall_time(host);
        self.oracle_planned(host, key, stamp, &plan);
        let Some(run) = &mut self.managers[host].run else { return };
        run.planning.running.insert(key, plan);
        self.continue_plan(host, key);
    }

    fn continue_plan(&mut self, host: usize, key: ReconcileKey) {
        let Some(run) = &mut self.managers[host].run else { return };
        let Some(plan) = run.planning.running.get_mut(&key) else { return };
        if !plan.commands.is_empty() {
            let command = Box::new(plan.commands.remove(0));
            let delay = self.planner_delay(key);
            return self.at_manager(host, delay, ManagerEvent::Propose { key, command });
        }
        match (plan.pause, plan.recheck_after) {
            (Some(pause), _) => {
                run.planning.running.remove(&key);
                run.planning.keys.finish_paused(&key, self.now + millis(pause));
                self.await_due(host);
            }
            (None, recheck_after) => self.finish_key(host, key, recheck_after),
        }
    }

    /// The time between two commands of a planner. Meanwhile another manager may lead, and this one again. Membership
    /// is not delayed: a change must not begin long after it was requested, see [`Self::is_loss_tolerable`].
    fn planner_delay(&mut self, key: ReconcileKey) -> u64 {
        let may_be_slow = self.has_faults && key != ReconcileKey::Members;
        let slow = may_be_slow && self.rng.one_in(self.fault_rates.slow_one_in);
        let longest = if slow { 4_000 } else { 3 };
        self.rng.between(0, longest)
    }

    /// One command of a plan was applied, or will not be.
    pub(super) fn planned_command_ended(
        &mut self,
        host: usize,
        key: ReconcileKey,
        written: Result<AppliedWrite, ProposeError>,
    ) {
        let error = written.and_then(|written| written.result.map_err(ProposeError::Rejected)).err();
        match error.as_ref().map(PlanErrorAction::from) {
            None | Some(PlanErrorAction::Continue) => self.continue_plan(host, key),
            Some(PlanErrorAction::RequeueAfter(after)) => self.finish_key(host, key, Some(after)),
            Some(PlanErrorAction::Fail) => self.finish_key(host, key, Some(RETRY_AFTER)),
        }
    }

    pub(super) fn finish_key(&mut self, host: usize, key: ReconcileKey, again: Option<Duration>) {
        let again = again.map(|after| self.now + millis(after).max(1));
        let Some(run) = &mut self.managers[host].run else { return };
        run.planning.running.remove(&key);
        run.planning.keys.finish(&key, again);
        self.await_due(host);
    }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX >> 1)
}
