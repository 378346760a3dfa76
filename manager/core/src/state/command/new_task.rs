//! A task that a plan creates.

use std::sync::Arc;

use warren_types::{DesiredTaskState, NodeId, Timestamp};

/// The new task of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Position in the service: see [`warren_types::Task::slot`].
    pub slot: u32,
    /// Not assigned before this time.
    pub not_before: Option<Timestamp>,
    /// Its initial desired state: `Ready` for a standby task.
    pub desired: DesiredTaskState,
    /// The number of the live task of the slot that it replaces: created only if that one is still live and
    /// is the slot's only one. `None`: created only if the slot has no live task.
    pub replaces: Option<u64>,
    /// The only node that may run it.
    pub bound_to: Option<NodeId>,
    /// Only nodes on which the label `per` of the service has this value may run it.
    pub label_value: Option<Arc<str>>,
}
