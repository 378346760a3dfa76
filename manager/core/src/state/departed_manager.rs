//! Managers that left the cluster: removed, replaced, or of an earlier incarnation. Their certificates are
//! valid until they expire, so their ids are recorded.

use warren_types::{ManagerId, MemberId};

use super::State;

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
}
