//! Snapshots: when one is due, and writing it concurrently with the driver.
//!
//! The state is a persistent tree, so a thread can write an O(1) clone while later entries are applied. It is
//! sealed as a stream whose associated data is what the snapshot covers (see [`snapshot_aad`]).
//! [`SnapshotExchange`] transfers snapshots between managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use warren_core::State;
use warren_log::{Error, SnapshotMeta};
use warren_replica::SnapshotSchedule;
pub use warren_replica::SnapshotThresholds;
use warren_security::FileError;

pub use self::exchange::{SnapshotError, SnapshotExchange};
pub use self::files::{SnapshotFiles, snapshot_aad};

/// The snapshot directory.
pub const SNAPSHOT_DIR: &str = "snapshots";

/// A durable snapshot.
#[derive(Debug, Clone, Copy)]
pub struct WrittenSnapshot {
    /// Index of its last entry.
    pub index: u64,
    /// Size of its state in bytes.
    pub bytes: u64,
}

/// Writes snapshots, one at a time. Dropping it cancels the snapshot in progress and waits for that.
pub struct Snapshotter {
    files: SnapshotFiles,
    schedule: SnapshotSchedule,
    writer: Option<JoinHandle<()>>,
    remover: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    done: mpsc::Sender<Result<WrittenSnapshot, Error>>,
    results: mpsc::Receiver<Result<WrittenSnapshot, Error>>,
}

impl Snapshotter {
    /// Writes to `files`. The last snapshot had `last` bytes of state; 0: none.
    pub fn new(files: SnapshotFiles, bounds: SnapshotThresholds, last: u64) -> Self {
        let (done, written) = mpsc::channel(1);
        Self {
            files,
            schedule: SnapshotSchedule::new(bounds, last),
            writer: None,
            remover: None,
            stop: Arc::default(),
            done,
            results: written,
        }
    }

    /// Records an applied entry of `bytes` bytes.
    pub fn record_applied(&mut self, bytes: usize) {
        self.schedule.record_applied(bytes);
    }

    /// Whether a snapshot is due.
    pub fn is_due(&self) -> bool {
        self.schedule.is_due()
    }

    /// Whether a snapshot is being written, or its result was not received.
    pub fn is_writing(&self) -> bool {
        self.writer.is_some()
    }

    /// Forgets the data keys that seal neither snapshots from the index `oldest` on nor anything to come. Returns how
    /// many earlier ones are left; `None` while a file is being written.
    pub fn forget_unused_keys(&self, oldest: u64) -> Option<Result<usize, FileError>> {
        self.files.forget_unused_keys(oldest)
    }

    /// Starts writing `state`, which `meta` describes.
    ///
    /// # Errors
    /// The thread could not be started.
    pub fn start(&mut self, state: State, meta: SnapshotMeta) -> Result<(), Error> {
        self.schedule.record_start(false);
        let path = self.files.path(&meta);
        let files = self.files.clone();
        let (done, stop) = (self.done.clone(), self.stop.clone());
        let write = move || {
            let written = files.write(&state, &meta, &stop);
            // There is room: the last result was received before this snapshot was started.
            let _ = done.try_send(written);
        };
        let started = std::thread::Builder::new().name("snapshot".into()).spawn(write);
        self.writer = Some(started.map_err(|source| Error::Io { operation: "write", path, source })?);
        self.schedule.record_start(true);
        Ok(())
    }

    /// Waits for the snapshot in progress.
    ///
    /// # Errors
    /// Writing failed.
    pub async fn next_result(&mut self) -> Result<WrittenSnapshot, Error> {
        let written = self.results.recv().await.expect("this holds a sender itself");
        self.writer = None;
        self.schedule.record_end(written.as_ref().ok().map(|written| written.bytes));
        written
    }

    /// Records that the leader's snapshot replaced the state.
    pub fn record_installed(&mut self, meta: SnapshotMeta, bytes: u64) {
        self.schedule.record_installed(bytes);
        self.remove_older(meta);
    }

    /// Removes the files of older snapshots on another thread, since deleting a large file takes the disk a
    /// while.
    pub fn remove_older(&mut self, keep: SnapshotMeta) {
        // The previous removal ended long ago: a snapshot was written since.
        join_thread(self.remover.take());
        let files = self.files.clone();
        let remove = move || {
            if let Err(error) = files.remove_older(&keep) {
                // The next snapshot or the next start retries.
                tracing::warn!(%error, "removing older snapshots failed");
            }
        };
        match std::thread::Builder::new().name("snapshot-drop".into()).spawn(remove) {
            Ok(remover) => self.remover = Some(remover),
            Err(error) => tracing::warn!(%error, "removing older snapshots failed"),
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Incomplete files are removed at the next start.
        join_thread(self.writer.take());
        join_thread(self.remover.take());
    }
}

fn join_thread(thread: Option<JoinHandle<()>>) {
    // A panic of the thread has been reported already.
    let _ = thread.map(JoinHandle::join);
}

mod exchange;
mod files;
#[cfg(test)]
mod tests;
