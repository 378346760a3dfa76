//! Which tasks must leave their nodes: the node is drained, a constraint is not met any more, the node has a taint with
//! the effect NoExecute that the service does not tolerate, or the service exceeds `max_per_node` there.

use std::collections::BTreeSet;

use warren_types::{DesiredTaskState, Node, Service, ServiceMode, Task, TaskId};

use crate::state::{NodeEligibility, State, is_equivalent};

/// Live tasks of the service that must leave their nodes. None of a global service with a task on each node: there a
/// node that may not have a task is not a slot.
pub(super) fn misplaced_tasks(state: &State, service: &Service) -> BTreeSet<TaskId> {
    let per_value = service.spec.per.is_some();
    if (service.spec.mode == ServiceMode::Global && !per_value) || service.removing {
        return BTreeSet::new();
    }
    let placement = &service.revision.placement;
    let id = service.id;
    let mut misplaced = BTreeSet::new();
    if !placement.may_exclude_nodes() && !per_value {
        let evicting = state.index().evicting_nodes.iter().filter(|node| state.has_task_on(&id, node));
        let nodes = evicting.filter_map(|node| state.node(node));
        for node in nodes.filter(|node| state.eligibility(service, node) == NodeEligibility::Excluded) {
            misplaced.extend(tasks_on(state, service, node).map(|task| task.id));
        }
        return misplaced;
    }
    for (node, tasks) in state.index().tasks_per_node.range(id, ..) {
        let Some(node) = state.node(node) else { continue };
        let most = placement.max_per_node.unwrap_or(u32::MAX);
        let excluded =
            |task: &&Task| state.task_eligibility(service, task, node) == NodeEligibility::Excluded;
        if per_value {
            misplaced.extend(tasks_on(state, service, node).filter(excluded).map(|task| task.id));
        } else if state.eligibility(service, node) == NodeEligibility::Excluded {
            misplaced.extend(tasks_on(state, service, node).map(|task| task.id));
        } else if *tasks > most {
            misplaced.extend(excess_tasks(state, service, node, most));
        }
    }
    misplaced
}

fn tasks_on<'a>(state: &'a State, service: &'a Service, node: &Node) -> impl Iterator<Item = &'a Task> {
    let tasks = state.tasks_on(&node.id).map(AsRef::as_ref);
    tasks.filter(|task: &&Task| task.id.service == service.id && task.is_live())
}

/// The tasks of the slots beyond `most`, those with the newest tasks. Each slot counts once, with the task that stays
/// whatever this plan does: so the result does not depend on other decisions. A replacement on the same node would
/// exceed the number too once it is the only task of its slot.
fn excess_tasks<'a>(
    state: &'a State,
    service: &'a Service,
    node: &'a Node,
    most: u32,
) -> impl Iterator<Item = TaskId> + use<'a> {
    let retained = tasks_on(state, service, node).filter(|task| is_retained(state, service, task));
    let mut counted: Vec<(TaskId, u32)> = retained.map(|task| (task.id, task.slot)).collect();
    counted.sort_unstable();
    let excess = counted.into_iter().skip(usize::try_from(most).unwrap_or(usize::MAX));
    excess.flat_map(|(_, slot)| {
        let live = state.live_tasks(&service.id, slot);
        live.filter(|task| task.node == Some(node.id)).map(|task| task.id)
    })
}

/// It is the task of its slot: of two the second as soon as it runs, or when the first is lost.
fn is_retained(state: &State, service: &Service, task: &Task) -> bool {
    let desired = service.spec.replicas().is_some_and(|replicas| task.slot <= replicas);
    let lost = |task: &Task| task.lost_since().is_some();
    let runs = |task: &Task| task.desired == DesiredTaskState::Running && task.observed.ready && !lost(task);
    let mut live = state.live_tasks(&service.id, task.slot).map(AsRef::as_ref);
    let (first, second): (Option<&Task>, Option<&Task>) = (live.next(), live.next());
    let occupant = match (first, second) {
        (Some(first), Some(second)) if runs(second) || lost(first) => Some(second),
        _ => first,
    };
    let given_up =
        task.desired == DesiredTaskState::Ready && !is_equivalent(&task.revision, &service.revision);
    desired && !lost(task) && !given_up && occupant.is_some_and(|occupant| occupant.id == task.id)
}
