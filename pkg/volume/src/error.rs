//! Why something could not be done with a volume, and whether trying again can help.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use warren_types::{Violations, VolumeName};

/// A failed operation on a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk is full, or the quota of it.
    #[error("volume {volume}: there is no room on the disk to {action} {}; free some", path.display())]
    NoSpace {
        /// The volume.
        volume: VolumeName,
        /// What was being done.
        action: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("volume {volume}: cannot {action} {}: {source}", path.display())]
    Io {
        /// The volume.
        volume: VolumeName,
        /// What was being done.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The directory in which all volumes or pins are cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Root {
        /// What was being done.
        action: &'static str,
        /// The directory, or what is in it.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The driver cannot be told this.
    #[error("volume {volume} cannot be made: {wrong}")]
    Options {
        /// The volume.
        volume: VolumeName,
        /// Everything that is wrong.
        wrong: Violations,
    },
    /// Something else is where the volume should be.
    #[error("volume {volume}: {} is not a directory; move it away", path.display())]
    NotADirectory {
        /// The volume.
        volume: VolumeName,
        /// Where.
        path: PathBuf,
    },
    /// Something is mounted in the volume, so that it cannot be deleted.
    #[error("volume {volume} has something mounted at {}; unmount that first", path.display())]
    Mounted {
        /// The volume.
        volume: VolumeName,
        /// Where.
        path: PathBuf,
    },
    /// A part of the volume cannot be shown by itself.
    #[error("volume {volume} has no directory {subpath:?} and none can be made: {reason}")]
    Subpath {
        /// The volume.
        volume: VolumeName,
        /// The path in it.
        subpath: String,
        /// What was found.
        reason: String,
    },
    /// What the volume should begin with cannot be read.
    #[error("volume {volume} cannot get its first content: {reason}")]
    Content {
        /// The volume.
        volume: VolumeName,
        /// Why not.
        reason: String,
        /// It may be readable later.
        transient: bool,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing its input.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } | Self::Root { .. } | Self::Mounted { .. } => true,
            Self::Content { transient, .. } => *transient,
            Self::Options { .. } | Self::NotADirectory { .. } | Self::Subpath { .. } => false,
        }
    }

    pub(crate) fn of(volume: &VolumeName, failure: Failure) -> Self {
        let (volume, Failure { action, path, errno }) = (volume.clone(), failure);
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => Self::NoSpace { volume, action, path },
            // A link or a file where a directory was wanted.
            Errno::ENOTDIR | Errno::ELOOP => Self::NotADirectory { volume, path },
            Errno::EBUSY | Errno::EXDEV => Self::Mounted { volume, path },
            errno => Self::Io { volume, action, path, source: errno.into() },
        }
    }

    pub(crate) fn root(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Root { action, path: path.to_owned(), source: source.into() }
    }
}

/// What the kernel refused, before it is known for which volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub action: &'static str,
    pub path: PathBuf,
    pub errno: Errno,
}

impl Failure {
    /// Makes the failure of `action` at a path.
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| Self { action, path: path.to_owned(), errno }
    }

    /// As [`Failure::at`], for what the standard library did.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let from = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
        move |error| Self { action, path: path.to_owned(), errno: from(error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_decides_whether_waiting_helps() {
        let volume: VolumeName = "data".parse().unwrap();
        let of = |errno| Error::of(&volume, Failure::at("write", Path::new("/v/data/x"))(errno));
        for full in [Errno::ENOSPC, Errno::EDQUOT] {
            let error = of(full);
            assert!(matches!(error, Error::NoSpace { .. }) && error.is_transient(), "{error}");
            assert_eq!(
                error.to_string(),
                "volume data: there is no room on the disk to write /v/data/x; free some"
            );
        }
        assert!(of(Errno::EIO).is_transient());
        assert!(!of(Errno::ENOTDIR).is_transient());
        assert!(matches!(of(Errno::EBUSY), Error::Mounted { .. }));
        let reason = "gone".to_owned();
        assert!(!Error::Content { volume: volume.clone(), reason, transient: false }.is_transient());
    }
}
