//! Extended attributes of an open file.

#![allow(unsafe_code)] // nix has no such calls; each below passes buffers with their lengths.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;

/// Limit of name lists and of values (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const MAX_SIZE: usize = 64 << 10;

/// Whether an attribute means the same on another file: user attributes, file capabilities, and POSIX
/// ACLs. The others are labels of the machine that built the image, or internal to the file system.
fn is_portable(name: &CStr) -> bool {
    let name = name.to_bytes();
    name.starts_with(b"user.")
        || name == b"security.capability"
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}

/// Copies the portable attributes of one open file to another. Skips those that the file system does not
/// support.
pub(super) fn copy(from: impl AsFd, to: impl AsFd) -> nix::Result<()> {
    let names = match list(&from) {
        Err(Errno::ENOTSUP) => return Ok(()),
        names => names?,
    };
    for name in names.iter().filter(|name| is_portable(name)) {
        let value = match get(&from, name) {
            Err(Errno::ENODATA) => continue,
            value => value?,
        };
        match set(&to, name, &value) {
            Err(Errno::ENOTSUP) => tracing::debug!(?name, "the volume's file system has no such attribute"),
            set => set?,
        }
    }
    Ok(())
}

fn list(file: impl AsFd) -> nix::Result<Vec<CString>> {
    let mut names = vec![0u8; MAX_SIZE];
    // SAFETY: the kernel writes at most `names.len()` bytes to the buffer, which outlives the call.
    let length =
        unsafe { libc::flistxattr(file.as_fd().as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    let length = usize::try_from(Errno::result(length)?).expect("a length that is no error is not negative");
    let names = names[..length].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| CStr::from_bytes_with_nul(name).ok()).map(CStr::to_owned).collect())
}

fn get(file: impl AsFd, name: &CStr) -> nix::Result<Vec<u8>> {
    let mut value = vec![0u8; MAX_SIZE];
    // SAFETY: the name ends with a NUL, and the kernel writes at most `value.len()` bytes to the buffer.
    let length = unsafe {
        let buffer = value.as_mut_ptr().cast();
        libc::fgetxattr(file.as_fd().as_raw_fd(), name.as_ptr(), buffer, value.len())
    };
    let length = usize::try_from(Errno::result(length)?).expect("a length that is no error is not negative");
    value.truncate(length);
    Ok(value)
}

fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> nix::Result<()> {
    // SAFETY: the name ends with a NUL, and the kernel reads `value.len()` bytes.
    let set = unsafe {
        let buffer = value.as_ptr().cast();
        libc::fsetxattr(file.as_fd().as_raw_fd(), name.as_ptr(), buffer, value.len(), 0)
    };
    Errno::result(set).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_portable_xattrs_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::File::create(dir.path().join(name)).unwrap();
        let (from, to) = (make("from"), make("to"));
        set(&from, c"user.note", b"kept").unwrap();
        set(&from, c"trusted.overlay.opaque", b"y").unwrap();
        // Version 2 of `struct vfs_cap_data`: cap_net_raw+ep.
        let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        set(&from, c"security.capability", &capability).unwrap();
        for _twice in 0..2 {
            copy(&from, &to).unwrap();
        }
        let mut names = list(&to).unwrap();
        names.sort();
        assert_eq!(names, [c"security.capability".to_owned(), c"user.note".to_owned()]);
        assert_eq!(get(&to, c"user.note").unwrap(), b"kept");
        assert_eq!(get(&to, c"user.none"), Err(Errno::ENODATA));
    }
}
