//! A manager's place in the raft group, as it stands in its directory: the file `member`.
//!
//! ```toml
//! version = 1
//! member = 3
//! founders = [1]
//!
//! [[managers]]
//! member = 1
//! id = "00000000000000000000000000000001"
//! address = "10.0.0.7:8080"
//! ```
//!
//! `managers` are those that it was told of when it joined; it dials them as long as it knows nobody else.
//!
//! It comes last when a machine becomes a manager, and only then is it one. A directory with an authority and without
//! this file is from before there were several managers: its manager is the only one, and the first.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warren_security::{CertificateAuthority, FileError, PrivateKey, files};
use warren_types::{ManagerAddress, ManagerId, MemberId};

use crate::ca::{ADMIN_FILE, CONTENT_FILE};

/// The file's name in the manager's directory.
const FILE: &str = "member";
/// The version of the file that this program writes, and the latest it reads.
const FORMAT: u32 = 1;
/// The authority's file, which is the first that `manager init` makes.
pub(crate) const AUTHORITY_FILE: &str = "ca.pem";
/// What a removed manager's node trusts; public.
pub(crate) const ROOTS_FILE: &str = "roots.pem";
/// The key of a machine that begins to join.
pub(crate) const JOIN_KEY_FILE: &str = "join.key";
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
    pub fn first() -> Self {
        Self::alone(FIRST)
    }

    /// That of the only manager of a group that begins anew.
    pub fn alone(member: MemberId) -> Self {
        Self { member, founders: vec![member], managers: Vec::new() }
    }
}

/// How far the machine is that a directory belongs to.
#[derive(Debug)]
pub enum Standing {
    /// It never was a manager.
    Nothing,
    /// It began to join. With this key it goes on as the manager that it would have been.
    Begun(PrivateKey),
    /// It is a manager.
    Seated(Seat),
    /// It was one until its cluster removed it.
    Removed,
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
    #[error(
        "{path} is damaged: {what}; restore it from a copy, or remove this manager from the cluster and join again"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    member: MemberId,
    founders: Vec<MemberId>,
    /// The cluster removed this manager.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
    /// The life of the cluster that began without this manager.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overtaken_by: Option<u64>,
    /// Files from before there were any have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    managers: Vec<StoredManager>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredManager {
    member: MemberId,
    id: String,
    address: String,
}

impl From<&Introduced> for StoredManager {
    fn from(Introduced { member, id, address }: &Introduced) -> Self {
        Self { member: *member, id: id.to_string(), address: address.to_string() }
    }
}

impl TryFrom<StoredManager> for Introduced {
    type Error = String;

    fn try_from(StoredManager { member, id, address }: StoredManager) -> Result<Self, String> {
        let id = id.parse().map_err(|why| format!("id {id:?} of a manager: {why}"))?;
        let address = address.parse().map_err(|why| format!("address {address:?} of a manager: {why}"))?;
        Ok(Self { member, id, address })
    }
}

/// The version alone, which a later file has as well.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// How far the machine is whose manager's directory is `dir`. Changes nothing.
///
/// # Errors
/// [`SeatError`].
pub fn look(dir: &Path) -> Result<Standing, SeatError> {
    if let Some(standing) = load(&dir.join(FILE))? {
        return Ok(standing);
    }
    if let Some(key) = join_key(dir)? {
        return Ok(Standing::Begun(key));
    }
    let founded = dir.join(AUTHORITY_FILE).exists();
    Ok(if founded { Standing::Seated(Seat::first()) } else { Standing::Nothing })
}

/// Writes the place down; durable when this returns.
///
/// # Errors
/// [`SeatError::File`].
pub fn take(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    save(dir, seat, false, None)
}

/// Writes the place down where it is not; durable when this returns.
///
/// # Errors
/// [`SeatError::File`].
pub fn keep(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    if is_taken(dir) { Ok(()) } else { take(dir, seat) }
}

/// The place was written down: the machine has been a manager, with all that makes one.
pub(crate) fn is_taken(dir: &Path) -> bool {
    dir.join(FILE).exists()
}

