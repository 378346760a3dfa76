//! Snapshots as sealed files: the manager's own, and those that came from another one.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use warren_core::State;
use warren_log::{ConfState, Error, SnapshotMeta, Snapshots};
use warren_security::seal::{Keyring, SealError, SealingWriter};

use super::Written;
use crate::raft::codec;
use crate::raft::sealed_log::save_key;

/// The files of one manager. Cheap to clone; all clones write one file at a time.
#[derive(Clone)]
pub struct SnapshotFiles {
    files: Snapshots,
    keyring: Arc<Keyring>,
    writing: Arc<Mutex<()>>,
}

impl SnapshotFiles {
    /// Files in `files`, sealed by `keyring`.
    pub fn new(files: Snapshots, keyring: Arc<Keyring>) -> Self {
        Self { files, keyring, writing: Arc::default() }
    }

    /// Clones of this, one of them of each snapshot that is being written.
    #[cfg(test)]
    pub fn clones(&self) -> usize {
        Arc::strong_count(&self.writing)
    }

    /// Where the snapshot is, or would be.
    pub fn path(&self, meta: &SnapshotMeta) -> std::path::PathBuf {
        self.files.path(meta)
    }

    /// Writes `state`, unless told to `stop`.
    ///
    /// # Errors
    /// It is not durable.
    pub(super) fn write(
        &self,
        state: &State,
        meta: &SnapshotMeta,
        stop: &AtomicBool,
    ) -> Result<Written, Error> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        save_key(&self.keyring)?;
        let mut bytes = 0;
        self.files.write(meta, |out| {
            let sealed = SealingWriter::new(&self.keyring, &place(meta), out)?;
            let mut out = Stoppable { out: sealed, stop, written: 0 };
            codec::write_snapshot(state, &mut out)?;
            bytes = out.written;
            out.out.finish().map(drop)
        })?;
        Ok(Written { index: meta.index, bytes })
    }

    /// Writes a state that came as `plain` bytes, if it is `wanted` by then: a snapshot of the manager's own that ends
    /// at the same entry may have other members in it, and must not be replaced.
    ///
    /// # Errors
    /// It is not durable.
    pub(super) fn keep(
        &self,
        meta: &SnapshotMeta,
        plain: &[u8],
        wanted: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if !wanted() {
            return Ok(());
        }
        save_key(&self.keyring)?;
        let write = |out: &mut dyn Write| {
            let mut sealed = SealingWriter::new(&self.keyring, &place(meta), out)?;
            sealed.write_all(plain)?;
            sealed.finish().map(drop)
        };
        self.files.write(meta, write).map(drop)
    }

    /// The plain bytes of the state in the snapshot that ends there.
    ///
    /// # Errors
    /// There is none, or it is damaged; the inner error: it cannot be unsealed.
    pub(super) fn read(&self, index: u64, term: u64) -> Result<Result<Vec<u8>, SealError>, Error> {
        let (meta, sealed) = self.files.load_at(index, term)?;
        Ok(self.keyring.unseal_stream(&place(&meta), sealed))
    }

    /// Removes what nothing points to any more.
    ///
    /// # Errors
    /// A file stays; the next snapshot or the next start removes it.
    pub(super) fn remove_older(&self, keep: &SnapshotMeta) -> Result<(), Error> {
        self.files.remove_older(keep)
    }
}

/// What a snapshot's bytes are bound to: index u64, term u64, then of each list of members how many u32 and the ids
/// u64, and whether a joint change ends by itself u8; little-endian.
pub fn place(meta: &SnapshotMeta) -> Vec<u8> {
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

/// Fails when it is told to, so that a manager with a large state need not wait for its snapshot to stop.
struct Stoppable<'a, W> {
    out: W,
    stop: &'a AtomicBool,
    written: u64,
}

impl<W: Write> Write for Stoppable<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the manager stops"));
        }
        let written = self.out.write(bytes)?;
        self.written += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
