//! The observed state of a service, and whether it has reached a goal. Pure.

mod check;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_client::Change;
use warren_proto::convert::task_state;
use warren_proto::v1;
use warren_types::TaskState;

use super::{ServiceGoal, WaitGoal};
use crate::view::joined_names;
use crate::view::service::uncreated_summary;
use crate::view::task::{LOST, STOPPING, name, settling_text};

/// A service and its tasks, as last observed.
#[derive(Debug, Clone, Default)]
pub struct ServiceSnapshot {
    service: KnownService,
    tasks: BTreeMap<String, v1::Task>,
}

#[derive(Debug, Clone, Default)]
enum KnownService {
    #[default]
    Unknown,
    Present(Box<v1::Service>),
    Gone,
}

/// Result of comparing a snapshot with a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The goal is reached.
    Reached,
    /// The goal cannot be reached, for these reasons.
    Failed(Vec<String>),
    /// The goal is not reached yet.
    Waiting,
}

impl ServiceSnapshot {
    pub fn of(service: v1::Service, tasks: Vec<v1::Task>) -> Self {
        let tasks = tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
        Self { service: KnownService::Present(Box::new(service)), tasks }
    }

    pub fn removed() -> Self {
        Self { service: KnownService::Gone, tasks: BTreeMap::new() }
    }

    pub fn is_known(&self) -> bool {
        !matches!(self.service, KnownService::Unknown)
    }

    /// Applies a change of the service or of a task; others are ignored.
    pub fn update(&mut self, change: Change) {
        match change {
            Change::Service(service) => self.update_service(service),
            Change::RemovedService(_) => *self = Self::removed(),
            Change::Task(task) => self.update_task(task),
            Change::RemovedTask(id) => {
                self.tasks.remove(&id);
            }
            Change::Node(_) | Change::RemovedNode(_) | Change::Resync(_) => {}
        }
    }

    fn update_task(&mut self, mut task: v1::Task) {
        if let Some(known) = self.tasks.get(&task.id) {
            // A polled task may be newer than a change that arrives later.
            if (known.attempt, known.state) > (task.attempt, task.state) {
                return;
            }
            // Changes contain no check results.
            if known.attempt == task.attempt && task.checks.is_empty() {
                task.checks.clone_from(&known.checks);
            }
        }
        self.tasks.insert(task.id.clone(), task);
    }

    /// Keeps the rollout of the same revision, which changes do not contain.
    fn update_service(&mut self, mut service: v1::Service) {
        if let KnownService::Present(known) = &self.service
            && known.revision == service.revision
        {
            service.rollout = service.rollout.or_else(|| known.rollout.clone());
        }
        self.service = KnownService::Present(Box::new(service));
    }

    /// Compares the snapshot with a goal.
    pub fn evaluate(&self, desired: &ServiceGoal) -> WaitOutcome {
        match (&self.service, desired.goal) {
            (KnownService::Unknown, _) => WaitOutcome::Waiting,
            (KnownService::Gone, WaitGoal::Gone) => WaitOutcome::Reached,
            (KnownService::Present(_), WaitGoal::Gone) => WaitOutcome::Waiting,
            (KnownService::Gone, _) => WaitOutcome::Failed(vec!["the service was removed".to_owned()]),
            (KnownService::Present(service), _) if service.removing => {
                WaitOutcome::Failed(vec!["the service is being removed".to_owned()])
            }
            // Another manager may answer with state from before the write.
            (KnownService::Present(service), _) if service.version < desired.version => WaitOutcome::Waiting,
            (KnownService::Present(service), goal) => {
                match (rolled_back(service, desired), superseded(service, desired)) {
                    (Some(outcome), _) => outcome,
                    (None, Some(why)) => WaitOutcome::Failed(vec![why]),
                    (None, None) if goal == WaitGoal::Updated => self.evaluate_updated(service, desired),
                    (None, None) if goal == WaitGoal::Completed => self.evaluate_completed(service, desired),
                    (None, None) => self.evaluate_running(service, &desired.finished_before),
                }
            }
        }
    }