/// Writes down that the cluster removed the manager that has this place, and removes the cluster's keys; durable when
/// this returns. The node's certificate stays: what the node ran may still have to be stopped.
///
/// # Errors
/// [`SeatError::File`]; [`drop_keys`] completes it.
pub fn lose(dir: &Path, seat: &Seat) -> Result<(), SeatError> {
    save(dir, seat, true, None)?;
    drop_keys(dir)
}

/// Writes down that the cluster goes on in that life, without the manager that has this place; durable when this
/// returns. Answers the latest life that was written down. The keys stay: people may find that the new life was a
/// mistake.
///
/// # Errors
/// [`SeatError`].
pub fn overtaken(dir: &Path, seat: &Seat, life: u64) -> Result<u64, SeatError> {
    let life = match look(dir)? {
        Standing::Overtaken(_, known) => known.max(life),
        _ => life,
    };
    save(dir, seat, false, Some(life)).map(|()| life)
}

/// Removes the cluster's keys, which a removed manager has no use for. Whoever copied them before has them still. What
/// its node trusts stays, without a key. Harmless to repeat.
///
/// # Errors
/// [`SeatError::File`]; what is not removed is by the next try.
pub fn drop_keys(dir: &Path) -> Result<(), SeatError> {
    let (authority, roots) = (dir.join(AUTHORITY_FILE), dir.join(ROOTS_FILE));
    if !roots.exists() && authority.exists() {
        // One that cannot be read has nothing that anybody could trust.
        if let Ok(authority) = CertificateAuthority::load(&authority) {
            files::write_public(&roots, authority.roots().pem().as_bytes())?;
        }
    }
    for path in [authority, dir.join(ADMIN_FILE), dir.join(CONTENT_FILE)] {
        let gone = match std::fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(source),
            _ => Ok(()),
        };
        gone.map_err(|source| FileError::Write { path, source })?;
    }
    let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
    Ok(synced.map_err(|source| FileError::Write { path: dir.to_owned(), source })?)
}

fn save(
    dir: &Path,
    Seat { member, founders, managers }: &Seat,
    removed: bool,
    overtaken_by: Option<u64>,
) -> Result<(), SeatError> {
    let (member, founders) = (*member, founders.clone());
    let managers = managers.iter().map(StoredManager::from).collect();
    let stored = Stored { version: FORMAT, member, founders, removed, overtaken_by, managers };
    let text = toml::to_string(&stored).expect("numbers and texts can be written");
    Ok(files::write_private(&dir.join(FILE), text.as_bytes())?)
}

/// The place, and whether it is one still.
fn load(path: &Path) -> Result<Option<Standing>, SeatError> {
    let text = match files::read_private(path) {
        Ok(text) => text,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |what: String| SeatError::Damaged { path: path.to_owned(), what };
    let Versioned { version: found } = toml::from_str(&text).map_err(|why| damaged(why.to_string()))?;
    if found > FORMAT {
        return Err(SeatError::Newer { path: path.to_owned(), found });
    }
    let stored: Stored = toml::from_str(&text).map_err(|why| damaged(why.to_string()))?;
    if stored.member == 0 || stored.founders.is_empty() || stored.founders.contains(&0) {
        return Err(damaged("0 is nobody's id".to_owned()));
    }
    let Stored { member, founders, removed, overtaken_by, managers, .. } = stored;
    let managers: Result<Vec<_>, _> = managers.into_iter().map(Introduced::try_from).collect();
    let seat = Seat { member, founders, managers: managers.map_err(damaged)? };
    Ok(Some(match overtaken_by {
        _ if removed => Standing::Removed,
        Some(life) => Standing::Overtaken(seat, life),
        None => Standing::Seated(seat),
    }))
}

/// The key with which the machine began to join, whatever it was before; `None` where it did not begin.
pub(crate) fn join_key(dir: &Path) -> Result<Option<PrivateKey>, SeatError> {
    let path = dir.join(JOIN_KEY_FILE);
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
