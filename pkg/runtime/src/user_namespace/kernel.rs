//! The system calls for namespaces and mounts that nix lacks.
//!
//! Sources: open_tree(2), mount_setattr(2), move_mount(2), ioctl_nsfs(2).
#![allow(unsafe_code)] // Foreign functions are unsafe to call; each call says why it may be made.

use std::ffi::{CStr, CString, c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::libc;

/// How a source is mounted.
#[derive(Clone, Copy)]
pub(super) struct MountKind {
    /// With the mounts below it.
    pub recursive: bool,
    pub read_only: bool,
}

/// Why a source is not mounted.
pub(super) enum MapError {
    /// Its file system cannot shift ids, or the source is mounted with shifted ids already.
    Unsupported,
    Failed(io::Error),
}

fn checked(result: c_long) -> io::Result<c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        good => Ok(c_int::try_from(good).unwrap_or(c_int::MAX)),
    }
}

fn c_string(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Mounts `source` at `target` with the ids of a user namespace.
pub(super) fn mount_mapped(
    source: &Path,
    target: &Path,
    users: BorrowedFd<'_>,
    kind: MountKind,
) -> Result<(), MapError> {
    let all = if kind.recursive { libc::AT_RECURSIVE.cast_unsigned() } else { 0 };
    let (source, target) =
        (c_string(source).map_err(MapError::Failed)?, c_string(target).map_err(MapError::Failed)?);
    let empty: &CStr = c"";
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | all;
    // SAFETY: the path ends with NUL and outlives the call, which returns a new descriptor or -1.
    let tree = checked(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, source.as_ptr(), flags) });
    // SAFETY: the descriptor is new and has no other owner.
    let tree = unsafe { OwnedFd::from_raw_fd(tree.map_err(MapError::Failed)?) };
    let attributes = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_IDMAP | if kind.read_only { libc::MOUNT_ATTR_RDONLY } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: u64::try_from(users.as_raw_fd()).unwrap_or(u64::MAX),
    };
    // SAFETY: the path ends with NUL, and both outlive the call; the size is that of the attributes.
    let mapped = checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_EMPTY_PATH.cast_unsigned() | all,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    });
    mapped.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPERM) => MapError::Unsupported,
        _ => MapError::Failed(error),
    })?;
    // SAFETY: both paths end with NUL and outlive the call.
    let moved = checked(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            empty.as_ptr(),
            libc::AT_FDCWD,
            target.as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH,
        )
    });
    moved.map(drop).map_err(MapError::Failed)
}

/// The user namespace that a namespace belongs to.
pub(super) fn owner(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: this request has no argument, and returns a new descriptor or -1.
    let owner = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_USERNS) };
    let owner: RawFd = checked(owner.into())?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(owner) })
}
