//! Managers that left the cluster: removed, replaced, or of an earlier incarnation. Their certificates are
//! valid until they expire, so their ids are recorded.

use warren_types::{ManagerId, MemberId};

use super::{MAX_REMOVED_NODES, State, digest};

/// A manager that left the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepartedManager {
    /// Its id in the raft group.
    pub member: MemberId,
    /// The index of the entry with which it left.
    pub index: u64,
}

impl State {
    /// How the manager with that id in its certificate left; `None` if it is a member, never was one, or if
    /// too many others left since.
    pub fn departed_manager(&self, manager: &ManagerId) -> Option<DepartedManager> {
        self.departed_managers.get(manager).copied()
    }

    /// The most recently departed managers, by their id in the certificate.
    pub fn departed_managers(&self) -> impl Iterator<Item = (ManagerId, DepartedManager)> {
        self.departed_managers.iter().map(|(manager, departed)| (*manager, *departed))
    }

    /// The manager is a member again, so it has not departed.
    pub(super) fn forget_departure(&mut self, manager: ManagerId) {
        if let Some(departed) = self.departed_managers.remove(&manager) {
            self.digest_sum.remove(digest::departed_manager(manager, departed));
        }
    }

    /// Records that a manager left. Beyond the limit the oldest record is deleted.
    pub(super) fn record_departure(&mut self, manager: ManagerId, departed: DepartedManager) {
        self.forget_departure(manager);
        self.digest_sum.add(digest::departed_manager(manager, departed));
        self.departed_managers.insert(manager, departed);
        if self.departed_managers.len() > MAX_REMOVED_NODES {
            let oldest =
                self.departed_managers.iter().min_by_key(|(_, departed)| (departed.index, departed.member));
            if let Some(manager) = oldest.map(|(manager, _)| *manager) {
                self.forget_departure(manager);
            }
        }
    }
}
