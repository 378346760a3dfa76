//! One actor per task: asks `step`, does one action, and tells what came of it.

use warren_task::{Action, Container, Severity, Step, is_worth_telling, pin, report, step};
use warren_types::{Desired, Exit, TaskId};

use super::{Fate, Remains};
use crate::event::OnWorker;
use crate::world::{Defect, World};

impl World {
    /// Asks what to do for a task, and begins it.
    pub(super) fn steps(&mut self, worker: usize, task: TaskId) {
        let (now, elapsed) = (self.wall(self.workers[worker].clock_off), self.elapsed());
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let standing = agent.contact.standing();
        let Some(actor) = agent.actors.get_mut(&task).filter(|actor| actor.doing.is_none()) else { return };
        actor.found.alone_for = match self.defect {
            Some(Defect::NeverAlone) => None,
            Some(Defect::SoonAlone) => standing.alone_for(elapsed).map(|alone| alone.saturating_mul(2)),
            _ => standing.alone_for(elapsed),
        };
        match step(actor.wanted.as_deref(), &actor.found, now) {
            Step::Do(action) => {
                let fate = match self.chance.next() % self.climate.action_fails_one_in {
                    0 if self.faulty => Fate::FailsBefore,
                    1 if self.faulty => Fate::FailsAfter,
                    2 if self.faulty && action.verb().brings_up() => Fate::FailsForGood,
                    _ => Fate::Succeeds,
                };
                actor.doing = Some((action.clone(), fate));
                self.faults += u64::from(fate != Fate::Succeeds);
                self.oracle_decides(worker, task, &action);
                let lasts = self.chance.between(1, 40);
                self.at_worker(worker, lasts, OnWorker::Acts(task, Box::new(action), fate));
            }
            Step::WaitUntil(moment) => {
                let wait = moment.0.saturating_sub(now.0).max(1);
                self.at_worker(worker, wait, OnWorker::Steps(task));
            }
            Step::Settled => {}
        }
        self.begins_checks(worker, task);
        self.says(worker, task);
    }

    /// The runtime told that something happened to the task's container.
    pub(super) fn looks(&mut self, worker: usize, task: TaskId) {
        let Some(agent) = &mut self.workers[worker].agent else { return };
        if let Some(actor) = agent.actors.get_mut(&task) {
            actor.found.overtaken();
            self.steps(worker, task);
        }
    }

