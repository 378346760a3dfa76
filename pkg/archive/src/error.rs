//! Errors with the path that they are about.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// A tree of files was not read or not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path does not exist.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// What is found at the path does not fit.
    #[error("{} {reason}", path.display())]
    Refused {
        /// The path.
        path: PathBuf,
        /// What it is, behind the path.
        reason: &'static str,
    },
    /// A call of the operating system failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The archive is incomplete or invalid, or its other end was closed.
    #[error("the archive is incomplete or invalid: {0}")]
    Archive(io::Error),
}

impl Error {
    pub(crate) fn refused(path: &Path, reason: &'static str) -> Self {
        Self::Refused { path: path.to_owned(), reason }
    }

    /// Maps the error of a call about `path`.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |error| {
            let source = error.into();
            match source.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT | Errno::ENOTDIR) => Self::NotFound { path },
                Some(Errno::EBUSY) => Self::Refused { path, reason: "is a mount of the container" },
                _ => Self::Io { action, path, source },
            }
        }
    }
}
