//! Why tasks go nowhere, per revision and the node that they are bound to: such tasks are refused alike, but for those
//! that have volumes of their own.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{NodeId, ServiceId, Task};

use super::Group;
use super::volumes::own_slot;

/// What the scheduler said of the revisions of which it could not place every task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals(BTreeMap<Key, Arc<str>>);

/// Service, number of the revision, node that the task is bound to, and its slot where it has volumes of its own.
type Key = (ServiceId, u64, Option<NodeId>, Option<u32>);

impl Refusals {
    /// Why a task without a node has none: `0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB),
    /// 2 are down`. `None` when the scheduler said nothing of its revision.
    pub fn of(&self, task: &Task) -> Option<&Arc<str>> {
        let key = (task.id.service, task.revision.number, task.bound_to(), own_slot(task));
        self.0.get(&key).filter(|_| task.node.is_none())
    }

    /// All of them: service, number of the revision, reason.
    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, u64, &Arc<str>)> {
        self.0.iter().map(|((service, revision, ..), reason)| (*service, *revision, reason))
    }

    /// Every task found a node.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, group: &Group<'_>, reason: String) {
        let slot = group.volumes.slot();
        self.0.insert((group.service.id, group.revision.number, group.bound_to, slot), reason.into());
    }
}
