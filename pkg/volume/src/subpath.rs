//! Opens a directory within a volume without ever leaving the volume.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fchmod, fstat, mkdirat};
use nix::unistd::{Gid, Uid, fchown};

/// The kernel fails when something is renamed while it resolves `..` of a link; containers can do that at
/// any time.
const MAX_RETRIES: u32 = 100;

/// Opens `subpath` of the volume and creates missing directories, with owner and mode of their parent.
/// Links are followed as in a container whose root is the volume: an absolute link starts at the root,
/// and `..` ends there.
///
/// # Errors
/// `ENOTDIR` for a file on the path; `ENOENT` for a dangling link.
pub(crate) fn open(volume: impl AsFd, subpath: &Path) -> nix::Result<OwnedFd> {
    let mut directory = resolve(&volume, Path::new("."))?;
    let mut so_far = PathBuf::new();
    for part in subpath {
        so_far.push(part);
        // Resolves from the root each time, so that a link further up is resolved within the volume as
        // well.
        directory = match resolve(&volume, &so_far) {
            Err(Errno::ENOENT) => make(&directory, Path::new(part))?,
            found => found?,
        };
    }
    Ok(directory)
}

fn resolve(volume: impl AsFd, path: &Path) -> nix::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 1..MAX_RETRIES {
        match openat2(&volume, path, how) {
            Err(Errno::EAGAIN) => {}
            opened => return opened,
        }
    }
    openat2(&volume, path, how)
}

/// Creates a directory in an open one. A directory that another process created meanwhile is used; links
/// are never followed.
fn make(directory: &OwnedFd, name: &Path) -> nix::Result<OwnedFd> {
    let is_new = match mkdirat(directory, name, Mode::S_IRWXU) {
        Ok(()) => true,
        Err(Errno::EEXIST) => false,
        Err(errno) => return Err(errno),
    };
    let how = OpenHow::new()
        .flags(OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let made = match openat2(directory, name, how) {
        // A dangling link that existed before.
        Err(Errno::ELOOP) => Err(Errno::ENOENT),
        made => made,
    }?;
    if is_new {
        let around = fstat(directory)?;
        fchown(&made, Some(Uid::from_raw(around.st_uid)), Some(Gid::from_raw(around.st_gid)))?;
        fchmod(&made, Mode::from_bits_truncate(around.st_mode))?;
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, chown, symlink};

    use super::*;

    fn real(fd: &OwnedFd) -> PathBuf {
        use std::os::fd::AsRawFd;
        fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap()
    }

    fn opened(volume: &Path, subpath: &str) -> nix::Result<PathBuf> {
        let root = fs::File::open(volume).unwrap();
        open(&root, Path::new(subpath)).map(|fd| real(&fd).strip_prefix(volume).unwrap().to_owned())
    }

    fn world() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().canonicalize().unwrap().join("volume");
        fs::create_dir_all(volume.join("a/b")).unwrap();
        fs::create_dir_all(dir.path().join("outside/b")).unwrap();
        (dir, volume)
    }

    #[test]
    fn symlinks_never_escape_volume() {
        let (dir, volume) = world();
        let link = |to: &str, name: &str| symlink(to, volume.join(name)).unwrap();
        link("../outside", "up");
        link("../../../../../../../../a", "far-up");
        link("/a", "absolute");
        link("a/../../outside", "through");
        link("/proc/self/root", "magic");
        link("self", "self");
        assert_eq!(opened(&volume, "far-up/b").unwrap(), Path::new("a/b"));
        assert_eq!(opened(&volume, "absolute/b").unwrap(), Path::new("a/b"));
        // These lead to places that the volume does not have, and no directory is made behind a link.
        for path in ["up", "up/b", "through", "magic"] {
            assert_eq!(opened(&volume, path), Err(Errno::ENOENT), "{path}");
        }
        assert_eq!(opened(&volume, "self/x"), Err(Errno::ELOOP));
        fs::create_dir(volume.join("outside")).unwrap();
        assert_eq!(opened(&volume, "up/b").unwrap(), Path::new("outside/b"), "made in the volume");
        assert_eq!(fs::read_dir(dir.path().join("outside/b")).unwrap().count(), 0);
    }

    #[test]
    fn missing_dirs_inherit_parent_attributes() {
        let (_dir, volume) = world();
        chown(volume.join("a"), Some(33), Some(44)).unwrap();
        fs::set_permissions(volume.join("a"), std::os::unix::fs::PermissionsExt::from_mode(0o2770)).unwrap();
        for _twice in 0..2 {
            assert_eq!(opened(&volume, "a/new/deep").unwrap(), Path::new("a/new/deep"));
        }
        let made = fs::metadata(volume.join("a/new/deep")).unwrap();
        assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (33, 44, 0o2770));
        fs::write(volume.join("file"), "").unwrap();
        for path in ["file", "file/x"] {
            assert_eq!(opened(&volume, path), Err(Errno::ENOTDIR), "{path}");
        }
    }

    #[test]
    fn racing_symlink_never_escapes_volume() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (dir, volume) = world();
        let outside = dir.path().canonicalize().unwrap().join("outside");
        symlink(&outside, volume.join("trap")).unwrap();
        let (stop, root) = (AtomicBool::new(false), fs::File::open(&volume).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let flags = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                    nix::fcntl::renameat2(&root, "a", &root, "trap", flags).unwrap();
                }
            });
            let opened = (0..20_000).filter_map(|_| open(&root, Path::new("a/b")).ok());
            let (inside, outside): (Vec<_>, Vec<_>) =
                opened.map(|fd| real(&fd)).partition(|path| path.starts_with(&volume));
            stop.store(true, Ordering::Relaxed);
            assert!(!inside.is_empty() && outside.is_empty(), "{outside:?}");
        });
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 1, "nothing was made outside");
    }
}
