//! Checks: how processes do, and what an agent makes of it.

use warren_task::Checked;
use warren_types::{Health, TaskId};

use crate::event::OnWorker;
use crate::world::World;

/// How a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    #[default]
    Well,
    /// Its checks fail, until it recovers.
    Ailing,
    /// Its checks fail as long as it lives.
    Stuck,
}

impl World {
    /// How a process that is started now does. In peace all are well.
    pub(super) fn shape_of_a_new_process(&mut self) -> Shape {
        match self.faulty {
            true if self.chance.one_in(6) => Shape::Ailing,
            true if self.chance.one_in(10) => Shape::Stuck,
            _ => Shape::Well,
        }
    }

    /// The next check of the task's process, if it has any and none is to come.
    pub(super) fn begins_checks(&mut self, worker: usize, task: TaskId) {
        let place = &mut self.workers[worker];
        let shape = place.machine.get(&task).map(|remains| remains.shape);
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        let last = match (actor.found.health(actor.wanted.as_deref()), shape) {
            (Health::None, _) => return,
            (Health::Healthy, Some(Shape::Well)) | (Health::Unhealthy, Some(Shape::Stuck)) => !self.faulty,
            _ => false,
        };
        // In peace nothing more is learned of a process that does not change.
        if actor.is_checked || (last && actor.found.checked.is_some()) {
            return;
        }
        actor.is_checked = true;
        let interval = self.chance.between(100, 1_500);
        self.at_worker(worker, interval, OnWorker::Checks(task));
    }

    /// A check of the task's process is over.
    pub(super) fn checks(&mut self, worker: usize, task: TaskId) {
        let doubtful = self.chance.one_in(2);
        let place = &mut self.workers[worker];
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        actor.is_checked = false;
        let running = place.machine.get(&task).filter(|remains| remains.container.is_running());
        if let Some(remains) = running {
            let known = actor.found.health(actor.wanted.as_deref());
            let health = match (remains.shape, known) {
                (Shape::Well, _) => Health::Healthy,
                // The first failures do not count.
                (_, Health::None | Health::Starting) if doubtful => Health::Starting,
                _ => Health::Unhealthy,
            };
            let reason = if health == Health::Healthy { "" } else { "unhealthy: simulated" };
            actor.found.checked(Checked { health, reason: reason.into() });
        }
        self.goes_on(worker, task);
        self.steps(worker, task);
    }

    /// Processes fall ill and recover; in peace they only recover.
    fn goes_on(&mut self, worker: usize, task: TaskId) {
        let Some(remains) = self.workers[worker].machine.get_mut(&task) else { return };
        let before = remains.shape;
        remains.shape = match before {
            Shape::Well if self.faulty && self.chance.one_in(30) => Shape::Stuck,
            Shape::Well if self.faulty && self.chance.one_in(12) => Shape::Ailing,
            Shape::Ailing if !self.faulty || self.chance.one_in(4) => Shape::Well,
            as_before => as_before,
        };
        self.faults += u64::from(before == Shape::Well && remains.shape != Shape::Well);
    }
}
