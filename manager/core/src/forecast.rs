//! What a list of writes would do, without doing it: the writes are applied to a copy of the state, and the planners
//! run on it as if every task started and stopped as it should. What nobody knows beforehand is not guessed: a task
//! that fails, a node that is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_types::{
    DesiredTaskState, Health, Node, NodeId, NodeName, NodeStatus, Service, ServiceId, ServiceMode,
    ServiceName, Task, TaskId, TaskReport, TaskState, Timestamp,
};

use crate::explain::explain_task;
use crate::reconcile::{pin_command, reconcile_service, uncreated_tasks, unplaced_tasks};
use crate::rollout::{RolloutState, rollout};
use crate::scheduler::{UnschedulableReasons, schedule};
use crate::state::{ApplyOutcome, Command, Refusal, State, StateChange, awaits_managers};

/// The most rounds of planning: an update of more slots, one after the other, is not followed to its end.
const MAX_ROUNDS: usize = 1000;
/// The most tasks that are looked at in all rounds.
const MAX_TASK_VISITS: usize = 2_000_000;
/// The most slots, and the most stopped tasks, that a forecast lists.
pub const MAX_FORECAST_ITEMS: usize = 10_000;

/// What writes would do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Forecast {
    /// Where the replicas of the changed services would be, by service and slot.
    pub slots: Vec<SlotForecast>,
    /// Tasks that would be stopped, by service and slot.
    pub stops: Vec<StopForecast>,
    /// Replicas of services for which there would be no room, so that no task is created.
    pub uncreated: Vec<(ServiceName, u32)>,
    /// Why it is not the end of all that would follow; empty if it is.
    pub incomplete_reason: String,
}

/// Where a replica would be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotForecast {
    /// Its service.
    pub service: ServiceName,
    /// Its slot; in a global service the number of its node.
    pub slot: u32,
    /// Its node; `None` if no node fits.
    pub node: Option<NodeName>,
    /// Why no node fits, or why it would not run there; empty if it would run.
    pub reason: String,
    /// It is a task that does not exist yet.
    pub is_new: bool,
}

/// A task that would be stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopForecast {
    /// Its service.
    pub service: ServiceName,
    /// Its slot.
    pub slot: u32,
    /// The task.
    pub task: TaskId,
    /// Its node, if it has one.
    pub node: Option<NodeName>,
}

/// Applies writes to a copy of a state.
#[derive(Debug, Clone)]
pub struct Forecaster {
    before: State,
    after: State,
    now: Timestamp,
    services: BTreeSet<ServiceId>,
    refusals: UnschedulableReasons,
    task_visits: usize,
}

impl Forecaster {
    /// Begins with `state` at the time `now`.
    pub fn new(state: &State, now: Timestamp) -> Self {
        Self {
            before: state.clone(),
            after: state.clone(),
            now,
            services: BTreeSet::new(),
            refusals: UnschedulableReasons::default(),
            task_visits: 0,
        }
    }

    /// The state after the writes so far.
    pub fn state(&self) -> &State {
        &self.after
    }

    /// Applies a write. Returns whether it changes anything.
    ///
    /// # Errors
    /// The write would be refused; it changes nothing.
    pub fn write(&mut self, command: &Command) -> Result<bool, Refusal> {
        match self.apply(command) {
            ApplyOutcome::Applied { changes, .. } => {
                changes.into_iter().for_each(|change| self.note(change));
                Ok(true)
            }
            ApplyOutcome::Unchanged { .. } => Ok(false),
            ApplyOutcome::Rejected(refusal) => Err(refusal),
        }
    }

    /// Follows what the writes lead to.
    pub fn finish(mut self) -> Forecast {
        let mut rounds = 0;
        let is_complete = loop {
            if rounds == MAX_ROUNDS || self.task_visits > MAX_TASK_VISITS {
                break false;
            }
            rounds += 1;
            match self.round() {
                Progress::Changed => {}
                Progress::After(time) if self.is_any_updating() => self.now = self.now + time,
                Progress::After(_) | Progress::Settled => break true,
            }
        };
        self.result(is_complete)
    }

