//! Copies a directory with all that it holds, as it is: owners, modes, times, links, holes, attributes.
//!
//! Devices are left out. No image needs one in a volume (a container is given devices by its own list), and a node of
//! the machine's disk would be one in every container that has the volume.

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

use super::attributes::{take_after, take_after_unopened};
use super::{Entries, kind, look, open_directory};
use crate::error::Failure;

/// What was copied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Devices that were left out.
    pub devices: u64,
}

/// Makes the empty directory `to` all that `from` is and has. Nobody else may know of `to`, and `from` must not change
/// meanwhile. What was begun stays when it fails.
pub(crate) fn copy(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<Copied, Failure> {
    let mut copy = Copy { from, to, links: HashMap::new(), copied: Copied::default() };
    // The deepest first: what is made in a directory changes its times.
    let mut steps = vec![Step::Enter(PathBuf::new())];
    while let Some(step) = steps.pop() {
        match step {
            Step::Enter(path) => {
                let below = copy.enter(&path)?;
                steps.push(Step::Leave(path));
                steps.extend(below.into_iter().map(Step::Enter));
            }
            Step::Leave(path) => copy.leave(&path).map_err(Failure::at("copy directory", &path))?,
        }
    }
    Ok(copy.copied)
}

enum Step {
    Enter(PathBuf),
    Leave(PathBuf),
}

struct Copy<'a> {
    from: BorrowedFd<'a>,
    to: BorrowedFd<'a>,
    /// Where the first name of a file with several was copied to.
    links: HashMap<(u64, u64), PathBuf>,
    copied: Copied,
}

impl Copy<'_> {
    /// Copies what is in a directory, and returns the directories in it, which are made but empty.
    fn enter(&mut self, path: &Path) -> Result<Vec<PathBuf>, Failure> {
        let open = || Ok::<_, Errno>((open_directory(self.from, path)?, open_directory(self.to, path)?));
        let (from, to) = open().map_err(Failure::at("open", path))?;
        let mut below = Vec::new();
        for name in Entries::of(&from).map_err(Failure::at("list", path))? {
            let name = name.map_err(Failure::at("list", path))?;
            let at = path.join(&name);
            if self.entry(from.as_fd(), to.as_fd(), &name, &at)? {
                below.push(at);
            }
        }
        Ok(below)
    }

    fn leave(&self, path: &Path) -> nix::Result<()> {
        let from = open_directory(self.from, path)?;
        take_after(&from, &fstat(&from)?, open_directory(self.to, path)?)
    }

    /// Copies one entry; says whether it is a directory.
    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &OsStr,
        at: &Path,
    ) -> Result<bool, Failure> {
        let failed = || Failure::at("copy", at);
        let stat = look(from, name).map_err(failed())?;
        let kind = kind(&stat);
        if kind == SFlag::S_IFDIR {
            mkdirat(to, name, Mode::S_IRWXU).map_err(failed())?;
            return Ok(true);
        }
        if kind == SFlag::S_IFBLK || kind == SFlag::S_IFCHR {
            self.copied.devices += 1;
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
            return file(from, to, name, &stat).map(|()| false).map_err(Failure::io("copy", at));
        }
        special(from, to, name, &stat, kind).map(|()| false).map_err(failed())
    }
}

/// A link, a pipe or a socket, as what it is: nothing is behind it until somebody uses it.
fn special(
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
    take_after_unopened(stat, to, name)
}

fn file(from: BorrowedFd<'_>, to: BorrowedFd<'_>, name: &OsStr, stat: &FileStat) -> io::Result<()> {
    let reading = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let making = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let from = File::from(openat(from, name, reading, Mode::empty())?);
    let to = File::from(openat(to, name, making, Mode::S_IRUSR | Mode::S_IWUSR)?);
    content(&from, &to, u64::try_from(stat.st_size).unwrap_or(0))?;
    Ok(take_after(&from, stat, &to)?)
}

/// Copies what is written in a file and leaves its holes.
fn content(from: &File, to: &File, size: u64) -> io::Result<()> {
    let place = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(Errno::EFBIG));
    let mut at = 0;
    while at < size {
        let begin = match lseek(from, place(at)?, Whence::SeekData) {
            Ok(begin) => u64::try_from(begin).unwrap_or(at),
            Err(Errno::ENXIO) => break,
            // A file system that does not tell is one long piece.
            Err(Errno::EINVAL | Errno::ENOTSUP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = lseek(from, place(begin)?, Whence::SeekHole).ok().and_then(|end| u64::try_from(end).ok());
        let end = end.filter(|end| *end > begin).unwrap_or(size);
        lseek(from, place(begin)?, Whence::SeekSet)?;
        lseek(to, place(begin)?, Whence::SeekSet)?;
        // The standard library has the kernel do it, without the bytes passing through here.
        let copied = io::copy(&mut from.take(end - begin), &mut &*to)?;
        if copied == 0 {
            break;
        }
        at = begin + copied;
    }
    to.set_len(size)
}
