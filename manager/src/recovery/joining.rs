//! The files of a machine that becomes a manager of a cluster that is there.
//!
//! | step | written | killed after it |
//! |---|---|---|
//! | begin | `join.key` | joining again uses the same key, and so is the same manager |
//! | admitted | what it was as a manager before goes; a new directory with `join.key` | the same |
//! | | `ca.pem`, `content.key`, `manager.pem` | the same: none of them says that it is a manager |
//! | seated | `member` | it is a manager |
//! | end | `join.key` goes | |
//!
//! Killed between the old directory and the key in the new one, it joins with another key, and takes the place of the
//! manager that was let in.

use std::path::{Path, PathBuf};

use warren_security::{
    CertificateAuthority, ContentKey, Credentials, KeyFileError, MaterialError, PrivateKey, Role, Roots,
    files,
};
use warren_types::MemberId;

use super::seat::{
    self, AUTHORITY_FILE, CONTENT_FILE, Introduced, JOIN_KEY_FILE, MANAGER_FILE, ManagerIdentity, Seat,
    SeatError,
};

/// Why an answer makes no manager. Nothing was stored.
#[derive(Debug, thiserror::Error)]
pub enum NotOurs {
    /// The authority in it is not the one whose token this is.
    #[error("the manager's answer has the key of another authority")]
    Authority,
    /// The authority in it cannot be read.
    #[error("the authority in the manager's answer cannot be used")]
    AuthorityKey(#[source] MaterialError),
    /// The certificate is broken, or of another key or authority.
    #[error("the certificate in the manager's answer cannot be used")]
    Certificate(#[source] MaterialError),
    /// The certificate is somebody else's.
    #[error("the certificate in the manager's answer is {found}, wanted manager {wanted}")]
    Identity {
        /// Whose it is.
        found: String,
        /// The id that belongs to the key.
        wanted: String,
    },
    /// The content key cannot be read.
    #[error(transparent)]
    ContentKey(KeyFileError),
    /// There is no such place.
    #[error("the manager's answer gives no place in the group")]
    Seat,
}

/// Why a machine did not become a manager.
#[derive(Debug, thiserror::Error)]
pub enum JoiningError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Seat(#[from] SeatError),
    /// What the manager answered.
    #[error(transparent)]
    NotOurs(#[from] NotOurs),
    /// No key can be made.
    #[error("no key can be made for this manager")]
    Key(#[source] MaterialError),
    /// A directory cannot be replaced by a new one.
    #[error(
        "{path} is {what}, and what this machine was as a manager is replaced as a whole: make it a plain directory on \
         the file system of the data directory first, with what is in it"
    )]
    Fixed {
        /// The directory.
        path: PathBuf,
        /// Why it cannot be renamed.
        what: &'static str,
    },
    /// A directory cannot be changed.
    #[error("cannot {operation} {path}: {source}")]
    Directory {
        /// What was to be done with it.
        operation: &'static str,
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

impl From<warren_security::FileError> for JoiningError {
    fn from(error: warren_security::FileError) -> Self {
        Self::Seat(error.into())
    }
}

/// The key with which this machine joins: made, and durable, before this returns for the first time, and the same until
/// it is a manager. What the machine was before, one that its cluster went on without for example, stays beside it: it
/// may be refused, and people may still want that back.
///
/// # Errors
/// [`JoiningError`].
pub fn begin(dir: &Path) -> Result<PrivateKey, JoiningError> {
    files::ensure_private_dir(dir)?;
    if let Some(key) = seat::join_key(dir)? {
        return Ok(key);
    }
    let key = PrivateKey::generate().map_err(JoiningError::Key)?;
    write_key(dir, &key)?;
    Ok(key)
}

/// Whether [`begin_anew`] could replace the directory; asked before a machine is let in, since it could not join then.
///
/// # Errors
/// [`JoiningError::Fixed`].
pub fn check_replaceable(dir: &Path) -> Result<(), JoiningError> {
    let fixed = |what| Err(JoiningError::Fixed { path: dir.to_owned(), what });
    if dir.is_symlink() {
        return fixed("a symbolic link");
    }
    let mounts =
        std::fs::read_to_string("/proc/self/mountinfo").map_err(failed("list the mounts at", dir))?;
    let path = dir.canonicalize().map_err(failed("find", dir))?;
    let is_mounted =
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|at| Path::new(at) == path));
    if is_mounted { fixed("a mount point") } else { Ok(()) }
}

/// Forgets what this machine was as a manager, now that it was let in anew with `key`, which is what the next try goes
/// on with.
///
/// # Errors
/// [`JoiningError`].
pub fn begin_anew(dir: &Path, key: &PrivateKey) -> Result<(), JoiningError> {
    forget(dir)?;
    files::ensure_private_dir(dir)?;
    write_key(dir, key)
}

fn write_key(dir: &Path, key: &PrivateKey) -> Result<(), JoiningError> {
    Ok(files::write_private(&dir.join(JOIN_KEY_FILE), key.pem().as_bytes())?)
}

/// What a manager answered to a machine that it let in, as it came.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// The new manager's certificate, PEM.
    pub certificate: &'a str,
    /// The authority's certificate and key, PEM.
    pub authority: &'a str,
    /// What contents are sealed with, as its file holds it.
    pub content_key: &'a str,
    /// The id in the raft group.
    pub member: MemberId,
    /// The voters that the group was founded with.
    pub founders: &'a [MemberId],
    /// The managers there are.
    pub managers: &'a [Introduced],
}

/// An answer that makes this machine a manager.
#[derive(Debug)]
pub struct Admission {
    authority: CertificateAuthority,
    credentials: Credentials,
    content_key: ContentKey,
    seat: Seat,
}

impl Admission {
    /// Takes an answer, if it is for the holder of `key` and of a cluster that `roots` trust.
    ///
    /// # Errors
    /// [`NotOurs`].
    pub fn check(key: &PrivateKey, roots: &Roots, offer: Offer<'_>) -> Result<Self, NotOurs> {
        let Offer { certificate, authority, content_key, member, founders, managers } = offer;
        let authority = CertificateAuthority::parse_pem(authority).map_err(NotOurs::AuthorityKey)?;
        if !roots.digests().contains(&authority.digest()) {
            return Err(NotOurs::Authority);
        }
        let credentials = Credentials::new(certificate, key.clone()).map_err(NotOurs::Certificate)?;
        authority.roots().check_issued(&credentials).map_err(NotOurs::Certificate)?;
        let wanted = key.node_id().map_err(NotOurs::Certificate)?.to_string();
        let identity = credentials.identity();
        if identity.role() != Role::Manager || identity.id() != wanted {
            return Err(NotOurs::Identity { found: identity.to_string(), wanted });
        }
        let content_key =
            ContentKey::parse(Path::new("the content key in the manager's answer"), content_key);
        let content_key = content_key.map_err(NotOurs::ContentKey)?;
        if member == 0 || founders.is_empty() || founders.contains(&0) {
            return Err(NotOurs::Seat);
        }
        let managers = managers.iter().filter(|other| other.member != member).cloned().collect();
        let ids = (authority.cluster().parse(), identity.id().parse());
        let (Ok(cluster), Ok(manager)) = ids else { return Err(NotOurs::Seat) };
        let identity = ManagerIdentity { cluster, manager, content_key: content_key.name() };
        let seat = Seat { managers, founders: founders.to_vec(), ..Seat::alone(member, identity) };
        Ok(Self { authority, credentials, content_key, seat })
    }

