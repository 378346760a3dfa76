//! A task; it refers to a revision of its service by number.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_proto::convert::desired_task_state;
use warren_proto::v1;
use warren_types::{
    BoxedDefault, RareTaskFields, Revision, ServiceId, Task, TaskId, TaskReport, TaskStatus,
    TaskStatusDetails, Violation, Violations,
};

use super::super::field::{parse, parse_all, parse_optional, required, timestamp};

pub(super) fn stored_task(task: &Task) -> v1::StoredTask {
    let observed = TaskReport {
        task: task.id,
        attempt: task.observed.attempt,
        state: task.observed.state,
        since: task.observed.since,
        reason: task.observed.reason().to_owned(),
        ready: task.observed.ready,
        exit: task.observed.exit(),
        removed: task.observed.removed,
        next_attempt: task.observed.next_attempt(),
        health: task.observed.health,
        // Stored as the pinned digest of its revision.
        image: None,
    };
    v1::StoredTask {
        service_id: task.id.service.to_string(),
        number: task.id.number,
        slot: task.slot,
        revision: task.revision.number,
        created_at: task.created_at.0,
        not_before: task.not_before().map(|at| at.0),
        node_id: task.node.map(|id| id.to_string()).unwrap_or_default(),
        address: task.address.map(|address| address.to_string()).unwrap_or_default(),
        desired: v1::DesiredTaskState::from(task.desired).into(),
        observed: Some((&observed).into()),
        lost_since: task.lost_since().map(|at| at.0),
        bound_to: task.bound_to().map(|id| id.to_string()).unwrap_or_default(),
        volumes: task.volumes().iter().map(ToString::to_string).collect(),
        surplus: task.is_surplus(),
    }
}

pub(super) fn task(
    stored: v1::StoredTask,
    revisions: &BTreeMap<(ServiceId, u64), Arc<Revision>>,
) -> Result<Task, Violations> {
    let service = parse("task.serviceId", &stored.service_id)?;
    let revision = required("task.revision", revisions.get(&(service, stored.revision)).cloned())?;
    let id = TaskId { service, number: stored.number };
    let observed = TaskReport::try_from(required("task.observed", stored.observed)?)?;
    if observed.task != id {
        return Err(Violation::new("task.observed.taskId", format!("is not {id}")).into());
    }
    if observed.image.is_some() {
        return Err(Violation::new("task.observed.image", "is stored with the service").into());
    }
    let rare = RareTaskFields {
        not_before: stored.not_before.map(timestamp),
        bound_to: parse_optional("task.boundTo", &stored.bound_to)?,
        volumes: parse_all("task.volumes", &stored.volumes)?,
        lost_since: stored.lost_since.map(timestamp),
        surplus: stored.surplus,
    };
    let details = TaskStatusDetails {
        reason: observed.reason.into(),
        exit: observed.exit,
        next_attempt: observed.next_attempt,
    };
    Ok(Task {
        id,
        slot: stored.slot,
        revision,
        created_at: timestamp(stored.created_at),
        node: parse_optional("task.nodeId", &stored.node_id)?,
        address: parse_optional("task.address", &stored.address)?,
        desired: desired_task_state(stored.desired)?,
        observed: TaskStatus {
            state: observed.state,
            attempt: observed.attempt,
            since: observed.since,
            ready: observed.ready,
            removed: observed.removed,
            health: observed.health,
            details: BoxedDefault::new(details),
        },
        rare: BoxedDefault::new(rare),
    })
}
