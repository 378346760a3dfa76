//! Projects of directories, by which ext4 and XFS count what is created below them (project quotas).
//!
//! `unsafe` because nix does not wrap these requests. Each gets a structure of the layout that the kernel reads or
//! writes.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

/// `FS_XFLAG_PROJINHERIT` of linux/fs.h.
const INHERIT_PROJECT: u32 = 0x200;

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

nix::ioctl_read!(get_attributes, b'X', 31, FileAttributes);
nix::ioctl_write_ptr!(set_attributes, b'X', 32, FileAttributes);

/// The project of an open directory; 0 is none.
///
/// # Errors
/// `ENOTTY` or `EOPNOTSUPP` if its file system has no projects.
pub fn project(directory: impl AsFd) -> nix::Result<u32> {
    Ok(read(directory)?.project)
}

/// Puts an open directory into a project, and everything that is created in it from now on.
///
/// # Errors
/// As [`project`].
pub fn set_project(directory: impl AsFd, project: u32) -> nix::Result<()> {
    let found = read(&directory)?;
    write(directory, &FileAttributes { project, flags: found.flags | INHERIT_PROJECT, ..found })
}

/// Takes an open directory out of its project. Into a directory of a project the kernel moves nothing of another one.
///
/// # Errors
/// As [`project`].
pub(crate) fn leave_project(directory: impl AsFd) -> nix::Result<()> {
    let found = read(&directory)?;
    write(directory, &FileAttributes { project: 0, flags: found.flags & !INHERIT_PROJECT, ..found })
}

fn read(directory: impl AsFd) -> nix::Result<FileAttributes> {
    let mut attributes = FileAttributes::default();
    // SAFETY: the structure is the one that the kernel writes, and outlives the call.
    unsafe { get_attributes(directory.as_fd().as_raw_fd(), &mut attributes) }?;
    Ok(attributes)
}

fn write(directory: impl AsFd, attributes: &FileAttributes) -> nix::Result<()> {
    // SAFETY: the structure is the one that the kernel reads, and outlives the call.
    unsafe { set_attributes(directory.as_fd().as_raw_fd(), attributes) }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the kernel's headers.
    #[test]
    fn structure_has_the_size_of_the_kernel() {
        assert_eq!(size_of::<FileAttributes>(), 28);
    }
}
