//! One actor per task: calls `step`, executes one action, and reports the result.

use warren_task::{
    Action, ContainerState, FailureKind, NextStep, build_report, resolved_digest, should_report, step,
};
use warren_types::{DesiredTaskState, TaskExit, TaskId};

use super::{ActionEnd, TaskOnMachine};
use crate::event::WorkerEvent;
use crate::simulation::{ClusterSimulation, PlantedDefect};

impl ClusterSimulation {
    /// Chooses the next action for a task and begins it.
    pub(super) fn step_task(&mut self, worker: usize, task: TaskId) {
        let (now, elapsed) = (self.wall_clock(self.workers[worker].clock_off), self.elapsed());
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let standing = agent.contact.connectivity();
        let Some(actor) = agent.actors.get_mut(&task).filter(|actor| actor.current_action.is_none()) else {
            return;
        };
        let disconnected_for = match self.defect {
            Some(PlantedDefect::IgnoreDisconnect) => None,
            Some(PlantedDefect::DisconnectTooEarly) => {
                standing.disconnected_for(elapsed).map(|alone| alone.saturating_mul(2))
            }
            _ => standing.disconnected_for(elapsed),
        };
        actor.observed.record_inputs(actor.desired.as_deref(), disconnected_for, true, now);
        match step(actor.desired.as_deref(), &actor.observed, now) {
            NextStep::Do(action) => {
                let end = match self.rng.next() % self.fault_rates.action_fails_one_in {
                    0 if self.has_faults => ActionEnd::FailsBefore,
                    1 if self.has_faults => ActionEnd::FailsAfter,
                    2 if self.has_faults && action.kind().is_required_to_run() => ActionEnd::FailsForGood,
                    _ => ActionEnd::Succeeds,
                };
                actor.current_action = Some((action.clone(), end));
                self.faults += u64::from(end != ActionEnd::Succeeds);
                self.oracle_action_decided(worker, task, &action);
                let lasts = self.rng.between(1, 40);
                self.at_worker(worker, lasts, WorkerEvent::ActionEnded(task, Box::new(action), end));
            }
            NextStep::WaitUntil(moment) => {
                let wait = moment.0.saturating_sub(now.0).max(1);
                self.at_worker(worker, wait, WorkerEvent::StepTask(task));
            }
            NextStep::Settled => {}
        }
        self.schedule_check(worker, task);
        self.report_task(worker, task);
    }

    /// The runtime reported an event of the task's container.
    pub(super) fn inspect_task(&mut self, worker: usize, task: TaskId) {
        let Some(agent) = &mut self.workers[worker].agent else { return };
        if let Some(actor) = agent.actors.get_mut(&task) {
            actor.observed.mark_stale();
            self.step_task(worker, task);
        }
    }

