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
    if let Some((seat, removed)) = load(&dir.join(FILE))? {
        return Ok(if removed { Standing::Removed } else { Standing::Seated(seat) });
    }
    if let Some(key) = load_key(&dir.join(JOIN_KEY_FILE))? {
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
    save(dir, seat, false)
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
    save(dir, seat, true)?;
    drop_keys(dir)
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

fn save(dir: &Path, Seat { member, founders, managers }: &Seat, removed: bool) -> Result<(), SeatError> {
    let (member, founders) = (*member, founders.clone());
    let managers = managers.iter().map(StoredManager::from).collect();
    let stored = Stored { version: FORMAT, member, founders, removed, managers };
    let text = toml::to_string(&stored).expect("numbers and texts can be written");
    Ok(files::write_private(&dir.join(FILE), text.as_bytes())?)
}

/// The place, and whether the cluster took it back.
fn load(path: &Path) -> Result<Option<(Seat, bool)>, SeatError> {
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
    let Stored { member, founders, removed, managers, .. } = stored;
    let managers: Result<Vec<_>, _> = managers.into_iter().map(Introduced::try_from).collect();
    Ok(Some((Seat { member, founders, managers: managers.map_err(damaged)? }, removed)))
}

fn load_key(path: &Path) -> Result<Option<PrivateKey>, SeatError> {
    match files::read_private(path) {
        Ok(text) => PrivateKey::parse(&text)
            .map(Some)
            .map_err(|source| FileError::Content { path: path.to_owned(), source }.into()),
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
mod tests {
    use super::*;

    #[test]
    fn a_directory_says_how_far_its_machine_is() {
        let dir = tempfile::tempdir().unwrap();
        let look = || super::look(dir.path()).unwrap();
        assert!(matches!(super::look(&dir.path().join("none")).unwrap(), Standing::Nothing));
        assert!(matches!(look(), Standing::Nothing));
        let key = PrivateKey::generate().unwrap();
        files::write_private(&dir.path().join(JOIN_KEY_FILE), key.pem().as_bytes()).unwrap();
        assert!(matches!(look(), Standing::Begun(found) if found.pem() == key.pem()));
        // An answer that was written half-way is not a cluster of its own.
        files::write_private(&dir.path().join(AUTHORITY_FILE), b"x").unwrap();
        assert!(matches!(look(), Standing::Begun(_)));
        let seat = Seat { member: 3, founders: vec![1, 2], managers: Vec::new() };
        take(dir.path(), &seat).unwrap();
        assert!(matches!(look(), Standing::Seated(found) if found == seat));
        lose(dir.path(), &seat).unwrap();
        assert!(matches!(look(), Standing::Removed));
    }

    #[test]
    fn a_cluster_from_before_there_were_several_has_its_first_manager() {
        let dir = tempfile::tempdir().unwrap();
        files::write_private(&dir.path().join(AUTHORITY_FILE), b"x").unwrap();
        assert!(matches!(look(dir.path()).unwrap(), Standing::Seated(seat) if seat == Seat::first()));
    }

    #[test]
    fn the_file_is_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let mut seat = Seat { member: 3, founders: vec![1], managers: Vec::new() };
        let told = || std::fs::read_to_string(dir.path().join(FILE)).unwrap();
        take(dir.path(), &seat).unwrap();
        let before = told();
        assert_eq!(before, "version = 1\nmember = 3\nfounders = [1]\n");
        let address = "10.0.0.7:8080".parse().unwrap();
        seat.managers.push(Introduced { member: 1, id: ManagerId(warren_types::Id(11)), address });
        take(dir.path(), &seat).unwrap();
        let id = ManagerId(warren_types::Id(11));
        let managers = format!("\n[[managers]]\nmember = 1\nid = \"{id}\"\naddress = \"10.0.0.7:8080\"\n");
        assert_eq!(told(), before + &managers);
        assert!(matches!(look(dir.path()).unwrap(), Standing::Seated(found) if found == seat));
    }

    #[test]
    fn a_removed_manager_keeps_no_key_of_the_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let now = std::time::SystemTime::now();
        let keys = crate::ca::Keys::open(dir.path(), true, now).unwrap();
        keys.ensure_agent(|| Ok(warren_types::NodeId(warren_types::Id(7))), now).unwrap();
        crate::ca::content_key(dir.path(), &warren_core::State::new(), true).unwrap();
        let roots = keys.authority.roots();
        take(dir.path(), &Seat::first()).unwrap();
        for _ in 0..2 {
            lose(dir.path(), &Seat::first()).unwrap();
            for file in [AUTHORITY_FILE, ADMIN_FILE, CONTENT_FILE] {
                assert!(!dir.path().join(file).exists(), "{file}");
            }
            let (_, trusted) = crate::ca::agent_in(dir.path()).unwrap().expect("it has a node to clear");
            assert_eq!(trusted.pem(), roots.pem());
        }
    }

    #[test]
    fn a_file_that_is_damaged_or_newer_is_refused_with_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for (text, why) in [
            ("version = 2\nlater = true\n", "has format version 2"),
            ("version = 1\nmember = 3\nfounders = [1]\nlater = 1\n", "unknown field `later`"),
            ("version = 1\nmember = 0\nfounders = [1]\n", "0 is nobody's id"),
            ("version = 1\nmember = 3\nfounders = []\n", "0 is nobody's id"),
            ("membr", "is damaged"),
        ] {
            files::write_private(&path, text.as_bytes()).unwrap();
            let error = look(dir.path()).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(&path.display().to_string()), "{error}");
        }
    }
}
