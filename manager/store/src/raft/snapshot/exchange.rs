//! Transfers snapshots to and from other managers.

use bytes::Bytes;
use warren_consensus::Message;
use warren_core::AppliedIndex;
use warren_log::SnapshotMeta;
use warren_security::seal::SealError;

use super::SnapshotFiles;
use crate::codec::{self, CodecError};
use crate::store::Store;

/// Why a snapshot cannot be read or received.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Its file is missing, or cannot be read or written.
    #[error(transparent)]
    File(#[from] warren_log::Error),
    /// Its file cannot be decrypted.
    #[error("the snapshot at index {index}: {source}")]
    OpenFile {
        /// Index of its last entry.
        index: u64,
        /// The cause.
        source: SealError,
    },
    /// The received data cannot be decoded by this version.
    #[error("a snapshot from another manager: {0}")]
    Decode(#[from] CodecError),
    /// The received snapshot is not the announced one.
    #[error("received snapshot: expected state at {desired:?}, found {found:?}")]
    Mismatch {
        /// The announced position.
        desired: AppliedIndex,
        /// The received position.
        found: AppliedIndex,
    },
    /// The message announces no snapshot.
    #[error("the message with a snapshot does not announce one")]
    NotAnnounced,
    /// A bug.
    #[error("a snapshot thread panicked")]
    Panicked,
}

/// The manager's snapshots, for transfer between managers. Cheap to clone. Works outside of the driver
/// thread.
#[derive(Clone)]
pub struct SnapshotExchange {
    files: SnapshotFiles,
    store: Store,
}

impl SnapshotExchange {
    /// Transfers snapshots in `files`, which belong to `store`.
    pub fn new(files: SnapshotFiles, store: Store) -> Self {
        Self { files, store }
    }

    /// The plain bytes of the snapshot at the index and term of `announced`; its members may differ.
    ///
    /// # Errors
    /// [`SnapshotError`]; a later snapshot may have replaced it, which raft sends next.
    pub async fn read(&self, announced: &SnapshotMeta) -> Result<Vec<u8>, SnapshotError> {
        let (files, index, term) = (self.files.clone(), announced.index, announced.term);
        let read = tokio::task::spawn_blocking(move || files.read(index, term));
        let bytes = read.await.map_err(|_| SnapshotError::Panicked)??;
        bytes.map_err(|source| SnapshotError::OpenFile { index, source })
    }

    /// Stores the snapshot that `message` announces, whose bytes are `plain`, durably and passes it to raft.
    /// Resolves when it is installed, or raft has discarded it.
    ///
    /// # Errors
    /// [`SnapshotError`]; raft has not received it then.
    pub async fn receive(&self, message: Message, plain: Bytes) -> Result<(), SnapshotError> {
        let meta = message.snapshot.clone().ok_or(SnapshotError::NotAnnounced)?;
        let (files, store) = (self.files.clone(), self.store.clone());
        let bytes = plain.len() as u64;
        let kept = tokio::task::spawn_blocking(move || {
            let state = codec::read_snapshot(&plain)?;
            let expected = AppliedIndex { term: meta.term, index: meta.index };
            let found = state.applied();
            if found != expected {
                return Err(SnapshotError::Mismatch { desired: expected, found });
            }
            files.store_received(&meta, &plain, || store.read().index < meta.index)?;
            Ok(state)
        });
        let state = kept.await.map_err(|_| SnapshotError::Panicked)??;
        self.store.install_snapshot(message, state, bytes).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
