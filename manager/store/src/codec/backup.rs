//! The decrypted content of a backup: a length-delimited manifest, then the state as in a snapshot.

use std::io::{self, Write};

use prost::Message;
use warren_core::State;
use warren_proto::v1;
use warren_types::{Timestamp, Violation, Violations};
use zeroize::Zeroize;

use super::{CodecError, read_snapshot, write_snapshot};

const BACKUP: &str = "a backup";

/// The manifest before the state. Secret: it has the cluster's keys.
#[derive(Clone, PartialEq, Eq)]
pub struct BackupManifest {
    /// The cluster's id.
    pub cluster: String,
    /// The CA's certificate and key, PEM.
    pub authority: String,
    /// The key that seals the secret objects, in its file format.
    pub secret_object_key: String,
    /// Warren's version on the manager that wrote it.
    pub version: String,
    /// Time of writing.
    pub created_at: Timestamp,
    /// Name of the manager that wrote it; empty in backups of earlier versions.
    pub manager_name: String,
    /// Whether that manager runs without a worker.
    pub is_manager_only: bool,
}

impl Drop for BackupManifest {
    fn drop(&mut self) {
        self.authority.zeroize();
        self.secret_object_key.zeroize();
    }
}

/// Writes the content of a backup.
///
/// # Errors
/// Errors of `out`.
pub fn write_backup(manifest: &BackupManifest, state: &State, out: &mut dyn Write) -> io::Result<()> {
    let mut stored = v1::BackupManifest {
        cluster_id: manifest.cluster.clone(),
        authority: manifest.authority.clone(),
        secret_object_key: manifest.secret_object_key.clone(),
        warren_version: manifest.version.clone(),
        created_at: manifest.created_at.0,
        manager_name: manifest.manager_name.clone(),
        manager_only: manifest.is_manager_only,
    };
    let mut bytes = stored.encode_length_delimited_to_vec();
    let written = out.write_all(&bytes);
    for secret in [&mut stored.authority, &mut stored.secret_object_key] {
        secret.zeroize();
    }
    bytes.zeroize();
    written?;
    write_snapshot(state, out)
}

/// Reads the output of [`write_backup`].
///
/// # Errors
/// [`CodecError`] if it is invalid, inconsistent, or has fields unknown to this version.
pub fn read_backup(bytes: &[u8]) -> Result<(BackupManifest, State), CodecError> {
    let mut rest = bytes;
    let stored = v1::BackupManifest::decode_length_delimited(&mut rest)
        .map_err(|source| CodecError::Malformed { what: BACKUP, source })?;
    let mut again = stored.encode_length_delimited_to_vec();
    let same = bytes.starts_with(&again);
    again.zeroize();
    if !same {
        return Err(CodecError::UnknownRecord(BACKUP));
    }
    let v1::BackupManifest {
        cluster_id,
        authority,
        secret_object_key: content_key,
        warren_version,
        created_at,
        ..
    } = stored;
    let v1::BackupManifest { manager_name, manager_only, .. } = stored;
    let (cluster, version, created_at) = (cluster_id, warren_version, Timestamp(created_at));
    let manifest = BackupManifest {
        cluster,
        authority,
        secret_object_key: content_key,
        version,
        created_at,
        manager_name,
        is_manager_only: manager_only,
    };
    let state = read_snapshot(rest)?;
    match state.cluster() {
        Some(cluster) if cluster.id.to_string() == manifest.cluster => Ok((manifest, state)),
        found => {
            let found = found.map_or_else(|| "none".to_owned(), |cluster| cluster.id.to_string());
            let message = format!("is {}, but the state has cluster {found}", manifest.cluster);
            let violations = Violations::from(Violation::new("clusterId", message));
            Err(CodecError::InvalidField { what: BACKUP, violations })
        }
    }
}
