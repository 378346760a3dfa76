//! Errors of volume operations, and whether a retry can help.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use warren_tree::IoFailure;
use warren_types::{Violations, VolumeName};

/// A failed operation on a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The disk or its quota is full.
    #[error("volume {volume}: no space left on disk to {action} {}; free some", path.display())]
    NoSpace {
        /// The volume.
        volume: VolumeName,
        /// The failed step.
        action: &'static str,
        /// The path of the step.
        path: PathBuf,
    },
    /// A file system operation failed.
    #[error("volume {volume}: cannot {action} {}: {source}", path.display())]
    Io {
        /// The volume.
        volume: VolumeName,
        /// The failed step.
        action: &'static str,
        /// The path of the step.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The directory of all volumes or subpath mounts cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Root {
        /// The failed step.
        action: &'static str,
        /// The directory, or an entry of it.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The options of the volume are invalid.
    #[error("volume {volume} cannot be made: {violations}")]
    Options {
        /// The volume.
        volume: VolumeName,
        /// All invalid options.
        violations: Violations,
    },
    /// Another kind of file is at the path of the volume.
    #[error("volume {volume}: {} is not a directory; move it away", path.display())]
    NotADirectory {
        /// The volume.
        volume: VolumeName,
        /// The path of the file.
        path: PathBuf,
    },
    /// The volume cannot be deleted because something is mounted in it.
    #[error("volume {volume} has something mounted at {}; unmount that first", path.display())]
    Mounted {
        /// The volume.
        volume: VolumeName,
        /// The mount point.
        path: PathBuf,
    },
    /// A directory of the volume cannot be mounted by itself.
    #[error("volume {volume}: cannot open or create directory {subpath:?}: {reason}")]
    Subpath {
        /// The volume.
        volume: VolumeName,
        /// The path in the volume.
        subpath: String,
        /// The cause.
        reason: String,
    },
    /// The initial content of the volume cannot be read.
    #[error("volume {volume} cannot be filled with initial content: {reason}")]
    Content {
        /// The volume.
        volume: VolumeName,
        /// The cause.
        reason: String,
        /// It may be readable later.
        transient: bool,
    },
}

impl Error {
    /// Whether the same call may succeed later with the same input.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::NoSpace { .. } | Self::Io { .. } | Self::Root { .. } | Self::Mounted { .. } => true,
            Self::Content { transient, .. } => *transient,
            Self::Options { .. } | Self::NotADirectory { .. } | Self::Subpath { .. } => false,
        }
    }

    pub(crate) fn from_failure(volume: &VolumeName, failure: IoFailure) -> Self {
        let (volume, IoFailure { action, path, errno }) = (volume.clone(), failure);
        match errno {
            Errno::ENOSPC | Errno::EDQUOT => Self::NoSpace { volume, action, path },
            // A link or a file where a directory is expected.
            Errno::ENOTDIR | Errno::ELOOP => Self::NotADirectory { volume, path },
            Errno::EBUSY | Errno::EXDEV => Self::Mounted { volume, path },
            errno => Self::Io { volume, action, path, source: errno.into() },
        }
    }

    pub(crate) fn root(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Root { action, path: path.to_owned(), source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_decides_transience() {
        let volume: VolumeName = "data".parse().unwrap();
        let of = |errno| Error::from_failure(&volume, IoFailure::at("write", Path::new("/v/data/x"))(errno));
        for full in [Errno::ENOSPC, Errno::EDQUOT] {
            let error = of(full);
            assert!(matches!(error, Error::NoSpace { .. }) && error.is_transient(), "{error}");
            assert_eq!(error.to_string(), "volume data: no space left on disk to write /v/data/x; free some");
        }
        assert!(of(Errno::EIO).is_transient());
        assert!(!of(Errno::ENOTDIR).is_transient());
        assert!(matches!(of(Errno::EBUSY), Error::Mounted { .. }));
        let reason = "gone".to_owned();
        assert!(!Error::Content { volume: volume.clone(), reason, transient: false }.is_transient());
    }
}
