//! The writes that change keys of the cluster.

use warren_types::{
    KeyPhase, MemberId, NextSecretObjectKey, PublicKeyHash, SealedData, SealedItem, SealedUnlockKey,
    Timestamp, UnlockKeyId,
};

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
    /// Replaces the keys that encrypt what managers store. Response: `Cluster`. `Unchanged` if the step was done, or
    /// something is missing for it.
    Rotate {
        /// The number of the replacement.
        number: u64,
        /// What is done.
        step: KeyRotationStep,
        /// Time of the command.
        at: Timestamp,
    },
    /// Replaces sealed data by the same, sealed with the new secret object key; what was changed meanwhile is left
    /// out. Response: `Done`.
    Reseal {
        /// The number of the replacement.
        number: u64,
        /// What is replaced, and by what.
        items: Vec<(SealedItem, SealedData)>,
        /// Time of the command.
        at: Timestamp,
    },
    /// Revokes a key of a user or of a manager's administrator; the others of the user stay. Response: `Done`.
    Revoke {
        /// The key.
        key: PublicKeyHash,
        /// Time of the command.
        at: Timestamp,
    },
}

/// A step of the replacement of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyRotationStep {
    /// Begins one after that with the number, which is complete; 0: after none.
    Begin,
    /// A manager has done what the phase asks of it.
    Record {
        /// The phase.
        phase: KeyPhase,
        /// The manager.
        member: MemberId,
    },
    /// Ends the first phase: managers store this secret object key next.
    Offer(NextSecretObjectKey),
    /// Begins this phase, the third or the last.
    Advance(KeyPhase),
}

impl KeyCommand {
    pub(super) fn planner_term(&self) -> Option<u64> {
        match self {
            Self::SetUnlockKey { .. } | Self::Rotate { .. } | Self::Reseal { .. } | Self::Revoke { .. } => {
                None
            }
        }
    }

    pub(super) fn at(&self) -> Timestamp {
        match self {
            Self::SetUnlockKey { at, .. }
            | Self::Rotate { at, .. }
            | Self::Reseal { at, .. }
            | Self::Revoke { at, .. } => *at,
        }
    }

    pub(super) fn set_at(&mut self, time: Timestamp) {
        match self {
            Self::SetUnlockKey { at, .. }
            | Self::Rotate { at, .. }
            | Self::Reseal { at, .. }
            | Self::Revoke { at, .. } => *at = time,
        }
    }
}
