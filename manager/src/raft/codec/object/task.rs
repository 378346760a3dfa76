//! A task. It names its revision, which its service has.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_proto::convert::desired;
use warren_proto::v1;
use warren_types::{
    Observed, Revision, Seldom, ServiceId, Special, Task, TaskId, TaskReport, Trouble, Violation, Violations,
};

use super::super::read::{at, given, optional, text, texts};

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
        // Kept as the pin of its revision.
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
        desired: v1::Desired::from(task.desired).into(),
        observed: Some((&observed).into()),
        lost_since: task.lost_since().map(|at| at.0),
        bound_to: task.bound_to().map(|id| id.to_string()).unwrap_or_default(),
        volumes: task.volumes().iter().map(ToString::to_string).collect(),
    }
}

pub(super) fn task(
    stored: v1::StoredTask,
    revisions: &BTreeMap<(ServiceId, u64), Arc<Revision>>,
) -> Result<Task, Violations> {
    let service = text("task.serviceId", &stored.service_id)?;
    let revision = given("task.revision", revisions.get(&(service, stored.revision)).cloned())?;
    let id = TaskId { service, number: stored.number };
    let observed = TaskReport::try_from(given("task.observed", stored.observed)?)?;
    if observed.task != id {
        return Err(Violation::new("task.observed.taskId", format!("is not {id}")).into());
    }
    if observed.image.is_some() {
        return Err(Violation::new("task.observed.image", "is kept with the service").into());
    }
    let special = Special {
        not_before: stored.not_before.map(at),
        bound_to: optional("task.boundTo", &stored.bound_to)?,
        volumes: texts("task.volumes", &stored.volumes)?,
        lost_since: stored.lost_since.map(at),
    };
    let trouble =
        Trouble { reason: observed.reason.into(), exit: observed.exit, next_attempt: observed.next_attempt };
    Ok(Task {
        id,
        slot: stored.slot,
        revision,
        created_at: at(stored.created_at),
        node: optional("task.nodeId", &stored.node_id)?,
        address: optional("task.address", &stored.address)?,
        desired: desired(stored.desired)?,
        observed: Observed {
            state: observed.state,
            attempt: observed.attempt,
            since: observed.since,
            ready: observed.ready,
            removed: observed.removed,
            health: observed.health,
            trouble: Seldom::new(trouble),
        },
        special: Seldom::new(special),
    })
}
