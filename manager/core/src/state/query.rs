//! Questions to a state. None of them scans more than it answers.

mod resolve;

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use warren_types::{
    Assignment, AssignmentVersion, Node, NodeId, NodeName, NodeSettings, Service, ServiceId, ServiceName,
    Task, TaskAssignment, TaskId,
};

use super::{Counts, State, Usage};

/// How often a worker sends usage and conditions.
pub const HEARTBEAT: Duration = Duration::from_secs(5);
/// How often a worker asks whether its assignment is current.
pub const SYNC: Duration = Duration::from_secs(3);

impl State {
    /// Services by name, from the first after `last`; all of them for `None`. `take` a page, and ask on
    /// from its last name.
    pub fn services_after<'a>(
        &'a self,
        last: Option<&ServiceName>,
    ) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.service_names.range::<_, ServiceName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.services.get(id))
    }

    /// Nodes by name, from the first after `last`.
    pub fn nodes_after<'a>(
        &'a self,
        last: Option<&NodeName>,
    ) -> impl Iterator<Item = &'a Arc<Node>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.node_names.range::<_, NodeName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.nodes.get(id))
    }

    /// Tasks of all services by id, from the first after `last`.
    pub fn tasks_after(&self, last: Option<TaskId>) -> impl Iterator<Item = &Arc<Task>> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.tasks.range((from, Bound::Unbounded)).map(|(_, task)| task)
    }

    /// Tasks of a service by number, records of ended ones included. The iterator can be reversed.
    pub fn tasks_of<'a>(
        &'a self,
        service: &ServiceId,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Task>> + use<'a> {
        self.tasks.range(numbers(*service)).map(|(_, task)| task)
    }

    /// The task that occupies the slot.
    pub fn live_task(&self, service: &ServiceId, slot: u32) -> Option<&Arc<Task>> {
        let number = *self.index.live.get(&(*service, slot))?;
        self.tasks.get(&TaskId { service: *service, number })
    }

    /// Tasks that hold the node: not yet reported as removed. In order of their addresses.
    pub fn tasks_on<'a>(&'a self, node: &NodeId) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        let subnet = self.nodes.get(node).map(|node| node.subnet);
        let held = subnet.map(|subnet| self.index.addresses.range(subnet.network()..=subnet.broadcast()));
        held.into_iter().flatten().filter_map(|(_, task)| self.tasks.get(task))
    }

    /// How many tasks a service has; nothing for one that does not exist.
    pub fn counts(&self, service: &ServiceId) -> Counts {
        self.index.counts.get(service).copied().unwrap_or_default()
    }

    /// What is taken of a node; nothing for one that does not exist.
    pub fn usage(&self, node: &NodeId) -> Usage {
        self.index.usage.get(node).copied().unwrap_or_default()
    }

    /// Everything the node should have. `None` if there is no such node.
    pub fn assignment(&self, node: &NodeId) -> Option<Assignment> {
        let version = self.assignment_version(node)?;
        let mut tasks: Vec<_> = self.tasks_on(node).filter_map(|task| self.task_assignment(task)).collect();
        tasks.sort_unstable_by_key(|task| task.id);
        Some(Assignment { version, tasks })
    }

    /// Version of what the node should have; it rises with every change of that. `None` if there is no such
    /// node.
    pub fn assignment_version(&self, node: &NodeId) -> Option<AssignmentVersion> {
        let incarnation = self.cluster.as_ref()?.incarnation;
        Some(AssignmentVersion { incarnation, index: self.nodes.get(node)?.assignment })
    }

    /// A task as its worker must know it. `None` until it has an address.
    pub fn task_assignment(&self, task: &Task) -> Option<TaskAssignment> {
        Some(TaskAssignment {
            id: task.id,
            service: self.services.get(&task.id.service)?.spec.name.clone(),
            slot: task.slot,
            revision: task.revision.number,
            spec: task.revision.task.clone(),
            ports: task.revision.ports.clone(),
            address: task.address?,
            desired: task.desired,
        })
    }

    /// What the node must know that is not per task. `None` if there is no such node.
    pub fn node_settings(&self, node: &NodeId) -> Option<NodeSettings> {
        let cluster = self.cluster.as_ref()?;
        let node = self.nodes.get(node)?;
        Some(NodeSettings {
            cluster: cluster.id,
            node: node.id,
            subnet: node.subnet,
            ranges: cluster.ranges.clone(),
            heartbeat: HEARTBEAT,
            sync: SYNC,
        })
    }

    /// Tasks of a service that are not live any more or on a node that is down, oldest first.
    pub(crate) fn unsettled_of<'a>(
        &'a self,
        service: &ServiceId,
    ) -> impl DoubleEndedIterator<Item = &'a Arc<Task>> + use<'a> {
        self.index.unsettled.range(numbers(*service)).filter_map(|id| self.tasks.get(id))
    }
}

/// Every task id that the service can give.
fn numbers(service: ServiceId) -> std::ops::RangeInclusive<TaskId> {
    TaskId { service, number: 0 }..=TaskId { service, number: u64::MAX }
}
