//! What the replacement of the keys waits for, and what is next.

use warren_types::{KeyPhase, KeyRotation, Member, MemberId, SealedData, SealedItem, SecretObjectKeyId};

use super::{Refusal, RotationProgress, State};

/// What the leader does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyStep {
    /// It makes a secret object key ([`super::KeyRotationStep::Offer`]).
    Offer,
    /// It seals some of [`State::stale_items`] again.
    Reseal,
    /// It begins the phase.
    Advance(KeyPhase),
}

/// What a manager does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManagerKeyStep {
    /// It replaces the keys of what it stores on its disk.
    RenewDisk,
    /// It stores the next secret object key.
    Adopt,
    /// It says that it has done what the phase asks of it ([`super::KeyRotationStep::Record`]).
    Record,
    /// It seals with this secret object key.
    Seal(SecretObjectKeyId),
    /// It forgets all secret object keys but the one that it seals with.
    ForgetEarlier,
}

/// The keys that a manager has.
#[derive(Debug, Clone, Copy)]
pub struct ManagerKeyState<'a> {
    /// Its secret object keys, of which the first one seals.
    pub secret_object_keys: &'a [SecretObjectKeyId],
    /// The number of the last replacement for which this process has renewed the keys of its disk.
    pub renewed: Option<u64>,
}

impl State {
    /// The newest replacement of the keys.
    pub fn key_rotation(&self) -> Option<&KeyRotation> {
        self.cluster.as_ref()?.key_rotation.as_deref()
    }

    /// Whether a replacement may begin that follows the one with that number; 0: none. One at a time.
    pub fn may_begin_key_rotation(&self, number: u64) -> bool {
        let follows = |known: &KeyRotation| known.number == number && known.phase == KeyPhase::Complete;
        self.key_rotation().map_or(number == 0, follows)
    }

    /// The managers, but for those that are being removed; those that have not done what the phase asks of them are
    /// missing.
    pub fn key_managers(&self) -> RotationProgress<&Member> {
        let remaining = || self.members.values().map(|member| &**member).filter(|member| !member.removing);
        let is_missing = |member: &&Member| {
            self.key_rotation().is_some_and(|rotation| match rotation.phase {
                KeyPhase::Disks | KeyPhase::Managers => !rotation.managers.contains(&member.member_id),
                KeyPhase::Objects | KeyPhase::Complete => false,
            })
        };
        RotationProgress { total: remaining().count(), missing: remaining().filter(is_missing).collect() }
    }

    /// Everything that the secret object key seals.
    pub fn sealed_items(&self) -> impl Iterator<Item = (SealedItem, &SealedData)> {
        let versions = self.secret_objects.values().flat_map(|object| {
            let id = object.id;
            let item = move |number| SealedItem::SecretObject { id, number };
            object.versions.iter().map(move |(number, data)| (item(*number), &**data))
        });
        let authority = self.ca_rotation().map(|rotation| (SealedItem::Authority, &rotation.sealed));
        let unlock_key = self.unlock_key().map(|key| (SealedItem::UnlockKey, &key.sealed));
        versions.chain(authority).chain(unlock_key)
    }

    /// What an earlier secret object key seals.
    pub fn stale_items(&self) -> impl Iterator<Item = (SealedItem, &SealedData)> {
        let sealing = self.key_rotation().and_then(|rotation| rotation.sealing);
        self.sealed_items().filter(move |(_, data)| sealing.is_some() && data.key() != sealing)
    }

    /// Refuses data that an earlier key seals: it is forgotten when it seals nothing in the state.
    pub(super) fn check_sealed(&self, data: &SealedData) -> Result<(), Refusal> {
        let sealing = self.key_rotation().and_then(|rotation| rotation.sealing);
        let is_known = sealing.is_none() || data.key() == sealing;
        if is_known { Ok(()) } else { Err(Refusal::SecretObjectKeyReplaced) }
    }

    /// What the leader does next; `None` while managers are missing, or nothing is replaced. All managers are waited
    /// for.
    pub fn next_key_step(&self) -> Option<KeyStep> {
        let managers = self.key_managers();
        let are_managers_done = managers.total > 0 && managers.missing.is_empty();
        match self.key_rotation()?.phase {
            KeyPhase::Disks => are_managers_done.then_some(KeyStep::Offer),
            KeyPhase::Managers => are_managers_done.then_some(KeyStep::Advance(KeyPhase::Objects)),
            KeyPhase::Objects if self.stale_items().next().is_some() => Some(KeyStep::Reseal),
            KeyPhase::Objects => Some(KeyStep::Advance(KeyPhase::Complete)),
            KeyPhase::Complete => None,
        }
    }

    /// What `member`, which has `own` keys, does next; `None` if nothing. It is asked again after each step. Only the
    /// answer of a state that was read linearizably may be followed: an earlier one than the keys are from would have
    /// keys forgotten that are needed.
    pub fn manager_key_step(&self, member: MemberId, own: ManagerKeyState<'_>) -> Option<ManagerKeyStep> {
        let (rotation, keys) = (self.key_rotation()?, own.secret_object_keys);
        let is_unused = |key: &SecretObjectKeyId| keys.first() != Some(key) && keys.contains(key);
        if let Some(sealing) = rotation.sealing.filter(is_unused) {
            return Some(ManagerKeyStep::Seal(sealing));
        }
        let is_missing = self.members.contains_key(&member) && !rotation.managers.contains(&member);
        match rotation.phase {
            KeyPhase::Disks | KeyPhase::Complete
                if keys.len() > 1 && keys.first() == rotation.sealing.as_ref() =>
            {
                Some(ManagerKeyStep::ForgetEarlier)
            }
            KeyPhase::Disks if is_missing && own.renewed == Some(rotation.number) => {
                Some(ManagerKeyStep::Record)
            }
            KeyPhase::Disks => is_missing.then_some(ManagerKeyStep::RenewDisk),
            KeyPhase::Managers => {
                let is_adopted = keys.contains(&rotation.next.as_ref()?.id);
                let recorded = is_missing.then_some(ManagerKeyStep::Record);
                if is_adopted { recorded } else { Some(ManagerKeyStep::Adopt) }
            }
            KeyPhase::Objects | KeyPhase::Complete => None,
        }
    }
}

/// Whether `new` may take the place of `old`, which holds the same.
pub(super) fn is_resealed(old: &SealedData, new: &SealedData) -> bool {
    old.key() != new.key() && old.size == new.size
}
