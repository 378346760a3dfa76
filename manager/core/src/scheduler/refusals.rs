//! Why tasks cannot be placed, per revision and the node that they are bound to: such tasks have the same
//! reason, except those that have volumes of their own or are for one value of a label.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{NodeId, ServiceId, Task};

use super::TaskGroup;
use super::filter::Explanation;
use super::volumes::volume_slot;

/// The scheduler's reasons for the revisions of which it could not place every task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UnschedulableReasons(BTreeMap<UnschedulableKey, Unschedulable>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Unschedulable {
    reason: Arc<str>,
    remedies: Vec<String>,
}

/// Service, number of the revision, node that the task is bound to, and its slot if it has volumes of its
/// own or is for one value of a label.
type UnschedulableKey = (ServiceId, u64, Option<NodeId>, Option<u32>);

impl UnschedulableReasons {
    /// Why a task has no node: `0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB), 2 are down`.
    /// `None` if the scheduler has no reason for its revision.
    pub fn get(&self, task: &Task) -> Option<&Arc<str>> {
        self.of(task).map(|found| &found.reason)
    }

    /// What users can do about it, that which concerns most nodes first.
    pub fn remedies(&self, task: &Task) -> &[String] {
        self.of(task).map_or(&[], |found| &found.remedies)
    }

    fn of(&self, task: &Task) -> Option<&Unschedulable> {
        let slot = volume_slot(task).or(task.label_value().map(|_| task.slot));
        let key = (task.id.service, task.revision.number, task.bound_to(), slot);
        self.0.get(&key).filter(|_| task.node.is_none())
    }

    /// All reasons: service, number of the revision, reason.
    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, u64, &Arc<str>)> {
        self.0.iter().map(|((service, revision, ..), found)| (*service, *revision, &found.reason))
    }

    /// Whether every task was placed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, group: &TaskGroup<'_>, why: Explanation) {
        let slot = group.volumes.slot().or(group.label_value.map(|_| group.slot));
        let found = Unschedulable { reason: why.reason.into(), remedies: why.remedies };
        self.0.insert((group.service.id, group.revision.number, group.bound_to, slot), found);
    }
}
