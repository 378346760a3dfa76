//! Volumes in a temporary directory, for tests of other crates: the same behaviour, with injected faults.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use nix::sys::stat::Mode;
use warren_tree::IoFailure;
use warren_types::{Bytes, VolumeName};

use crate::error::Error;
use crate::options::{DEFAULT_MODE, Ownership};
use crate::{ContentError, DriverOptions, InitialContent, Result, VolumeBackend};

/// Volumes that are deleted with the last clone. Nothing survives a crash.
#[derive(Clone)]
pub struct FakeVolumeDriver {
    dir: Arc<tempfile::TempDir>,
    lock: Arc<tokio::sync::Mutex<()>>,
    faults: Arc<Mutex<Vec<Error>>>,
}

impl Default for FakeVolumeDriver {
    fn default() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        Self { dir: Arc::new(dir), lock: Arc::default(), faults: Arc::default() }
    }
}

impl FakeVolumeDriver {
    /// A driver without volumes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the next call fail before it does anything; several calls queue up.
    pub fn fail_next(&self, error: Error) {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).insert(0, error);
    }

    /// The path at which a volume is created.
    pub fn path(&self, volume: &VolumeName) -> PathBuf {
        self.dir.path().join(volume.as_str())
    }

    fn fault(&self) -> Result<()> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).pop().map_or(Ok(()), Err)
    }
}

#[async_trait]
impl VolumeBackend for FakeVolumeDriver {
    async fn ensure(
        &self,
        volume: &VolumeName,
        options: &DriverOptions,
        first: Option<&dyn InitialContent>,
    ) -> Result<PathBuf> {
        let _turn = self.lock.lock().await;
        self.fault()?;
        let owned = Ownership::parse(volume, options)?;
        let path = self.path(volume);
        let io = |error| Error::from_failure(volume, IoFailure::io("make", &path)(error));
        let is_new = !path.exists();
        DirBuilder::new().recursive(true).create(&path).map_err(io)?;
        let directory = fs::File::open(&path).map_err(io)?;
        let own = |owned: &Ownership| owned.set_on(&directory).map_err(|error| io(error.into()));
        if is_new {
            own(&Ownership { mode: owned.mode.or(Some(Mode::from_bits_truncate(DEFAULT_MODE))), ..owned })?;
        }
        if let Some(first) =
            first.filter(|_| fs::read_dir(&path).is_ok_and(|mut found| found.next().is_none()))
        {
            let unreadable = |ContentError { reason, transient }| Error::Content {
                volume: volume.clone(),
                reason,
                transient,
            };
            if let Some(opened) = first.open().await.map_err(unreadable)? {
                let copied = warren_tree::copy(opened.directory.as_fd(), directory.as_fd());
                copied.map_err(|failure| Error::from_failure(volume, failure))?;
                own(&owned)?;
            }
        }
        Ok(path)
    }

    async fn remove(&self, volume: &VolumeName) -> Result<()> {
        let _turn = self.lock.lock().await;
        self.fault()?;
        match fs::remove_dir_all(self.path(volume)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::from_failure(volume, IoFailure::io("delete", &self.path(volume))(error)))
            }
            _ => Ok(()),
        }
    }

    async fn list(&self) -> Result<Vec<VolumeName>> {
        let entries = fs::read_dir(self.dir.path());
        let entries = entries.map_err(|error| Error::root("list", self.dir.path(), error))?;
        let name = |entry: io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
        let mut volumes: Vec<VolumeName> = entries.filter_map(name).collect();
        volumes.sort();
        Ok(volumes)
    }

    async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>> {
        self.fault()?;
        let Ok(directory) = fs::File::open(self.path(volume)) else { return Ok(None) };
        let measured = warren_tree::measure(directory.as_fd(), || false);
        measured.map(|usage| Some(Bytes(usage.bytes))).map_err(|failure| Error::from_failure(volume, failure))
    }

    async fn sweep(&self) -> Result<()> {
        Ok(())
    }
}
