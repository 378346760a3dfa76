//! Commands to the wire.

use warren_core::{Command, NewTask};
use warren_proto::v1;
use warren_proto::v1::command::Command as Wire;
use warren_types::{NodeId, TaskId};

pub(super) fn command(command: &Command) -> Wire {
    match command {
        Command::CreateCluster { id, ranges, level, at } => Wire::CreateCluster(v1::CreateCluster {
            id: id.to_string(),
            ranges: ranges.iter().map(ToString::to_string).collect(),
            level: *level,
            at: at.0,
        }),
        Command::CreateService { id, spec, at } => {
            Wire::CreateService(v1::CreateService { id: id.to_string(), spec: Some(spec.into()), at: at.0 })
        }
        Command::ScaleService { id, version, replicas, at } => Wire::ScaleService(v1::ScaleService {
            id: id.to_string(),
            version: *version,
            replicas: *replicas,
            at: at.0,
        }),
        Command::RemoveService { id, version, at } => {
            Wire::RemoveService(v1::RemoveService { id: id.to_string(), version: *version, at: at.0 })
        }
        Command::RegisterNode { id, name, description, at } => Wire::RegisterNode(v1::RegisterNode {
            id: id.to_string(),
            name: name.to_string(),
            description: Some(description.into()),
            at: at.0,
        }),
        Command::OpenSession { node, description, at } => Wire::OpenSession(v1::OpenSession {
            node_id: node.to_string(),
            description: Some(description.into()),
            at: at.0,
        }),
        Command::ReportTasks { node, session, reports, at } => Wire::ReportTasks(v1::ReportTasks {
            node_id: node.to_string(),
            session: *session,
            reports: reports.iter().map(Into::into).collect(),
            at: at.0,
        }),
        Command::CreateTasks { term, service, revision, slots, at } => Wire::CreateTasks(v1::CreateTasks {
            term: *term,
            service_id: service.to_string(),
            revision: *revision,
            slots: slots.iter().map(new_task).collect(),
            at: at.0,
        }),
        Command::AssignTasks { term, placements, at } => Wire::AssignTasks(v1::AssignTasks {
            term: *term,
            placements: placements.iter().map(placement).collect(),
            at: at.0,
        }),
        Command::SetDesired { term, tasks, desired, at } => Wire::SetDesired(v1::SetDesired {
            term: *term,
            task_ids: ids(tasks),
            desired: v1::Desired::from(*desired).into(),
            at: at.0,
        }),
        Command::DeleteTasks { term, tasks } => {
            Wire::DeleteTasks(v1::DeleteTasks { term: *term, task_ids: ids(tasks) })
        }
        Command::DeleteService { term, id } => {
            Wire::DeleteService(v1::DeleteService { term: *term, id: id.to_string() })
        }
        Command::RaiseLevel { term, level } => {
            Wire::RaiseLevel(v1::RaiseLevel { term: *term, level: *level })
        }
        Command::SetNodeStatus { term, node, session, status, at } => {
            Wire::SetNodeStatus(v1::SetNodeStatus {
                term: *term,
                node_id: node.to_string(),
                session: *session,
                status: v1::NodeStatus::from(*status).into(),
                at: at.0,
            })
        }
    }
}

fn ids(tasks: &[TaskId]) -> Vec<String> {
    tasks.iter().map(ToString::to_string).collect()
}

fn new_task(new: &NewTask) -> v1::NewTask {
    v1::NewTask { slot: new.slot, not_before: new.not_before.map(|at| at.0) }
}

fn placement((task, node): &(TaskId, NodeId)) -> v1::TaskPlacement {
    v1::TaskPlacement { task_id: task.to_string(), node_id: node.to_string() }
}
