//! Whether the files in a manager's directory are all of one manager.

use std::path::{Path, PathBuf};

use warren_core::State;
use warren_security::{
    CertificateAuthority, ContentKey, Credentials, FileError, Fingerprint, Identity, Role,
};

use super::error::CaError;
use crate::recovery::seat::{
    self, ADMIN_FILE, AUTHORITY_FILE, CONTENT_FILE, MANAGER_FILE, ManagerIdentity, NODE_FILE, Seat,
};

/// The files in `dir` are those of the manager that has this place. Changes nothing.
pub(super) fn verify(dir: &Path, seat: &Seat) -> Result<(), CaError> {
    verify_certificates(dir, seat)?;
    verify_content_key(dir, seat.identity.content_key)
}

/// As [`verify`], of the certificates alone. Those that can be issued again may be missing.
///
/// # Errors
/// [`CaError`].
pub(crate) fn verify_certificates(dir: &Path, seat: &Seat) -> Result<(), CaError> {
    let ManagerIdentity { cluster, manager, content_key: _ } = seat.identity;
    let wanted = Identity::new(cluster.to_string(), Role::Manager, manager.to_string())?;
    let other = |path: PathBuf, found: String| {
        let wanted = format!("{wanted}, as {} says", seat::path_in(dir).display());
        Err(CaError::OtherManager { path, found, wanted })
    };
    let path = dir.join(AUTHORITY_FILE);
    if !path.exists() {
        return Err(CaError::AuthorityMissing(path));
    }
    let authority = CertificateAuthority::load(&path)?;
    if authority.cluster() != wanted.cluster() {
        return other(path, format!("cluster {}", authority.cluster()));
    }
    let path = dir.join(MANAGER_FILE);
    if !path.exists() {
        return Err(CaError::ManagerMissing(path));
    }
    let shown = Credentials::load(&path)?;
    if *shown.identity() != wanted {
        return other(path, shown.identity().to_string());
    }
    if let Err(why) = authority.roots().check_issued(&shown) {
        return Err(CaError::Foreign { path, why: format!("{AUTHORITY_FILE} did not issue it: {why}") });
    }
    reissuable(&dir.join(ADMIN_FILE), &wanted, Role::Admin, None)?;
    reissuable(&dir.join(NODE_FILE), &wanted, Role::Worker, seat.node.map(|node| node.to_string()))
}

/// A certificate that may be missing, and else is of the same cluster as `manager`, of this role and, if that is known,
/// of this holder.
fn reissuable(path: &Path, manager: &Identity, role: Role, id: Option<String>) -> Result<(), CaError> {
    if !path.exists() {
        return Ok(());
    }
    let unusable = |why: String| CaError::Reissuable { path: path.to_owned(), why };
    let found = match Credentials::load(path) {
        // Somebody may have seen the key, which people must know.
        Err(error @ FileError::TooOpen { .. }) => return Err(error.into()),
        found => found.map_err(|error| unusable(error.to_string()))?,
    };
    let found = found.identity();
    let is_other = id.is_some_and(|id| id != found.id());
    if found.cluster() != manager.cluster() || found.role() != role || is_other {
        return Err(unusable(format!(
            "it is of {found}, and not of this machine, whose manager is {manager}"
        )));
    }
    Ok(())
}

/// The content key in `dir` is the one with this fingerprint.
///
/// # Errors
/// [`CaError::ContentKeyMissing`], [`CaError::ContentKeyReplaced`], [`CaError::ContentKey`].
pub(crate) fn verify_content_key(dir: &Path, wanted: Fingerprint) -> Result<(), CaError> {
    let path = dir.join(CONTENT_FILE);
    match ContentKey::load(&path)?.map(|key| key.name()) {
        None => Err(CaError::ContentKeyMissing(path)),
        Some(found) if found == wanted => Ok(()),
        Some(found) => Err(CaError::ContentKeyReplaced { path, found, wanted }),
    }
}

/// The content key in `dir`, or a new one: for the only manager of a cluster in which nothing is sealed, to which any
/// key is as good as the one that it had.
///
/// # Errors
/// [`CaError`].
pub(crate) fn adopt_content_key(dir: &Path) -> Result<Fingerprint, CaError> {
    let path = dir.join(CONTENT_FILE);
    let key = match ContentKey::load(&path)? {
        Some(key) => key,
        None => ContentKey::create(&path)?,
    };
    Ok(key.name())
}

/// `key`, which is in `dir`, opens what is sealed in `state`.
///
/// # Errors
/// [`CaError::OtherContentKey`].
pub fn check_content_key(dir: &Path, key: &ContentKey, state: &State) -> Result<(), CaError> {
    let sealed = state.contents().find_map(|content| {
        content.versions.last_key_value().map(|(_, newest)| (content.id, newest.clone()))
    });
    let Some((id, newest)) = sealed else { return Ok(()) };
    let opened = key.open(id, &newest).map(drop);
    opened.map_err(|source| CaError::OtherContentKey { path: dir.join(CONTENT_FILE), source })
}
