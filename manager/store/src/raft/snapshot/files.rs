//! Sealed snapshot files: the manager's own, and received ones.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use warren_core::State;
use warren_log::{ConfState, Error, SnapshotDir, SnapshotMeta};
use warren_security::FileError;
use warren_security::seal::{KeyId, Keyring, SealError, SealingWriter};

use super::WrittenSnapshot;
use crate::codec;
use crate::raft::sealed_log::save_key;

/// The files of one manager. Cheap to clone; all clones write one file at a time.
#[derive(Clone)]
pub struct SnapshotFiles {
    files: SnapshotDir,
    keyring: Arc<Keyring>,
    /// Held while a file is written. The key of each file that this process has written, by index and term.
    writing: Arc<Mutex<SnapshotKeys>>,
}

type SnapshotKeys = BTreeMap<(u64, u64), KeyId>;

impl SnapshotFiles {
    /// Files in `files`, sealed with `keyring`.
    pub fn new(files: SnapshotDir, keyring: Arc<Keyring>) -> Self {
        Self { files, keyring, writing: Arc::default() }
    }

    /// The number of clones; each snapshot in progress has one.
    #[cfg(test)]
    pub fn clones(&self) -> usize {
        Arc::strong_count(&self.writing)
    }

    /// The path of the snapshot, whether it exists or not.
    pub fn path(&self, meta: &SnapshotMeta) -> std::path::PathBuf {
        self.files.path(meta)
    }

    /// Writes `state`, unless `stop` is set.
    ///
    /// # Errors
    /// Writing failed or was cancelled.
    pub(super) fn write(
        &self,
        state: &State,
        meta: &SnapshotMeta,
        stop: &AtomicBool,
    ) -> Result<WrittenSnapshot, Error> {
        let mut keys = self.begin_writing();
        save_key(&self.keyring)?;
        let (mut bytes, mut key) = (0, None);
        self.files.write(meta, |out| {
            let sealed = SealingWriter::new(&self.keyring, &snapshot_aad(meta), out)?;
            key = Some(sealed.key_id());
            let mut out = CancellableWriter { out: sealed, stop, written: 0 };
            codec::write_snapshot(state, &mut out)?;
            bytes = out.written;
            out.out.finish().map(drop)
        })?;
        keys.extend(key.map(|key| ((meta.index, meta.term), key)));
        Ok(WrittenSnapshot { index: meta.index, bytes })
    }

    /// Writes a received state, if `is_needed` at that time: the manager's own snapshot at the same index may
    /// have other members, and must not be replaced.
    ///
    /// # Errors
    /// Writing failed.
    pub(super) fn store_received(
        &self,
        meta: &SnapshotMeta,
        plain: &[u8],
        is_needed: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let mut keys = self.begin_writing();
        if !is_needed() {
            return Ok(());
        }
        save_key(&self.keyring)?;
        let mut key = None;
        let write = |out: &mut dyn Write| {
            let mut sealed = SealingWriter::new(&self.keyring, &snapshot_aad(meta), out)?;
            key = Some(sealed.key_id());
            sealed.write_all(plain)?;
            sealed.finish().map(drop)
        };
        self.files.write(meta, write)?;
        keys.extend(key.map(|key| ((meta.index, meta.term), key)));
        Ok(())
    }

    /// The plain bytes of the snapshot at that position.
    ///
    /// # Errors
    /// It is missing or damaged; the inner error: it cannot be decrypted.
    pub(super) fn read(&self, index: u64, term: u64) -> Result<Result<Vec<u8>, SealError>, Error> {
        let (meta, sealed) = self.files.load_at(index, term)?;
        Ok(self.keyring.unseal_stream(&snapshot_aad(&meta), sealed))
    }

    /// Removes snapshots that are not referenced any more.
    ///
    /// # Errors
    /// A file remains; the next snapshot or the next start removes it.
    pub(super) fn remove_older(&self, keep: &SnapshotMeta) -> Result<(), Error> {
        self.files.remove_older(keep)
    }

    /// See [`super::Snapshotter::forget_unused_keys`]. Does not wait.
    pub(super) fn forget_unused_keys(&self, oldest: u64) -> Option<Result<usize, FileError>> {
        let mut keys = match self.writing.try_lock() {
            Ok(keys) => keys,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        keys.retain(|(index, _), _| *index >= oldest);
        let in_use = keys.values().copied().collect();
        Some(self.keyring.forget_unused(&in_use).map(|left| left.len()))
    }

    fn begin_writing(&self) -> MutexGuard<'_, SnapshotKeys> {
        // Each change is complete.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The associated data of a snapshot: index u64, term u64, then for each list of members its length u32 and
/// the ids u64, then whether the joint configuration ends automatically u8; little-endian.
pub fn snapshot_aad(meta: &SnapshotMeta) -> Vec<u8> {
    let SnapshotMeta { index, term, conf_state } = meta;
    let ConfState { voters, learners, voters_outgoing, learners_next, auto_leave } = conf_state;
    let mut place = [index.to_le_bytes(), term.to_le_bytes()].concat();
    for members in [voters, learners, voters_outgoing, learners_next] {
        let count = u32::try_from(members.len()).expect("a group has few members");
        place.extend_from_slice(&count.to_le_bytes());
        members.iter().for_each(|id| place.extend_from_slice(&id.to_le_bytes()));
    }
    place.push(u8::from(*auto_leave));
    place
}

/// A writer that fails when it is cancelled, so that a stop need not wait for the snapshot of a large state.
struct CancellableWriter<'a, W> {
    out: W,
    stop: &'a AtomicBool,
    written: u64,
}

impl<W: Write> Write for CancellableWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the manager is stopping"));
        }
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
