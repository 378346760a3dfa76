//! What a directory uses on its disk.
//!
//! A container decides how many files there are and how they are nested, so the open directories and the memory are
//! limited here, and the time by the caller.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};

use super::{DirEntries, file_type, is_gone, stat_entry};
use crate::IoFailure;

/// Unit of `st_blocks` in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;
/// Directories that are open at once, each in the one before. What is nested deeper is not measured.
const MAX_DEPTH: usize = 512;
/// Files with several names that are counted once; further ones are counted with each name.
const MAX_LINKED: usize = 100_000;

/// What a directory and all below it use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Space on the disk, without holes.
    pub bytes: u64,
    /// Number of files and directories.
    pub inodes: u64,
    /// Why there is more than that.
    pub unmeasured: Unmeasured,
}

/// Why a part was not measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Unmeasured {
    /// Everything was.
    #[default]
    Nothing,
    /// It has directories that are nested deeper than 512, whether there was time for the rest or not.
    Depth,
    /// The time was over before the end.
    Time,
}

#[derive(Default)]
struct UsageSum {
    usage: TreeUsage,
    /// Device and inode of files with several names that were counted.
    linked: HashSet<(u64, u64)>,
}

impl UsageSum {
    fn add(&mut self, stat: &FileStat) {
        let has_names = stat.st_nlink > 1 && file_type(stat) != SFlag::S_IFDIR;
        if has_names && self.linked.len() < MAX_LINKED && !self.linked.insert((stat.st_dev, stat.st_ino)) {
            return;
        }
        self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES;
        self.usage.inodes += 1;
    }
}

/// Measures a directory until `is_over`. A file with several names counts once; links are not followed; mounted file
/// systems do not count, nor what disappears meanwhile.
///
/// # Errors
/// A directory cannot be read.
pub fn measure(root: BorrowedFd<'_>, is_over: impl Fn() -> bool) -> Result<TreeUsage, IoFailure> {
    let failed = || IoFailure::at("measure", Path::new("."));
    let mut sum = UsageSum::default();
    sum.add(&fstat(root).map_err(failed())?);
    let mut open = vec![DirEntries::read(root).map_err(failed())?];
    while let Some(entries) = open.last_mut() {
        if is_over() {
            if sum.usage.unmeasured == Unmeasured::Nothing {
                sum.usage.unmeasured = Unmeasured::Time;
            }
            break;
        }
        let Some(name) = entries.next().transpose().map_err(failed())? else {
            open.pop();
            continue;
        };
        let failed = || IoFailure::at("measure", Path::new(&name));
        let stat = match stat_entry(&*entries, &name) {
            Err(errno) if is_gone(errno) => continue,
            stat => stat.map_err(failed())?,
        };
        sum.add(&stat);
        if file_type(&stat) != SFlag::S_IFDIR {
            continue;
        }
        let below = DirEntries::open(&*entries, Path::new(&name));
        match below {
            Ok(_) if open.len() == MAX_DEPTH => sum.usage.unmeasured = Unmeasured::Depth,
            Ok(below) => open.push(below),
            Err(errno) if is_gone(errno) || errno == Errno::EXDEV => {}
            Err(errno) => return Err(failed()(errno)),
        }
    }
    Ok(sum.usage)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{self, File};
    use std::os::fd::AsFd;
    use std::os::unix::fs::symlink;

    use nix::fcntl::{RenameFlags, renameat2};

    use super::*;
    use crate::remove;
    use crate::testing::nest;

    fn measured(path: &Path) -> TreeUsage {
        measure(File::open(path).unwrap().as_fd(), || false).unwrap()
    }

    #[test]
    fn files_are_counted_once_and_links_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("fs"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![7; 4 << 20]).unwrap();
        let before = measured(&tree);
        assert_eq!((before.inodes, before.unmeasured), (3, Unmeasured::Nothing), "the directories");
        fs::write(tree.join("a/b/file"), vec![7; 1 << 20]).unwrap();
        fs::hard_link(tree.join("a/b/file"), tree.join("same")).unwrap();
        symlink(&outside, tree.join("link")).unwrap();
        File::create(tree.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let found = measured(&tree);
        assert_eq!((found.inodes, found.unmeasured), (before.inodes + 3, Unmeasured::Nothing));
        let grown = found.bytes - before.bytes;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
    }

    #[test]
    fn files_below_the_longest_path_are_counted_and_deeper_ones_reported() {
        let name = "n".repeat(200);
        for (depth, inodes, unmeasured) in [
            (511, 1023, Unmeasured::Nothing),
            (512, 1025, Unmeasured::Depth),
            (2000, 1025, Unmeasured::Depth),
        ] {
            let dir = tempfile::tempdir().unwrap();
            nest(dir.path(), &name, depth);
            let found = measured(dir.path());
            assert_eq!((found.inodes, found.unmeasured), (inodes, unmeasured), "{depth}");
            remove(File::open(dir.path()).unwrap().as_fd(), name.as_ref()).unwrap();
        }
    }

    #[test]
    fn measurement_ends_when_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(dir.path().join(number.to_string()), "x").unwrap();
        }
        let asked = Cell::new(0);
        let is_over = || asked.replace(asked.get() + 1) == 10;
        let cut = measure(File::open(dir.path()).unwrap().as_fd(), is_over).unwrap();
        assert_eq!((cut.inodes, cut.unmeasured), (11, Unmeasured::Time));
        let whole = measured(dir.path());
        assert_eq!((whole.inodes, whole.unmeasured), (101, Unmeasured::Nothing));
    }

    /// The parent of an open directory is replaced by a link at each step.
    #[test]
    fn replaced_directory_does_not_lead_outside() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, outside) = (dir.path().join("fs"), dir.path().join("outside"));
        fs::create_dir_all(tree.join("a/b/c/d")).unwrap();
        fs::create_dir_all(outside.join("b/c/d")).unwrap();
        fs::write(outside.join("b/c/d/large"), vec![7; 4 << 20]).unwrap();
        symlink(&outside, tree.join("trap")).unwrap();
        let root = File::open(&tree).unwrap();
        let swap = || {
            renameat2(&root, "a", &root, "trap", RenameFlags::RENAME_EXCHANGE).unwrap();
            false
        };
        for _ in 0..10 {
            let found = measure(root.as_fd(), swap).unwrap();
            assert!(found.bytes < 1 << 20, "{found:?}");
        }
    }
}
