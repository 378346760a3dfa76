//! Trees of files as tar archives, read from and written to a directory that nothing leads out of.
//!
//! Paths are resolved inside of a [`RootDir`] by the kernel, so links in a container cannot lead to files of the node,
//! not even if they change meanwhile. Memory does not depend on the size of files or trees. Owners (by number),
//! modes, times, symbolic and hard links are kept; extended attributes are not. Owners in an archive are those that a
//! container sees, also if it has a user namespace of its own.
//!
//! Start reading at [`FileTree`] and [`extract`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocking;
mod error;
mod extract;
mod identity;
mod tree;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use warren_types::IdRange;

pub use blocking::{BlockingReader, BlockingWriter};
pub use error::Error;
pub use extract::{Destination, extract};
pub use tree::FileTree;

/// Result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// How often a path is resolved again while other processes rename or mount.
const MAX_RETRIES: usize = 128;

/// The directory in which all paths are resolved.
#[derive(Debug)]
pub struct RootDir {
    directory: OwnedFd,
    ids: Option<IdRange>,
}

impl RootDir {
    /// Uses an open directory.
    #[must_use]
    pub fn new(directory: OwnedFd) -> Self {
        Self { directory, ids: None }
    }

    /// Its files are those of a container with these ids of the node; `None`: with the same ids as the node.
    #[must_use]
    pub fn with_ids(self, ids: Option<IdRange>) -> Self {
        Self { ids, ..self }
    }

    /// Opens a directory.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        File::open(path).map(|file| Self::new(file.into()))
    }

    /// Opens a path as a handle, without access to its content. Links are followed inside of the root, the last one
    /// only with `follow`.
    fn handle(&self, path: &Path, follow: bool) -> nix::Result<OwnedFd> {
        let last = if follow { OFlag::empty() } else { OFlag::O_NOFOLLOW };
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | last)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        // Not absolute: an empty path is the root.
        let path = path.strip_prefix("/").unwrap_or(path);
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let mut opened = openat2(&self.directory, path, how);
        // The kernel cannot resolve `..` while any process renames or mounts something.
        for _ in 0..MAX_RETRIES {
            match opened {
                Err(Errno::EAGAIN) => opened = openat2(&self.directory, path, how),
                _ => break,
            }
        }
        opened
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Whether the path names a directory by its end: `a/` or `a/.`.
fn names_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.") || bytes == b"."
}

/// Whether the path means the content of a directory: `a/.`.
fn names_content(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.ends_with(b"/.") || bytes == b"."
}
