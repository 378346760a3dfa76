//! What failed, and where.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

/// A failed operation of the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {action} {}: {}", path.display(), errno.desc())]
pub struct IoFailure {
    /// The failed step.
    pub action: &'static str,
    /// The path of the step; below the directory of the operation it is relative, or a name alone.
    pub path: PathBuf,
    /// The error of the kernel.
    pub errno: Errno,
}

impl IoFailure {
    /// Builds the failure of `action` at a path.
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        move |errno| Self { action, path: path.to_owned(), errno }
    }

    /// As [`IoFailure::at`], for errors of the standard library.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let from = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(nix::libc::EIO));
        move |error| Self { action, path: path.to_owned(), errno: from(error) }
    }
}
