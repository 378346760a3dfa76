//! Selects the log sources of a service or task, and their nodes.

use tonic::Status;
use warren_core::State;
use warren_proto::v1;
use warren_store::problem::status_of;
use warren_types::{NodeId, ServiceId, ServiceName, Task, TaskId, Violation};

/// The requested service or task.
#[derive(Debug, Clone, Copy)]
pub(super) enum LogSelector {
    Service(ServiceId),
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
}

impl LogSelector {
    pub fn parse(state: &State, request: &v1::ReadLogsRequest) -> Result<Self, Status> {
        match (request.service.as_str(), request.task.as_str()) {
            ("", "") => Err(status_of(Violation::new("service", "is missing; give it, or task"))),
            (service, "") => {
                state.find_service(service).map(|found| Self::Service(found.id)).map_err(status_of)
            }
            ("", task) => state.find_task(task).map(|found| Self::Task(found.id)).map_err(status_of),
            _ => Err(status_of(Violation::new("task", "cannot be combined with service; give one of them"))),
        }
    }

    /// Tasks with a node that may store their log.
    pub fn sources(self, state: &State) -> Vec<LogSource> {
        match self {
            Self::Service(id) => state
                .tasks_of(&id)
                .filter(|task| task.holds_resources())
                .filter_map(|t| source(state, t))
                .collect(),
            Self::Task(id) => state.task(&id).and_then(|task| source(state, task)).into_iter().collect(),
        }
    }

    /// Whether no further lines can follow: the object is removed or the task has ended.
    pub fn is_finished(self, state: &State) -> bool {
        match self {
            Self::Service(id) => state.service(&id).is_none(),
            Self::Task(id) => {
                state.task(&id).is_none_or(|task| task.observed.state.is_terminal() || task.observed.removed)
            }
        }
    }
}

fn source(state: &State, task: &Task) -> Option<LogSource> {
    let node = task.node?;
    Some(LogSource {
        task: task.id,
        service: state.service(&task.id.service)?.spec.name.clone(),
        slot: task.slot,
        node,
        node_name: state.node(&node).map_or_else(|| node.to_string(), |node| node.name.to_string()),
    })
}
