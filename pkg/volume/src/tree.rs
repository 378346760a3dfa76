//! Untrusted directories: an image or a container created them and may have put anything in them.
//!
//! Every file is reached from an open directory, and links are never followed. The depth of a tree costs
//! neither stack nor open files.

mod attributes;
mod copy;
mod measure;
mod remove;
mod xattr;

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{FileStat, SFlag, fstatat};

pub(crate) use attributes::{copy_attributes, set_ownership};
pub(crate) use copy::copy;
pub(crate) use measure::disk_usage;
pub(crate) use remove::remove;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a directory below `root`. `path` is relative and has no `..`; an empty one is `root` itself.
///
/// # Errors
/// `ELOOP` for a link on the path, `EXDEV` for a mount point.
pub(crate) fn open_directory(root: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    openat2(root, path, OpenHow::new().flags(DIRECTORY).resolve(resolve))
}

/// Entries of a directory without `.` and `..`.
pub(crate) struct DirEntries(OwningIter);

impl DirEntries {
    /// # Errors
    /// The directory cannot be read.
    pub fn read(directory: impl AsFd) -> nix::Result<Self> {
        // Opened again, since duplicates of a descriptor share the read position.
        Ok(Self(Dir::from_fd(open_directory(directory, Path::new(""))?)?.into_iter()))
    }

    pub fn has_no_entries(mut self) -> nix::Result<bool> {
        Ok(self.next().transpose()?.is_none())
    }
}

impl Iterator for DirEntries {
    type Item = nix::Result<OsString>;

    fn next(&mut self) -> Option<Self::Item> {
        let is_own = |name: &CStr| name == c"." || name == c"..";
        loop {
            match self.0.next()? {
                Ok(entry) if is_own(entry.file_name()) => {}
                Ok(entry) => return Some(Ok(OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// Metadata of an entry; links are not followed.
pub(crate) fn stat_entry(directory: impl AsFd, name: &OsStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// File type in a mode.
pub(crate) fn file_type(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Whether the errno means that an entry was removed or replaced since it was listed.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)
}
