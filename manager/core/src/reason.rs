//! Why a task is not running, in words a person can act on.

use warren_types::{Desired, Exit, Task, TaskState, Timestamp};

use crate::reconcile::{backoff, lost};
use crate::scheduler::Refusals;
use crate::state::State;

/// Why the task is not running; empty for one that runs on a node that managers hear of. What the worker
/// said comes first; `refusals` are what the scheduler last said of tasks without a node.
pub fn reason(state: &State, refusals: Option<&Refusals>, task: &Task, now: Timestamp) -> String {
    if let Some(since) = task.lost_since().filter(|_| !task.observed.state.is_terminal()) {
        let down = format!("node {} has been down since {since}", node_name(state, task));
        let service = state.service(&task.id.service);
        let awaited = service.and_then(|service| lost::awaited(service, task, now));
        return awaited.map_or_else(|| down.clone(), |awaited| format!("{down}; {awaited}"));
    }
    if !task.observed.reason().is_empty() {
        return task.observed.reason().to_owned();
    }
    if task.node.is_none() {
        return unplaced(state, refusals, task, now);
    }
    if task.observed.state == TaskState::Running && task.desired <= Desired::Running {
        return String::new();
    }
    let node = node_name(state, task);
    match task.observed.state {
        TaskState::Complete => "its process ended with success".into(),
        TaskState::Shutdown => "stopped, as it was not wanted any more".into(),
        TaskState::Failed => format!("failed{}", exit(task.observed.exit())),
        TaskState::Rejected => format!("cannot run on node {node}"),
        _ if task.desired > Desired::Running => format!("is being stopped on node {node}"),
        TaskState::New | TaskState::Pending | TaskState::Assigned => {
            format!("waits for node {node} to take it on")
        }
        TaskState::Accepted | TaskState::Preparing => format!("is being prepared on node {node}"),
        TaskState::Ready if task.desired == Desired::Ready => {
            format!("is ready on node {node}, to take over from the task that it replaces")
        }
        TaskState::Ready | TaskState::Starting | TaskState::Running => {
            format!("is being started on node {node}{}", exit(task.observed.exit()))
        }
    }
}

fn unplaced(state: &State, refusals: Option<&Refusals>, task: &Task, now: Timestamp) -> String {
    if task.desired > Desired::Running {
        return "was not wanted any more before it had a node".into();
    }
    match task.not_before().filter(|time| *time > now) {
        Some(until) => held_back(state, task, until),
        None => match refusals.and_then(|refusals| refusals.of(task)) {
            Some(refusal) => refusal.to_string(),
            None => "waits for a node".into(),
        },
    }
}

fn held_back(state: &State, task: &Task, until: Timestamp) -> String {
    let service = state.service(&task.id.service);
    let service =
        service.map_or_else(|| task.id.service.to_string(), |service| service.spec.name.to_string());
    let slot = task.slot;
    match backoff::ends_before(state, task) {
        Some(ends) => format!("held back until {until}: slot {service}.{slot} {ends}"),
        None => format!("held back until {until}: slot {service}.{slot} kept failing"),
    }
}

fn exit(exit: Option<Exit>) -> String {
    match exit {
        Some(Exit { out_of_memory: true, .. }) => "; it last ran out of memory".into(),
        Some(Exit { code, .. }) => format!("; it last exited with code {code}"),
        None => String::new(),
    }
}

fn node_name(state: &State, task: &Task) -> String {
    let node = task.node.and_then(|id| state.node(&id));
    node.map_or_else(|| "that is gone".into(), |node| node.name.to_string())
}
