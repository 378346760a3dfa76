//! Deletes a directory tree.
//!
//! A container can nest directories deeper than the longest path. So directories below the first level
//! are moved up before they are deleted, which costs one rename per directory and at most three open
//! directories.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{DirEntries, is_gone, open_directory};
use crate::{IoFailure, leave_project};

/// Deletes `name` of `parent`, of any file type; a missing entry is fine. Links are deleted, not
/// followed.
///
/// # Errors
/// `EBUSY` or `EXDEV` for a mount point; entries before it may be deleted already.
pub fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), IoFailure> {
    let failed = || IoFailure::at("delete", Path::new(name));
    let top = match open_directory(parent, Path::new(name)) {
        Ok(top) => top,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) if is_gone(errno) => return unlink(parent, name).map(drop).map_err(failed()),
        Err(errno) => return Err(failed()(errno)),
    };
    let mut moved = 0;
    // Each round deletes the entries of this level and moves those one level deeper up.
    while !DirEntries::read(&top).and_then(DirEntries::has_no_entries).map_err(failed())? {
        for entry in DirEntries::read(&top).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            remove_level(top.as_fd(), &entry, &mut moved)
                .map_err(IoFailure::at("delete", Path::new(&entry)))?;
        }
    }
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(failed()(errno)),
    }
}

/// Deletes an entry of `top`, or moves the directories in it to `top`.
fn remove_level(top: BorrowedFd<'_>, name: &OsStr, moved: &mut u64) -> nix::Result<()> {
    if unlink(top, name)? || rmdir(top, name)? {
        return Ok(());
    }
    let directory = match open_directory(top, Path::new(name)) {
        Err(errno) if is_gone(errno) => return Ok(()),
        directory => directory?,
    };
    for entry in DirEntries::read(&directory)? {
        let entry = entry?;
        if !unlink(directory.as_fd(), &entry)? && !rmdir(directory.as_fd(), &entry)? {
            move_up(directory.as_fd(), &entry, top, moved)?;
        }
    }
    // A directory that was filled meanwhile is handled in the next round.
    rmdir(top, name).map(drop)
}

fn move_up(from: BorrowedFd<'_>, name: &OsStr, top: BorrowedFd<'_>, moved: &mut u64) -> nix::Result<()> {
    let mut is_in_project = true;
    loop {
        *moved += 1;
        let to = OsString::from(format!(".{moved}"));
        match renameat2(from, name, top, &*to, RenameFlags::RENAME_NOREPLACE) {
            Err(Errno::EEXIST) => {}
            // A process of root may give directories other projects, which the kernel keeps apart.
            Err(Errno::EXDEV) if is_in_project => {
                leave_project(top).map_err(|_| Errno::EXDEV)?;
                is_in_project = false;
            }
            Err(errno) if is_gone(errno) => return Ok(()),
            renamed => return renamed,
        }
    }
}

/// Deletes a file; returns `false` for a directory. A missing entry counts as deleted.
fn unlink(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<bool> {
    match unlinkat(directory, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::EISDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Deletes an empty directory; returns `false` if it is not empty.
fn rmdir(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<bool> {
    match unlinkat(directory, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(true),
        Err(Errno::ENOTEMPTY | Errno::EEXIST) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::testing::nest;

    /// With a stack that a call for each level would exceed.
    #[test]
    fn deep_tree_is_removed_with_a_small_stack() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        fs::create_dir(&top).unwrap();
        nest(&top, "d", 50_000);
        let parent = File::open(dir.path()).unwrap();
        let removing = std::thread::Builder::new().stack_size(256 << 10).spawn(move || {
            for _twice in 0..2 {
                remove(parent.as_fd(), "top".as_ref()).unwrap();
            }
        });
        removing.unwrap().join().unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (top, outside) = (dir.path().join("top"), dir.path().join("outside"));
        fs::create_dir_all(top.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "").unwrap();
        for link in ["link", "a/link", "a/b/link"] {
            symlink(&outside, top.join(link)).unwrap();
        }
        symlink(&outside, dir.path().join("link")).unwrap();
        let parent = File::open(dir.path()).unwrap();
        for name in ["top", "link", "none"] {
            remove(parent.as_fd(), name.as_ref()).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(outside.join("kept").exists());
    }
}
