//! Copies a directory tree with owners, modes, times, links, holes and extended attributes.
//!
//! Devices are skipped. No image needs one in a volume (a container gets devices by its own list), and a
//! device node of the machine's disk would be in every container that has the volume.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat, mknodat};
use nix::unistd::{Whence, linkat, lseek, symlinkat};

use super::attributes::{copy_attributes, copy_attributes_at};
use super::{DirEntries, file_type, open_directory, stat_entry};
use crate::IoFailure;

/// What [`copy()`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyStats {
    /// Number of devices that were skipped.
    pub skipped_devices: u64,
}

/// Copies the content and metadata of `from` to the empty directory `to`. `to` must be private, and
/// `from` must not change meanwhile. A failed copy leaves its partial result.
///
/// # Errors
/// The first that the kernel refuses.
pub fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<CopyStats, IoFailure> {
    let mut copy = TreeCopy { from, to, links: HashMap::new(), copied: CopyStats::default() };
    // Deepest first: creating an entry changes the times of its directory.
    let mut steps = vec![CopyStep::Enter(PathBuf::new())];
    while let Some(step) = steps.pop() {
        match step {
            CopyStep::Enter(path) => {
                let below = copy.enter(&path)?;
                steps.push(CopyStep::Leave(path));
                steps.extend(below.into_iter().map(CopyStep::Enter));
            }
            CopyStep::Leave(path) => copy.leave(&path).map_err(IoFailure::at("copy directory", &path))?,
        }
    }
    Ok(copy.copied)
}

enum CopyStep {
    Enter(PathBuf),
    Leave(PathBuf),
}

struct TreeCopy<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// Target path of the first name of each file with several names.
    links: HashMap<(u64, u64), PathBuf>,
    copied: CopyStats,
}

impl TreeCopy<'_> {
    /// Copies the entries of a directory, and returns its subdirectories, which are created empty.
    fn enter(&mut self, path: &Path) -> Result<Vec<PathBuf>, IoFailure> {
        let open = || Ok::<_, Errno>((open_directory(self.from, path)?, open_directory(self.to, path)?));
        let (from, to) = open().map_err(IoFailure::at("open", path))?;
        let mut below = Vec::new();
        for name in DirEntries::read(&from).map_err(IoFailure::at("list", path))? {
            let name = name.map_err(IoFailure::at("list", path))?;
            let at = path.join(&name);
            if self.entry(from.as_fd(), to.as_fd(), &name, &at)? {
                below.push(at);
            }
        }
        Ok(below)
    }

    fn leave(&self, path: &Path) -> nix::Result<()> {
        let from = open_directory(self.from, path)?;
        copy_attributes(&from, &fstat(&from)?, open_directory(self.to, path)?)
    }

    /// Copies one entry; returns whether it is a directory.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        at: &Path,
    ) -> Result<bool, IoFailure> {
        let failed = || IoFailure::at("copy", at);
        let stat = stat_entry(from, name).map_err(failed())?;
        let kind = file_type(&stat);
        if kind == SFlag::S_IFDIR {
            mkdirat(to, name, Mode::S_IRWXU).map_err(failed())?;
            return Ok(true);
        }
        if kind == SFlag::S_IFBLK || kind == SFlag::S_IFCHR {
            self.copied.skipped_devices += 1;
            return Ok(false);
        }
        let id = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&id) {
                linkat(self.to, first, to, name, AtFlags::empty()).map_err(failed())?;
                return Ok(false);
            }
            self.links.insert(id, at.to_owned());
        }
        if kind == SFlag::S_IFREG {
            return copy_file(from, to, name, &stat).map(|()| false).map_err(IoFailure::io("copy", at));
        }
        copy_special(from, to, name, &stat, kind).map(|()| false).map_err(failed())
    }
}

/// Copies a link, a pipe or a socket.
fn copy_special(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    name: &OsStr,
    stat: &FileStat,
    kind: SFlag,
) -> nix::Result<()> {
    match kind {
        SFlag::S_IFLNK => symlinkat(&*readlinkat(from, name)?, to, name)?,
        kind => mknodat(to, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, 0)?,
    }
    copy_attributes_at(stat, to, name)
}

fn copy_file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> io::Result<()> {
    let reading = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let making = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let from = File::from(openat(from, name, reading, Mode::empty())?);
    let to = File::from(openat(to, name, making, Mode::S_IRUSR | Mode::S_IWUSR)?);
    copy_content(&from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
    Ok(copy_attributes(&from, stat, &to)?)
}

/// Copies the data of a file and keeps its holes.
fn copy_content(from: &File, to: &File, size: u64) -> io::Result<()> {
    let place = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(Errno::EFBIG));
    let mut at = 0;
    while at < size {
        let begin = match lseek(from, place(at)?, Whence::SeekData) {
            Ok(begin) => u64::try_from(begin).unwrap_or(at),
            Err(Errno::ENXIO) => break,
            // A file system without SEEK_DATA: the file is one segment.
            Err(Errno::EINVAL | Errno::ENOTSUP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = lseek(from, place(begin)?, Whence::SeekHole).ok().and_then(|end| u64::try_from(end).ok());
        let end = end.filter(|end| *end > begin).unwrap_or(size);
        lseek(from, place(begin)?, Whence::SeekSet)?;
        lseek(to, place(begin)?, Whence::SeekSet)?;
        // The standard library uses a system call that copies within the kernel.
        let copied = io::copy(&mut from.take(end - begin), &mut &*to)?;
        if copied == 0 {
            break;
        }
        at = begin + copied;
    }
    to.set_len(size)
}
