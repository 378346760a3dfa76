//! Deletes a directory tree, the deepest entries first.
//!
//! A container can nest directories deeper than the longest path and than files may be open. So what is nested deeper
//! than [`MAX_OPEN`] is moved up before it is deleted, which costs one rename per directory. On a full disk a rename
//! may need space that a later deletion frees, so it is tried again while something was deleted.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{RenameFlags, renameat2};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::{DirEntries, is_gone};
use crate::IoFailure;
use crate::project::leave_project;

/// Directories that are open at once, each in the one before.
const MAX_OPEN: usize = 64;

/// Deletes `name` of `parent`, of any file type; a missing entry is fine. Links are deleted, not
/// followed.
///
/// # Errors
/// `EBUSY` or `EXDEV` for a mount point; entries before it may be deleted already. `ENOSPC` or `EDQUOT` if directories
/// cannot be moved for want of space; all others are deleted then.
pub fn remove(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), IoFailure> {
    let top = match DirEntries::open(parent, Path::new(name)) {
        Ok(entries) => entries,
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) if is_gone(errno) => return unlink(parent, name).map(drop).map_err(failed(name)),
        Err(errno) => return Err(failed(name)(errno)),
    };
    let mut removal = Removal::default();
    let mut open = vec![OpenDirectory { name: name.to_owned(), entries: top, changes: 0 }];
    while let Some(mut directory) = open.pop() {
        if let Some(entry) = directory.entries.next() {
            let entry = entry.map_err(failed(&directory.name))?;
            let is_deepest = open.len() + 1 == MAX_OPEN;
            let below = removal.remove_entry(directory.entries.as_fd(), &entry, is_deepest)?;
            open.push(directory);
            open.extend(below);
            continue;
        }
        let above = open.last().map_or(parent, |above| above.entries.as_fd());
        if rmdir(above, &directory.name).map_err(failed(&directory.name))? {
            if open.is_empty() {
                return Ok(());
            }
            removal.changes += 1;
        } else if removal.changes > directory.changes {
            // It got entries meanwhile, or there may be space now for what could not be moved.
            directory.entries = DirEntries::read(&directory.entries).map_err(failed(&directory.name))?;
            directory.changes = removal.changes;
            open.push(directory);
        }
    }
    Err(removal.no_space.unwrap_or_else(|| failed(name)(Errno::ENOTEMPTY)))
}

/// A directory that is being emptied.
struct OpenDirectory {
    name: OsString,
    /// Those that were not listed yet.
    entries: DirEntries,
    /// [`Removal::changes`] when the listing began.
    changes: u64,
}

#[derive(Default)]
struct Removal {
    /// How many entries were deleted, moved, or gone when it was their turn.
    changes: u64,
    /// Number in the last name of a moved directory.
    moved: u64,
    /// The first failure for want of space.
    no_space: Option<IoFailure>,
}

impl Removal {
    /// Deletes an entry of `above`, or opens the directory that it is. In the deepest directory that may be open, it
    /// moves the directories in it to `above` instead.
    fn remove_entry(
        &mut self,
        above: BorrowedFd<'_>,
        name: &OsStr,
        is_deepest: bool,
    ) -> Result<Option<OpenDirectory>, IoFailure> {
        if remove_leaf(above, name).map_err(failed(name))? {
            self.changes += 1;
            return Ok(None);
        }
        let mut entries = match DirEntries::open(above, Path::new(name)) {
            Ok(entries) => entries,
            Err(errno) if is_gone(errno) => {
                self.changes += 1;
                return Ok(None);
            }
            Err(errno) => return Err(failed(name)(errno)),
        };
        if !is_deepest {
            return Ok(Some(OpenDirectory { name: name.to_owned(), entries, changes: self.changes }));
        }
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed(name))?;
            let is_removed = remove_leaf(entries.as_fd(), &entry).map_err(failed(&entry))?;
            if is_removed || self.move_up(entries.as_fd(), &entry, above)? {
                self.changes += 1;
            }
        }
        if rmdir(above, name).map_err(failed(name))? {
            self.changes += 1;
        }
        Ok(None)
    }

    /// Moves a directory to `to`; returns `false` if there is no space for its name.
    fn move_up(&mut self, from: BorrowedFd<'_>, name: &OsStr, to: BorrowedFd<'_>) -> Result<bool, IoFailure> {
        let mut is_in_project = true;
        loop {
            self.moved += 1;
            let new_name = OsString::from(format!(".{}", self.moved));
            match renameat2(from, name, to, &*new_name, RenameFlags::RENAME_NOREPLACE) {
                Ok(()) => return Ok(true),
                Err(Errno::EEXIST) => {}
                // A process of root may give directories other projects, which the kernel keeps apart.
                Err(Errno::EXDEV) if is_in_project => {
                    leave_project(to).map_err(|_| failed(name)(Errno::EXDEV))?;
                    is_in_project = false;
                }
                Err(errno) if is_gone(errno) => return Ok(true),
                Err(errno @ (Errno::ENOSPC | Errno::EDQUOT)) => {
                    self.no_space.get_or_insert_with(|| failed(name)(errno));
                    return Ok(false);
                }
                Err(errno) => return Err(failed(name)(errno)),
            }
        }
    }
}

fn failed(name: &OsStr) -> impl FnOnce(Errno) -> IoFailure {
    IoFailure::at("delete", Path::new(name))
}

/// Deletes an entry; returns `false` for a directory that is not empty.
fn remove_leaf(directory: BorrowedFd<'_>, name: &OsStr) -> nix::Result<bool> {
    Ok(unlink(directory, name)? || rmdir(directory, name)?)
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

    use nix::sys::stat::{Mode, SFlag, mkdirat, mknodat};
    use warren_testkit::small_disk::SmallDisk;

    use super::*;
    use crate::open_directory;
    use crate::testing::nest;

    /// Fills a directory with as many directories as need more than one block in it, each with a file.
    fn add_directories(parent: BorrowedFd<'_>) {
        for number in 0..600 {
            let name = format!("directory-{number}");
            mkdirat(parent, name.as_str(), Mode::S_IRWXU).unwrap();
            let directory = open_directory(parent, Path::new(&name)).unwrap();
            mknodat(&directory, "file", SFlag::S_IFREG, Mode::S_IRWXU, 0).unwrap();
        }
    }

    /// To move directories up needs space there.
    #[test]
    fn tree_is_removed_from_a_full_disk() {
        for depth in [1, 2 + u32::try_from(MAX_OPEN).unwrap()] {
            let dir = tempfile::tempdir().unwrap();
            let disk = SmallDisk::new(dir.path(), 16);
            let top = disk.path().join("top");
            fs::create_dir(&top).unwrap();
            add_directories(nest(&top, "d", depth).as_fd());
            disk.fill();
            let parent = File::open(disk.path()).unwrap();
            for _twice in 0..2 {
                remove(parent.as_fd(), "top".as_ref()).unwrap();
            }
            assert!(!top.exists());
        }
    }

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
