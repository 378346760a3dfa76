//! The writes that change keys of the cluster.

use warren_types::{SealedUnlockKey, Timestamp, UnlockKeyId};

/// A change of keys of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyCommand {
    /// Turns autolock on or off, or replaces the unlock key. Response: `Cluster`. `Unchanged` if the key to replace is
    /// not the current one any more.
    SetUnlockKey {
        /// The new key; `None` turns autolock off, whichever key there is.
        key: Option<SealedUnlockKey>,
        /// The key that it replaces; `None` if autolock is off.
        replaces: Option<UnlockKeyId>,
        /// Time of the command.
        at: Timestamp,
    },
}

impl KeyCommand {
    pub(super) fn planner_term(&self) -> Option<u64> {
        match self {
            Self::SetUnlockKey { .. } => None,
        }
    }

    pub(super) fn at(&self) -> Timestamp {
        match self {
            Self::SetUnlockKey { at, .. } => *at,
        }
    }

    pub(super) fn set_at(&mut self, time: Timestamp) {
        match self {
            Self::SetUnlockKey { at, .. } => *at = time,
        }
    }
}
