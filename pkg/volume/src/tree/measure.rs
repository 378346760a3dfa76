//! What a directory takes on its disk.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};

use super::{Entries, is_gone, kind, look, open_directory};
use crate::error::Failure;

/// In bytes (stat(2)).
const BLOCK: u64 = 512;

/// Bytes on disk of a directory and all that it holds: a file with several names counts once, other file systems that
/// are mounted in it not at all. `None` when `stop` was set before it was done.
pub(crate) fn measure(root: BorrowedFd<'_>, stop: &AtomicBool) -> Result<Option<u64>, Failure> {
    let mut seen = HashSet::new();
    let mut bytes = fstat(root).map(|stat| on_disk(&stat)).map_err(Failure::at("look at", "".as_ref()))?;
    let mut paths = vec![PathBuf::new()];
    while let Some(path) = paths.pop() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let failed = || Failure::at("measure", &path);
        let directory = match open_directory(root, &path) {
            Ok(directory) => directory,
            Err(errno) if is_gone(errno) || errno == Errno::EXDEV => continue,
            Err(Errno::ENAMETOOLONG) => {
                tracing::debug!("directories nested deeper than a path may be long are not measured");
                continue;
            }
            Err(errno) => return Err(failed()(errno)),
        };
        for name in Entries::of(&directory).map_err(failed())? {
            let name = name.map_err(failed())?;
            let stat = match look(&directory, &name) {
                Err(errno) if is_gone(errno) => continue,
                stat => stat.map_err(failed())?,
            };
            let is_directory = kind(&stat) == SFlag::S_IFDIR;
            if is_directory || stat.st_nlink < 2 || seen.insert((stat.st_dev, stat.st_ino)) {
                bytes += on_disk(&stat);
            }
            if is_directory {
                paths.push(path.join(&name));
            }
        }
    }
    Ok(Some(bytes))
}

fn on_disk(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK
}
