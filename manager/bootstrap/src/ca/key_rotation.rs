//! The replacement of the keys that encrypt what a manager stores.

use std::path::Path;

use warren_core::ManagerKeyStep;
use warren_security::seal::Keyring;
use warren_security::{KeyFingerprint, SecretObjectKey, SecretObjectKeyError, UnlockKey};
use warren_types::{ClusterId, Id, KeyRotation, NextSecretObjectKey, SealedData, SealedItem, SecretObjectId};

use super::super::member_identity::{self, SECRET_OBJECT_KEY_FILE};
use super::{CaError, ManagerKeys, rotation_id};
use crate::autolock::unlock_key_id;

impl ManagerKeys {
    /// Replaces the member key, which wraps the data keys of `keyring`, in all files; `unlock_key` locks the manager,
    /// if something does.
    ///
    /// # Errors
    /// [`CaError`]; one of both keys is in use, and [`ManagerKeys::lock_with`] removes the other.
    pub fn replace_member_key(
        &self,
        keyring: &Keyring,
        unlock_key: Option<&UnlockKey>,
    ) -> Result<(), CaError> {
        let _alone = self.changing();
        if member_identity::is_removed(self.files.dir())? {
            return Ok(());
        }
        // What an interrupted replacement has left.
        self.rewrite_files()?;
        keyring.replace_member_key(&self.files, unlock_key)?;
        self.rewrite_files()
    }

    /// Follows the replacement of the keys: takes this step of the manager, which may have been taken before.
    /// `RenewDisk` is [`ManagerKeys::replace_member_key`], after the data key was renewed.
    ///
    /// # Errors
    /// [`CaError`]; a repeated call completes the step.
    pub fn follow_key_rotation(&self, rotation: &KeyRotation, step: ManagerKeyStep) -> Result<(), CaError> {
        let _alone = self.changing();
        if member_identity::is_removed(self.files.dir())? {
            return Ok(());
        }
        let known = &self.secret_object_key;
        let changed = match (step, &rotation.next) {
            (ManagerKeyStep::Adopt, Some(next)) => Some(known.with(&self.open_next(next)?)),
            (ManagerKeyStep::Seal(id), _) => known.sealing_with(id),
            (ManagerKeyStep::ForgetEarlier, _) => {
                let fingerprint = known.key_fingerprint();
                member_identity::save_secret_object_key(self.files.dir(), fingerprint)?;
                Some(known.alone())
            }
            (ManagerKeyStep::Adopt | ManagerKeyStep::RenewDisk | ManagerKeyStep::Record, _) => None,
        };
        if let Some(changed) = changed {
            self.files.save_secret_object_key(SECRET_OBJECT_KEY_FILE, &changed)?;
            known.replace(&changed);
            tracing::info!(key = ?known, ?step, "replaced the secret object key");
        }
        Ok(())
    }

    /// A new secret object key, for all managers of the cluster.
    pub fn next_secret_object_key(&self) -> NextSecretObjectKey {
        let next = SecretObjectKey::generate();
        let sealed = self.secret_object_key.seal(next_key_id(self.cluster), next.reveal().as_bytes());
        NextSecretObjectKey { id: next.key_fingerprint().into(), sealed }
    }

    /// The same data, sealed with the key that seals now.
    ///
    /// # Errors
    /// [`SecretObjectKeyError`].
    pub fn reseal(&self, item: SealedItem, data: &SealedData) -> Result<SealedData, SecretObjectKeyError> {
        let id = match item {
            SealedItem::SecretObject { id, number: _ } => id,
            SealedItem::Authority => rotation_id(self.cluster),
            SealedItem::UnlockKey => unlock_key_id(self.cluster),
        };
        let plain = self.secret_object_key.open(id, data)?;
        Ok(self.secret_object_key.seal(id, &plain))
    }

    fn open_next(&self, next: &NextSecretObjectKey) -> Result<SecretObjectKey, CaError> {
        let path = self.files.dir().join(SECRET_OBJECT_KEY_FILE);
        let opened = self.secret_object_key.open(next_key_id(self.cluster), &next.sealed);
        let opened =
            opened.map_err(|source| CaError::SecretObjectKeyMismatch { path: path.clone(), source })?;
        let invalid = |why: String| CaError::ClusterMismatch { path: path.clone(), why };
        let text = std::str::from_utf8(&opened).map_err(|why| invalid(why.to_string()))?;
        let key = SecretObjectKey::parse(Path::new("the next secret object key"), text)?;
        match key.key_fingerprints()[..] {
            [found] if found == KeyFingerprint::from(next.id) => Ok(key),
            _ => Err(invalid(format!("the next secret object key is not {}", next.id))),
        }
    }
}

