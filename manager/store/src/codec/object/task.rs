//! A task; it refers to a revision of its service by number.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_proto::convert::{WireForm, read_field};
use warren_proto::v1;
use warren_types::{
    BoxedDefault, RareTaskFields, Revision, ServiceId, Task, TaskId, TaskReport, TaskStatus,
    TaskStatusDetails, Timestamp, Violation, Violations,
};

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
        node_id: task.node.to_wire(),
        address: task.address.to_wire(),
        desired: task.desired.to_wire(),
        observed: observed.to_wire(),
        lost_since: task.lost_since().map(|at| at.0),
        bound_to: task.bound_to().to_wire(),
        volumes: task.volumes().iter().map(ToString::to_string).collect(),
        surplus: task.is_surplus(),
        label_value: task.label_value().map(ToString::to_string),
    }
}

pub(super) fn task(
    stored: v1::StoredTask,
    revisions: &BTreeMap<(ServiceId, u64), Arc<Revision>>,
) -> Result<Task, Violations> {
    let service = read_field("task.service_id", stored.service_id)?;
    let revision = revisions.get(&(service, stored.revision)).cloned();
    let revision = revision.ok_or_else(|| Violation::new("task.revision", "is missing"))?;
    let id = TaskId { service, number: stored.number };
    let observed = read_field::<TaskReport, _>("task.observed", stored.observed)?;
    if observed.task != id {
        return Err(Violation::new("task.observed.taskId", format!("is not {id}")).into());
    }
    if observed.image.is_some() {
        return Err(Violation::new("task.observed.image", "is stored with the service").into());
    }
    let rare = RareTaskFields {
        not_before: stored.not_before.map(Timestamp),
        bound_to: read_field("task.bound_to", stored.bound_to)?,
        label_value: stored.label_value.map(Into::into),
        volumes: read_field("task.volumes", stored.volumes)?,
        lost_since: stored.lost_since.map(Timestamp),
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
        created_at: Timestamp(stored.created_at),
        node: read_field("task.node_id", stored.node_id)?,
        address: read_field("task.address", stored.address)?,
        desired: read_field("task.desired", stored.desired)?,
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
