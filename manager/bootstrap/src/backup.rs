//! A backup: everything that a machine needs to become this cluster, in one encrypted file. It has the state
//! at one applied index, the CA with its key, and the secret object key; so it grants full control of the
//! cluster.

use std::io::{self, Write};
use std::path::Path;

use warren_core::State;
use warren_security::{
    BackupError, BackupWriter, CertificateAuthority, KeyFileError, MaterialError, Passphrase,
    SecretObjectKey, SecretObjectKeyError, open_backup,
};
use warren_store::codec::{self, BackupManifest, CodecError};
use warren_types::name::ParseNameError;
use warren_types::{NodeName, SecretObjectId, Timestamp};

/// A decrypted and verified backup.
#[derive(Debug)]
pub struct Backup {
    /// The cluster's CA.
    pub authority: CertificateAuthority,
    /// The key that seals the secret objects.
    pub secret_object_key: SecretObjectKey,
    /// The replicated state.
    pub state: State,
    /// Warren's version on the manager that wrote it.
    pub version: String,
    /// Time of writing.
    pub created_at: Timestamp,
    /// The manager that wrote it; `None` in backups of earlier versions.
    pub author: Option<BackupAuthor>,
}

/// The manager that wrote a backup; a restored manager gets the same settings by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupAuthor {
    /// Name of the manager and its node.
    pub name: NodeName,
    /// Whether it runs without a worker.
    pub is_manager_only: bool,
}

/// Why a backup is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ReadBackupError {
    /// Decryption failed.
    #[error(transparent)]
    Decrypt(#[from] BackupError),
    /// Its content cannot be parsed.
    #[error(transparent)]
    Decode(#[from] CodecError),
    /// The CA in it is invalid.
    #[error("the CA in the backup is invalid")]
    Authority(#[source] MaterialError),
    /// The CA in it belongs to another cluster.
    #[error("the CA in the backup: expected cluster {desired}, found {found}")]
    OtherCluster {
        /// The cluster of the state.
        desired: String,
        /// The cluster of the CA.
        found: String,
    },
    /// The name of the manager that wrote it is invalid.
    #[error("the manager name in the backup: {0}")]
    AuthorName(#[from] ParseNameError),
    /// The secret object key in it is invalid.
    #[error(transparent)]
    SecretObjectKey(#[from] KeyFileError),
    /// The secret object key in it does not decrypt its secret objects.
    #[error("secret object {id} in the backup: {source}")]
    SecretObjectKeyMismatch {
        /// The secret object.
        id: SecretObjectId,
        /// The cause.
        source: SecretObjectKeyError,
    },
}

/// Writes a backup to `out`, as the manager `writer`. Deriving the key takes some tenths of a second before
/// the first byte.
///
/// # Errors
/// Errors of `out`.
pub fn write(
    passphrase: &Passphrase,
    authority: &CertificateAuthority,
    secret_object_key: &SecretObjectKey,
    (state, created_at): (&State, Timestamp),
    writer: Option<&BackupAuthor>,
    out: impl Write,
) -> io::Result<()> {
    let manifest = BackupManifest {
        cluster: authority.cluster().to_owned(),
        authority: authority.to_pem().to_string(),
        secret_object_key: secret_object_key.reveal().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        created_at,
        manager_name: writer.map(|writer| writer.name.to_string()).unwrap_or_default(),
        is_manager_only: writer.is_some_and(|writer| writer.is_manager_only),
    };
    let mut out = BackupWriter::new(passphrase, out)?;
    codec::write_backup(&manifest, state, &mut out)?;
    out.finish().map(drop)
}

/// Opens a backup and verifies all of it.
///
/// # Errors
/// [`ReadBackupError`].
pub fn read(passphrase: &Passphrase, sealed: Vec<u8>) -> Result<Backup, ReadBackupError> {
    let plain = open_backup(passphrase, sealed)?;
    let (manifest, state) = codec::read_backup(&plain)?;
    drop(plain);
    let authority =
        CertificateAuthority::parse_pem(&manifest.authority).map_err(ReadBackupError::Authority)?;
    if authority.cluster() != manifest.cluster {
        let (expected, found) = (manifest.cluster.clone(), authority.cluster().to_owned());
        return Err(ReadBackupError::OtherCluster { desired: expected, found });
    }
    let secret_object_key = SecretObjectKey::parse(
        Path::new("the secret object key in the backup"),
        &manifest.secret_object_key,
    )?;
    for object in state.secret_objects() {
        for sealed in object.versions.values() {
            let id = object.id;
            let opened = secret_object_key.open(id, sealed).map(drop);
            opened.map_err(|source| ReadBackupError::SecretObjectKeyMismatch { id, source })?;
        }
    }
    let (version, created_at) = (manifest.version.clone(), manifest.created_at);
    let writer = match manifest.manager_name.as_str() {
        "" => None,
        name => Some(BackupAuthor { name: name.parse()?, is_manager_only: manifest.is_manager_only }),
    };
    Ok(Backup { authority, secret_object_key, state, version, created_at, author: writer })
}

#[cfg(test)]
pub(super) mod tests;
