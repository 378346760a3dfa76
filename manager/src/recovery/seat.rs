//! A manager's place in the raft group, as it stands in its directory: the file `member`.
//!
//! ```toml
//! version = 1
//! member = 3
//! founders = [1]
//! cluster = "00000000000000000000000000000009"
//! manager = "00000000000000000000000000000003"
//! content_key = "0123456789abcdef"
//!
//! [[managers]]
//! member = 1
//! id = "00000000000000000000000000000001"
//! address = "10.0.0.7:8080"
//! ```
//!
//! `managers` are those that it was told of when it joined; it dials them as long as it knows nobody else. `cluster`,
//! `manager` and `content_key` say which certificates and keys belong beside this file, and `node` which node's: files
//! of another manager are recognized, whatever the log says (`Keys::prepare`).
//!
//! It comes last when a machine becomes a manager, and only then is it one. A directory that has a manager's files and
//! not this one has lost it, unless `init.pending` or `join.key` says that the machine is still becoming a manager.

mod file;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use warren_log::Owner;
use warren_security::seal::Keyring;
use warren_security::{CertificateAuthority, Credentials, FileError, Fingerprint, PrivateKey, Role, files};
use warren_types::{ClusterId, ManagerAddress, ManagerId, MemberId, NodeId};

use self::file::{FILE, FORMAT, load, save};

/// The authority's file, which is the first that `manager init` makes.
pub(crate) const AUTHORITY_FILE: &str = "ca.pem";
/// What contents are sealed with.
pub(crate) const CONTENT_FILE: &str = "content.key";
/// What the manager shows.
pub(crate) const MANAGER_FILE: &str = "manager.pem";
/// What the administrator on its machine shows.
pub(crate) const ADMIN_FILE: &str = "admin.pem";
/// What its node shows, in hybrid mode.
pub(crate) const NODE_FILE: &str = "node.pem";
/// What a removed manager's node trusts; public.
pub(crate) const ROOTS_FILE: &str = "roots.pem";
/// The key of a machine that begins to join.
pub(crate) const JOIN_KEY_FILE: &str = "join.key";
/// There from the beginning of `manager init` until its cluster is in the log; empty.
const INIT_FILE: &str = "init.pending";
/// The directory of the snapshots.
pub(crate) const SNAPSHOTS: &str = "snapshots";
/// The id of a cluster's first manager.
pub const FIRST: MemberId = 1;

/// A place in the raft group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// The id there.
    pub member: MemberId,
    /// The voters that the group was founded with.
    pub founders: Vec<MemberId>,
    /// The other managers that it was told of when it joined; none of one that made its group.
    pub managers: Vec<Introduced>,
    /// What its certificates and keys say.
    pub identity: ManagerIdentity,
    /// The node of its machine, once it has one.
    pub node: Option<NodeId>,
}

/// What tells a manager from every other one, besides its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManagerIdentity {
    /// The cluster, as its authority's certificate says.
    pub cluster: ClusterId,
    /// The id in the manager's certificate.
    pub manager: ManagerId,
    /// The fingerprint of the cluster's content key.
    pub content_key: Fingerprint,
}

/// A manager that another one was told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Introduced {
    /// Its id in the raft group.
    pub member: MemberId,
    /// The id in its certificate.
    pub id: ManagerId,
    /// Where it was reached then.
    pub address: ManagerAddress,
}

impl Seat {
    /// That of a cluster's first manager.
    pub fn first(identity: ManagerIdentity) -> Self {
        Self::alone(FIRST, identity)
    }

    /// That of the only manager of a group that begins anew.
    pub fn alone(member: MemberId, identity: ManagerIdentity) -> Self {
        Self { member, founders: vec![member], managers: Vec::new(), identity, node: None }
    }

    /// Whose log belongs to it.
    pub fn owner(&self) -> Owner {
        let ManagerIdentity { cluster, manager, .. } = self.identity;
        Owner { cluster, manager, member: self.member }
    }
}

/// How far the machine is that a directory belongs to.
#[derive(Debug)]
pub enum Standing {
    /// It never was a manager.
    Nothing,
    /// `manager init` began to make it the first manager of a cluster.
    InitPending,
    /// It began to join. With this key it goes on as the manager that it would have been.
    Begun(PrivateKey),
    /// It is a manager.
    Seated(Seat),
    /// It was one until its cluster removed it.
    Removed(Seat),
    /// It was one in a life of the cluster that is over: another manager is in this later one.
    Overtaken(Seat, u64),
}

