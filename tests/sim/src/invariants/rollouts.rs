//! A failed update goes back once, to a revision that was there before it; and an update takes no more slots
//! out of service at a time than ordered.

use std::collections::BTreeSet;

use warren_core::{Command, ReconcilePlan, State};
use warren_types::{
    Availability, DesiredTaskState, FailureOutcome, RolloutKind, Service, ServiceId, TaintEffect, Task,
    UpdateOrder,
};

use super::taints;

/// Checks a changed service. Returns whether managers rolled it back.
pub fn rolled_back(before: &State, newest: &State, id: ServiceId) -> Result<bool, String> {
    let (Some(old), Some(new)) = (before.service(&id), newest.service(&id)) else { return Ok(false) };
    let failed = new.rollout.failures.last().filter(|failure| failure.revision == old.revision.number);
    let Some(FailureOutcome::RolledBack { to }) = failed.map(|failure| failure.outcome) else {
        return Ok(false);
    };
    if new.revision.number == old.revision.number {
        return Err(format!("a failed update goes back: {id} has a rollback and no new revision"));
    }
    let target = old.history.iter().find(|known| known.number == to);
    let is_restored = target.is_some_and(|target| {
        (&target.task, &target.secret_objects) == (&new.revision.task, &new.revision.secret_objects)
    });
    let is_first = old.rollout.kind == RolloutKind::Update && old.rollout.failures.is_empty();
    if is_first && is_restored && new.rollout.kind == RolloutKind::Rollback {
        return Ok(true);
    }
    Err(format!(
        "an update goes back once, to an earlier revision: {:?}, then {:?}",
        old.rollout, new.rollout
    ))
}

/// An update or a rollback of the service may stop a task before its replacement serves.
pub fn may_stop_first(service: &Service) -> bool {
    let orders = [service.spec.update.order, service.spec.rollback.order];
    orders.contains(&Some(UpdateOrder::StopFirst))
}

/// No plan takes more slots out of service than the parallelism of the rollout. `state` is the state the plan was
/// computed from.
pub fn keeps_order(state: &State, plan: &ReconcilePlan) -> Result<(), String> {
    let mut after = state.clone();
    let applied = state.applied();
    for (index, command) in (applied.index + 1..).zip(&plan.commands) {
        after.apply(applied.term, index, command);
    }
    let removed = plan.commands.iter().filter_map(|command| match command {
        Command::SetDesiredTaskState { tasks, desired: DesiredTaskState::Remove, .. } => Some(tasks),
        _ => None,
    });
    let services: BTreeSet<ServiceId> = removed.flatten().map(|task| task.service).collect();
    for service in services.iter().filter_map(|id| after.service(id)) {
        let allowed = service.rollout_policy().parallelism.slots(after.desired_tasks(service));
        let stopped = served_slots(state, service).difference(&served_slots(&after, service)).count();
        if !service.removing && may_stop_first(service) && stopped > allowed as usize {
            return Err(format!(
                "an update stops as many tasks as ordered: {stopped} and not {allowed} slots of {}: {plan:?}",
                service.id
            ));
        }
    }
    Ok(())
}

/// Desired slots with a serving task on a node that it need not leave. Tasks of earlier placements may have to leave
/// their nodes at once, so services with constraints are exempt.
fn served_slots(state: &State, service: &Service) -> BTreeSet<u32> {
    let placement = &service.revision.placement;
    let replicas = service.spec.replicas().unwrap_or(0);
    if !placement.constraints.is_empty() || placement.max_per_node.is_some() {
        return BTreeSet::new();
    }
    let stays = |task: &Task| {
        let node = task.node.and_then(|node| state.node(&node));
        node.is_some_and(|node| {
            let is_tolerated = taints::tolerates(service, node, &[TaintEffect::NoExecute]);
            node.availability != Availability::Drain && is_tolerated
        })
    };
    let is_told_to = |task: &Task| task.desired == DesiredTaskState::Running;
    let serves = |task: &Task| {
        task.is_live() && is_told_to(task) && task.lost_since().is_none() && task.observed.ready
    };
    let tasks = state.tasks_of(&service.id).filter(|task| serves(task) && stays(task));
    tasks.map(|task| task.slot).filter(|slot| *slot <= replicas).collect()
}
