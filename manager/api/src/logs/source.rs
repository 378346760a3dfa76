//! Selects the log sources of a service or task, and their nodes.

use std::collections::BTreeSet;

use tonic::Status;
use warren_core::state::ObjectKind;
use warren_core::{Refusal, State};
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{NodeId, ServiceId, ServiceName, Task, TaskId, TaskState, Violation};

/// The requested tasks.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogSelector {
    /// All tasks of a service, or of one slot; with `previous` only the last ended one of each slot.
    Service {
        id: ServiceId,
        slot: Option<u32>,
        previous: bool,
    },
    Task(TaskId),
}

/// A task and the node that stores its log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogSource {
    pub task: TaskId,
    pub service: ServiceName,
    pub slot: u32,
    pub node: NodeId,
    pub node_name: String,
    /// The task was removed from the node, which may not have its log any more.
    pub is_retained: bool,
    /// A process of the task has run, as far as managers know.
    pub has_run: bool,
}

impl LogSelector {
    pub fn parse(state: &State, request: &v1::ReadLogsRequest) -> Result<Self, Status> {
        let v1::ReadLogsRequest { service, task, previous, follow, .. } = request;
        if *previous && *follow {
            let violation = Violation::new("previous", "cannot be combined with follow: that task has ended");
            return Err(status_of(violation));
        }
        match (service.as_str(), task.as_str()) {
            ("", "") => Err(status_of(Violation::new("service", "is missing; give it, or task"))),
            ("", task) => {
                let found = state.find_task(task).map_err(status_of)?;
                if !previous {
                    return Ok(Self::Task(found.id));
                }
                let earlier = state.previous_task(found).ok_or_else(|| no_previous(task))?;
                Ok(Self::Task(earlier.id))
            }
            (service, task) => {
                let id = state.find_service(service).map_err(status_of)?.id;
                if let Some(slot) = slot_of(task) {
                    return Ok(Self::Service { id, slot, previous: *previous });
                }
                let found = state.find_task(task).ok().filter(|found| found.id.service == id);
                let found = found.ok_or_else(|| not_found(format!("{task} of service {service}")))?;
                if task.contains('.') {
                    return Ok(Self::Service { id, slot: Some(found.slot), previous: *previous });
                }
                let earlier = || state.previous_task(found).ok_or_else(|| no_previous(task));
                let selected = if *previous { earlier()? } else { found };
                Ok(Self::Task(selected.id))
            }
        }
    }

    /// Tasks with a node that may store their log: oldest first.
    pub fn sources(self, state: &State) -> Vec<LogSource> {
        match self {
            Self::Service { id, slot, previous } => {
                let selected = state.tasks_of(&id).filter(|task| slot.is_none_or(|slot| task.slot == slot));
                if previous {
                    return previous_sources(state, selected.map(AsRef::as_ref));
                }
                // The logs of a removed node are gone.
                let stored = |task: &Task| {
                    task.holds_resources() || task.log_node().is_some_and(|node| state.node(&node).is_some())
                };
                selected.filter(|task| stored(task)).filter_map(|task| source(state, task)).collect()
            }
            Self::Task(id) => state.task(&id).and_then(|task| source(state, task)).into_iter().collect(),
        }
    }

    /// Whether no further lines can follow: the object is removed or the task has ended.
    pub fn is_finished(self, state: &State) -> bool {
        match self {
            Self::Service { id, .. } => state.service(&id).is_none(),
            Self::Task(id) => {
                state.task(&id).is_none_or(|task| task.observed.state.is_terminal() || task.observed.removed)
            }
        }
    }

    /// Whether the missing log of an ended task is an answer: the caller asked for that task.
    pub fn reports_missing_logs(self) -> bool {
        matches!(self, Self::Task(_))
    }
}

/// A slot of a service: its number, or all slots.
fn slot_of(task: &str) -> Option<Option<u32>> {
    if task.is_empty() { Some(None) } else { task.parse().ok().map(Some) }
}

/// The last ended task of each slot before its current one.
fn previous_sources<'a>(state: &State, tasks: impl Iterator<Item = &'a Task>) -> Vec<LogSource> {
    let slots: BTreeSet<(ServiceId, u32)> = tasks.map(|task| (task.id.service, task.slot)).collect();
    let current = slots.into_iter().filter_map(|(service, slot)| state.current_task(&service, slot));
    current.filter_map(|task| source(state, state.previous_task(task)?)).collect()
}

fn no_previous(task: &str) -> Status {
    not_found(format!("that ran before {task}"))
}

fn not_found(reference: String) -> Status {
    status_of(Refusal::NotFound { kind: ObjectKind::Task, reference })
}

fn source(state: &State, task: &Task) -> Option<LogSource> {
    let node = task.node?;
    Some(LogSource {
        task: task.id,
        service: state.service(&task.id.service)?.spec.name.clone(),
        slot: task.slot,
        node,
        node_name: state.node(&node).map_or_else(|| node.to_string(), |node| node.name.to_string()),
        is_retained: !task.holds_resources(),
        has_run: task.observed.state >= TaskState::Running,
    })
}
