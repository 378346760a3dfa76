//! Volumes: data that outlives tasks.
//!
//! [`VolumeBackend`] manages them: [`LocalVolumeDriver`] as directories of this node,
//! `fake::FakeVolumeDriver` (feature `testing`) for tests of other crates. `conformance::suite` checks every
//! backend for the same behaviour. [`SubpathMounts`] mounts one directory of a volume at a path that
//! containers cannot replace.
//!
//! It must never delete data except in [`VolumeBackend::remove`], never follow a link that a container or an
//! image created, and never expose a partly created volume: leftovers of a crash are completed or removed.
//!
//! Start reading at [`VolumeBackend`], then `local/volume_root.rs` (the order of operations on disk). Untrusted
//! directories are copied, measured and deleted by `warren-tree`.

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "testing")]
pub mod conformance;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
mod local;
mod options;
mod subpath;
mod subpath_mount;

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use async_trait::async_trait;
use warren_types::{Bytes, VolumeName};

pub use error::Error;
pub use local::LocalVolumeDriver;
pub use subpath_mount::{SubpathMount, SubpathMounts};

/// Result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Driver options of a volume as configured; see [`warren_types::Volume::validate`].
pub type DriverOptions = BTreeMap<String, String>;

/// Manages volumes. Every call is idempotent; calls on the same volume are serialized.
#[async_trait]
pub trait VolumeBackend: Send + Sync + 'static {
    /// Creates the volume if it does not exist and returns its absolute path on this node, which only root
    /// can replace. An empty volume is filled with the content of `first` and gets the owner and mode of that
    /// directory, except where `options` sets them. Existing content is never changed.
    ///
    /// # Errors
    /// [`Error::NoSpace`] on a full disk, after the partial copy was removed; [`Error::Content`] if `first`
    /// cannot be read; [`Error::Options`] if the options are invalid.
    async fn ensure(
        &self,
        volume: &VolumeName,
        options: &DriverOptions,
        first: Option<&dyn InitialContent>,
    ) -> Result<PathBuf>;

    /// Deletes the volume with its data. The caller ensures that no task uses it.
    ///
    /// # Errors
    /// [`Error::Mounted`] if something is mounted in the volume; nothing was deleted then.
    async fn remove(&self, volume: &VolumeName) -> Result<()>;

    /// All volumes of this node, sorted by name.
    async fn list(&self) -> Result<Vec<VolumeName>>;

    /// Bytes on disk of the volume, without holes; `None` if it does not exist. Reads the metadata of every
    /// file, so it may take long.
    async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>>;

    /// Completes or removes leftovers of a killed process. Safe at any time: volumes with an operation in
    /// progress are skipped.
    async fn sweep(&self) -> Result<()>;
}

/// Source of the initial content of an empty volume. Opened only when needed, since that may cost a mount.
#[async_trait]
pub trait InitialContent: Send + Sync {
    /// Opens the directory; `None` if there is none.
    ///
    /// # Errors
    /// The directory cannot be read.
    async fn open(&self) -> std::result::Result<Option<ContentDir>, ContentError>;
}

/// A directory to fill a volume from. It is untrusted, but must not change meanwhile.
pub struct ContentDir {
    /// The open directory.
    pub directory: OwnedFd,
    /// Keeps the directory in place; dropped after it.
    pub guard: Box<dyn Any + Send>,
}

/// Initial content cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct ContentError {
    /// Human readable.
    pub reason: String,
    /// The same source may be readable later.
    pub transient: bool,
}
