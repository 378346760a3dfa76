//! The identity of a manager as a raft member, in the file `member` of its directory.
//!
//! ```toml
//! version = 1
//! member_id = 3
//! founders = [1]
//! cluster = "0000000000000000000000009"
//! manager = "0000000000000000000000003"
//! secret_object_key = "0123456789abcdef"
//!
//! [[bootstrap_peers]]
//! member_id = 1
//! id = "0000000000000000000000001"
//! address = "10.0.0.7:8080"
//! ```
//!
//! The list of managers is from the join response; it is used until the state has members. The ids of cluster,
//! manager, secret object key and node identify the certificates and keys that belong to this file: files of
//! another manager are detected, whatever the log contains (`ManagerKeys::prepare`).
//!
//! The file is written last when a machine becomes a manager. A directory that has a manager's files but not this
//! one has lost it, unless `init.pending` or `join.key` shows that the setup is incomplete.

mod file;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_log::LogOwner;
use warren_security::seal::Keyring;
use warren_security::{
    CertificateAuthority, Credentials, FileError, KeyFingerprint, PrivateKey, Role, files,
};
use warren_store::raft::open::RECOVERY_HINT;
use warren_store::raft::snapshot::SNAPSHOT_DIR;
use warren_types::{ClusterId, ManagerAddress, ManagerId, MemberId, NodeId};

use self::file::{FILE, FORMAT, load, save};

/// The CA's file; the first one that `manager init` creates.
pub const AUTHORITY_FILE: &str = "ca.pem";
/// The key that seals the secret objects.
pub(crate) const SECRET_OBJECT_KEY_FILE: &str = "secret-objects.key";
/// The manager's certificate.
pub(crate) const MANAGER_FILE: &str = "manager.pem";
/// The certificate of the machine's administrator.
pub(crate) const ADMIN_FILE: &str = "admin.pem";
/// The certificate of the machine's node in hybrid mode.
pub(crate) const NODE_FILE: &str = "node.pem";
/// The CAs that a removed manager's node trusts; public.
pub(crate) const ROOTS_FILE: &str = "roots.pem";
/// The key of a machine that is joining.
pub(crate) const JOIN_KEY_FILE: &str = "join.key";
/// Exists from the start of `manager init` until its cluster is in the log; empty.
const INIT_FILE: &str = "init.pending";
/// The member id of a cluster's first manager.
pub const FOUNDER_ID: MemberId = 1;

/// The identity of a raft member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberIdentity {
    /// The raft member id.
    pub member_id: MemberId,
    /// The voters of the initial raft configuration.
    pub founders: Vec<MemberId>,
    /// The other managers named in the join response; empty for the first manager.
    pub bootstrap_peers: Vec<BootstrapPeer>,
    /// The ids in its certificates and keys.
    pub certificate_identity: CertificateIdentity,
    /// The node on its machine, once it has one.
    pub node: Option<NodeId>,
}

/// Identifies a manager besides its member id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateIdentity {
    /// The cluster in the CA's certificate.
    pub cluster: ClusterId,
    /// The id in the manager's certificate.
    pub manager: ManagerId,
    /// The fingerprint of the cluster's secret object key.
    pub secret_object_key: KeyFingerprint,
}

/// A manager named in a join response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootstrapPeer {
    /// Its raft member id.
    pub member_id: MemberId,
    /// The id in its certificate.
    pub id: ManagerId,
    /// Its address at that time.
    pub address: ManagerAddress,
}

impl MemberIdentity {
    /// The identity of a cluster's first manager.
    pub fn founder(identity: CertificateIdentity) -> Self {
        Self::sole_voter(FOUNDER_ID, identity)
    }

    /// The identity of the only member of a new group.
    pub fn sole_voter(member: MemberId, identity: CertificateIdentity) -> Self {
        Self {
            member_id: member,
            founders: vec![member],
            bootstrap_peers: Vec::new(),
            certificate_identity: identity,
            node: None,
        }
    }

