//! What the indexes know of one task, and what differs between two views of it.

use std::net::Ipv4Addr;

use warren_types::{Desired, Health, NodeId, ServiceId, Task, TaskId, TaskState};

/// What the indexes know of one task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct Facets {
    pub(super) id: TaskId,
    revision: u64,
    slot: u32,
    live: bool,
    /// To be prepared and not started yet.
    standby: bool,
    lost: bool,
    unhealthy: bool,
    running: bool,
    ready: bool,
    node: Option<NodeId>,
    pub(super) held: Option<(NodeId, Ipv4Addr)>,
    /// The node on which its reservations count. What has ended needs no memory, even while its files are kept.
    pub(super) reserved: Option<NodeId>,
}

impl Facets {
    pub(in crate::state) fn of(task: &Task) -> Self {
        let live = task.is_live();
        let lost = task.lost_since().is_some();
        let running = live && !lost && task.observed.state == TaskState::Running;
        Self {
            id: task.id,
            revision: task.revision.number,
            slot: task.slot,
            live,
            standby: live && task.desired == Desired::Ready,
            lost,
            unhealthy: live && task.observed.health == Health::Unhealthy,
            running,
            ready: running && task.observed.ready,
            node: task.node,
            held: if task.holds_node() { task.node.zip(task.address) } else { None },
            reserved: task.node.filter(|_| task.holds_node() && !task.observed.state.is_terminal()),
        }
    }

    pub(super) fn live_slot(&self) -> Option<(ServiceId, u32, u64)> {
        self.live.then_some((self.id.service, self.slot, self.id.number))
    }

    pub(super) fn live_revision(&self) -> Option<(ServiceId, u64)> {
        self.live.then_some((self.id.service, self.revision))
    }

    /// What counts in [`Users`], beside the record itself.
    pub(super) fn use_of_revision(&self) -> Option<[bool; 2]> {
        Some([self.live, self.live || self.held.is_some()])
    }

    pub(super) fn waiting(&self) -> Option<TaskId> {
        (self.live && self.node.is_none()).then_some(self.id)
    }

    pub(super) fn unsettled(&self) -> Option<TaskId> {
        (!self.live || self.lost || self.standby).then_some(self.id)
    }

    pub(super) fn unhealthy(&self) -> Option<TaskId> {
        self.unhealthy.then_some(self.id)
    }

    pub(super) fn spread(&self) -> Option<(ServiceId, NodeId)> {
        self.node.filter(|_| self.live).map(|node| (self.id.service, node))
    }

    pub(super) fn tally(&self) -> Option<[bool; 3]> {
        Some([self.live, self.running, self.ready])
    }
}

/// What a facet was and what it becomes, if that differs.
pub(super) fn differ<T: PartialEq>(
    before: Option<Facets>,
    after: Option<Facets>,
    facet: impl Fn(&Facets) -> Option<T>,
) -> (Option<T>, Option<T>) {
    let (before, after) = (before.as_ref().and_then(&facet), after.as_ref().and_then(&facet));
    if before == after { (None, None) } else { (before, after) }
}
