//! A backup: all that another machine needs to go on as this cluster, in one encrypted file. It holds the state as of
//! one applied entry, the authority with its key, and the content key; so whoever can open it can be the cluster.

use std::io::{self, Write};
use std::path::Path;

use warren_core::State;
use warren_security::{
    BackupError, BackupWriter, CertificateAuthority, ContentKey, ContentKeyError, KeyFileError,
    MaterialError, Passphrase, open_backup,
};
use warren_types::name::ParseNameError;
use warren_types::{ContentId, NodeName, Timestamp};

use crate::raft::codec::{self, CodecError, Manifest};

/// A backup that was opened, and of which everything was checked.
#[derive(Debug)]
pub struct Backup {
    /// The cluster's authority.
    pub authority: CertificateAuthority,
    /// What its contents are sealed with.
    pub content_key: ContentKey,
    /// The state.
    pub state: State,
    /// Warren's version on the manager that wrote it.
    pub version: String,
    /// When it was written.
    pub created_at: Timestamp,
    /// The manager that wrote it; `None` where an earlier version did, which kept nothing of it.
    pub writer: Option<Writer>,
}

/// The manager that wrote a backup, as it was started: what a restored one is, unless people say otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// What people call it and its node.
    pub name: NodeName,
    /// It runs no tasks.
    pub manager_only: bool,
}

/// Why a backup cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UnusableBackup {
    /// It does not open.
    #[error(transparent)]
    Sealed(#[from] BackupError),
    /// What is in it cannot be read.
    #[error(transparent)]
    Content(#[from] CodecError),
    /// The authority in it cannot be used.
    #[error("the authority in the backup cannot be used")]
    Authority(#[source] MaterialError),
    /// The authority in it is another cluster's.
    #[error("the authority in the backup is of cluster {found}, and the state of {wanted}")]
    OtherCluster {
        /// The state's cluster.
        wanted: String,
        /// The authority's.
        found: String,
    },
    /// The name of the manager that wrote it is none.
    #[error("the backup does not say which manager wrote it: {0}")]
    Writer(#[from] ParseNameError),
    /// The content key in it cannot be used.
    #[error(transparent)]
    ContentKey(#[from] KeyFileError),
    /// The content key in it does not open the contents in it.
    #[error("content {id} in the backup: {source}")]
    Unreadable {
        /// Which.
        id: ContentId,
        /// Why not.
        source: ContentKeyError,
    },
}

/// Writes a backup to `out`, as the manager `writer` if that has a name. It takes some tenths of a second before the
/// first byte, to find the key.
///
/// # Errors
/// Those of `out`.
pub fn write(
    passphrase: &Passphrase,
    authority: &CertificateAuthority,
    content_key: &ContentKey,
    (state, created_at): (&State, Timestamp),
    writer: Option<&Writer>,
    out: impl Write,
) -> io::Result<()> {
    let manifest = Manifest {
        cluster: authority.cluster().to_owned(),
        authority: authority.to_pem().to_string(),
        content_key: content_key.reveal().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at,
        manager_name: writer.map(|writer| writer.name.to_string()).unwrap_or_default(),
        manager_only: writer.is_some_and(|writer| writer.manager_only),
    };
    let mut out = BackupWriter::new(passphrase, out)?;
    codec::write_backup(&manifest, state, &mut out)?;
    out.finish().map(drop)
}

/// Opens a backup and checks all of it.
///
/// # Errors
/// [`UnusableBackup`].
pub fn read(passphrase: &Passphrase, sealed: Vec<u8>) -> Result<Backup, UnusableBackup> {
    let plain = open_backup(passphrase, sealed)?;
    let (manifest, state) = codec::read_backup(&plain)?;
    drop(plain);
    let authority =
        CertificateAuthority::parse_pem(&manifest.authority).map_err(UnusableBackup::Authority)?;
    if authority.cluster() != manifest.cluster {
        let (wanted, found) = (manifest.cluster.clone(), authority.cluster().to_owned());
        return Err(UnusableBackup::OtherCluster { wanted, found });
    }
    let content_key = ContentKey::parse(Path::new("the content key in the backup"), &manifest.content_key)?;
    for content in state.contents() {
        for sealed in content.versions.values() {
            let id = content.id;
            let opened = content_key.open(id, sealed).map(drop);
            opened.map_err(|source| UnusableBackup::Unreadable { id, source })?;
        }
    }
    let (version, created_at) = (manifest.version.clone(), manifest.created_at);
    let writer = match manifest.manager_name.as_str() {
        "" => None,
        name => Some(Writer { name: name.parse()?, manager_only: manifest.manager_only }),
    };
    Ok(Backup { authority, content_key, state, version, created_at, writer })
}

#[cfg(test)]
pub(super) mod tests;
