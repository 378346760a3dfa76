//! The file itself: what stands in it, and how it is read and written.

use std::path::Path;

use serde::{Deserialize, Serialize};
use warren_security::files;
use warren_types::{ClusterId, ManagerId, MemberId, NodeId};

use super::{Introduced, ManagerIdentity, Seat, SeatError, Standing, is_missing};

/// Its name in the manager's directory.
pub(super) const FILE: &str = "member";
/// The version of the file that this program writes, and the latest it reads.
pub(super) const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    version: u32,
    member: MemberId,
    founders: Vec<MemberId>,
    cluster: ClusterId,
    manager: ManagerId,
    content_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
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

/// Writes the place and what became of it; durable when this returns.
pub(super) fn save(
    dir: &Path,
    seat: &Seat,
    removed: bool,
    overtaken_by: Option<u64>,
) -> Result<(), SeatError> {
    let Seat { member, founders, managers, identity, node } = seat;
    let ManagerIdentity { cluster, manager, content_key } = *identity;
    let stored = Stored {
        version: FORMAT,
        member: *member,
        founders: founders.clone(),
        cluster,
        manager,
        content_key: content_key.to_string(),
        node: *node,
        removed,
        overtaken_by,
        managers: managers.iter().map(StoredManager::from).collect(),
    };
    let text = toml::to_string(&stored).expect("numbers and texts can be written");
    Ok(files::write_private(&dir.join(FILE), text.as_bytes())?)
}

/// The place, and whether it is one still; `None` where there is no file.
pub(super) fn load(path: &Path) -> Result<Option<Standing>, SeatError> {
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
    let Stored {
        member, founders, cluster, manager, content_key, node, removed, overtaken_by, managers, ..
    } = stored;
    let content_key = content_key.parse().map_err(|why| damaged(format!("content_key: {why}")))?;
    let identity = ManagerIdentity { cluster, manager, content_key };
    let managers: Result<Vec<_>, _> = managers.into_iter().map(Introduced::try_from).collect();
    let seat = Seat { member, founders, managers: managers.map_err(damaged)?, identity, node };
    Ok(Some(match overtaken_by {
        _ if removed => Standing::Removed(seat),
        Some(life) => Standing::Overtaken(seat, life),
        None => Standing::Seated(seat),
    }))
}