/// Why a place cannot be read or written. What stood in the directory still does.
#[derive(Debug, thiserror::Error)]
pub enum SeatError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A later version wrote the file.
    #[error(
        "{path} has format version {found}, and this version of Warren reads up to {FORMAT}: install the version that \
         wrote it"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It does not hold what was written there.
    #[error("{path} is damaged: {what}; {WAY_BACK}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// It is gone, and other files of a manager are there.
    #[error(
        "{path} is missing, though {beside} is there: without it nothing says which member this manager is; {WAY_BACK}"
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// A file that only a manager has.
        beside: PathBuf,
    },
    /// It says that this manager was removed, and the certificate beside it is not that manager's.
    #[error(
        "{path} says that manager {wanted} was removed from its cluster, and {certificate} is not its certificate: no \
         key was deleted; {WAY_BACK}"
    )]
    NotRemoved {
        /// The file.
        path: PathBuf,
        /// The manager that was removed.
        wanted: ManagerId,
        /// The certificate's file.
        certificate: PathBuf,
    },
    /// Another manager's place was written there meanwhile.
    #[error("{path} is of another manager by now: nothing was changed; {WAY_BACK}")]
    Replaced {
        /// The file.
        path: PathBuf,
    },
}

/// How a manager comes back that lost what only it had.
pub(crate) const WAY_BACK: &str = "restore it from a copy of this directory; where other managers run, remove this \
     one there (`warren manager rm`), move the directory away and join again (`warren manager join`); where it was the \
     only one, move the directory away and restore a backup (`warren manager restore`)";

/// How far the machine is whose manager's directory is `dir`. Changes nothing.
///
/// # Errors
/// [`SeatError`].
pub fn look(dir: &Path) -> Result<Standing, SeatError> {
    let path = dir.join(FILE);
    if let Some(standing) = load(&path)? {
        return Ok(standing);
    }
    let missing = |beside| Err(SeatError::Missing { path: path.clone(), beside });
    // A log comes after the file, so the file was there.
    if let Some(beside) = stored(dir) {
        return missing(beside);
    }
    if let Some(key) = join_key(dir)? {
        return Ok(Standing::Begun(key));
    }
    if dir.join(INIT_FILE).exists() {
        return Ok(Standing::InitPending);
    }
    match [AUTHORITY_FILE, CONTENT_FILE, MANAGER_FILE, ADMIN_FILE, ROOTS_FILE].map(|file| dir.join(file)) {
        files if files.iter().any(|file| file.exists()) => {
            missing(files.into_iter().find(|file| file.exists()).expect("one of them is there"))
        }
        _ => Ok(Standing::Nothing),
    }
}

/// Something that only a manager stores which has run.
fn stored(dir: &Path) -> Option<PathBuf> {
    let log = warren_log::log_in(dir).or_else(|| Keyring::file_in(dir));
    log.or_else(|| Some(dir.join(SNAPSHOTS)).filter(|path| path.exists()))
}

/// `manager init` begins in `dir`; durable when this returns.
///
/// # Errors
/// [`SeatError::File`].
pub(crate) fn begin_init(dir: &Path) -> Result<(), SeatError> {
    Ok(files::write_private(&dir.join(INIT_FILE), b"")?)
}

/// Whether an init that began in `dir` has not made its cluster yet, as far as is known there.
pub(crate) fn is_init_pending(dir: &Path) -> bool {
    dir.join(INIT_FILE).exists()
}

/// The cluster that `manager init` makes is in the log. Harmless to repeat.
///
/// # Errors
/// [`SeatError::File`].
pub(crate) fn finish_init(dir: &Path) -> Result<(), SeatError> {
    remove(&[dir.join(INIT_FILE)])
}

/// Writes the place down; durable when this returns.
///
/// # Errors
/// [`SeatError::File`].
pub fn take(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    save(dir, seat, false, None)
}

/// Where the file is.
pub(crate) fn path_in(dir: &Path) -> PathBuf {
    dir.join(FILE)
}

/// The place that was written down, whatever became of it since; `None` where none was.
pub(crate) fn written(dir: &Path) -> Result<Option<Seat>, SeatError> {
    Ok(match load(&dir.join(FILE))? {
        Some(Standing::Seated(seat) | Standing::Removed(seat) | Standing::Overtaken(seat, _)) => Some(seat),
        _ => None,
    })
}

/// Who changes what the file says holds this from reading to writing it. The process has the data directory to itself.
static CHANGING: Mutex<()> = Mutex::new(());

fn changing() -> MutexGuard<'static, ()> {
    // It guards nothing that a panic could leave half-done.
    CHANGING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes down which node the machine of the manager in `dir` is, if there is a manager; durable when this returns.
