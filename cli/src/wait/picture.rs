//! What is known of a service that is waited for, and what follows from it. Pure.

mod check;

use std::collections::{BTreeMap, BTreeSet};

use warren_client::Change;
use warren_proto::convert::task_state;
use warren_proto::v1;
use warren_types::TaskState;

use super::{Goal, Wanted};
use crate::view::task::{LOST, name};

/// A service and its tasks, as last seen.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    service: Known,
    tasks: BTreeMap<String, v1::Task>,
}

#[derive(Debug, Clone, Default)]
enum Known {
    #[default]
    NotYet,
    There(Box<v1::Service>),
    Gone,
}

/// Whether what is waited for has come, or can be given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is as wanted.
    Reached,
    /// It will not come, for these reasons.
    Broken(Vec<String>),
    /// Not yet.
    Waiting,
}

impl Picture {
    pub fn of(service: v1::Service, tasks: Vec<v1::Task>) -> Self {
        let tasks = tasks.into_iter().map(|task| (task.id.clone(), task)).collect();
        Self { service: Known::There(Box::new(service)), tasks }
    }

    pub fn gone() -> Self {
        Self { service: Known::Gone, tasks: BTreeMap::new() }
    }

    pub fn is_known(&self) -> bool {
        !matches!(self.service, Known::NotYet)
    }

    /// Takes over what changed. What is not about a service or a task does not matter here.
    pub fn apply(&mut self, change: Change) {
        match change {
            Change::Service(service) => self.take_service(service),
            Change::RemovedService(_) => *self = Self::gone(),
            Change::Task(task) => self.take_task(task),
            Change::RemovedTask(id) => {
                self.tasks.remove(&id);
            }
            Change::Node(_) | Change::RemovedNode(_) | Change::Resync(_) => {}
        }
    }

    fn take_task(&mut self, mut task: v1::Task) {
        if let Some(known) = self.tasks.get(&task.id) {
            // What was looked up may be newer than a change that was on its way meanwhile.
            if (known.attempt, known.state) > (task.attempt, task.state) {
                return;
            }
            // What checks said is not among the changes.
            if known.attempt == task.attempt && task.checks.is_empty() {
                task.checks.clone_from(&known.checks);
            }
        }
        self.tasks.insert(task.id.clone(), task);
    }

    /// What managers only compute for an answer may be missing in what is heard.
    fn take_service(&mut self, mut service: v1::Service) {
        if let Known::There(known) = &self.service
            && known.revision == service.revision
        {
            service.rollout = service.rollout.or_else(|| known.rollout.clone());
        }
        self.service = Known::There(Box::new(service));
    }

    /// What follows for `wanted`.
    pub fn judge(&self, wanted: &Wanted) -> Verdict {
        match (&self.service, wanted.goal) {
            (Known::NotYet, _) => Verdict::Waiting,
            (Known::Gone, Goal::Gone) => Verdict::Reached,
            (Known::There(_), Goal::Gone) => Verdict::Waiting,
            (Known::Gone, Goal::Running | Goal::Scaled | Goal::Updated) => {
                Verdict::Broken(vec!["it was removed in the meantime".to_owned()])
            }
            (Known::There(service), _) if service.removing => {
                Verdict::Broken(vec!["it is being removed".to_owned()])
            }
            // What another manager answers may be older than what was done.
            (Known::There(service), _) if service.version < wanted.version => Verdict::Waiting,
            (Known::There(service), goal) => match superseded(service, wanted) {
                Some(why) => Verdict::Broken(vec![why]),
                None if goal == Goal::Updated => self.judge_updated(service, wanted),
                None => self.judge_running(service, &wanted.known),
            },
        }
    }

    fn judge_running(&self, service: &v1::Service, known: &BTreeSet<String>) -> Verdict {
        let news = self.tasks.values().filter(|task| !known.contains(&task.id));
        let why: Vec<String> = news
            .filter(|task| gave_up(task) || is_unhealthy(task))
            .map(|task| format!("{}: {}", name(task), line(task)))
            .collect();
        if !why.is_empty() {
            return Verdict::Broken(why);
        }
        let left = self.tasks.values().any(|task| !has_slot(service, task.slot) && !task.removed);
        if self.ready(service) == tasks_wanted(service) && !left {
            Verdict::Reached
        } else {
            Verdict::Waiting
        }
    }

    /// What still has to be replaced is for the manager to say; that what took its place serves is seen here.
    fn judge_updated(&self, service: &v1::Service, wanted: &Wanted) -> Verdict {
        // What another manager answers may be older than what was done.
        let rollout = service.rollout.as_ref().filter(|_| service.revision == wanted.revision);
        match rollout {
            Some(v1::Rollout { stopped, .. }) if !stopped.is_empty() => {
                Verdict::Broken(vec![stopped.clone()])
            }
            Some(v1::Rollout { updated, total, waiting, .. }) if updated >= total && waiting.is_empty() => {
                self.judge_running(service, &wanted.known)
            }
            _ => Verdict::Waiting,
        }
    }

    /// How many of the wanted slots have a task that serves and is what the service says.
    fn ready(&self, service: &v1::Service) -> u32 {
        let serving = self.tasks.values().filter(|task| {
            // What has ended well is not started again: there is nothing more to come.
            let running = match state(task) {
                Some(TaskState::Running) => task.ready && task.lost_since.is_none(),
                state => state == Some(TaskState::Complete),
            };
            running && task.desired() == v1::Desired::Running && is_current(service, task)
        });
        let slots: BTreeSet<u32> =
            serving.map(|task| task.slot).filter(|slot| has_slot(service, *slot)).collect();
        u32::try_from(slots.len()).unwrap_or(u32::MAX)
    }

