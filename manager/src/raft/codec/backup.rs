//! What a backup holds once it is decrypted: a manifest with its length before it, then the state as in a snapshot.

use std::io::{self, Write};

use prost::Message;
use warren_core::State;
use warren_proto::v1;
use warren_types::{Timestamp, Violation, Violations};
use zeroize::Zeroize;

use super::{CodecError, read_snapshot, write_snapshot};

const WHAT: &str = "a backup";

/// What a backup says before the state. Secret: it holds the cluster's keys.
#[derive(Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The cluster's id.
    pub cluster: String,
    /// The authority's certificate and key, PEM.
    pub authority: String,
    /// What contents are sealed with, as its file holds it.
    pub content_key: String,
    /// Warren's version on the manager that wrote it.
    pub version: String,
    /// When it was written.
    pub created_at: Timestamp,
    /// Which manager wrote it; empty where an earlier version did.
    pub manager_name: String,
    /// That manager runs no tasks.
    pub manager_only: bool,
}

impl Drop for Manifest {
    fn drop(&mut self) {
        self.authority.zeroize();
        self.content_key.zeroize();
    }
}

/// Writes a backup's content.
///
/// # Errors
/// Those of `out`.
pub fn write_backup(manifest: &Manifest, state: &State, out: &mut dyn Write) -> io::Result<()> {
    let mut stored = v1::BackupManifest {
        cluster_id: manifest.cluster.clone(),
        authority: manifest.authority.clone(),
        content_key: manifest.content_key.clone(),
        warren_version: manifest.version.clone(),
        created_at: manifest.created_at.0,
        manager_name: manifest.manager_name.clone(),
        manager_only: manifest.manager_only,
    };
    let mut bytes = stored.encode_length_delimited_to_vec();
    let written = out.write_all(&bytes);
    for secret in [&mut stored.authority, &mut stored.content_key] {
        secret.zeroize();
    }
    bytes.zeroize();
    written?;
    write_snapshot(state, out)
}

/// What [`write_backup`] wrote.
///
/// # Errors
/// [`CodecError`] when it cannot be read, holds what this version does not know, or contradicts itself.
pub fn read_backup(bytes: &[u8]) -> Result<(Manifest, State), CodecError> {
    let mut rest = bytes;
    let stored = v1::BackupManifest::decode_length_delimited(&mut rest)
        .map_err(|source| CodecError::Damaged { what: WHAT, source })?;
    let mut again = stored.encode_length_delimited_to_vec();
    let same = bytes.starts_with(&again);
    again.zeroize();
    if !same {
        return Err(CodecError::Unknown(WHAT));
    }
    let v1::BackupManifest { cluster_id, authority, content_key, warren_version, created_at, .. } = stored;
    let v1::BackupManifest { manager_name, manager_only, .. } = stored;
    let (cluster, version, created_at) = (cluster_id, warren_version, Timestamp(created_at));
    let manifest =
        Manifest { cluster, authority, content_key, version, created_at, manager_name, manager_only };
    let state = read_snapshot(rest)?;
    match state.cluster() {
        Some(cluster) if cluster.id.to_string() == manifest.cluster => Ok((manifest, state)),
        found => {
            let found = found.map_or_else(|| "none".to_owned(), |cluster| cluster.id.to_string());
            let message = format!("is {}, and the state is of {found}", manifest.cluster);
            let violations = Violations::from(Violation::new("clusterId", message));
            Err(CodecError::Field { what: WHAT, violations })
        }
    }
}