    /// The owner of its log.
    pub fn log_owner(&self) -> LogOwner {
        let CertificateIdentity { cluster, manager, .. } = self.certificate_identity;
        LogOwner { cluster, manager, member: self.member_id }
    }
}

/// The status of the machine that a directory belongs to.
#[derive(Debug)]
pub enum LocalMemberStatus {
    /// It never was a manager.
    Unused,
    /// `manager init` has started, and its cluster is not in the log yet.
    InitPending,
    /// A join has started. With this key it continues as the same manager.
    JoinPending(PrivateKey),
    /// It is a manager.
    Member(MemberIdentity),
    /// The cluster removed it.
    Removed(MemberIdentity),
    /// It belongs to a superseded incarnation: another manager is in this later one.
    Superseded(MemberIdentity, u64),
}

/// Why the member file cannot be read or written. The directory is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum MemberFileError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A later version wrote the file.
    #[error(
        "{path} has format version {found}, this version of Warren reads up to {FORMAT}: install the \
         version that wrote it"
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// The file is damaged.
    #[error("{path} is damaged: {what}; {RECOVERY_HINT}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        what: String,
    },
    /// The file is missing, but other files of a manager exist.
    #[error(
        "{path} is missing, but {beside} exists: without it the member id of this manager is unknown; \
         {RECOVERY_HINT}"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// A file that only a manager has.
        beside: PathBuf,
    },
    /// It says that this manager was removed, but the certificate belongs to another one.
    #[error(
        "{path} says that manager {desired} was removed from its cluster, but {certificate} is not its \
         certificate: no key was deleted; {RECOVERY_HINT}"
    )]
    StillMember {
        /// The file.
        path: PathBuf,
        /// The manager that was removed.
        desired: ManagerId,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// Another manager's identity was written meanwhile.
    #[error("{path} belongs to another manager now: nothing was changed; {RECOVERY_HINT}")]
    IdentityMismatch {
        /// The file.
        path: PathBuf,
    },
}

/// The status of the machine whose manager's directory is `dir`. Changes nothing.
///
/// # Errors
/// [`MemberFileError`].
pub fn read_status(dir: &Path) -> Result<LocalMemberStatus, MemberFileError> {
    let path = dir.join(FILE);
    if let Some(standing) = load(&path)? {
        return Ok(standing);
    }
    let missing = |beside| Err(MemberFileError::Missing { path: path.clone(), beside });
    // The log is created after the member file, so the file existed.
    if let Some(beside) = find_manager_file(dir) {
        return missing(beside);
    }
    if let Some(key) = join_key(dir)? {
        return Ok(LocalMemberStatus::JoinPending(key));
    }
    if dir.join(INIT_FILE).exists() {
        return Ok(LocalMemberStatus::InitPending);
    }
    match [AUTHORITY_FILE, SECRET_OBJECT_KEY_FILE, MANAGER_FILE, ADMIN_FILE, ROOTS_FILE]
        .map(|file| dir.join(file))
    {
        files if files.iter().any(|file| file.exists()) => {
            missing(files.into_iter().find(|file| file.exists()).expect("one of them is there"))
        }
        _ => Ok(LocalMemberStatus::Unused),
    }
}

/// A file that exists only after a manager has run.
fn find_manager_file(dir: &Path) -> Option<PathBuf> {
    let log = warren_log::find_log(dir).or_else(|| Keyring::file_in(dir));
    log.or_else(|| Some(dir.join(SNAPSHOT_DIR)).filter(|path| path.exists()))
}

/// Records the start of `manager init` in `dir`; durable when this returns.
///
/// # Errors
/// [`MemberFileError::File`].
pub fn begin_init(dir: &Path) -> Result<(), MemberFileError> {
    Ok(files::write_private(&dir.join(INIT_FILE), b"")?)
}

/// Whether an init in `dir` has not recorded its cluster yet.
pub fn is_init_pending(dir: &Path) -> bool {
    dir.join(INIT_FILE).exists()
}