    fn evaluate_completed(&self, service: &v1::Service, desired: &ServiceGoal) -> WaitOutcome {
        let stop_reason = service.rollout.as_ref().map(|rollout| &rollout.stop_reason);
        if let Some(reason) = stop_reason.filter(|reason| !reason.is_empty()) {
            return WaitOutcome::Failed(vec![reason.clone()]);
        }
        match self.evaluate_running(service, &desired.finished_before) {
            WaitOutcome::Reached if self.complete_slots(service) < desired_tasks(service) => {
                WaitOutcome::Waiting
            }
            outcome => outcome,
        }
    }

    fn evaluate_running(&self, service: &v1::Service, known: &BTreeSet<String>) -> WaitOutcome {
        let new_tasks = self.tasks.values().filter(|task| !known.contains(&task.id));
        let why: Vec<String> = new_tasks
            .filter(|task| has_failed(task) || is_unhealthy(task))
            .map(|task| format!("{}: {}", name(task), task_line(task)))
            .collect();
        if !why.is_empty() {
            return WaitOutcome::Failed(why);
        }
        if self.ready_slots(service) == desired_tasks(service) && !self.has_surplus(service) {
            WaitOutcome::Reached
        } else {
            WaitOutcome::Waiting
        }
    }

    /// The manager decides whether the update is complete or has failed. Tasks that have no node do not count there.
    fn evaluate_updated(&self, service: &v1::Service, expected: &ServiceGoal) -> WaitOutcome {
        // Another manager may answer with state from before the write.
        let Some(rollout) = service.rollout.as_ref().filter(|_| service.revision == expected.revision) else {
            return WaitOutcome::Waiting;
        };
        match rollout.state() {
            _ if !rollout.stop_reason.is_empty() => WaitOutcome::Failed(vec![rollout.stop_reason.clone()]),
            v1::RolloutState::Completed | v1::RolloutState::RolledBack
                if self.ready_slots(service) == desired_tasks(service) && !self.has_surplus(service) =>
            {
                WaitOutcome::Reached
            }
            v1::RolloutState::Completed | v1::RolloutState::RolledBack => {
                self.evaluate_running(service, &expected.finished_before)
            }
            _ => WaitOutcome::Waiting,
        }
    }

    /// Tasks of slots that are not desired any more.
    fn has_surplus(&self, service: &v1::Service) -> bool {
        self.tasks.values().any(|task| !has_slot(service, task.slot) && !task.removed)
    }

    /// The longest time for which a task must still run until it counts as ready.
    pub fn settling_time(&self) -> Option<Duration> {
        let settling = self.tasks.values().map(|task| task.settles_in_ms).filter(|left| *left > 0);
        settling.max().map(Duration::from_millis)
    }

    /// The ids of the tasks whose failure ended the wait.
    pub fn failed_tasks(&self, desired: &ServiceGoal) -> Vec<String> {
        if let (WaitGoal::Updated, KnownService::Present(service)) = (desired.goal, &self.service) {
            let failed = service.rollout.iter().map(|rollout| rollout.failed_task.clone());
            return failed.filter(|task| !task.is_empty()).collect();
        }
        let new_tasks = self.tasks.values().filter(|task| !desired.finished_before.contains(&task.id));
        new_tasks.filter(|task| has_failed(task) || is_unhealthy(task)).map(|task| task.id.clone()).collect()
    }

    /// The revision that failed, and the current one, if that is its rollback.
    pub fn rolled_back_revisions(&self, desired: &ServiceGoal) -> Option<(u64, u64)> {
        let KnownService::Present(service) = &self.service else { return None };
        rolled_back(service, desired).map(|_| (desired.revision, service.revision))
    }

