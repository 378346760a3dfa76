//! Snapshots: when one is due, and writing it beside the driver.
//!
//! The state is a persistent tree, so a thread can write it from an O(1) clone while later entries are applied. It is
//! sealed as a stream, whose place is what the snapshot covers (see [`place`]). [`SnapshotDoor`] has those for and from
//! other managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use warren_core::State;
use warren_log::{Error, SnapshotMeta};

pub use self::door::{SnapshotDoor, SnapshotError};
pub use self::files::{SnapshotFiles, place};

/// When a snapshot is due, whichever comes first. Both grow with the state: while a snapshot has `n` times `bytes`,
/// the next is due after `n` times as much. So no more is written in snapshots than about what is written in the log,
/// however large the state is, and what a start has to replay stays in proportion to what it has to read anyway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// After so many bytes of commands.
    pub bytes: usize,
    /// After so many entries.
    pub entries: usize,
}

impl Default for Bounds {
    /// Replaying so much takes well under a second.
    fn default() -> Self {
        Self { bytes: 16 << 20, entries: 50_000 }
    }
}

impl Bounds {
    /// After so many entries with so many bytes, the last snapshot having had `last` bytes.
    fn are_passed(&self, passed: Self, last: u64) -> bool {
        let times = (last / (self.bytes as u64).max(1)).max(1) as usize;
        passed.bytes >= self.bytes.saturating_mul(times)
            || passed.entries >= self.entries.saturating_mul(times)
    }
}

/// A snapshot that is durable.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Last entry in it.
    pub index: u64,
    /// Bytes of the state in it.
    pub bytes: u64,
}

/// Writes snapshots, one at a time. Dropping it gives up the one that is under way, and waits for that.
pub struct Snapshotter {
    files: SnapshotFiles,
    bounds: Bounds,
    /// Applied since the last one.
    passed: Bounds,
    /// Bytes of the state in the last one.
    last: u64,
    writer: Option<JoinHandle<()>>,
    remover: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    done: mpsc::Sender<Result<Written, Error>>,
    written: mpsc::Receiver<Result<Written, Error>>,
}

impl Snapshotter {
    /// Writes to `files`. The last one had `last` bytes of state; 0 for none.
    pub fn new(files: SnapshotFiles, bounds: Bounds, last: u64) -> Self {
        let (done, written) = mpsc::channel(1);
        let (passed, stop) = (Bounds { bytes: 0, entries: 0 }, Arc::default());
        Self { files, bounds, passed, last, writer: None, remover: None, stop, done, written }
    }

    /// One more entry with so many bytes was applied.
    pub fn count(&mut self, bytes: usize) {
        self.passed.bytes += bytes;
        self.passed.entries += 1;
    }

    /// Enough was applied since the last one.
    pub fn is_due(&self) -> bool {
        self.writer.is_none() && self.bounds.are_passed(self.passed, self.last)
    }

    /// Starts writing `state`, which contains what `meta` says.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(&mut self, state: State, meta: SnapshotMeta) -> Result<(), Error> {
        self.passed = Bounds { bytes: 0, entries: 0 };
        let path = self.files.path(&meta);
        let files = self.files.clone();
        let (done, stop) = (self.done.clone(), self.stop.clone());
        let write = move || {
            let written = files.write(&state, &meta, &stop);
            // There is room: the last result was taken before this snapshot was started.
            let _ = done.try_send(written);
        };
        let started = std::thread::Builder::new().name("snapshot".into()).spawn(write);
        self.writer = Some(started.map_err(|source| Error::Io { operation: "write", path, source })?);
        Ok(())
    }

    /// Waits for a snapshot to be durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn written(&mut self) -> Result<Written, Error> {
        let written = self.written.recv().await.expect("this holds a sender itself");
        self.writer = None;
        if let Ok(Written { bytes, .. }) = written {
            self.last = bytes;
        }
        written
    }

    /// The leader's snapshot took the place of the state.
    pub fn installed(&mut self, meta: SnapshotMeta, bytes: u64) {
        (self.passed, self.last) = (Bounds { bytes: 0, entries: 0 }, bytes);
        self.remove_older(meta);
    }

    /// Removes the files of older snapshots, which nothing points to any more. It is done beside the caller, since
    /// giving back a large file takes the disk a while.
    pub fn remove_older(&mut self, keep: SnapshotMeta) {
        // The last one ended long ago: a snapshot was written since.
        join(self.remover.take());
        let files = self.files.clone();
        let remove = move || {
            if let Err(error) = files.remove_older(&keep) {
                // The next snapshot or the next start removes them.
                tracing::warn!(%error, "older snapshots were not removed");
            }
        };
        match std::thread::Builder::new().name("snapshot-drop".into()).spawn(remove) {
            Ok(remover) => self.remover = Some(remover),
            Err(error) => tracing::warn!(%error, "older snapshots were not removed"),
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What it leaves behind is removed at the next start.
        join(self.writer.take());
        join(self.remover.take());
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    // A panic in it has been reported by the runtime.
    let _ = thread.map(JoinHandle::join);
}

mod door;
mod files;
#[cfg(test)]
mod tests;
