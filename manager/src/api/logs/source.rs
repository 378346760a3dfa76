//! Whose lines: a service's or a task's, and where they are.

use tonic::Status;
use warren_core::State;
use warren_proto::v1;
use warren_types::{NodeId, ServiceId, ServiceName, Task, TaskId, Violation};

use super::super::problem::status_of;

/// What was asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    Service(ServiceId),
    Task(TaskId),
}

/// A task with a node, which has what it wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub task: TaskId,
    pub service: ServiceName,
    pub slot: u32,
    pub node: NodeId,
    pub node_name: String,
}

impl Of {
    pub fn parse(state: &State, request: &v1::ReadLogsRequest) -> Result<Self, Status> {
        match (request.service.as_str(), request.task.as_str()) {
            ("", "") => Err(status_of(Violation::new("service", "is missing; give it, or task"))),
            (service, "") => {
                state.find_service(service).map(|found| Self::Service(found.id)).map_err(status_of)
            }
            ("", task) => state.find_task(task).map(|found| Self::Task(found.id)).map_err(status_of),
            _ => Err(status_of(Violation::new("task", "cannot be given beside service; give one of them"))),
        }
    }

    /// The tasks that have a node which has something of them.
    pub fn sources(self, state: &State) -> Vec<Source> {
        match self {
            Self::Service(id) => state
                .tasks_of(&id)
                .filter(|task| task.holds_node())
                .filter_map(|t| source(state, t))
                .collect(),
            Self::Task(id) => state.task(&id).and_then(|task| source(state, task)).into_iter().collect(),
        }
    }

    /// There will be no further lines of it: it is gone, or it has ended.
    pub fn is_over(self, state: &State) -> bool {
        match self {
            Self::Service(id) => state.service(&id).is_none(),
            Self::Task(id) => {
                state.task(&id).is_none_or(|task| task.observed.state.is_terminal() || task.observed.removed)
            }
        }
    }
}

fn source(state: &State, task: &Task) -> Option<Source> {
    let node = task.node?;
    Some(Source {
        task: task.id,
        service: state.service(&task.id.service)?.spec.name.clone(),
        slot: task.slot,
        node,
        node_name: state.node(&node).map_or_else(|| node.to_string(), |node| node.name.to_string()),
    })
}