/// Records that the cluster of `manager init` is in the log. Idempotent.
///
/// # Errors
/// [`MemberFileError::File`].
pub fn finish_init(dir: &Path) -> Result<(), MemberFileError> {
    remove_files(&[dir.join(INIT_FILE)])
}

/// Writes the identity; durable when this returns.
///
/// # Errors
/// [`MemberFileError::File`].
pub fn save_identity(dir: &Path, identity: &MemberIdentity) -> Result<(), MemberFileError> {
    save(dir, identity, false, None)
}

/// Path of the member file.
pub(crate) fn member_file_path(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The stored identity, whatever its status; `None` if there is none.
pub(crate) fn load_identity(dir: &Path) -> Result<Option<MemberIdentity>, MemberFileError> {
    Ok(match load(&dir.join(FILE))? {
        Some(
            LocalMemberStatus::Member(identity)
            | LocalMemberStatus::Removed(identity)
            | LocalMemberStatus::Superseded(identity, _),
        ) => Some(identity),
        _ => None,
    })
}

/// Held from reading to writing the file. The process owns the data directory.
static CHANGE_LOCK: Mutex<()> = Mutex::new(());

fn lock_changes() -> MutexGuard<'static, ()> {
    // It guards no data that a panic could leave inconsistent.
    CHANGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the cluster removed the manager of this directory.
///
/// # Errors
/// [`MemberFileError`].
pub(crate) fn is_removed(dir: &Path) -> Result<bool, MemberFileError> {
    Ok(matches!(load(&dir.join(FILE))?, Some(LocalMemberStatus::Removed(_))))
}

/// Records the node of the manager's machine in `dir`, if there is a manager; durable when this returns.
///
/// # Errors
/// [`MemberFileError`].
pub(crate) fn save_node(dir: &Path, node: NodeId) -> Result<(), MemberFileError> {
    let _changing = lock_changes();
    match load(&dir.join(FILE))? {
        Some(LocalMemberStatus::Member(identity)) if identity.node != Some(node) => {
            save_identity(dir, &MemberIdentity { node: Some(node), ..identity })
        }
        _ => Ok(()),
    }
}

/// Records the fingerprint of the secret object key in `dir`, if there is a manager; durable when this returns.
///
/// # Errors
/// [`MemberFileError`].
pub(crate) fn save_secret_object_key(
    dir: &Path,
    secret_object_key: KeyFingerprint,
) -> Result<(), MemberFileError> {
    let _changing = lock_changes();
    let (identity, incarnation) = match load(&dir.join(FILE))? {
        Some(LocalMemberStatus::Member(identity)) => (identity, None),
        Some(LocalMemberStatus::Superseded(identity, incarnation)) => (identity, Some(incarnation)),
        _ => return Ok(()),
    };
    let certificate_identity = CertificateIdentity { secret_object_key, ..identity.certificate_identity };
    save(dir, &MemberIdentity { certificate_identity, ..identity }, false, incarnation)
}

/// Records that the cluster removed this manager, and deletes the cluster's keys; durable when this returns.
/// The node's certificate stays: the node's tasks may still have to be stopped.
///
/// # Errors
/// [`MemberFileError`]; [`remove_keys`] completes it.
pub(crate) fn mark_removed(dir: &Path, identity: &MemberIdentity) -> Result<(), MemberFileError> {
    let _changing = lock_changes();
    let (member, _) = load_current(dir, identity)?;
    check_certificate(dir, &member)?;
    save(dir, &member, true, None)?;
    remove_keys(dir, &member)
}

/// Records that the cluster is in that incarnation without this manager; durable when this returns.
/// Returns the latest recorded incarnation. The keys stay: the new incarnation may turn out to be a mistake.
///
/// # Errors
/// [`MemberFileError`].
pub fn mark_superseded(
    dir: &Path,
    member: &MemberIdentity,
    incarnation: u64,
) -> Result<u64, MemberFileError> {
    let _changing = lock_changes();
    let (found, known) = load_current(dir, member)?;
    let incarnation = known.map_or(incarnation, |known| known.max(incarnation));
    save(dir, &found, false, Some(incarnation)).map(|()| incarnation)
}

/// The stored identity of this manager, and the incarnation that superseded it.
fn load_current(
    dir: &Path,
    identity: &MemberIdentity,
) -> Result<(MemberIdentity, Option<u64>), MemberFileError> {
    let path = dir.join(FILE);
    let (found, incarnation) = match load(&path)? {
        Some(LocalMemberStatus::Member(found) | LocalMemberStatus::Removed(found)) => (found, None),
        Some(LocalMemberStatus::Superseded(found, incarnation)) => (found, Some(incarnation)),
        _ => return Err(MemberFileError::IdentityMismatch { path }),
    };
    if found.log_owner() == identity.log_owner() {
        Ok((found, incarnation))
    } else {
        Err(MemberFileError::IdentityMismatch { path })
    }
}

/// Deletes the cluster's keys of a removed manager. Copies made before are not affected. The CAs that its
/// node trusts stay, without a key. Idempotent. The certificate must belong to the removed manager: the
/// member file may be another one's.
///
/// # Errors
/// [`MemberFileError`]; a repeated call deletes the rest.
pub fn remove_keys(dir: &Path, removed: &MemberIdentity) -> Result<(), MemberFileError> {
    let (authority, roots) = (dir.join(AUTHORITY_FILE), dir.join(ROOTS_FILE));
    let keys = [authority.clone(), dir.join(ADMIN_FILE), dir.join(SECRET_OBJECT_KEY_FILE)];
    if !keys.iter().any(|path| path.exists()) {
        return Ok(());
    }
    check_certificate(dir, removed)?;
    if !roots.exists() && authority.exists() {
        // An unreadable CA has nothing to trust.
        if let Ok(trusted) = CertificateAuthority::load_roots(&authority) {
            files::write_public(&roots, trusted.pem().as_bytes())?;
        }
    }
    remove_files(&keys)
}

/// Checks that the certificate in `dir` belongs to this manager.
fn check_certificate(dir: &Path, identity: &MemberIdentity) -> Result<(), MemberFileError> {
    let certificate = dir.join(MANAGER_FILE);
    let CertificateIdentity { cluster, manager, .. } = identity.certificate_identity;
    let shown = Credentials::load_identity(&certificate).is_ok_and(|shown| {
        let is = (shown.cluster(), shown.role(), shown.id());
        is == (cluster.to_string().as_str(), Role::Manager, manager.to_string().as_str())
    });
    match shown {
        true => Ok(()),
        false => Err(MemberFileError::StillMember { path: dir.join(FILE), desired: manager, certificate }),
    }
}

/// Removes files of one directory if they exist; durable when this returns.
fn remove_files(paths: &[PathBuf]) -> Result<(), MemberFileError> {
    for path in paths {
        match std::fs::remove_file(path) {
            Err(source) if source.kind() != ErrorKind::NotFound => {
                return Err(FileError::Write { path: path.clone(), source }.into());
            }
            _ => {}
        }
    }
    let Some(dir) = paths.first().and_then(|path| path.parent()) else { return Ok(()) };
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    Ok(synced.map_err(|source| FileError::Write { path: dir.to_owned(), source })?)
}

/// Path of the key of a machine that is joining.
pub fn join_key_path(dir: &Path) -> PathBuf {
    dir.join(JOIN_KEY_FILE)
}

/// The key of a started join, whatever the machine was before; `None` without one.
pub(crate) fn join_key(dir: &Path) -> Result<Option<PrivateKey>, MemberFileError> {
    let path = join_key_path(dir);
    match files::read_private(&path) {
        Ok(text) => {
            PrivateKey::parse(&text).map(Some).map_err(|source| FileError::Material { path, source }.into())
        }
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the file does not exist, as opposed to being unreadable.
pub fn is_not_found(error: &FileError) -> bool {
    matches!(error, FileError::Read { source, .. }
        if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests;
