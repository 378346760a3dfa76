//! Untrusted directories: an image or a container created them and may have put anything in them.
//!
//! [`copy()`], [`measure()`] and [`remove()`] reach every file from an open directory. They must never follow a link,
//! leave the directory that they were given, or spend stack, open files or memory without a limit because of how the
//! directories are nested.
//!
//! Start reading at [`open_directory`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attributes;
mod copy;
mod failure;
mod measure;
mod project;
mod remove;
#[cfg(test)]
mod testing;
mod xattr;

use std::ffi::{CStr, OsStr, OsString};
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, SFlag, fstatat};

pub use attributes::copy_attributes;
pub use copy::{CopyStats, copy};
pub use failure::IoFailure;
pub use measure::{TreeUsage, Unmeasured, measure};
pub use project::{project, set_project};
pub use remove::remove;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a directory below `root`. `path` is relative and has no `..`; an empty one is `root` itself.
///
/// # Errors
/// `ELOOP` for a link on the path, `EXDEV` for a mount point.
pub fn open_directory(root: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    openat2(root, path, OpenHow::new().flags(DIRECTORY).resolve(resolve))
}

/// An open directory with its entries, without `.` and `..`.
#[derive(Debug)]
pub struct DirEntries(Dir);

impl DirEntries {
    /// The entries of an open directory.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read(directory: impl AsFd) -> nix::Result<Self> {
        // Opened again, since duplicates of a descriptor share the read position.
        Self::open(directory, Path::new(""))
    }

    /// The entries of a directory below `root`; see [`open_directory`].
    fn open(root: impl AsFd, path: &Path) -> nix::Result<Self> {
        Ok(Self(Dir::from_fd(open_directory(root, path)?)?))
    }

    /// Whether there is none.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn has_no_entries(mut self) -> nix::Result<bool> {
        Ok(self.next().transpose()?.is_none())
    }
}

impl AsFd for DirEntries {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Iterator for DirEntries {
    type Item = nix::Result<OsString>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_own = |name: &CStr| name == c"." || name == c"..";
        loop {
            let mut entries = self.0.iter();
            let next = entries.next();
            // Dropping it would begin again with the first entry.
            mem::forget(entries);
            match next? {
                Ok(entry) if is_own(entry.file_name()) => {}
                Ok(entry) => return Some(Ok(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Metadata of an entry; links are not followed.
fn stat_entry(directory: impl AsFd, name: &OsStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// File type in a mode.
fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Whether the errno means that an entry was removed or replaced since it was listed.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)
}