    /// Number of desired slots whose task of the current spec has ended without an error.
    fn complete_slots(&self, service: &v1::Service) -> u32 {
        let complete = self.tasks.values().filter(|task| {
            state(task) == Some(TaskState::Complete)
                && task.desired() == v1::DesiredTaskState::Running
                && is_current(service, task)
        });
        let slots: BTreeSet<u32> =
            complete.map(|task| task.slot).filter(|slot| has_slot(service, *slot)).collect();
        u32::try_from(slots.len()).unwrap_or(u32::MAX)
    }

    /// Number of desired slots that have a ready task of the current spec.
    fn ready_slots(&self, service: &v1::Service) -> u32 {
        let serving = self.tasks.values().filter(|task| {
            // A complete task is not started again.
            let running = match state(task) {
                Some(TaskState::Running) => {
                    task.ready && task.settles_in_ms == 0 && task.lost_since.is_none()
                }
                state => state == Some(TaskState::Complete),
            };
            running && task.desired() == v1::DesiredTaskState::Running && is_current(service, task)
        });
        let slots: BTreeSet<u32> =
            serving.map(|task| task.slot).filter(|slot| has_slot(service, *slot)).collect();
        u32::try_from(slots.len()).unwrap_or(u32::MAX)
    }

    /// One line about the whole service.
    pub fn summary(&self, desired: &ServiceGoal) -> String {
        let left = self.tasks.values().filter(|task| !task.removed).count();
        match (&self.service, desired.goal) {
            (KnownService::Present(service), WaitGoal::Running | WaitGoal::Scaled) => {
                let (ready, all) = (self.ready_slots(service), desired_tasks(service));
                let settling = match self.tasks.values().filter(|task| task.settles_in_ms > 0).count() {
                    0 => String::new(),
                    settling => format!(", {settling} settling"),
                };
                let rest = match uncreated_summary(service.uncreated_tasks) {
                    none if none.is_empty() => none,
                    rest => format!(", {rest}"),
                };
                format!("service {}: {ready} of {all} ready{settling}{rest}", desired.name)
            }
            (KnownService::Present(service), WaitGoal::Updated) => {
                let v1::Rollout { updated, total, .. } = service.rollout.clone().unwrap_or_default();
                let ready = self.ready_slots(service);
                let so_far = if updated < total || ready >= total {
                    String::new()
                } else {
                    format!(", {ready} ready")
                };
                let doing = match rolled_back(service, desired) {
                    Some(_) => format!("revision {} failed, rolling back: ", desired.revision),
                    None => String::new(),
                };
                format!("service {}: {doing}{updated} of {total} updated{so_far}", desired.name)
            }
            (KnownService::Present(service), WaitGoal::Completed) => {
                let (complete, all) = (self.complete_slots(service), desired_tasks(service));
                format!("service {}: {complete} of {all} completed", desired.name)
            }
            (_, WaitGoal::Running | WaitGoal::Scaled | WaitGoal::Updated | WaitGoal::Completed) => {
                format!("service {}", desired.name)
            }
            (KnownService::Gone, WaitGoal::Gone) => format!("service {}: removed", desired.name),
            (_, WaitGoal::Gone) if left == 1 => format!("service {}: 1 task remaining", desired.name),
            (_, WaitGoal::Gone) => format!("service {}: {left} tasks remaining", desired.name),
        }
    }