    /// One line on all of it.
    pub fn summary(&self, wanted: &Wanted) -> String {
        let left = self.tasks.values().filter(|task| !task.removed).count();
        match (&self.service, wanted.goal) {
            (Known::There(service), Goal::Running | Goal::Scaled) => {
                let (ready, all) = (self.ready(service), tasks_wanted(service));
                format!("service {}: {ready} of {all} ready", wanted.name)
            }
            (Known::There(service), Goal::Updated) => {
                let v1::Rollout { updated, total, .. } = service.rollout.clone().unwrap_or_default();
                let ready = self.ready(service);
                let so_far = if updated < total || ready >= total {
                    String::new()
                } else {
                    format!(", {ready} ready")
                };
                format!("service {}: {updated} of {total} updated{so_far}", wanted.name)
            }
            (_, Goal::Running | Goal::Scaled | Goal::Updated) => format!("service {}", wanted.name),
            (Known::Gone, Goal::Gone) => format!("service {}: gone", wanted.name),
            (_, Goal::Gone) if left == 1 => format!("service {}: 1 task left", wanted.name),
            (_, Goal::Gone) => format!("service {}: {left} tasks left", wanted.name),
        }
    }

    /// What the newest task of each slot still waits for, in the order of slots; before them what the whole of it
    /// waits for.
    pub fn waiting_for(&self, goal: Goal) -> Vec<(String, String)> {
        let mut lines = Vec::new();
        if let (Goal::Updated, Known::There(service)) = (goal, &self.service)
            && let Some(rollout) = service.rollout.as_ref().filter(|rollout| !rollout.waiting.is_empty())
        {
            lines.push(("update".to_owned(), rollout.waiting.clone()));
        }
        lines.extend(self.waiting_tasks(goal));
        lines
    }

    fn waiting_tasks(&self, goal: Goal) -> Vec<(String, String)> {
        let mut newest: BTreeMap<u32, &v1::Task> = BTreeMap::new();
        for task in self.tasks.values().filter(|task| !task.removed) {
            let place = newest.entry(task.slot).or_insert(task);
            if number(task) > number(place) {
                *place = task;
            }
        }
        let waiting = |task: &&v1::Task| match state(task) {
            Some(TaskState::Running) => goal == Goal::Gone || !task.ready,
            Some(TaskState::Complete) => goal == Goal::Gone,
            _ => true,
        };
        newest.into_values().filter(waiting).map(|task| (name(task), line(task))).collect()
    }
}

fn number(task: &v1::Task) -> u64 {
    task.id.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
}

fn state(task: &v1::Task) -> Option<TaskState> {
    task_state(task.state).ok()
}

/// The worker will not try again: it ran out of attempts, or could never run it.
fn gave_up(task: &v1::Task) -> bool {
    matches!(state(task), Some(TaskState::Failed | TaskState::Rejected))
}

/// It runs, and its check failed too often: the manager replaces it by another that is like it.
fn is_unhealthy(task: &v1::Task) -> bool {
    state(task) == Some(TaskState::Running)
        && task.health() == v1::Health::Unhealthy
        && task.desired() <= v1::Desired::Running
}

/// Why the write that is waited for is not what the service is any more.
fn superseded(service: &v1::Service, wanted: &Wanted) -> Option<String> {
    if service.revision > wanted.revision && wanted.goal != Goal::Scaled {
        return Some(format!("somebody changed it in the meantime: it is at revision {}", service.revision));
    }
    let (now, asked) = (replicas(service)?, wanted.replicas?);
    (now != asked).then(|| format!("somebody scaled it in the meantime: it has {now} tasks, not {asked}"))
}

/// How many tasks are wanted of a replicated service.
pub fn replicas(service: &v1::Service) -> Option<u32> {
    match service.spec.as_ref()?.mode? {
        v1::service_spec::Mode::Replicated(replicated) => u32::try_from(replicated.replicas).ok(),
        v1::service_spec::Mode::Global(v1::Global {}) => None,
    }
}

/// How many tasks there should be.
fn tasks_wanted(service: &v1::Service) -> u32 {
    match service.spec.as_ref().and_then(|spec| spec.mode) {
        Some(v1::service_spec::Mode::Replicated(_)) => replicas(service).unwrap_or(0),
        // The nodes say how many, which the manager counts.
        Some(v1::service_spec::Mode::Global(v1::Global {})) => service.wanted,
        None => 0,
    }
}

/// Whether a slot is one of those that are wanted. Those of a global service are its nodes'.
fn has_slot(service: &v1::Service, slot: u32) -> bool {
    let global = matches!(
        service.spec.as_ref().and_then(|spec| spec.mode),
        Some(v1::service_spec::Mode::Global(v1::Global {}))
    );
    global || slot <= tasks_wanted(service)
}

/// The task is what the service says: of its revision, or of one that differs only in where tasks may run.
fn is_current(service: &v1::Service, task: &v1::Task) -> bool {
    let spec = service.spec.as_ref();
    let same = |spec: &v1::ServiceSpec| spec.task == task.spec && spec.ports == task.ports;
    task.revision == service.revision || (task.revision < service.revision && spec.is_some_and(same))
}

/// `STARTING on node-1, attempt 3: exited with 1; starts again in 4s`; what runs and is not ready because of its check
/// says that: `health check: connection refused on port 80 (2 of 3), on node-1`.
pub fn line(task: &v1::Task) -> String {
    if let Some(check) = check::line(task) {
        return check;
    }
    let ended = state(task).is_some_and(TaskState::is_terminal);
    let mut line = match state(task) {
        _ if task.lost_since.is_some() && !ended => LOST.to_owned(),
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
    if !task.reason.is_empty() {
        line += &format!(": {}", task.reason);
    }
    line
}
