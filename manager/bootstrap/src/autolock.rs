//! The unlock key of a cluster, sealed in its state.

use warren_security::{SecretObjectKey, SecretObjectKeyError, UnlockKey, UnlockKeyError};
use warren_types::{ClusterId, Id, SealedUnlockKey, SecretObjectId};

/// Why the unlock key in the state cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenUnlockKeyError {
    /// It does not open.
    #[error("the unlock key in the state: {0}")]
    Sealed(#[from] SecretObjectKeyError),
    /// What was sealed is no unlock key, or another one.
    #[error("the unlock key in the state is not what it should be: {0}")]
    Invalid(String),
}

impl From<UnlockKeyError> for OpenUnlockKeyError {
    fn from(error: UnlockKeyError) -> Self {
        Self::Invalid(error.to_string())
    }
}

/// The key as the state of the cluster has it.
pub fn seal_unlock_key(sealing: &SecretObjectKey, cluster: ClusterId, key: &UnlockKey) -> SealedUnlockKey {
    let sealed = sealing.seal(unlock_key_id(cluster), key.reveal().as_bytes());
    SealedUnlockKey { id: key.id(), sealed }
}

/// The key that [`seal_unlock_key`] sealed.
///
/// # Errors
/// [`OpenUnlockKeyError`].
pub fn open_unlock_key(
    sealing: &SecretObjectKey,
    cluster: ClusterId,
    sealed: &SealedUnlockKey,
) -> Result<UnlockKey, OpenUnlockKeyError> {
    let text = sealing.open(unlock_key_id(cluster), &sealed.sealed)?;
    let text = std::str::from_utf8(&text).map_err(|error| OpenUnlockKeyError::Invalid(error.to_string()))?;
    let key = UnlockKey::parse(text)?;
    match key.id() == sealed.id {
        true => Ok(key),
        false => Err(OpenUnlockKeyError::Invalid(format!("expected {}, found {}", sealed.id, key.id()))),
    }
}

/// What the unlock key of a cluster is sealed for; no secret object has this id, nor a new certificate authority.
pub(crate) fn unlock_key_id(ClusterId(Id(cluster)): ClusterId) -> SecretObjectId {
    SecretObjectId(Id(!cluster))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_key_opens_for_its_cluster_only() {
        let dir = tempfile::tempdir().unwrap();
        let sealing = SecretObjectKey::create(&dir.path().join("key")).unwrap();
        let (cluster, key) = (ClusterId(Id(7)), UnlockKey::generate());
        let sealed = seal_unlock_key(&sealing, cluster, &key);
        let opened = open_unlock_key(&sealing, cluster, &sealed).unwrap();
        assert_eq!((&*opened.reveal(), sealed.id), (&*key.reveal(), key.id()));
        let refused = open_unlock_key(&sealing, ClusterId(Id(8)), &sealed).unwrap_err();
        assert!(matches!(refused, OpenUnlockKeyError::Sealed(_)), "{refused}");
        let other = SealedUnlockKey { id: UnlockKey::generate().id(), ..sealed };
        let refused = open_unlock_key(&sealing, cluster, &other).unwrap_err();
        assert!(matches!(refused, OpenUnlockKeyError::Invalid(_)), "{refused}");
    }
}