/// What the next secret object key of a cluster is sealed for; no secret object has this id, nor something else that is
/// sealed.
fn next_key_id(ClusterId(Id(cluster)): ClusterId) -> SecretObjectId {
    SecretObjectId(Id(cluster.wrapping_add(1)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::SystemTime;

    use warren_security::seal::KeyFiles;
    use warren_types::{KeyPhase, Timestamp};

    use super::*;
    use crate::member_identity::{LocalMemberStatus, MemberIdentity};

    const OBJECT: SecretObjectId = SecretObjectId(Id(1));

    fn manager(dir: &Path) -> ManagerKeys {
        let keys = ManagerKeys::open(dir, true, SystemTime::now()).unwrap();
        member_identity::save_identity(dir, &MemberIdentity::founder(keys.identity())).unwrap();
        keys
    }

    fn rotation(phase: KeyPhase, next: &NextSecretObjectKey) -> KeyRotation {
        let is_offered = phase == KeyPhase::Managers;
        KeyRotation {
            number: 5,
            phase,
            began_at: Timestamp(1),
            sealing: (!is_offered).then_some(next.id),
            next: is_offered.then(|| next.clone()),
            managers: BTreeSet::new(),
        }
    }

    #[test]
    fn secret_object_key_is_replaced_step_by_step() {
        let dir = tempfile::tempdir().unwrap();
        let keys = manager(dir.path());
        let (old, next) = (keys.secret_object_key.key_fingerprint(), keys.next_secret_object_key());
        let new = KeyFingerprint::from(next.id);
        let before = keys.secret_object_key.seal(OBJECT, b"hunter2");
        let steps = [
            (KeyPhase::Managers, ManagerKeyStep::Adopt, vec![old, new], old),
            (KeyPhase::Objects, ManagerKeyStep::Seal(next.id), vec![new, old], old),
            (KeyPhase::Complete, ManagerKeyStep::ForgetEarlier, vec![new], new),
        ];
        for (phase, step, expected, recorded) in steps {
            // Also again, as after an interruption.
            for _ in 0..2 {
                keys.follow_key_rotation(&rotation(phase, &next), step).unwrap();
                assert_eq!(keys.secret_object_key.key_fingerprints(), expected, "{step:?}");
                let restarted = ManagerKeys::open(dir.path(), false, SystemTime::now()).unwrap();
                assert_eq!(restarted.secret_object_key.key_fingerprints(), expected, "{step:?}");
                let identity = member_identity::load_identity(dir.path()).unwrap().unwrap();
                assert_eq!(identity.certificate_identity.secret_object_key, recorded, "{step:?}");
            }
            if phase == KeyPhase::Objects {
                let item = SealedItem::SecretObject { id: OBJECT, number: 1 };
                let after = keys.reseal(item, &before).unwrap();
                assert_eq!((after.key(), after.size), (Some(next.id), before.size));
                assert_eq!(&**keys.secret_object_key.open(OBJECT, &after).unwrap(), b"hunter2");
            }
        }
        assert!(keys.secret_object_key.open(OBJECT, &before).is_err(), "the old key is gone");
    }

    #[test]
    fn key_of_another_cluster_or_name_is_not_adopted() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (keys, others) = (manager(dir.path()), manager(other.path()));
        let (good, foreign) = (keys.next_secret_object_key(), others.next_secret_object_key());
        let misnamed = NextSecretObjectKey { id: foreign.id, ..good };
        let before = keys.secret_object_key.key_fingerprints();
        for next in [foreign, misnamed] {
            let offered = rotation(KeyPhase::Managers, &next);
            let refused = keys.follow_key_rotation(&offered, ManagerKeyStep::Adopt).unwrap_err();
            assert!(refused.to_string().contains("secret-objects.key"), "{refused}");
            assert_eq!(keys.secret_object_key.key_fingerprints(), before);
        }
    }

    #[test]
    fn superseded_manager_opens_after_the_replacement() {
        let dir = tempfile::tempdir().unwrap();
        let keys = manager(dir.path());
        let member = MemberIdentity::founder(keys.identity());
        member_identity::mark_superseded(dir.path(), &member, 3).unwrap();
        let next = keys.next_secret_object_key();
        for (phase, step) in [
            (KeyPhase::Managers, ManagerKeyStep::Adopt),
            (KeyPhase::Objects, ManagerKeyStep::Seal(next.id)),
            (KeyPhase::Complete, ManagerKeyStep::ForgetEarlier),
        ] {
            keys.follow_key_rotation(&rotation(phase, &next), step).unwrap();
            ManagerKeys::open(dir.path(), false, SystemTime::now()).unwrap();
        }
        let LocalMemberStatus::Superseded(found, 3) = member_identity::read_status(dir.path()).unwrap()
        else {
            panic!("it is still superseded")
        };
        assert_eq!(found.certificate_identity.secret_object_key, KeyFingerprint::from(next.id));
    }

    #[test]
    fn removed_manager_gets_no_key() {
        let dir = tempfile::tempdir().unwrap();
        let keys = manager(dir.path());
        let next = keys.next_secret_object_key();
        keys.mark_removed(&MemberIdentity::founder(keys.identity())).unwrap();
        keys.follow_key_rotation(&rotation(KeyPhase::Managers, &next), ManagerKeyStep::Adopt).unwrap();
        assert!(!dir.path().join(SECRET_OBJECT_KEY_FILE).exists());
    }

    #[test]
    fn member_key_of_a_locked_manager_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let keys = manager(dir.path());
        let keyring = Keyring::prepare(keys.files(), &BTreeSet::new()).unwrap().commit().unwrap();
        let sealed = keyring.seal(b"here", b"text").unwrap();
        let unlock_key = UnlockKey::generate();
        keys.lock_with(Some(&unlock_key)).unwrap();
        let line = || std::fs::read_to_string(dir.path().join("member.key")).unwrap();
        let before = line();
        for _ in 0..2 {
            keys.replace_member_key(&keyring, Some(&unlock_key)).unwrap();
            assert_eq!(line().lines().count(), 1);
            assert_ne!(line(), before);
            let files = KeyFiles::open(dir.path(), Some(&unlock_key)).unwrap();
            let reopened = Keyring::prepare(&files, &BTreeSet::from([keyring.current()])).unwrap();
            assert_eq!(reopened.keyring().unseal(b"here", &sealed).unwrap(), b"text");
            drop(ManagerKeys::prepare(files, false, SystemTime::now()).unwrap());
        }
        assert!(keys.replace_member_key(&keyring, None).is_err(), "the manager is locked");
    }
}