///
/// # Errors
/// [`SeatError`].
pub(crate) fn note_node(dir: &Path, node: NodeId) -> Result<(), SeatError> {
    let _changing = changing();
    match load(&dir.join(FILE))? {
        Some(Standing::Seated(seat)) if seat.node != Some(node) => {
            take(dir, &Seat { node: Some(node), ..seat })
        }
        _ => Ok(()),
    }
}

/// Writes down that the cluster removed the manager that has this place, and removes the cluster's keys; durable when
/// this returns. The node's certificate stays: what the node ran may still have to be stopped.
///
/// # Errors
/// [`SeatError`]; [`drop_keys`] completes it.
pub fn lose(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    let _changing = changing();
    let (seat, _) = current(dir, seat)?;
    confirm(dir, &seat)?;
    save(dir, &seat, true, None)?;
    drop_keys(dir, &seat)
}

/// Writes down that the cluster goes on in that life, without the manager that has this place; durable when this
/// returns. Answers the latest life that was written down. The keys stay: people may find that the new life was a
/// mistake.
///
/// # Errors
/// [`SeatError`].
pub fn overtaken(dir: &Path, seat: &Seat, life: u64) -> Result<u64, SeatError> {
    let _changing = changing();
    let (seat, known) = current(dir, seat)?;
    let life = known.map_or(life, |known| known.max(life));
    save(dir, &seat, false, Some(life)).map(|()| life)
}

/// What the file says by now of the manager that has this place, and of a life that began without it.
fn current(dir: &Path, seat: &Seat) -> Result<(Seat, Option<u64>), SeatError> {
    let path = dir.join(FILE);
    let (found, life) = match load(&path)? {
        Some(Standing::Seated(found) | Standing::Removed(found)) => (found, None),
        Some(Standing::Overtaken(found, life)) => (found, Some(life)),
        _ => return Err(SeatError::Replaced { path }),
    };
    if found.owner() == seat.owner() { Ok((found, life)) } else { Err(SeatError::Replaced { path }) }
}

/// Removes the cluster's keys, which a removed manager has no use for. Whoever copied them before has them still. What
/// its node trusts stays, without a key. Harmless to repeat. The certificate must show that it was this very manager
/// that was removed: the file that says so may be another's.
///
/// # Errors
/// [`SeatError`]; what is not removed is by the next try.
pub fn drop_keys(dir: &Path, removed: &Seat) -> Result<(), SeatError> {
    let (authority, roots) = (dir.join(AUTHORITY_FILE), dir.join(ROOTS_FILE));
    let keys = [authority.clone(), dir.join(ADMIN_FILE), dir.join(CONTENT_FILE)];
    if !keys.iter().any(|path| path.exists()) {
        return Ok(());
    }
    confirm(dir, removed)?;
    if !roots.exists() && authority.exists() {
        // One that cannot be read has nothing that anybody could trust.
        if let Ok(authority) = CertificateAuthority::load(&authority) {
            files::write_public(&roots, authority.roots().pem().as_bytes())?;
        }
    }
    remove(&keys)
}

/// The certificate in `dir` is of the manager that has this place.
fn confirm(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    let certificate = dir.join(MANAGER_FILE);
    let ManagerIdentity { cluster, manager, .. } = seat.identity;
    let shown = Credentials::load(&certificate).is_ok_and(|shown| {
        let shown = shown.identity();
        let is = (shown.cluster(), shown.role(), shown.id());
        is == (cluster.to_string().as_str(), Role::Manager, manager.to_string().as_str())
    });
    match shown {
        true => Ok(()),
        false => Err(SeatError::NotRemoved { path: dir.join(FILE), wanted: manager, certificate }),
    }
}

/// Removes files of one directory that may be there; durable when this returns.
fn remove(paths: &[PathBuf]) -> Result<(), SeatError> {
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

/// Where the key is with which a machine begins to join.
pub(crate) fn join_key_path(dir: &Path) -> PathBuf {
    dir.join(JOIN_KEY_FILE)
}

/// The key with which the machine began to join, whatever it was before; `None` where it did not begin.
pub(crate) fn join_key(dir: &Path) -> Result<Option<PrivateKey>, SeatError> {
    let path = join_key_path(dir);
    match files::read_private(&path) {
        Ok(text) => {
            PrivateKey::parse(&text).map(Some).map_err(|source| FileError::Content { path, source }.into())
        }
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// There is no such file, as opposed to one that cannot be read.
pub(crate) fn is_missing(error: &FileError) -> bool {
    matches!(error, FileError::Read { source, .. }
        if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

#[cfg(test)]
mod tests;
