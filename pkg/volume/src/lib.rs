//! Volumes: data of tasks that outlives them.
//!
//! [`Driver`] is how they are kept: [`Local`] as directories of this node, `fake::Fake` (feature `testing`) for tests
//! of other crates. `conformance::suite` holds every driver to the same behaviour. [`Pins`] show one directory of a
//! volume to a container so that nobody can put another one in its place.
//!
//! It must never delete data but by [`Driver::remove`], never follow a link that a container or an image made, and
//! never show a volume that is half made: whatever a crash leaves is finished or taken back.
//!
//! Start reading at [`Driver`], then `local/place.rs` (what happens on the disk, in which order) and `tree/` (how
//! directories that nobody trusts are copied, measured and deleted).

#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(feature = "testing")]
pub mod conformance;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
mod local;
mod options;
mod pin;
mod subpath;
mod tree;

use std::any::Any;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use async_trait::async_trait;
use warren_types::{Bytes, VolumeName};

pub use error::Error;
pub use local::Local;
pub use pin::{Pin, Pins};

/// What this crate's operations return.
pub type Result<T> = std::result::Result<T, Error>;

/// What a volume's driver is told, as people wrote it; see [`warren_types::Volume::validate`].
pub type Options = BTreeMap<String, String>;

/// How volumes are kept. Every call is harmless the second time, and several about one volume take turns.
#[async_trait]
pub trait Driver: Send + Sync + 'static {
    /// Makes the volume where it is missing, and says where on this node it is: an absolute path that nobody but root
    /// can replace. As long as it is empty, it gets what `first` has; owner and mode are then those of that directory,
    /// but for what `options` say. What is in it already is never touched.
    ///
    /// # Errors
    /// [`Error::NoSpace`] on a full disk, when what was begun is gone again; [`Error::Content`] when `first` cannot be
    /// read; [`Error::Options`] for what no call will ever make.
    async fn ensure(
        &self,
        volume: &VolumeName,
        options: &Options,
        first: Option<&dyn Source>,
    ) -> Result<PathBuf>;

    /// Deletes the volume with all that it holds. It is for the caller to know that nobody uses it.
    ///
    /// # Errors
    /// [`Error::Mounted`] before anything was deleted, when something is mounted in it.
    async fn remove(&self, volume: &VolumeName) -> Result<()>;

    /// Every volume that is here, sorted by name.
    async fn list(&self) -> Result<Vec<VolumeName>>;

    /// What the volume takes on its disk, holes not counted; `None` when it is not here. Looks at every file, so it
    /// may take long.
    async fn usage(&self, volume: &VolumeName) -> Result<Option<Bytes>>;

    /// Finishes or takes back what a killed process had begun. For any time: volumes that somebody works on are left
    /// to them.
    async fn sweep(&self) -> Result<()>;
}

/// Where an empty volume gets its first content from. Asked only when that is needed, since to open it may cost a
/// mount.
#[async_trait]
pub trait Source: Send + Sync {
    /// Opens the directory; `None` when there is none.
    ///
    /// # Errors
    /// Why it cannot be read.
    async fn open(&self) -> std::result::Result<Option<Opened>, Unreadable>;
}

/// A directory that a volume may be filled from. Nothing in it is trusted, but it must not change meanwhile.
pub struct Opened {
    /// The directory.
    pub directory: OwnedFd,
    /// Whatever keeps it there: dropped after it.
    pub held: Box<dyn Any + Send>,
}

/// Why a source cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unreadable {
    /// In words for people.
    pub reason: String,
    /// The same source may be readable later.
    pub transient: bool,
}
