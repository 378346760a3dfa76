//! Named network namespaces, bound to a file, which keeps them alive without a process.
//!
//! Functions that enter a namespace move the calling *thread* and do not move it back: call them on a
//! thread that ends afterwards.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::Error;

/// The namespace of the calling thread, which may differ from that of the process.
const OWN: &str = "/proc/thread-self/ns/net";

/// The current namespace of the calling thread, to return to by [`enter`].
pub(super) fn current() -> Result<File, Error> {
    let path = Path::new(OWN);
    File::open(path).map_err(|source| failed("open", path, source))
}

/// Moves the calling thread into a namespace.
pub(super) fn enter(namespace: &File, path: &Path) -> Result<(), Error> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| failed("enter", path, errno.into()))
}

/// Whether a namespace is bound to the file.
pub(super) fn is_bound(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
}

/// Opens the namespace bound to the file, and moves the calling thread into it. If it is missing, or another than the
/// given one, the given one is bound, or a new one.
pub(super) fn ensure(path: &Path, given: Option<&Path>) -> Result<File, Error> {
    if is_bound(path) && given.is_none_or(|given| is_same(path, given)) {
        return open(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|source| failed("create the directory of", path, source))?;
    }
    let bind = |namespace: &Path| {
        mount(Some(namespace), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
            .map_err(|errno| failed("bind", path, errno.into()))
    };
    unbind(path)?;
    // A file without a namespace is left by a kill at this point or a reboot, and is reused.
    File::create(path).map_err(|source| failed("create the file of", path, source))?;
    if let Some(given) = given {
        bind(given)?;
        return open(path);
    }
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed("create", path, errno.into()))?;
    bind(Path::new(OWN))?;
    File::open(path).map_err(|source| failed("open", path, source))
}

/// Opens the namespace bound to the file, and moves the calling thread into it.
fn open(path: &Path) -> Result<File, Error> {
    let found = File::open(path).map_err(|source| failed("open", path, source))?;
    enter(&found, path)?;
    Ok(found)
}

/// Whether one namespace is bound to both files.
fn is_same(path: &Path, other: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    inode(path).is_some_and(|found| Some(found) == inode(other))
}

/// Unbinds the namespace and removes its file. The kernel removes the namespace after its last process
/// ended.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    unbind(path)?;
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove the file of", path, source))
        }
        _ => Ok(()),
    }
}

fn unbind(path: &Path) -> Result<(), Error> {
    // Two killed agents may have bound it twice.
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(failed("unbind", path, errno.into())),
        }
    }
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Namespace { operation, path: path.to_owned(), source }
}
