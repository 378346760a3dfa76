//! The files of a machine that joins a cluster as a manager.
//!
//! | step | written | killed after it |
//! |---|---|---|
//! | begin | `join.key` | a repeated join uses the same key and becomes the same manager |
//! | admitted | the old manager's data is deleted; a new directory with `join.key` | the same |
//! | | `ca.pem`, `secret-objects.key`, `manager.pem` | the same: the files do not identify a manager yet |
//! | stored | `member` | the machine is a manager |
//! | end | `join.key` is deleted | |
//!
//! Killed between removing the old directory and writing the key into the new one, the machine joins with
//! another key and replaces the manager that was admitted.

use std::path::{Path, PathBuf};

use warren_security::{
    CertificateAuthority, Credentials, KeyFileError, MaterialError, PrivateKey, Role, Roots, SecretObjectKey,
    files,
};
use warren_types::MemberId;

use super::member_identity::{
    self, AUTHORITY_FILE, BootstrapPeer, CertificateIdentity, JOIN_KEY_FILE, MANAGER_FILE, MemberFileError,
    MemberIdentity, SECRET_OBJECT_KEY_FILE,
};

/// Why a join response is invalid. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum InvalidAdmission {
    /// The CA in it is not the one of the token.
    #[error("join response is from another CA")]
    AuthorityMismatch,
    /// The CA in it cannot be parsed.
    #[error("the CA in the join response is invalid")]
    AuthorityKey(#[source] MaterialError),
    /// The certificate is invalid, or of another key or CA.
    #[error("the certificate in the join response is invalid")]
    Certificate(#[source] MaterialError),
    /// The certificate belongs to another manager.
    #[error("the certificate in the join response: expected manager {desired}, found {found}")]
    IdentityMismatch {
        /// Identity of the certificate.
        found: String,
        /// The id that belongs to the key.
        desired: String,
    },
    /// The secret object key is invalid.
    #[error(transparent)]
    SecretObjectKey(KeyFileError),
    /// The member id or the initial voters are missing.
    #[error("join response has no member id")]
    InvalidMembership,
}

/// Why a machine did not become a manager.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// A file cannot be read or written.
    #[error(transparent)]
    MemberFile(#[from] MemberFileError),
    /// The join response is invalid.
    #[error(transparent)]
    InvalidAdmission(#[from] InvalidAdmission),
    /// Generating the key failed.
    #[error("generating a key for this manager failed")]
    Key(#[source] MaterialError),
    /// The directory cannot be replaced.
    #[error(
        "{path} is {what}, but a join replaces the whole directory: make it a plain directory on \
         the file system of the data directory first, with its contents"
    )]
    DirectoryIsMountPoint {
        /// The directory.
        path: PathBuf,
        /// Why it cannot be renamed.
        what: &'static str,
    },
    /// A directory cannot be changed.
    #[error("cannot {operation} {path}: {source}")]
    Directory {
        /// The failed operation.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl From<warren_security::FileError> for JoinError {
    fn from(error: warren_security::FileError) -> Self {
        Self::MemberFile(error.into())
    }
}

/// The key with which this machine joins: generated and durable before this returns for the first time, and
/// the same until the machine is a manager. The old data, of a superseded manager for example, stays: the
/// join may be rejected, and the data may still be needed.
///
/// # Errors
/// [`JoinError`].
pub fn begin_join(dir: &Path) -> Result<PrivateKey, JoinError> {
    files::ensure_private_dir(dir)?;
    if let Some(key) = member_identity::join_key(dir)? {
        return Ok(key);
    }
    let key = PrivateKey::generate().map_err(JoinError::Key)?;
    write_key(dir, &key)?;
    Ok(key)
}

/// Checks whether [`begin_rejoin`] could replace the directory; called before the machine is admitted.
///
/// # Errors
/// [`JoinError::DirectoryIsMountPoint`].
pub fn check_replaceable(dir: &Path) -> Result<(), JoinError> {
    let fixed = |what| Err(JoinError::DirectoryIsMountPoint { path: dir.to_owned(), what });
    if dir.is_symlink() {
        return fixed("a symbolic link");
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(directory_error("list the mounts at", dir))?;
    let path = dir.canonicalize().map_err(directory_error("find", dir))?;
    let is_mounted =
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path));
    if is_mounted { fixed("a mount point") } else { Ok(()) }
}

/// Deletes the old manager's data after the machine was admitted again with `key`, which a repeated join uses
/// as well.
///
/// # Errors
/// [`JoinError`].
pub fn begin_rejoin(dir: &Path, key: &PrivateKey) -> Result<(), JoinError> {
    remove_manager_files(dir)?;
    files::ensure_private_dir(dir)?;
    write_key(dir, key)
}

fn write_key(dir: &Path, key: &PrivateKey) -> Result<(), JoinError> {
    Ok(files::write_private(&dir.join(JOIN_KEY_FILE), key.pem().as_bytes())?)
}

/// The join response as received.
#[derive(Debug, Clone, Copy)]
pub struct JoinOffer<'a> {
    /// The new manager's certificate, PEM.
    pub certificate: &'a str,
    /// The CA's certificate and key, PEM.
    pub authority: &'a str,
    /// The key that seals the secret objects, in its file format.
    pub secret_object_key: &'a str,
    /// The raft member id.
    pub member_id: MemberId,
    /// The voters of the initial raft configuration.
    pub founders: &'a [MemberId],
    /// The current managers.
    pub bootstrap_peers: &'a [BootstrapPeer],
}

