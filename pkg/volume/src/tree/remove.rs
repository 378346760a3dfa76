//! Deletes a directory with all that it holds.
//!
//! A container can nest directories deeper than a path may be long. So what lies deeper than one level is moved up
//! before it is deleted, which costs a rename for each directory and never more than three open ones.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{Entries, is_gone, open_directory};
use crate::error::Failure;

/// Deletes `name` of `parent`, whatever it is; nothing to do is fine. Links are deleted, not followed.
///
/// # Errors
/// `EBUSY` or `EXDEV` where something is mounted; what lies before it may be deleted by then.
pub(crate) fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Failure> {
    let failed = || Failure::at("delete", Path::new(name));
    let top = match open_directory(parent, Path::new(name)) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) if is_gone(errno) => return unlink(parent, name).map(drop).map_err(failed()),
        Err(errno) => return Err(failed()(errno)),
    };
    let mut moved = 0;
    // Each round deletes what lies directly in it, and brings what lies a level deeper there.
    while !Entries::of(&top).and_then(Entries::none).map_err(failed())? {
        for entry in Entries::of(&top).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            level(top.as_fd(), &entry, &mut moved).map_err(Failure::at("delete", Path::new(&entry)))?;
        }
    }
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed()(errno)),
    }
}

/// Deletes an entry of `top`, or moves the directories in it up there.
fn level(top: BorrowedFd<'_>, name: &OsStr, moved: &mut u64) -> nix::Result<()> {
    if unlink(top, name)? || rmdir(top, name)? {
        return Ok(());
    }
    let directory = match open_directory(top, Path::new(name)) {
        Err(errno) if is_gone(errno) => return Ok(()),
        directory => directory?,
    };
    for entry in Entries::of(&directory)? {
        let entry = entry?;
        if !unlink(directory.as_fd(), &entry)? && !rmdir(directory.as_fd(), &entry)? {
            move_up(directory.as_fd(), &entry, top, moved)?;
        }
    }
    // One that somebody filled meanwhile is met again in the next round.
    rmdir(top, name).map(drop)
}

fn move_up(from: BorrowedFd<'_>, name: &OsStr, top: BorrowedFd<'_>, moved: &mut u64) -> nix::Result<()> {
    loop {
        *moved += 1;
        let to = OsString::from(format!(".{moved}"));
        match renameat2(from, name, top, &*to, RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            Err(errno) if is_gone(errno) => return Ok(()),
            renamed => return renamed,
        }
    }
}

/// Deletes what is no directory; `false` for one. What is gone is deleted.
fn unlink(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<bool> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::EISDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Deletes an empty directory; `false` when it is not empty.
fn rmdir(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<bool> {
    match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}
