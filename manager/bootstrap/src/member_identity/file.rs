//! The format of the member file, and how it is read and written.

use std::path::Path;

use serde::{Deserialize, Serialize};
use warren_security::files;
use warren_types::{ClusterId, ManagerId, MemberId, NodeId};

use super::{
    BootstrapPeer, CertificateIdentity, LocalMemberStatus, MemberFileError, MemberIdentity, is_not_found,
};

/// Its name in the manager's directory.
pub(super) const FILE: &str = "member";
/// The format version that this program writes, and the latest that it reads.
pub(super) const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberFile {
    version: u32,
    member_id: MemberId,
    founders: Vec<MemberId>,
    cluster: ClusterId,
    manager: ManagerId,
    secret_object_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    node: Option<NodeId>,
    /// The cluster removed this manager.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_removed: bool,
    /// The incarnation of the cluster that superseded this manager's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    superseded_by: Option<u64>,
    /// Missing in files of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    bootstrap_peers: Vec<StoredBootstrapPeer>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredBootstrapPeer {
    member_id: MemberId,
    id: String,
    address: String,
}

impl From<&BootstrapPeer> for StoredBootstrapPeer {
    fn from(BootstrapPeer { member_id, id, address }: &BootstrapPeer) -> Self {
        Self { member_id: *member_id, id: id.to_string(), address: address.to_string() }
    }
}

impl TryFrom<StoredBootstrapPeer> for BootstrapPeer {
    type Error = String;

    fn try_from(StoredBootstrapPeer { member_id, id, address }: StoredBootstrapPeer) -> Result<Self, String> {
        let id = id.parse().map_err(|why| format!("id {id:?} of a manager: {why}"))?;
        let address = address.parse().map_err(|why| format!("address {address:?} of a manager: {why}"))?;
        Ok(Self { member_id, id, address })
    }
}

/// The version only, which later formats have as well.
#[derive(Deserialize)]
struct VersionHeader {
    version: u32,
}

/// Writes the identity and its status; durable when this returns.
pub(super) fn save(
    dir: &Path,
    member_identity: &MemberIdentity,
    removed: bool,
    superseded_by: Option<u64>,
) -> Result<(), MemberFileError> {
    let MemberIdentity {
        member_id: member,
        founders,
        bootstrap_peers: managers,
        certificate_identity: identity,
        node,
    } = member_identity;
    let CertificateIdentity { cluster, manager, secret_object_key } = *identity;
    let stored = MemberFile {
        version: FORMAT,
        member_id: *member,
        founders: founders.clone(),
        cluster,
        manager,
        secret_object_key: secret_object_key.to_string(),
        node: *node,
        is_removed: removed,
        superseded_by,
        bootstrap_peers: managers.iter().map(StoredBootstrapPeer::from).collect(),
    };
    let text = toml::to_string(&stored).expect("numbers and texts can be written");
    Ok(files::write_private(&dir.join(FILE), text.as_bytes())?)
}

/// Reads the identity and its status; `None` without a file.
pub(super) fn load(path: &Path) -> Result<Option<LocalMemberStatus>, MemberFileError> {
    let text = match files::read_private(path) {
        Ok(text) => text,
        Err(error) if is_not_found(&error) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let damaged = |what: String| MemberFileError::Malformed { path: path.to_owned(), what };
    let VersionHeader { version: found } = toml::from_str(&text).map_err(|why| damaged(why.to_string()))?;
    if found > FORMAT {
        return Err(MemberFileError::UnsupportedVersion { path: path.to_owned(), found });
    }
    let stored: MemberFile = toml::from_str(&text).map_err(|why| damaged(why.to_string()))?;
    if stored.member_id == 0 || stored.founders.is_empty() || stored.founders.contains(&0) {
        return Err(damaged("0 is not a valid member id".to_owned()));
    }
    let MemberFile {
        member_id: member,
        founders,
        cluster,
        manager,
        secret_object_key,
        node,
        is_removed: removed,
        superseded_by,
        bootstrap_peers: managers,
        ..
    } = stored;
    let secret_object_key =
        secret_object_key.parse().map_err(|why| damaged(format!("secret_object_key: {why}")))?;
    let identity = CertificateIdentity { cluster, manager, secret_object_key };
    let managers: Result<Vec<_>, _> = managers.into_iter().map(BootstrapPeer::try_from).collect();
    let member_identity = MemberIdentity {
        member_id: member,
        founders,
        bootstrap_peers: managers.map_err(damaged)?,
        certificate_identity: identity,
        node,
    };
    Ok(Some(match superseded_by {
        _ if removed => LocalMemberStatus::Removed(member_identity),
        Some(incarnation) => LocalMemberStatus::Superseded(member_identity, incarnation),
        None => LocalMemberStatus::Member(member_identity),
    }))
}