    fn apply(&mut self, command: &Command) -> ApplyOutcome {
        let applied = self.after.applied();
        self.after.apply(applied.term, applied.index.saturating_add(1), command)
    }

    /// Records which services a change concerns.
    fn note(&mut self, change: StateChange) {
        match change {
            StateChange::Service(id) => drop(self.services.insert(id)),
            StateChange::Node(node) => {
                let here: BTreeSet<ServiceId> =
                    self.before.tasks_on(&node).map(|task| task.id.service).collect();
                let moves = |service: &Service| {
                    service.spec.mode == ServiceMode::Global
                        || here.contains(&service.id)
                        || unplaced_tasks(&self.before, &service.id) > 0
                };
                let moved = self.before.services().filter(|service| moves(service)).map(|service| service.id);
                self.services.extend(moved);
            }
            _ => {}
        }
    }

    /// Plans once, and lets workers do what is planned.
    fn round(&mut self) -> Progress {
        let mut has_changed = false;
        let mut wait: Option<Duration> = None;
        for id in self.services.clone() {
            has_changed |= self.pin_image(&id);
            let plan = reconcile_service(&self.after, &id, self.now);
            has_changed |= self.carry_out(&plan.commands);
            wait = [wait, plan.recheck_after, plan.pause].into_iter().flatten().min();
        }
        let placement = schedule(&self.after, self.now);
        has_changed |= self.carry_out(placement.command(&self.after, self.now).as_slice());
        wait = [wait, placement.recheck_after].into_iter().flatten().min();
        self.refusals = placement.refusals;
        has_changed |= self.let_workers_act();
        match wait {
            _ if has_changed => Progress::Changed,
            // A plan that is cut short is continued at once.
            Some(time) => Progress::After(time.max(Duration::from_millis(1))),
            None => Progress::Settled,
        }
    }

    /// Managers know what its image is.
    fn pin_image(&mut self, id: &ServiceId) -> bool {
        let Some(service) = self.after.service(id).filter(|service| awaits_managers(service)) else {
            return false;
        };
        let revision = service.revision.number;
        // Which digest it is changes nothing.
        let Ok(digest) = format!("sha256:{}", "0".repeat(64)).parse() else { return false };
        let command = pin_command(&self.after, *id, revision, digest, self.now);
        self.carry_out(std::slice::from_ref(&command))
    }

    fn carry_out(&mut self, commands: &[Command]) -> bool {
        let mut has_changed = false;
        for command in commands {
            has_changed |= matches!(self.apply(command), ApplyOutcome::Applied { .. });
        }
        has_changed
    }

    /// Each task of the services gets to its desired state, on nodes that have contact.
    fn let_workers_act(&mut self) -> bool {
        let mut reports: BTreeMap<NodeId, Vec<TaskReport>> = BTreeMap::new();
        for id in &self.services {
            for task in self.after.tasks_of(id) {
                self.task_visits += 1;
                let node = task.node.and_then(|node| self.after.node(&node));
                let Some(node) = node.filter(|node| node.status == NodeStatus::Ready) else { continue };
                let next = next_report(task, self.now);
                next.into_iter().for_each(|report| reports.entry(node.id).or_default().push(report));
            }
        }
        let session = |node: &NodeId| self.after.node(node).map(|node: &std::sync::Arc<Node>| node.session);
        let commands = reports.into_iter().filter_map(|(node, reports)| {
            Some(Command::ReportTasks { node, session: session(&node)?, reports, at: self.now })
        });
        let commands: Vec<Command> = commands.collect();
        self.carry_out(&commands)
    }

    /// Whether waiting leads to more of what the writes began: an update goes on, or a task waits for its replacement.
    fn is_any_updating(&self) -> bool {
        let mut services = self.services.iter().filter_map(|id| self.after.service(id));
        services.any(|service| {
            let mut pairs = self.after.index().paired_slots.range((service.id, 0)..=(service.id, u32::MAX));
            let state = || rollout(&self.after, service, self.now).state;
            service.removing
                || pairs.next().is_some()
                || matches!(state(), RolloutState::Updating | RolloutState::RollingBack)
        })
    }

