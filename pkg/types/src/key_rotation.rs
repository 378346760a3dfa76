//! The replacement of the keys that encrypt what managers store.

use std::collections::BTreeSet;

use crate::{MemberId, SealedData, SecretObjectId, SecretObjectKeyId, Timestamp};

/// How far the replacement of the keys is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyPhase {
    /// Each manager replaces its data key and its member key, and writes its snapshot and its log again.
    Disks,
    /// Each manager stores the new secret object key.
    Managers,
    /// The new secret object key seals. What another key sealed is sealed again.
    Objects,
    /// Nothing is sealed with an earlier key.
    Complete,
}

impl KeyPhase {
    /// The word for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disks => "disks",
            Self::Managers => "managers",
            Self::Objects => "objects",
            Self::Complete => "complete",
        }
    }
}

/// The newest replacement of the keys of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRotation {
    /// Index of the entry that began it.
    pub number: u64,
    /// How far it is.
    pub phase: KeyPhase,
    /// When it began.
    pub began_at: Timestamp,
    /// The secret object key that seals; `None` until the first one is replaced.
    pub sealing: Option<SecretObjectKeyId>,
    /// The secret object key that managers store, in the phase for that only.
    pub next: Option<NextSecretObjectKey>,
    /// The managers that have done what the phase asks of them.
    pub managers: BTreeSet<MemberId>,
}

/// A secret object key that managers are to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextSecretObjectKey {
    /// Names it.
    pub id: SecretObjectKeyId,
    /// The key, sealed with the one before it.
    pub sealed: SealedData,
}

/// Something that the secret object key seals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealedItem {
    /// A version of a secret object.
    SecretObject {
        /// The secret object.
        id: SecretObjectId,
        /// The number of the version.
        number: u64,
    },
    /// The certificate authority that replaced the earlier ones.
    Authority,
    /// The unlock key.
    UnlockKey,
}