    /// The end of an action: its effect on the machine, and what the agent is told of it.
    pub(super) fn acts(&mut self, worker: usize, task: TaskId, action: &Action, fate: Fate) {
        let now = self.wall(self.workers[worker].clock_off);
        let place = &mut self.workers[worker];
        let welcomed = place.agent.as_ref().is_some_and(|agent| agent.welcomed);
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        actor.doing = None;
        let wanted = actor.wanted.clone();
        // What is not in memory any more has to come from a manager.
        let there = place.machine.get(&task).is_some_and(|remains| remains.contents);
        // What holds a port since a life of the cluster that is over may be no task that managers know.
        let life = self.oracle.life();
        let is_old = place.machine.get(&task).is_some_and(|remains| remains.life != life);
        let holds = |other: &Remains| other.holds_ports && (is_old || other.life != life);
        let ports = wanted.as_ref().map(|wanted| &wanted.ports);
        let collides = |other: &Remains| {
            let mut pairs = other
                .assignment
                .ports
                .iter()
                .flat_map(|held| ports.into_iter().flatten().map(move |port| (held, port)));
            pairs.any(|(held, port)| held.collides(port))
        };
        let others = place.machine.iter().filter(|(id, _)| id.service != task.service);
        let taken = others.into_iter().any(|(_, other)| holds(other) && collides(other));
        let fate = match action {
            Action::HoldPorts | Action::Serve if taken => Fate::FailsBefore,
            Action::EnsureContents if !there && !welcomed => Fate::FailsBefore,
            _ => fate,
        };
        if let (Action::Inspect, Fate::Succeeds) = (action, fate) {
            let remains = place.machine.get(&task);
            let container = remains.map_or(Container::Absent, |remains| remains.container);
            actor.found.inspected(container, remains.and_then(|remains| remains.ledger.clone()));
        } else {
            let ran = place.machine.get(&task).is_some_and(|remains| remains.container.is_running());
            let has_effect = matches!(fate, Fate::Succeeds | Fate::FailsAfter);
            // By its digest every registry has it; by its tag each has its own.
            let image = wanted.as_deref().map(|wanted| {
                pin(wanted).unwrap_or_else(|| self.workers[worker].resolve(&wanted.spec.image))
            });
            if has_effect && self.take_effect(worker, task, wanted, action) {
                self.exit_event(worker, task);
            }
            let Some(agent) = &mut self.workers[worker].agent else { return };
            let Some(actor) = agent.actors.get_mut(&task) else { return };
            if let (Action::EnsureImage, Fate::Succeeds, Some(image)) = (action, fate, image) {
                actor.found.obtained(image);
            } else if fate == Fate::Succeeds {
                actor.found.succeeded(action, now);
                // There was nothing to signal.
                if *action == Action::SignalStop && !ran {
                    actor.found.overtaken();
                }
            } else {
                let for_good = fate == Fate::FailsForGood;
                let severity = if for_good { Severity::Permanent } else { Severity::Transient };
                actor.found.failed(action, severity, "simulated".into(), now);
            }
        }
        self.soon_at_worker(worker, OnWorker::Steps(task));
        self.says(worker, task);
    }

    /// A process that was picked by chance exits by itself.
    pub(crate) fn some_process_exits(&mut self) -> bool {
        let running: Vec<(usize, TaskId)> = (0..self.workers.len())
            .flat_map(|worker| {
                let running = self.workers[worker].machine.iter();
                running.filter(|(_, found)| found.container.is_running()).map(move |(id, _)| (worker, *id))
            })
            .collect();
        let picked = self.chance.pick(&running);
        picked.is_some_and(|(worker, task)| self.process_exits(worker, task))
    }

    /// The task's process exits, if it runs.
    pub(crate) fn process_exits(&mut self, worker: usize, task: TaskId) -> bool {
        let code = i32::try_from(self.chance.between(0, 2)).unwrap_or(0);
        let at = self.wall(self.workers[worker].clock_off);
        let remains = self.workers[worker].machine.get_mut(&task);
        let Some(remains) = remains.filter(|remains| remains.container.is_running()) else { return false };
        remains.container = Container::Stopped { exit: Exit { code, out_of_memory: false }, at };
        self.exit_event(worker, task);
        true
    }

    /// The runtime tells of an exit. One event in eight is lost, and found by the next list of all
    /// containers.
    fn exit_event(&mut self, worker: usize, task: TaskId) {
        let lost = self.faulty && self.chance.one_in(8);
        let late = if lost { self.chance.between(1_000, 10_000) } else { 1 };
        self.at_worker(worker, late, OnWorker::Looks(task));
    }

    /// Notes what is to be said of a task, and says it.
    fn says(&mut self, worker: usize, task: TaskId) {
        let lies = self.defect == Some(Defect::SaysRemovedEarly);
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let Some(actor) = agent.actors.get_mut(&task) else { return };
        let mut said = report(task, actor.wanted.as_deref(), &actor.found);
        said.removed |= lies && actor.wanted.as_ref().is_some_and(|wanted| wanted.desired == Desired::Remove);
        let ended = said.removed && actor.dismissed && actor.doing.is_none();
        let told = is_worth_telling(actor.wanted.as_deref(), &actor.found);
        if told {
            agent.outbox.tell(said);
        }
        if ended {
            agent.actors.remove(&task);
            agent.outbox.forget(&task);
        }
        self.send_reports(worker);
    }
}
