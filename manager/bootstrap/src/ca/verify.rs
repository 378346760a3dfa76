//! Checks that all files in a manager's directory belong to one manager.

use std::path::{Path, PathBuf};

use warren_core::State;
use warren_security::seal::KeyFiles;
use warren_security::{FileError, Identity, KeyFingerprint, Role, SecretObjectKey};
use warren_types::KeyPhase;

use super::super::member_identity::{
    self, ADMIN_FILE, AUTHORITY_FILE, CertificateIdentity, MANAGER_FILE, MemberIdentity, NODE_FILE,
    SECRET_OBJECT_KEY_FILE,
};
use super::error::CaError;

/// Checks that the files belong to this manager. Changes nothing.
pub(super) fn verify(files: &KeyFiles, identity: &MemberIdentity) -> Result<(), CaError> {
    verify_certificates(files, identity)?;
    verify_secret_object_key(files, identity.certificate_identity.secret_object_key)
}

/// As `verify`, for the certificates only. Reissuable ones may be missing.
///
/// # Errors
/// [`CaError`].
pub fn verify_certificates(files: &KeyFiles, identity: &MemberIdentity) -> Result<(), CaError> {
    let dir = files.dir();
    let CertificateIdentity { cluster, manager, secret_object_key: _ } = identity.certificate_identity;
    let desired = Identity::new(cluster.to_string(), Role::Manager, manager.to_string())?;
    let other = |path: PathBuf, found: String| {
        let expected = format!("{desired}, as {} says", member_identity::member_file_path(dir).display());
        Err(CaError::ManagerMismatch { path, found, wanted: expected })
    };
    let path = dir.join(AUTHORITY_FILE);
    if !path.exists() {
        return Err(CaError::AuthorityMissing(path));
    }
    let authority = files.authority(AUTHORITY_FILE)?;
    if authority.cluster() != desired.cluster() {
        return other(path, format!("cluster {}", authority.cluster()));
    }
    let path = dir.join(MANAGER_FILE);
    if !path.exists() {
        return Err(CaError::ManagerMissing(path));
    }
    let shown = files.credentials(MANAGER_FILE)?;
    if *shown.identity() != desired {
        return other(path, shown.identity().to_string());
    }
    if let Err(why) = authority.roots().check_issued(&shown) {
        return Err(CaError::ClusterMismatch {
            path,
            why: format!("{AUTHORITY_FILE} did not issue it: {why}"),
        });
    }
    check_reissuable(files, ADMIN_FILE, &desired, (Role::User, None))?;
    let node = identity.node.map(|node| node.to_string());
    check_reissuable(files, NODE_FILE, &desired, (Role::Worker, node))
}

/// Checks a certificate that may be missing: it must have the same cluster as `manager`, this role, and this
/// id if one is given.
fn check_reissuable(
    files: &KeyFiles,
    file: &str,
    manager: &Identity,
    (role, id): (Role, Option<String>),
) -> Result<(), CaError> {
    let path = files.dir().join(file);
    if !path.exists() {
        return Ok(());
    }
    let unusable = |why: String| CaError::Reissuable { path: path.clone(), why };
    let found = match files.credentials(file) {
        // The key may have been read by others, which must be reported.
        Err(error @ FileError::InsecureMode { .. }) => return Err(error.into()),
        found => found.map_err(|error| unusable(error.to_string()))?,
    };
    let found = found.identity();
    let is_other = id.is_some_and(|id| id != found.id());
    if found.cluster() != manager.cluster() || found.role() != role || is_other {
        return Err(unusable(format!(
            "it belongs to {found}, not to this machine, whose manager is {manager}"
        )));
    }
    Ok(())
}

/// Checks that the secret object key has this fingerprint, or one of both while it is replaced.
///
/// # Errors
/// [`CaError::SecretObjectKeyMissing`], [`CaError::SecretObjectKeyReplaced`], [`CaError::KeyFile`].
pub fn verify_secret_object_key(files: &KeyFiles, desired: KeyFingerprint) -> Result<(), CaError> {
    let path = files.dir().join(SECRET_OBJECT_KEY_FILE);
    match files.secret_object_key(SECRET_OBJECT_KEY_FILE)? {
        None => Err(CaError::SecretObjectKeyMissing(path)),
        Some(key) if key.key_fingerprints().contains(&desired) => Ok(()),
        Some(key) => {
            let found = key.key_fingerprint();
            Err(CaError::SecretObjectKeyReplaced { path, found, wanted: desired })
        }
    }
}

/// The secret object key, or a new one: for the only manager of a cluster without secret objects, where the key does
/// not matter.
///
/// # Errors
/// [`CaError`].
pub fn ensure_secret_object_key(files: &KeyFiles) -> Result<KeyFingerprint, CaError> {
    let key = match files.secret_object_key(SECRET_OBJECT_KEY_FILE)? {
        Some(key) => key,
        None => create_secret_object_key(files)?,
    };
    Ok(key.key_fingerprint())
}

/// A new secret object key in its file.
pub(super) fn create_secret_object_key(files: &KeyFiles) -> Result<SecretObjectKey, FileError> {
    let key = SecretObjectKey::generate();
    files.save_secret_object_key(SECRET_OBJECT_KEY_FILE, &key)?;
    Ok(key)
}

/// Checks that `key`, which is in `dir`, decrypts the secret objects in `state`; while it is replaced, only those that
/// name one of its keys.
///
/// # Errors
/// [`CaError::SecretObjectKeyMismatch`].
pub fn check_secret_object_key(dir: &Path, key: &SecretObjectKey, state: &State) -> Result<(), CaError> {
    // After a restart the state may be one from before the key was replaced, and that is forgotten.
    let is_replaced = state.key_rotation().is_some_and(|rotation| rotation.phase != KeyPhase::Complete);
    let sealed = state.secret_objects().find_map(|content| {
        let (_, newest) = content.versions.last_key_value()?;
        let is_own = newest.key().is_some() && key.has_key_of(newest);
        (!is_replaced || is_own).then(|| (content.id, newest.clone()))
    });
    let Some((id, newest)) = sealed else { return Ok(()) };
    let opened = key.open(id, &newest).map(drop);
    opened
        .map_err(|source| CaError::SecretObjectKeyMismatch { path: dir.join(SECRET_OBJECT_KEY_FILE), source })
}