    /// Makes the machine whose manager's directory is `dir` the manager that it was let in as. Harmless to repeat.
    ///
    /// # Errors
    /// [`JoiningError`]; the machine is no manager then, and joining again completes it.
    pub fn complete(&self, dir: &Path) -> Result<(), JoiningError> {
        self.authority.save(&dir.join(AUTHORITY_FILE))?;
        self.content_key.save(&dir.join(CONTENT_FILE))?;
        self.credentials.save(&dir.join(MANAGER_FILE))?;
        seat::take(dir, &self.seat)?;
        finish(dir)
    }
}

/// Removes what a join that is done leaves behind.
///
/// # Errors
/// [`JoiningError::Directory`].
pub fn finish(dir: &Path) -> Result<(), JoiningError> {
    let path = dir.join(JOIN_KEY_FILE);
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(JoiningError::Directory { operation: "remove", path, source })
        }
        _ => Ok(()),
    }
}

/// Forgets all of a manager that its cluster removed or went on without: what it knew, and its keys. The directory is
/// renamed first, since one that is removed in part could pass for something else.
fn forget(dir: &Path) -> Result<(), JoiningError> {
    clean(dir)?;
    let gone = gone(dir);
    std::fs::rename(dir, &gone).map_err(failed("rename", dir))?;
    // The name must not come back once some of the files are gone.
    sync_above(&gone)?;
    clean(dir)
}

/// Removes what a [`forget`] left of the manager in `dir` that was cut off: the cluster's keys are in it.
///
/// # Errors
/// [`JoiningError::Directory`].
pub fn clean(dir: &Path) -> Result<(), JoiningError> {
    let gone = gone(dir);
    match std::fs::remove_dir_all(&gone) {
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed("remove", &gone)(source)),
        Ok(()) => sync_above(&gone),
    }
}

fn gone(dir: &Path) -> PathBuf {
    dir.with_extension("gone")
}

fn sync_above(path: &Path) -> Result<(), JoiningError> {
    let above = path.parent().unwrap_or(Path::new("."));
    let synced = std::fs::File::open(above).and_then(|above| above.sync_all());
    synced.map_err(failed("sync", above))
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> JoiningError + use<> {
    let path = path.to_owned();
    move |source| JoiningError::Directory { operation, path, source }
}

#[cfg(test)]
mod tests;
