//! Snapshots for other managers, and from them.

use bytes::Bytes;
use warren_consensus::Message;
use warren_core::Applied;
use warren_log::SnapshotMeta;
use warren_security::seal::SealError;

use super::SnapshotFiles;
use crate::raft::codec::{self, CodecError};
use crate::store::Store;

/// Why a snapshot cannot be given out or taken.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Its file is not there any more, or cannot be read or written.
    #[error(transparent)]
    File(#[from] warren_log::Error),
    /// Its file cannot be opened.
    #[error("the snapshot at entry {index}: {source}")]
    Sealed {
        /// Its last entry.
        index: u64,
        /// Why not.
        source: SealError,
    },
    /// What came is no state that this version knows.
    #[error("a snapshot from another manager: {0}")]
    Content(#[from] CodecError),
    /// What came is another snapshot than the one that was announced.
    #[error("a snapshot that was announced up to {wanted:?} has the state up to {found:?}")]
    Other {
        /// What the message says.
        wanted: Applied,
        /// What the bytes say.
        found: Applied,
    },
    /// The message announces none.
    #[error("a message that announces no snapshot came with one")]
    NotAnnounced,
    /// A bug.
    #[error("a thread that works on a snapshot ended by a panic")]
    Panicked,
}

/// The manager's snapshots, for those who carry them between managers. Cheap to clone. All of it happens beside the
/// driver.
#[derive(Clone)]
pub struct SnapshotDoor {
    files: SnapshotFiles,
    store: Store,
}

impl SnapshotDoor {
    /// A door to `files`, which belong to `store`.
    pub fn new(files: SnapshotFiles, store: Store) -> Self {
        Self { files, store }
    }

    /// The plain bytes of the snapshot that `announced` names: of the one that ends at its entry, whoever it names as
    /// members.
    ///
    /// # Errors
    /// [`SnapshotError`]; a later snapshot may have taken its place by now, which raft will send next.
    pub async fn read(&self, announced: &SnapshotMeta) -> Result<Vec<u8>, SnapshotError> {
        let (files, index, term) = (self.files.clone(), announced.index, announced.term);
        let read = tokio::task::spawn_blocking(move || files.read(index, term));
        let bytes = read.await.map_err(|_| SnapshotError::Panicked)??;
        bytes.map_err(|source| SnapshotError::Sealed { index, source })
    }

    /// Takes the snapshot that `message` announces, whose plain bytes are `plain`: makes it durable, then gives it to
    /// raft. Resolves when it is the state here, or raft has no use for it any more.
    ///
    /// # Errors
    /// [`SnapshotError`]; raft knows nothing of it then.
    pub async fn receive(&self, message: Message, plain: Bytes) -> Result<(), SnapshotError> {
        let meta = message.snapshot.clone().ok_or(SnapshotError::NotAnnounced)?;
        let (files, store) = (self.files.clone(), self.store.clone());
        let bytes = plain.len() as u64;
        let kept = tokio::task::spawn_blocking(move || {
            let state = codec::read_snapshot(&plain)?;
            let wanted = Applied { term: meta.term, index: meta.index };
            let found = state.applied();
            if found != wanted {
                return Err(SnapshotError::Other { wanted, found });
            }
            files.keep(&meta, &plain, || store.read().index < meta.index)?;
            Ok(state)
        });
        let state = kept.await.map_err(|_| SnapshotError::Panicked)??;
        self.store.install(message, state, bytes).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