    /// What the rollout waits for, then what the newest task of each slot waits for, ordered by slot; as (name, line).
    pub fn waiting_for(&self, goal: WaitGoal) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let (WaitGoal::Updated, KnownService::Present(service)) = (goal, &self.service)
            && let Some(rollout) =
                service.rollout.as_ref().filter(|rollout| !rollout.waiting_reason.is_empty())
        {
            lines.push(("update".to_owned(), rollout.waiting_reason.clone()));
        }
        lines.extend(self.waiting_tasks(goal));
        lines
    }

    /// The nodes that have not confirmed that they stop their tasks, and what can be done; as (name, line).
    pub fn silent_nodes(&self) -> Vec<(String, String)> {
        let mut silent: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for task in self.tasks.values().filter(|task| !task.removed && !task.node_name.is_empty()) {
            // A worker that stops a task says how far it is. The reason `stopping on node ...` is the manager's.
            let is_confirmed =
                task.reason.starts_with("stopping: ") || state(task).is_some_and(TaskState::is_terminal);
            if task.lost_since.is_some() || !is_confirmed {
                silent.entry(&task.node_name).or_default().push(name(task));
            }
        }
        let line = |(node, tasks): (&str, Vec<String>)| {
            let tasks = joined_names(&tasks, false);
            let what = format!(
                "has not confirmed the end of {tasks}; if the machine is lost, `warren node rm --force {node}` removes \
                 it and counts its tasks as ended, even if they still run there"
            );
            (format!("node {node}"), what)
        };
        silent.into_iter().map(line).collect()
    }

    fn waiting_tasks(&self, goal: WaitGoal) -> Vec<(String, String)> {
        let mut newest: BTreeMap<u32, &v1::Task> = BTreeMap::new();
        for task in self.tasks.values().filter(|task| !task.removed) {
            let current = newest.entry(task.slot).or_insert(task);
            if task_number(task) > task_number(current) {
                *current = task;
            }
        }
        let waiting = |task: &&v1::Task| match state(task) {
            Some(TaskState::Running) => {
                let must_end = matches!(goal, WaitGoal::Gone | WaitGoal::Completed);
                must_end || !task.ready || task.settles_in_ms > 0
            }
            Some(TaskState::Complete) => goal == WaitGoal::Gone,
            _ => true,
        };
        newest.into_values().filter(waiting).map(|task| (name(task), task_line(task))).collect()
    }
}

/// The task is no longer desired and has not ended yet.
fn is_stopping(task: &v1::Task) -> bool {
    task.desired() > v1::DesiredTaskState::Running && !state(task).is_some_and(TaskState::is_terminal)
}

