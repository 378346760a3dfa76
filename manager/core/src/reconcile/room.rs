//! How many tasks without a node a replicated service may have: more of them would only cost memory.

use std::collections::BTreeSet;

use warren_types::{Node, Resources, Service, ServiceId};

use crate::state::{NodeEligibility, State, is_final, task_id_range};

/// Tasks without a node beyond those that fit now: the next ones to be placed when there is room.
pub const SPARE_TASKS: u64 = 100;

/// How many tasks the service has and does not have because there is no room for them: `0` as long as more
/// are created.
pub fn uncreated_tasks(state: &State, service: &Service) -> u32 {
    let Some(replicas) = service.spec.replicas().filter(|_| !service.removing) else { return 0 };
    let vacant = replicas.saturating_sub(state.index().count_occupied_slots(&service.id));
    // The room on all nodes is only summed up if it decides: lists ask this for every service.
    let has_spare = || unplaced_tasks(state, &service.id) < SPARE_TASKS || spare_tasks(state, service) > 0;
    if vacant == 0 || has_spare() {
        return 0;
    }
    let ended = state.unsettled_tasks_of(&service.id).filter(|task| !task.is_live() && is_final(task));
    let finished: BTreeSet<u32> = ended.map(|task| task.slot).collect();
    vacant.saturating_sub(u32::try_from(finished.len()).unwrap_or(u32::MAX))
}

/// How many tasks may be created for vacant slots: as many as there is room for, and [`SPARE_TASKS`], without
/// those that exist and have no node.
pub(super) fn spare_tasks(state: &State, service: &Service) -> u64 {
    free_room(state, service).saturating_add(SPARE_TASKS).saturating_sub(unplaced_tasks(state, &service.id))
}

/// How many live tasks of the service have no node.
pub fn unplaced_tasks(state: &State, service: &ServiceId) -> u64 {
    state.index().pending.range(task_id_range(*service)).count() as u64
}

/// How many more tasks of the service the nodes can have.
fn free_room(state: &State, service: &Service) -> u64 {
    let eligible = state.nodes().filter(|node| state.eligibility(service, node) == NodeEligibility::Eligible);
    eligible.map(|node| room_on(state, service, node)).sum()
}

fn room_on(state: &State, service: &Service, node: &Node) -> u64 {
    let allocation = state.node_allocation(&node.id);
    let held = allocation.tasks.saturating_add(allocation.withdrawn);
    let addresses = u64::from(state.address_capacity(node).saturating_sub(held));
    let (free, Resources { cpu, memory }) = (allocation.free(node), service.revision.task.reservations);
    let by_cpu = free.cpu.0.checked_div(cpu.0).unwrap_or(u64::MAX);
    let by_memory = free.memory.0.checked_div(memory.0).unwrap_or(u64::MAX);
    let here = state.index().tasks_per_node.get(&(service.id, node.id)).copied().unwrap_or(0);
    let most = service.revision.placement.max_per_node;
    let by_number = most.map_or(u64::MAX, |most| u64::from(most.saturating_sub(here)));
    addresses.min(by_cpu).min(by_memory).min(by_number)
}