    fn result(self, is_complete: bool) -> Forecast {
        let mut forecast = Forecast::default();
        for id in &self.services {
            self.add_slots(id, &mut forecast);
            self.add_stops(id, &mut forecast);
        }
        forecast.slots.sort_by(|one, other| (&one.service, one.slot).cmp(&(&other.service, other.slot)));
        forecast.stops.sort_by(|one, other| {
            (&one.service, one.slot, one.task).cmp(&(&other.service, other.slot, other.task))
        });
        let items = forecast.slots.len().max(forecast.stops.len());
        if !is_complete {
            forecast.incomplete_reason =
                "it is followed for a limited number of steps only; the rest of the update \
                                          goes on in the same way"
                    .to_owned();
        } else if items > MAX_FORECAST_ITEMS {
            forecast.incomplete_reason = format!("only the first {MAX_FORECAST_ITEMS} of {items} are listed");
        }
        forecast.slots.truncate(MAX_FORECAST_ITEMS);
        forecast.stops.truncate(MAX_FORECAST_ITEMS);
        forecast
    }

    fn node_name(state: &State, task: &Task) -> Option<NodeName> {
        Some(state.node(&task.node?)?.name.clone())
    }

    fn add_slots(&self, id: &ServiceId, forecast: &mut Forecast) {
        let Some(service) = self.after.service(id).filter(|service| !service.removing) else { return };
        let name = &service.spec.name;
        // The newest task of a slot.
        let live = self.after.tasks_of(id).filter(|task| task.is_live());
        let newest: BTreeMap<u32, _> = live.map(|task| (task.slot, task)).collect();
        forecast.slots.extend(newest.into_values().map(|task| SlotForecast {
            service: name.clone(),
            slot: task.slot,
            node: Self::node_name(&self.after, task),
            reason: explain_task(&self.after, Some(&self.refusals), task, self.now),
            is_new: self.before.task(&task.id).is_none(),
        }));
        let uncreated = uncreated_tasks(&self.after, service);
        forecast.uncreated.extend((uncreated > 0).then(|| (name.clone(), uncreated)));
    }

    fn add_stops(&self, id: &ServiceId, forecast: &mut Forecast) {
        let Some(service) = self.before.service(id) else { return };
        let stays = |task: &Task| self.after.task(&task.id).is_some_and(|task| task.is_live());
        let stopped = self.before.tasks_of(id).filter(|task| task.is_live() && !stays(task));
        forecast.stops.extend(stopped.map(|task| StopForecast {
            service: service.spec.name.clone(),
            slot: task.slot,
            task: task.id,
            node: Self::node_name(&self.before, task),
        }));
    }
}

/// The result of a round.
enum Progress {
    Changed,
    /// Nothing changes before this time is over.
    After(Duration),
    Settled,
}

/// What the worker of a task reports next; `None` if the task is where it should be.
fn next_report(task: &Task, now: Timestamp) -> Option<TaskReport> {
    let (observed, attempt) = (&task.observed, task.observed.attempt);
    let (attempt, state, removed) = match task.desired {
        _ if observed.removed => return None,
        DesiredTaskState::Shutdown | DesiredTaskState::Remove => {
            let ended = observed.state.is_terminal();
            (attempt, if ended { observed.state } else { TaskState::Shutdown }, true)
        }
        _ if observed.state.is_terminal() => return None,
        DesiredTaskState::Ready if observed.state < TaskState::Ready => (attempt, TaskState::Ready, false),
        DesiredTaskState::Running if !observed.ready => (attempt.max(1), TaskState::Running, false),
        DesiredTaskState::Ready | DesiredTaskState::Running => return None,
    };
    let (is_running, has_check) = (state == TaskState::Running, task.revision.task.health.is_some());
    Some(TaskReport {
        task: task.id,
        attempt,
        state,
        since: now,
        reason: String::new(),
        ready: is_running,
        exit: None,
        removed,
        next_attempt: None,
        image: None,
        health: if is_running && has_check { Health::Healthy } else { Health::None },
    })
}
