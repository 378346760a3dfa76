//! Snapshots: when one is due, and writing it beside the driver.
//!
//! The state is a persistent tree, so a thread can write it from an O(1) clone while later entries are applied.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;
use warren_core::State;
use warren_log::{ConfState, Error, SnapshotMeta, Snapshots};

use super::codec;
use super::driver::DriverError;

/// When a snapshot is due, whichever comes first.
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

/// A snapshot that is durable.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Last entry in it.
    pub index: u64,
}

/// Writes snapshots, one at a time. Dropping it gives up the one that is under way, and waits for that.
pub struct Snapshotter {
    files: Snapshots,
    members: ConfState,
    bounds: Bounds,
    /// Applied since the last one.
    passed: Bounds,
    writer: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    done: mpsc::Sender<Result<Written, Error>>,
    written: mpsc::Receiver<Result<Written, Error>>,
}

impl Snapshotter {
    /// Writes to `files`, for a group of `members`.
    pub fn new(files: Snapshots, members: ConfState, bounds: Bounds) -> Self {
        let (done, written) = mpsc::channel(1);
        let (passed, stop) = (Bounds { bytes: 0, entries: 0 }, Arc::default());
        Self { files, members, bounds, passed, writer: None, stop, done, written }
    }

    /// One more entry with so many bytes was applied.
    pub fn count(&mut self, bytes: usize) {
        self.passed.bytes += bytes;
        self.passed.entries += 1;
    }

    /// Enough was applied since the last one.
    pub fn is_due(&self) -> bool {
        let Bounds { bytes, entries } = self.passed;
        self.writer.is_none() && (bytes >= self.bounds.bytes || entries >= self.bounds.entries)
    }

    /// Starts writing `state`, which contains everything up to the entry at `index`.
    ///
    /// # Errors
    /// No thread could be started.
    pub fn start(&mut self, state: State, term: u64, index: u64) -> Result<(), DriverError> {
        self.passed = Bounds { bytes: 0, entries: 0 };
        let meta = SnapshotMeta { index, term, conf_state: self.members.clone() };
        let path = self.files.path(&meta);
        let (files, done, stop) = (self.files.clone(), self.done.clone(), self.stop.clone());
        let write = move || {
            let written =
                files.write(&meta, |out| codec::write_snapshot(&state, &mut Stoppable { out, stop: &stop }));
            // There is room: the last result was taken before this snapshot was started.
            let _ = done.try_send(written.map(|_| Written { index }));
        };
        let started = std::thread::Builder::new().name("snapshot".into()).spawn(write);
        let failed = |source| DriverError::Log(Error::Io { operation: "write", path, source });
        self.writer = Some(started.map_err(failed)?);
        Ok(())
    }

    /// Waits for a snapshot to be durable.
    ///
    /// # Errors
    /// It could not be written.
    pub async fn written(&mut self) -> Result<Written, DriverError> {
        let written = self.written.recv().await.expect("this holds a sender itself");
        self.writer = None;
        Ok(written?)
    }

    /// Removes the files of older snapshots, which nothing points to any more.
    ///
    /// # Errors
    /// A file could not be removed.
    pub fn remove_older(&self, keep: &SnapshotMeta) -> Result<(), DriverError> {
        Ok(self.files.remove_older(keep)?)
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // What it leaves behind is removed at the next start; a panic in it has been reported by the runtime.
        let _ = self.writer.take().map(JoinHandle::join);
    }
}

/// Fails when it is told to, so that a manager with a large state need not wait for its snapshot to stop.
struct Stoppable<'a> {
    out: &'a mut dyn Write,
    stop: &'a AtomicBool,
}

impl Write for Stoppable<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the manager stops"));
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
