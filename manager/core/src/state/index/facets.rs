//! The indexed properties of one task, and the differences between two versions of it.

use std::net::Ipv4Addr;

use warren_types::{DesiredTaskState, Health, NodeId, ServiceId, Task, TaskId, TaskState};

/// The indexed properties of one task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::state) struct Facets {
    pub(super) id: TaskId,
    revision: u64,
    slot: u32,
    is_live: bool,
    /// To be prepared and not started yet.
    is_standby: bool,
    is_lost: bool,
    is_unhealthy: bool,
    is_running: bool,
    is_ready: bool,
    node: Option<NodeId>,
    pub(super) held: Option<(NodeId, Ipv4Addr)>,
    /// The node on which its reservations count. A terminal task needs no memory, even while its files are
    /// kept.
    pub(super) reserved: Option<NodeId>,
    log_node: Option<NodeId>,
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
            is_live: live,
            is_standby: live && task.desired == DesiredTaskState::Ready,
            is_lost: lost,
            is_unhealthy: live && task.observed.health == Health::Unhealthy,
            is_running: running,
            is_ready: running && task.observed.ready,
            node: task.node,
            held: if task.holds_resources() { task.node.zip(task.address) } else { None },
            reserved: task.node.filter(|_| task.holds_resources() && !task.observed.state.is_terminal()),
            log_node: task.log_node(),
        }
    }

    pub(super) fn live_slot(&self) -> Option<(ServiceId, u32, u64)> {
        self.is_live.then_some((self.id.service, self.slot, self.id.number))
    }

    pub(super) fn live_revision(&self) -> Option<(ServiceId, u64)> {
        self.is_live.then_some((self.id.service, self.revision))
    }

    /// What counts in [`RevisionUsers`], in addition to the record itself.
    pub(super) fn revision_users(&self) -> Option<[bool; 2]> {
        Some([self.is_live, self.is_live || self.held.is_some()])
    }

    pub(super) fn pending(&self) -> Option<TaskId> {
        (self.is_live && self.node.is_none()).then_some(self.id)
    }

    pub(super) fn unsettled(&self) -> Option<TaskId> {
        (!self.is_live || self.is_lost || self.is_standby).then_some(self.id)
    }

    pub(super) fn unhealthy(&self) -> Option<TaskId> {
        self.is_unhealthy.then_some(self.id)
    }

    pub(super) fn retained_log(&self) -> Option<(NodeId, TaskId)> {
        self.log_node.map(|node| (node, self.id))
    }

    pub(super) fn task_per_node(&self) -> Option<(ServiceId, NodeId)> {
        self.node.filter(|_| self.is_live).map(|node| (self.id.service, node))
    }

    pub(super) fn counts(&self) -> Option<[bool; 3]> {
        Some([self.is_live, self.is_running, self.is_ready])
    }
}

/// The old and the new value of a facet, if they differ.
pub(super) fn diff<T: PartialEq>(
    before: Option<Facets>,
    after: Option<Facets>,
    facet: impl Fn(&Facets) -> Option<T>,
) -> (Option<T>, Option<T>) {
    let (before, after) = (before.as_ref().and_then(&facet), after.as_ref().and_then(&facet));
    if before == after { (None, None) } else { (before, after) }
}
