//! Why a task is not running, as human-readable text.

use warren_types::{DesiredTaskState, Task, TaskExit, TaskState, Timestamp};

use crate::reconcile::{backoff, lost};
use crate::scheduler::UnschedulableReasons;
use crate::state::State;

/// Why the task is not running; empty for one that runs on a reachable node. The worker's reason comes first;
/// `refusals` are the scheduler's latest reasons for tasks without a node.
pub fn explain_task(
    state: &State,
    refusals: Option<&UnschedulableReasons>,
    task: &Task,
    now: Timestamp,
) -> String {
    if let Some(since) = task.lost_since().filter(|_| !task.observed.state.is_terminal()) {
        let down = format!("node {} has been down since {since}", node_name(state, task));
        let service = state.service(&task.id.service);
        let awaited = service.and_then(|service| lost::explain_wait(service, task, now));
        return awaited.map_or_else(|| down.clone(), |awaited| format!("{down}; {awaited}"));
    }
    if !task.observed.reason().is_empty() {
        return task.observed.reason().to_owned();
    }
    if task.node.is_none() {
        return explain_unplaced(state, refusals, task, now);
    }
    if task.observed.state == TaskState::Running && task.desired <= DesiredTaskState::Running {
        return String::new();
    }
    let node = node_name(state, task);
    match task.observed.state {
        TaskState::Complete => "exited with code 0".into(),
        TaskState::Shutdown => "stopped by the manager".into(),
        TaskState::Failed => format!("failed{}", format_exit(task.observed.exit())),
        TaskState::Rejected => format!("cannot run on node {node}"),
        _ if task.desired > DesiredTaskState::Running => format!("stopping on node {node}"),
        TaskState::New | TaskState::Pending | TaskState::Assigned => {
            format!("waiting for node {node}")
        }
        TaskState::Accepted | TaskState::Preparing => format!("preparing on node {node}"),
        TaskState::Ready if task.desired == DesiredTaskState::Ready => {
            format!("ready on node {node}, waiting to replace the previous task")
        }
        TaskState::Ready | TaskState::Starting | TaskState::Running => {
            format!("starting on node {node}{}", format_exit(task.observed.exit()))
        }
    }
}

fn explain_unplaced(
    state: &State,
    refusals: Option<&UnschedulableReasons>,
    task: &Task,
    now: Timestamp,
) -> String {
    if task.desired > DesiredTaskState::Running {
        return "stopped before it was assigned to a node".into();
    }
    match task.not_before().filter(|time| *time > now) {
        Some(until) => explain_backoff(state, task, until),
        None => match refusals.and_then(|refusals| refusals.get(task)) {
            Some(refusal) => refusal.to_string(),
            None => "no suitable node yet".into(),
        },
    }
}

fn explain_backoff(state: &State, task: &Task, until: Timestamp) -> String {
    let service = state.service(&task.id.service);
    let service =
        service.map_or_else(|| task.id.service.to_string(), |service| service.spec.name.to_string());
    let slot = task.slot;
    match backoff::preceding_ends(state, task) {
        Some(ends) => format!("back-off until {until}: slot {service}.{slot} {ends}"),
        None => format!("back-off until {until}: slot {service}.{slot} kept failing"),
    }
}

fn format_exit(exit: Option<TaskExit>) -> String {
    match exit {
        Some(TaskExit { out_of_memory: true, .. }) => "; it last ran out of memory".into(),
        Some(TaskExit { code, .. }) => format!("; it last exited with code {code}"),
        None => String::new(),
    }
}

fn node_name(state: &State, task: &Task) -> String {
    let node = task.node.and_then(|id| state.node(&id));
    node.map_or_else(|| "(removed)".into(), |node| node.name.to_string())
}
