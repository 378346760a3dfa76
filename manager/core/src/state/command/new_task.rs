//! A task that a plan asks for.

use warren_types::{Desired, NodeId, Timestamp};

/// A slot that gets a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewTask {
    /// Place in the service: see [`warren_types::Task::slot`].
    pub slot: u32,
    /// Not placed before this.
    pub not_before: Option<Timestamp>,
    /// What is wanted of it at first: `Ready` where it waits beside the one that it replaces.
    pub desired: Desired,
    /// The number of the live task of the slot that it shall replace: created only if that one is still live and is
    /// the slot's only one. `None`: created only if the slot has no live task.
    pub replaces: Option<u64>,
    /// It runs on this node or nowhere.
    pub bound_to: Option<NodeId>,
}
