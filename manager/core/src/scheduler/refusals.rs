//! Why tasks go nowhere, per revision: tasks of one revision are refused alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::{ServiceId, Task};

use super::Group;

/// What the scheduler said of the revisions of which it could not place every task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Refusals(BTreeMap<(ServiceId, u64), Arc<str>>);

impl Refusals {
    /// Why a task without a node has none: `0 of 5 nodes fit: 3 lack memory (need 512MiB, best has 300MiB),
    /// 2 are down`. `None` when the scheduler said nothing of its revision.
    pub fn of(&self, task: &Task) -> Option<&Arc<str>> {
        self.0.get(&(task.id.service, task.revision.number)).filter(|_| task.node.is_none())
    }

    /// All of them: service, number of the revision, reason.
    pub fn iter(&self) -> impl Iterator<Item = (ServiceId, u64, &Arc<str>)> {
        self.0.iter().map(|((service, revision), reason)| (*service, *revision, reason))
    }

    /// Every task found a node.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, group: &Group<'_>, reason: String) {
        self.0.insert((group.service.id, group.revision.number), reason.into());
    }
}
