//! Managers that left the cluster: removed, replaced, or of a life of it that is over. Their certificates are good
//! until they expire, so it is remembered whose they are.

use warren_types::{ManagerId, MemberId};

use super::{MAX_REMOVED, State, digest};

/// A manager that left the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departed {
    /// What its id in the raft group was.
    pub member: MemberId,
    /// The entry with which it left.
    pub index: u64,
}

impl State {
    /// How the manager with that id in its certificate left; `None` for one that is there, that never was, or of which
    /// too many others left since.
    pub fn departed(&self, manager: &ManagerId) -> Option<Departed> {
        self.departed.get(manager).copied()
    }

    /// All of those that left last, by their id in the certificate.
    pub fn all_departed(&self) -> impl Iterator<Item = (ManagerId, Departed)> {
        self.departed.iter().map(|(manager, departed)| (*manager, *departed))
    }

    /// A manager is there, so it is not one that left.
    pub(super) fn forget_departure(&mut self, manager: ManagerId) {
        if let Some(departed) = self.departed.remove(&manager) {
            self.sum.remove(digest::departed(manager, departed));
        }
    }

    /// A manager left. Of too many, the one that left first is forgotten.
    pub(super) fn remember_departure(&mut self, manager: ManagerId, departed: Departed) {
        self.forget_departure(manager);
        self.sum.add(digest::departed(manager, departed));
        self.departed.insert(manager, departed);
        if self.departed.len() > MAX_REMOVED {
            let oldest = self.departed.iter().min_by_key(|(_, departed)| (departed.index, departed.member));
            if let Some(manager) = oldest.map(|(manager, _)| *manager) {
                self.forget_departure(manager);
            }
        }
    }
}
