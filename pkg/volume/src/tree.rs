//! Directories that nobody trusts: an image or a container made them, and may have put anything in them.
//!
//! Everything is reached from an open directory, one that is known to be real, and no link is ever followed. How deep
//! something lies costs neither stack nor open files.

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

pub(crate) use attributes::{own, take_after};
pub(crate) use copy::copy;
pub(crate) use measure::measure;
pub(crate) use remove::remove;

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

/// Opens a real directory below `root`, whose path is relative and has no `..`; the empty one is `root` itself.
///
/// # Errors
/// `ELOOP` for a link on the way, `EXDEV` where something is mounted.
pub(crate) fn open_directory(root: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    openat2(root, path, OpenHow::new().flags(DIRECTORY).resolve(resolve))
}

/// What is in a directory, but for itself and the one it lies in.
pub(crate) struct Entries(OwningIter);

impl Entries {
    /// # Errors
    /// When it cannot be read.
    pub fn of(directory: impl AsFd) -> nix::Result<Self> {
        // Of its own, since reading moves a place that duplicates share.
        Ok(Self(Dir::from_fd(open_directory(directory, Path::new(""))?)?.into_iter()))
    }

    /// Whether there is none.
    pub fn none(mut self) -> nix::Result<bool> {
        Ok(self.next().transpose()?.is_none())
    }
}

impl Iterator for Entries {
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

/// What an entry is, links included.
pub(crate) fn look(directory: impl AsFd, name: &OsStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

/// The kind of file that a mode says.
pub(crate) fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT
}

/// Whether an entry went or was replaced since it was listed.
fn is_gone(errno: Errno) -> bool {
    matches!(errno, Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP)
}
