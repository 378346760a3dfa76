//! Measures a writable layer. A container decides how many files and directories there are and how they are nested, so
//! the time and the memory of a measurement are bounded.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use warren_types::Bytes;

/// Unit of a file's blocks (stat(2)).
const BLOCK: u64 = 512;
/// Directories that are open at once, each within the one before. What is deeper is not counted.
const MAX_DEPTH: usize = 1024;
/// Files with several names that are counted once; further ones are counted with each name.
const MAX_LINKED: usize = 100_000;

/// What the writable layer of a container uses on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerUsage {
    /// Space of its files and directories.
    pub bytes: Bytes,
    /// Number of them.
    pub inodes: u64,
}

#[derive(Default)]
struct UsageSum {
    usage: LayerUsage,
    /// Inodes with several names that were counted.
    linked: HashSet<u64>,
}

impl UsageSum {
    fn add(&mut self, file: &Metadata) {
        let has_names = file.nlink() > 1 && !file.is_dir();
        if has_names && self.linked.len() < MAX_LINKED && !self.linked.insert(file.ino()) {
            return;
        }
        self.usage.bytes.0 += file.blocks() * BLOCK;
        self.usage.inodes += 1;
    }
}

/// What a directory and all below it use. Links are not followed. At the deadline the sum so far is returned.
///
/// # Errors
/// The directory itself cannot be read. What disappears meanwhile below it is not counted.
pub(crate) fn measure(directory: &Path, deadline: Instant) -> io::Result<LayerUsage> {
    let mut sum = UsageSum::default();
    sum.add(&fs::symlink_metadata(directory)?);
    let mut open = vec![fs::read_dir(directory)?];
    while let Some(entries) = open.last_mut() {
        let Some(Ok(entry)) = entries.next() else {
            open.pop();
            continue;
        };
        if let Ok(file) = entry.metadata() {
            sum.add(&file);
            if file.is_dir()
                && open.len() < MAX_DEPTH
                && let Ok(below) = fs::read_dir(entry.path())
            {
                open.push(below);
            }
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Ok(sum.usage)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(600)
    }

    #[test]
    fn files_are_counted_once_and_links_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (layer, outside) = (dir.path().join("fs"), dir.path().join("outside"));
        fs::create_dir_all(layer.join("a/b")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("large"), vec![7; 4 << 20]).unwrap();
        let before = measure(&layer, later()).unwrap();
        assert_eq!(before.inodes, 3, "the directories");
        fs::write(layer.join("a/b/file"), vec![7; 1 << 20]).unwrap();
        fs::hard_link(layer.join("a/b/file"), layer.join("same")).unwrap();
        std::os::unix::fs::symlink(&outside, layer.join("link")).unwrap();
        let sparse = fs::File::create(layer.join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        let found = measure(&layer, later()).unwrap();
        assert_eq!(found.inodes, before.inodes + 3);
        let grown = found.bytes.0 - before.bytes.0;
        assert!((1 << 20..2 << 20).contains(&grown), "{grown}");
        assert!(measure(&dir.path().join("none"), later()).is_err());
    }

    #[test]
    fn measurement_ends_at_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..100 {
            fs::write(dir.path().join(number.to_string()), "x").unwrap();
        }
        assert_eq!(measure(dir.path(), Instant::now()).unwrap().inodes, 2);
        assert_eq!(measure(dir.path(), later()).unwrap().inodes, 101);
    }
}
