//! Health checks: the health of processes, and the results that an agent derives.

use warren_task::HealthObservation;
use warren_types::{Health, TaskId};

use crate::event::WorkerEvent;
use crate::simulation::ClusterSimulation;

/// The health of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ProcessHealth {
    #[default]
    Healthy,
    /// Its checks fail, until it recovers.
    Failing,
    /// Its checks fail until it exits.
    Stuck,
}

impl ClusterSimulation {
    /// The health of a new process. After the faults all are healthy.
    pub(super) fn new_process_health(&mut self) -> ProcessHealth {
        match self.has_faults {
            true if self.rng.one_in(6) => ProcessHealth::Failing,
            true if self.rng.one_in(10) => ProcessHealth::Stuck,
            _ => ProcessHealth::Healthy,
        }
    }

    /// Schedules the next check of the task's process, if it has checks and none is scheduled.
    pub(super) fn schedule_check(&mut self, worker: usize, task: TaskId) {
        let place = &mut self.workers[worker];
        let shape = place.machine.get(&task).map(|remains| remains.health);
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        let last = match (actor.observed.health(actor.desired.as_deref()), shape) {
            (Health::None, _) => return,
            (Health::Healthy, Some(ProcessHealth::Healthy))
            | (Health::Unhealthy, Some(ProcessHealth::Stuck)) => !self.has_faults,
            _ => false,
        };
        // After the faults, checks of an unchanged process give nothing new.
        if actor.is_checked || (last && actor.observed.observed_health.is_some()) {
            return;
        }
        actor.is_checked = true;
        let interval = self.rng.between(100, 1_500);
        self.at_worker(worker, interval, WorkerEvent::CheckEnded(task));
    }

    /// A check of the task's process is complete.
    pub(super) fn finish_check(&mut self, worker: usize, task: TaskId) {
        let doubtful = self.rng.one_in(2);
        let place = &mut self.workers[worker];
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        actor.is_checked = false;
        let running = place.machine.get(&task).filter(|remains| remains.container.is_running());
        if let Some(remains) = running {
            let known = actor.observed.health(actor.desired.as_deref());
            let health = match (remains.health, known) {
                (ProcessHealth::Healthy, _) => Health::Healthy,
                // Failures in the start period do not count.
                (_, Health::None | Health::Starting) if doubtful => Health::Starting,
                _ => Health::Unhealthy,
            };
            let reason = if health == Health::Healthy { "" } else { "unhealthy: simulated" };
            actor.observed.record_health(HealthObservation { health, reason: reason.into() });
        }
        self.resume_checks(worker, task);
        self.step_task(worker, task);
    }

    /// Processes become unhealthy and recover; after the faults they only recover.
    fn resume_checks(&mut self, worker: usize, task: TaskId) {
        let Some(remains) = self.workers[worker].machine.get_mut(&task) else { return };
        let before = remains.health;
        remains.health = match before {
            ProcessHealth::Healthy if self.has_faults && self.rng.one_in(30) => ProcessHealth::Stuck,
            ProcessHealth::Healthy if self.has_faults && self.rng.one_in(12) => ProcessHealth::Failing,
            ProcessHealth::Failing if !self.has_faults || self.rng.one_in(4) => ProcessHealth::Healthy,
            as_before => as_before,
        };
        self.faults +=
            u64::from(before == ProcessHealth::Healthy && remains.health != ProcessHealth::Healthy);
    }
}
