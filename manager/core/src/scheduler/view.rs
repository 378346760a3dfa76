//! The nodes as they will be once the plan so far is applied.

use std::sync::Arc;
use std::time::Duration;

use warren_types::{Health, Node, NodeId, PublishedPort, ServiceId, ServiceName, Task, TaskState, Timestamp};

use super::TaskGroup;
use super::bootstrap::BootstrapProgress;
use crate::state::{NodeAllocation, State};

/// How long a failure lowers the score of a node for the revision that failed there.
const FAILURE_PENALTY_WINDOW: Duration = Duration::from_secs(5 * 60);

/// The time since the task failed, or was stopped because it was unhealthy; the maximum if it did not.
fn time_since_failure(task: &Task, now: Timestamp) -> Duration {
    let unhealthy = task.observed.health == Health::Unhealthy && !task.is_live();
    match task.observed.state {
        TaskState::Failed | TaskState::Rejected => now.saturating_since(task.observed.since),
        state if unhealthy && state.is_terminal() => now.saturating_since(task.observed.since),
        _ if unhealthy => Duration::ZERO,
        _ => Duration::MAX,
    }
}

/// A working copy of what a plan changes.
pub(super) struct NodeSet<'a> {
    /// By node id.
    pub nodes: Vec<NodeInfo<'a>>,
    /// The service whose tasks are counted in `NodeInfo::service_tasks`, and the revision whose failures are.
    counted_revision: Option<(ServiceId, u64)>,
    state: &'a State,
}

/// A node as it will be after the plan.
pub(crate) struct NodeInfo<'a> {
    pub node: &'a Node,
    pub allocation: NodeAllocation,
    /// Live tasks of the current service, without those that are being replaced.
    pub service_tasks: u32,
    /// All live tasks of the current service.
    pub live_tasks: u32,
    /// Recent failures of the current revision on this node, and its unhealthy tasks.
    pub failures: u32,
    /// Host ports that this plan opens.
    pub opened_ports: Vec<(PublishedPort, ServiceId)>,
    /// The bootstrap service that tasks of other services wait for here.
    pub awaited_service: Option<&'a ServiceName>,
}

impl<'a> NodeSet<'a> {
    pub fn new(state: &'a State) -> Self {
        // Every node has an allocation, and both are ordered by node id.
        let nodes = state.nodes().zip(state.index().allocations.values());
        let bootstrap = BootstrapProgress::of(state);
        let candidate = |(node, usage): (&'a Arc<Node>, &NodeAllocation)| NodeInfo {
            node,
            allocation: *usage,
            service_tasks: 0,
            live_tasks: 0,
            failures: 0,
            opened_ports: Vec::new(),
            awaited_service: bootstrap.awaited_on(node),
        };
        Self { nodes: nodes.map(candidate).collect(), counted_revision: None, state }
    }

    /// Counts what the scores of this group depend on. Groups of one service follow each other, so the plan's
    /// own placements stay counted.
    pub fn count_for(&mut self, group: &TaskGroup<'_>, now: Timestamp) {
        let service = group.service.id;
        let counted = self.counted_revision.replace((service, group.revision.number));
        if counted == self.counted_revision {
            return;
        }
        if counted.is_none_or(|(before, _)| before != service) {
            self.count_tasks(service);
        }
        self.nodes.iter_mut().for_each(|candidate| candidate.failures = 0);
        let state = self.state;
        let unhealthy = state.unhealthy_tasks_of(&service).filter(|task| task.lost_since().is_none());
        let ended = state
            .unsettled_tasks_of(&service)
            .filter(|task| time_since_failure(task, now) < FAILURE_PENALTY_WINDOW);
        for task in unhealthy.chain(ended) {
            if task.revision.number == group.revision.number {
                let candidate = task.node.and_then(|node| self.node(node));
                candidate.into_iter().for_each(|candidate| candidate.failures += 1);
            }
        }
    }

    /// Counts the tasks of the service per node.
    fn count_tasks(&mut self, service: ServiceId) {
        // Both are ordered by node id.
        let mut counts = self.state.index().tasks_per_node.range(service, ..).peekable();
        for candidate in &mut self.nodes {
            let here = counts.next_if(|(node, _)| **node == candidate.node.id);
            candidate.live_tasks = here.map_or(0, |(_, tasks)| *tasks);
            candidate.service_tasks = candidate.live_tasks;
        }
        // The first of two tasks of a slot is removed when the second runs: it does not count.
        for (_, slot) in self.state.index().paired_slots.range((service, 0)..=(service, u32::MAX)) {
            let replaced = self.state.live_task(&service, *slot).and_then(|task| task.node);
            let candidate = replaced.and_then(|node| self.node(node));
            candidate.into_iter().for_each(|candidate| {
                candidate.service_tasks = candidate.service_tasks.saturating_sub(1);
            });
        }
    }

    /// The node with that id.
    pub fn node(&mut self, id: NodeId) -> Option<&mut NodeInfo<'a>> {
        let place = self.nodes.binary_search_by_key(&id, |candidate| candidate.node.id).ok()?;
        self.nodes.get_mut(place)
    }
}

impl NodeInfo<'_> {
    /// Accounts one more task of the group.
    pub fn reserve(&mut self, group: &TaskGroup<'_>) {
        self.allocation.allocate(group.revision.task.reservations);
        self.allocation.tasks += 1;
        self.service_tasks += 1;
        self.live_tasks += 1;
        for port in &group.revision.ports {
            if self.port_owner(group, port).is_none() {
                self.opened_ports.push((*port, group.service.id));
            }
        }
    }

    /// The service that has the port open on this node, or will have.
    pub fn port_owner(&self, group: &TaskGroup<'_>, port: &PublishedPort) -> Option<ServiceId> {
        let planned = self
            .opened_ports
            .iter()
            .find(|(other, _)| other.conflicts_with(port))
            .map(|(_, service)| *service);
        planned.or_else(|| group.state.index().port_owner(self.node.id, port))
    }
}