    /// Completes an action: its effect on the machine, and the result that the agent gets.
    pub(super) fn finish_action(&mut self, worker: usize, task: TaskId, action: &Action, end: ActionEnd) {
        let now = self.wall_clock(self.workers[worker].clock_off);
        let place = &mut self.workers[worker];
        let welcomed = place.agent.as_ref().is_some_and(|agent| agent.is_welcome);
        let Some(actor) = place.agent.as_mut().and_then(|agent| agent.actors.get_mut(&task)) else { return };
        actor.current_action = None;
        let expected = actor.desired.clone();
        // What is not in memory any more must come from a manager.
        let there = place.machine.get(&task).is_some_and(|remains| remains.has_secrets);
        // A port may be held since an earlier incarnation by a task that managers do not know.
        let incarnation = self.oracle.incarnation();
        let is_old = place.machine.get(&task).is_some_and(|remains| remains.incarnation != incarnation);
        let holds = |other: &TaskOnMachine| other.holds_ports && (is_old || other.incarnation != incarnation);
        let ports = expected.as_ref().map(|expected| &expected.ports);
        let collides = |other: &TaskOnMachine| {
            let mut pairs = other
                .assignment
                .ports
                .iter()
                .flat_map(|held| ports.into_iter().flatten().map(move |port| (held, port)));
            pairs.any(|(held, port)| held.conflicts_with(port))
        };
        let others = place.machine.iter().filter(|(id, _)| id.service != task.service);
        let taken = others.into_iter().any(|(_, other)| holds(other) && collides(other));
        let end = match action {
            Action::ReservePorts | Action::RouteTraffic if taken => ActionEnd::FailsBefore,
            Action::EnsureSecretObjects if !there && !welcomed => ActionEnd::FailsBefore,
            _ => end,
        };
        if let (Action::Inspect, ActionEnd::Succeeds) = (action, end) {
            let remains = place.machine.get(&task);
            let container = remains.map_or(ContainerState::Absent, |remains| remains.container);
            actor.observed.record_inspection(container, remains.and_then(|remains| remains.attempts.clone()));
        } else {
            let ran = place.machine.get(&task).is_some_and(|remains| remains.container.is_running());
            let has_effect = matches!(end, ActionEnd::Succeeds | ActionEnd::FailsAfter);
            // A digest names the same image in every registry; a tag does not.
            let image = expected.as_deref().map(|expected| {
                resolved_digest(expected)
                    .unwrap_or_else(|| self.workers[worker].resolve(&expected.spec.image))
            });
            if has_effect && self.take_effect(worker, task, expected, action) {
                self.exit_event(worker, task);
            }
            let Some(agent) = &mut self.workers[worker].agent else { return };
            let Some(actor) = agent.actors.get_mut(&task) else { return };
            if let (Action::EnsureImage, ActionEnd::Succeeds, Some(image)) = (action, end, image) {
                actor.observed.record_image(image);
            } else if end == ActionEnd::Succeeds {
                actor.observed.record_success(action, now);
                // The process had already ended.
                if *action == Action::SignalStop && !ran {
                    actor.observed.mark_stale();
                }
            } else {
                let for_good = end == ActionEnd::FailsForGood;
                let kind = if for_good { FailureKind::Permanent } else { FailureKind::Transient };
                actor.observed.record_failure(action, kind, "simulated".into(), now);
            }
        }
        self.after_short_delay(worker, WorkerEvent::StepTask(task));
        self.report_task(worker, task);
    }

    /// A random process exits.
    pub(crate) fn exit_some_process(&mut self) -> bool {
        let running: Vec<(usize, TaskId)> = (0..self.workers.len())
            .flat_map(|worker| {
                let running = self.workers[worker].machine.iter();
                running.filter(|(_, found)| found.container.is_running()).map(move |(id, _)| (worker, *id))
            })
            .collect();
        let picked = self.rng.pick(&running);
        picked.is_some_and(|(worker, task)| self.exit_process(worker, task))
    }

    /// The task's process exits, if it runs.
    pub(crate) fn exit_process(&mut self, worker: usize, task: TaskId) -> bool {
        let code = i32::try_from(self.rng.between(0, 2)).unwrap_or(0);
        let at = self.wall_clock(self.workers[worker].clock_off);
        let remains = self.workers[worker].machine.get_mut(&task);
        let Some(remains) = remains.filter(|remains| remains.container.is_running()) else { return false };
        remains.container = ContainerState::Stopped { exit: TaskExit { code, out_of_memory: false }, at };
        self.exit_event(worker, task);
        true
    }

    /// The runtime reports an exit. One event in eight is lost, and noticed at the next list of all
    /// containers.
    fn exit_event(&mut self, worker: usize, task: TaskId) {
        let lost = self.has_faults && self.rng.one_in(8);
        let late = if lost { self.rng.between(1_000, 10_000) } else { 1 };
        self.at_worker(worker, late, WorkerEvent::InspectTask(task));
    }

    /// Queues the report of a task, and sends it.
    fn report_task(&mut self, worker: usize, task: TaskId) {
        let lies = self.defect == Some(PlantedDefect::ReportRemovedEarly);
        let Some(agent) = &mut self.workers[worker].agent else { return };
        let Some(actor) = agent.actors.get_mut(&task) else { return };
        let mut report = build_report(task, actor.desired.as_deref(), &actor.observed);
        report.removed |= lies
            && actor.desired.as_ref().is_some_and(|expected| expected.desired == DesiredTaskState::Remove);
        let ended = report.removed && actor.is_dropped && actor.current_action.is_none();
        let is_reported = should_report(actor.desired.as_deref(), &actor.observed);
        if is_reported {
            agent.outbox.push(report);
        }
        if ended {
            agent.actors.remove(&task);
            agent.outbox.remove(&task);
        }
        self.send_reports(worker);
    }
}