/// A verified join response.
#[derive(Debug)]
pub struct Admission {
    authority: CertificateAuthority,
    credentials: Credentials,
    secret_object_key: SecretObjectKey,
    member_identity: MemberIdentity,
}

impl Admission {
    /// Verifies a response: it must be for the holder of `key` and of a cluster that `roots` trust.
    ///
    /// # Errors
    /// [`InvalidAdmission`].
    pub fn check(key: &PrivateKey, roots: &Roots, offer: JoinOffer<'_>) -> Result<Self, InvalidAdmission> {
        let JoinOffer {
            certificate,
            authority,
            secret_object_key: content_key,
            member_id: member,
            founders,
            bootstrap_peers: managers,
        } = offer;
        let authority = CertificateAuthority::parse_pem(authority).map_err(InvalidAdmission::AuthorityKey)?;
        // While the authority is replaced, the new one is used and the one of the token trusted as well.
        if !authority.roots().digests().iter().any(|digest| roots.digests().contains(digest)) {
            return Err(InvalidAdmission::AuthorityMismatch);
        }
        let credentials =
            Credentials::new(certificate, key.clone()).map_err(InvalidAdmission::Certificate)?;
        authority.roots().check_issued(&credentials).map_err(InvalidAdmission::Certificate)?;
        let expected = key.node_id().map_err(InvalidAdmission::Certificate)?.to_string();
        let identity = credentials.identity();
        if identity.role() != Role::Manager || identity.id() != expected {
            return Err(InvalidAdmission::IdentityMismatch {
                found: identity.to_string(),
                desired: expected,
            });
        }
        let content_key =
            SecretObjectKey::parse(Path::new("the secret object key in the join response"), content_key);
        let content_key = content_key.map_err(InvalidAdmission::SecretObjectKey)?;
        if member == 0 || founders.is_empty() || founders.contains(&0) {
            return Err(InvalidAdmission::InvalidMembership);
        }
        let managers = managers.iter().filter(|other| other.member_id != member).cloned().collect();
        let ids = (authority.cluster().parse(), identity.id().parse());
        let (Ok(cluster), Ok(manager)) = ids else { return Err(InvalidAdmission::InvalidMembership) };
        let identity =
            CertificateIdentity { cluster, manager, secret_object_key: content_key.key_fingerprint() };
        let member_identity = MemberIdentity {
            bootstrap_peers: managers,
            founders: founders.to_vec(),
            ..MemberIdentity::sole_voter(member, identity)
        };
        Ok(Self { authority, credentials, secret_object_key: content_key, member_identity })
    }

    /// Stores the identity in the manager's directory `dir`. Idempotent.
    ///
    /// # Errors
    /// [`JoinError`]; the machine is not a manager then, and a repeated join completes it.
    pub fn complete(&self, dir: &Path) -> Result<(), JoinError> {
        self.authority.save(&dir.join(AUTHORITY_FILE))?;
        self.secret_object_key.save(&dir.join(SECRET_OBJECT_KEY_FILE))?;
        self.credentials.save(&dir.join(MANAGER_FILE))?;
        member_identity::save_identity(dir, &self.member_identity)?;
        finish(dir)
    }
}

/// Removes the leftovers of a completed join.
///
/// # Errors
/// [`JoinError::Directory`].
pub fn finish(dir: &Path) -> Result<(), JoinError> {
    let path = dir.join(JOIN_KEY_FILE);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(JoinError::Directory { operation: "remove", path, source })
        }
        _ => Ok(()),
    }
}

/// Deletes all data and keys of a removed or superseded manager. The directory is renamed first, since a
/// partly deleted one could be misread.
fn remove_manager_files(dir: &Path) -> Result<(), JoinError> {
    remove_leftovers(dir)?;
    let gone = removed_path(dir);
    std::fs::rename(dir, &gone).map_err(directory_error("rename", dir))?;
    // The rename must be durable before files are deleted.
    sync_parent(&gone)?;
    remove_leftovers(dir)
}

/// Completes an interrupted deletion of the manager in `dir`: the cluster's keys are in it.
///
/// # Errors
/// [`JoinError::Directory`].
pub fn remove_leftovers(dir: &Path) -> Result<(), JoinError> {
    let gone = removed_path(dir);
    match std::fs::remove_dir_all(&gone) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(directory_error("remove", &gone)(source)),
        Ok(()) => sync_parent(&gone),
    }
}

fn removed_path(dir: &Path) -> PathBuf {
    dir.with_extension("gone")
}

fn sync_parent(path: &Path) -> Result<(), JoinError> {
    let above = path.parent().unwrap_or(Path::new("."));
    let synced = std::fs::File::open(above).and_then(|above| above.sync_all());
    synced.map_err(directory_error("sync", above))
}

fn directory_error(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> JoinError + use<> {
    let path = path.to_owned();
    move |source| JoinError::Directory { operation, path, source }
}

#[cfg(test)]
mod tests;
