//! User namespaces of containers: made by a small program, bound to files, and the mounts with shifted ids.
//!
//! A namespace is made for one container and lives as long as its file, over all processes of the container. The
//! network namespace of the container belongs to it: over that of another one the container's root would have no
//! rights. Both must exist before the OCI runtime creates a process, which joins them.
//!
//! The kernel shifts ids (idmapped mounts): the layers of the image and the sources of bind mounts are mounted with the
//! ids of the namespace while a process is created, and nothing is copied or changed. The writable layer has the ids of
//! the node, as overlayfs itself makes files in it. After the creation the container has its own mounts.

mod create;
mod kernel;
mod mounts;

pub(crate) use mounts::{MappedMounts, check_node, map};

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// Unmounts everything that is mounted at a path.
fn unmount(path: &Path) -> io::Result<()> {
    loop {
        match umount2(path, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::EINVAL | Errno::ENOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Removes a mount with its mount point, which must be empty. Idempotent.
fn clear(path: &Path) -> io::Result<()> {
    unmount(path)?;
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
