//! Disk usage of a directory.

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::sys::stat::{FileStat, SFlag, fstat};

use super::{DirEntries, file_type, is_gone, open_directory, stat_entry};
use crate::error::IoFailure;

/// Unit of `st_blocks` in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;

/// Bytes on disk of a directory tree. A file with several names counts once; mounted file systems do not
/// count. `None` if `stop` was set before the end.
pub(crate) fn disk_usage(root: BorrowedFd<'_>, stop: &AtomicBool) -> Result<Option<u64>, IoFailure> {
    let mut seen = HashSet::new();
    let mut bytes = fstat(root).map(|stat| on_disk(&stat)).map_err(IoFailure::at("look at", "".as_ref()))?;
    let mut paths = vec![PathBuf::new()];
    while let Some(path) = paths.pop() {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let failed = || IoFailure::at("measure", &path);
        let directory = match open_directory(root, &path) {
            Ok(directory) => directory,
            Err(errno) if is_gone(errno) || errno == Errno::EXDEV => continue,
            Err(Errno::ENAMETOOLONG) => {
                tracing::debug!("directories nested deeper than a path may be long are not measured");
                continue;
            }
            Err(errno) => return Err(failed()(errno)),
        };
        for name in DirEntries::read(&directory).map_err(failed())? {
            let name = name.map_err(failed())?;
            let stat = match stat_entry(&directory, &name) {
                Err(errno) if is_gone(errno) => continue,
                stat => stat.map_err(failed())?,
            };
            let is_directory = file_type(&stat) == SFlag::S_IFDIR;
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
    u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK_BYTES
}