fn task_number(task: &v1::Task) -> u64 {
    task.id.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

fn state(task: &v1::Task) -> Option<TaskState> {
    task_state(task.state).ok()
}

/// The worker does not try again: no attempts remain, or the task cannot run.
fn has_failed(task: &v1::Task) -> bool {
    matches!(state(task), Some(TaskState::Failed | TaskState::Rejected))
}

/// The task runs and its health check failed too often; the manager replaces the task.
fn is_unhealthy(task: &v1::Task) -> bool {
    state(task) == Some(TaskState::Running)
        && task.health() == v1::Health::Unhealthy
        && task.desired() <= v1::DesiredTaskState::Running
}

/// The outcome of an update that managers rolled back; `None` if they did not.
fn rolled_back(service: &v1::Service, desired: &ServiceGoal) -> Option<WaitOutcome> {
    let rollout = service.rollout.as_ref()?;
    if rollout.failed_revision != desired.revision || service.revision <= desired.revision {
        return None;
    }
    match rollout.state() {
        v1::RolloutState::RollingBack => Some(WaitOutcome::Waiting),
        v1::RolloutState::RolledBack => Some(WaitOutcome::Failed(vec![rollout.rollback_reason.clone()])),
        v1::RolloutState::RollbackPaused => {
            let why = vec![rollout.rollback_reason.clone(), rollout.stop_reason.clone()];
            Some(WaitOutcome::Failed(why))
        }
        _ => None,
    }
}

/// Why a later write superseded the one that is waited for.
fn superseded(service: &v1::Service, desired: &ServiceGoal) -> Option<String> {
    if service.revision > desired.revision && desired.goal != WaitGoal::Scaled {
        return Some(format!("another client changed it: it is at revision {}", service.revision));
    }
    let (current, requested) = (desired_replicas(service)?, desired.replicas?);
    (current != requested)
        .then(|| format!("another client scaled it: it has {current} replicas, not {requested}"))
}

/// Desired replicas of a replicated service; `None` for a global one.
pub fn desired_replicas(service: &v1::Service) -> Option<u32> {
    match service.spec.as_ref()?.mode? {
        v1::service_spec::Mode::Replicated(replicated) => u32::try_from(replicated.replicas).ok(),
        v1::service_spec::Mode::Global(v1::Global {}) => None,
    }
}

/// Desired number of tasks.
fn desired_tasks(service: &v1::Service) -> u32 {
    match service.spec.as_ref().and_then(|spec| spec.mode) {
        Some(v1::service_spec::Mode::Replicated(_)) => desired_replicas(service).unwrap_or(0),
        // One per eligible node, counted by the manager.
        Some(v1::service_spec::Mode::Global(v1::Global {})) => service.desired_tasks,
        None => 0,
    }
}

/// Whether a slot is desired. The slots of a global service are numbers of nodes.
pub fn has_slot(service: &v1::Service, slot: u32) -> bool {
    let global = matches!(
        service.spec.as_ref().and_then(|spec| spec.mode),
        Some(v1::service_spec::Mode::Global(v1::Global {}))
    );
    global || slot <= desired_tasks(service)
}

/// Whether the task has the current spec: the current revision, or an older one that differs only in what leaves tasks
/// alone, such as placement and how nodes select a task for a connection.
fn is_current(service: &v1::Service, task: &v1::Task) -> bool {
    let mapping = |port: &v1::PublishedPort| v1::PublishedPort {
        prefer_local: false,
        client_affinity: false,
        ..port.clone()
    };
    let spec = service.spec.as_ref();
    let same = |spec: &v1::ServiceSpec| {
        spec.task == task.spec && spec.ports.iter().map(mapping).eq(task.ports.iter().map(mapping))
    };
    task.revision == service.revision || (task.revision < service.revision && spec.is_some_and(same))
}

/// `STARTING on node-1, attempt 3: exited with 1; starts again in 4s`; `STOPPING on node-1` for a task that is being
/// stopped; `health check: connection refused on port 80 (2 of 3), on node-1` for one that is not ready because of its
/// health check.
pub fn task_line(task: &v1::Task) -> String {
    if let Some(check) = check::line(task) {
        return check;
    }
    let ended = state(task).is_some_and(TaskState::is_terminal);
    let mut line = match state(task) {
        _ if task.lost_since.is_some() && !ended => LOST.to_owned(),
        _ if is_stopping(task) => STOPPING.to_owned(),
        Some(TaskState::Running) if !task.ready => "RUNNING, not ready".to_owned(),
        Some(state) => state.as_str().to_owned(),
        None => format!("state {}", task.state),
    };
    if !task.node_name.is_empty() {
        line += &format!(" on {}", task.node_name);
    }
    if task.attempt > 1 {
        line += &format!(", attempt {}", task.attempt);
    }
    if task.settles_in_ms > 0 {
        line += &format!(", settling for {} more", settling_text(task.settles_in_ms));
    }
    let reason = reason_beside_state(task, &line);
    if !reason.is_empty() {
        line += &format!(": {reason}");
    }
    line
}

/// The reason without what the line, `STATE on NODE`, says already: nothing of `preparing on node node-1`.
fn reason_beside_state<'a>(task: &'a v1::Task, line: &str) -> Cow<'a, str> {
    let state = line.split(' ').next().unwrap_or_default().to_lowercase();
    let on_node = format!(" on node {}", task.node_name);
    if task.reason.strip_suffix(&on_node) == Some(&state) {
        return Cow::default();
    }
    match task.reason.strip_prefix(&format!("{state}: ")) {
        Some(rest) => rest.into(),
        None => task.reason.replacen(&on_node, "", 1).into(),
    }
}
