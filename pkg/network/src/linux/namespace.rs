//! Named network namespaces: a namespace bound to a file, which keeps it alive without a process.
//!
//! Everything here that enters a namespace moves the calling *thread* and does not bring it back: call it on
//! a thread that ends afterwards.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{NSFS_MAGIC, statfs};

use crate::Error;

/// The namespace of the calling thread, which is not always that of the process.
const OWN: &str = "/proc/thread-self/ns/net";

/// The namespace that the calling thread is in, to come back to it by [`enter`].
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

/// Opens the namespace bound to the file, which is made when it is not there, and moves the calling thread
/// into it.
pub(super) fn ensure(path: &Path) -> Result<File, Error> {
    if is_bound(path) {
        let found = File::open(path).map_err(|source| failed("open", path, source))?;
        enter(&found, path)?;
        return Ok(found);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|source| failed("make the directory of", path, source))?;
    }
    // A file without a namespace is what a kill at this point, or a reboot, leaves behind: it serves as
    // well.
    File::create(path).map_err(|source| failed("make the file of", path, source))?;
    unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| failed("make", path, errno.into()))?;
    mount(Some(OWN), path, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .map_err(|errno| failed("bind", path, errno.into()))?;
    File::open(path).map_err(|source| failed("open", path, source))
}

/// Unbinds the namespace and removes its file. The kernel takes the namespace down when its last process is
/// gone.
pub(super) fn remove(path: &Path) -> Result<(), Error> {
    // Two agents that were killed half-way may have bound it twice.
    loop {
        match umount2(path, MntFlags::MNT_DETACH) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => break,
            Err(errno) => return Err(failed("unbind", path, errno.into())),
        }
    }
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove the file of", path, source))
        }
        _ => Ok(()),
    }
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Namespace { operation, path: path.to_owned(), source }
}
