//! Project quotas of ext4 and XFS (quotactl(2)) for writable layers: the kernel refuses to write beyond the limit.
//!
//! Nothing is recorded elsewhere. The project of a layer is an attribute of its directories, which everything that is
//! created below inherits; its number is derived from the inode of the directory. The limit is in the file system's own
//! table. The limit of a layer that was removed is that of a project without files, whoever removed the layer:
//! [`clear_unused`] finds it.
//!
//! A process of root in the container may take its files out of the project. So a quota stops programs with a fault at
//! once, and does not replace measuring the layer.
//!
//! `unsafe` because neither the standard library nor nix wraps these calls for projects. Each gets a structure of the
//! layout that the kernel reads or writes.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::libc;
use warren_types::Bytes;

/// Projects of layers. Docker and the kubelet number theirs from 1 and from 1048577 on.
const PROJECTS: Range<u32> = 1 << 30..1 << 31;
/// How many projects in use are skipped before giving up: two directories have one number only if their inodes are a
/// multiple of the range apart.
const MAX_TRIES: u32 = 64;
/// `FS_XFLAG_PROJINHERIT` of linux/fs.h.
const INHERIT_PROJECT: u32 = 0x200;
/// `PRJQUOTA` and `Q_GETNEXTQUOTA` of linux/quota.h.
const PROJECT_QUOTA: libc::c_int = 2;
const Q_GETNEXTQUOTA: libc::c_int = 0x80_0009;
/// Unit of limits, `QIF_DQBLKSIZE` of linux/quota.h.
const BLOCK: u64 = 1024;

/// Only one layer at a time chooses a number.
static CHOICE: Mutex<()> = Mutex::new(());

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

/// `struct if_nextdqblk` of linux/quota.h, which begins as `struct if_dqblk` does and is as large.
#[repr(C)]
#[derive(Debug, Default)]
struct ProjectUsage {
    hard_limit: u64,
    soft_limit: u64,
    bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_time: u64,
    inode_time: u64,
    valid: u32,
    project: u32,
}

nix::ioctl_read!(get_attributes, b'X', 31, FileAttributes);
nix::ioctl_write_ptr!(set_attributes, b'X', 32, FileAttributes);

/// Limits what the two directories of a layer hold together, before anything is written to it. Idempotent.
///
/// # Errors
/// The file system or the kernel (before 5.14) has no project quotas, or the layer has files without a project.
pub(crate) fn limit(upper: &Path, work: &Path, limit: Bytes) -> io::Result<()> {
    let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (upper_dir, work_dir) = (File::open(upper)?, File::open(work)?);
    let project = match attributes(&upper_dir)?.project {
        own if PROJECTS.contains(&own) => own,
        0 if fs::read_dir(upper)?.next().is_none() => unused_project(&upper_dir)?,
        _ => return Err(io::Error::new(ErrorKind::DirectoryNotEmpty, "it has files of another project")),
    };
    // Before the limit: one of a project without files would be cleared.
    for directory in [&upper_dir, &work_dir] {
        set_project(directory, project)?;
    }
    set_limit(&upper_dir, project, limit.0.div_ceil(BLOCK))
}

/// Clears the limits of layers that were removed, in the file system of `directory`. Returns their number.
///
/// # Errors
/// As [`limit`].
pub(crate) fn clear_unused(directory: &Path) -> io::Result<usize> {
    let directory = File::open(directory)?;
    let (mut next, mut cleared) = (PROJECTS.start, 0);
    while let Some(found) = next_project(&directory, next)? {
        if found.inodes == 0 && found.hard_limit > 0 {
            set_limit(&directory, found.project, 0)?;
            cleared += 1;
        }
        next = found.project + 1;
    }
    Ok(cleared)
}

/// A project without files, from the inode of the directory on.
fn unused_project(directory: &File) -> io::Result<u32> {
    let numbers = PROJECTS.end - PROJECTS.start;
    let first = u32::try_from(directory.metadata()?.ino() % u64::from(numbers)).unwrap_or(0);
    for skipped in 0..MAX_TRIES {
        let project = PROJECTS.start + (first + skipped) % numbers;
        if usage(directory, libc::Q_GETQUOTA, project)?.is_none_or(|found| found.inodes == 0) {
            return Ok(project);
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "its projects are in use"))
}

fn attributes(file: &File) -> io::Result<FileAttributes> {
    let mut attributes = FileAttributes::default();
    // SAFETY: the structure is the one that the kernel writes, and outlives the call.
    unsafe { get_attributes(file.as_raw_fd(), &mut attributes) }?;
    Ok(attributes)
}

fn set_project(directory: &File, project: u32) -> io::Result<()> {
    let found = attributes(directory)?;
    let changed = FileAttributes { project, flags: found.flags | INHERIT_PROJECT, ..found };
    // SAFETY: the structure is the one that the kernel reads, and outlives the call.
    unsafe { set_attributes(directory.as_raw_fd(), &changed) }?;
    Ok(())
}

/// The first project from `least` on that the table has, within those of layers.
fn next_project(directory: &File, least: u32) -> io::Result<Option<ProjectUsage>> {
    let found = usage(directory, Q_GETNEXTQUOTA, least)?;
    Ok(found.filter(|found| PROJECTS.contains(&found.project)))
}

/// `None`: the table does not have it.
fn usage(directory: &File, command: libc::c_int, project: u32) -> io::Result<Option<ProjectUsage>> {
    let mut usage = ProjectUsage::default();
    match quotactl(directory, command, project, &mut usage) {
        Ok(()) => Ok(Some(usage)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// 0 is no limit.
fn set_limit(directory: &File, project: u32, blocks: u64) -> io::Result<()> {
    let mut limit = ProjectUsage { hard_limit: blocks, valid: libc::QIF_BLIMITS, ..ProjectUsage::default() };
    quotactl(directory, libc::Q_SETQUOTA, project, &mut limit)
}

fn quotactl(directory: &File, command: libc::c_int, project: u32, data: &mut ProjectUsage) -> io::Result<()> {
    let command = libc::QCMD(command, PROJECT_QUOTA);
    let data: *mut ProjectUsage = data;
    // SAFETY: the structure is the one that these commands read or write, and outlives the call.
    let result =
        unsafe { libc::syscall(libc::SYS_quotactl_fd, directory.as_raw_fd(), command, project, data) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use warren_testkit::scratch::ScratchDir;
    use warren_testkit::small_disk::SmallDisk;

    use super::*;

    /// As in the kernel's headers.
    #[test]
    fn structures_have_the_size_of_the_kernel() {
        assert_eq!((size_of::<FileAttributes>(), size_of::<ProjectUsage>()), (28, 72));
    }

    /// A kernel without project quotas refuses, and nothing is changed.
    #[test]
    fn limit_is_found_again_and_cleared_with_its_layer() {
        let scratch = ScratchDir::new();
        let (disk, has_quotas) = SmallDisk::with_quotas(scratch.path(), 16);
        let [upper, work] = ["fs", "work"].map(|name| disk.path().join(name));
        for directory in [&upper, &work] {
            fs::create_dir(directory).unwrap();
        }
        let limited = limit(&upper, &work, Bytes(1 << 20));
        assert_eq!(limited.is_ok(), has_quotas, "{limited:?}");
        let project = attributes(&File::open(&upper).unwrap()).unwrap().project;
        assert_eq!(PROJECTS.contains(&project), has_quotas);
        if !has_quotas {
            assert_eq!((project, clear_unused(disk.path()).is_err()), (0, true));
            return;
        }
        let root = File::open(disk.path()).unwrap();
        let limit_now = || usage(&root, libc::Q_GETQUOTA, project).unwrap().map(|found| found.hard_limit);
        assert_eq!(limit_now(), Some(1024));
        fs::write(upper.join("file"), "its own").unwrap();
        limit(&upper, &work, Bytes(2 << 20)).unwrap();
        assert_eq!((limit_now(), clear_unused(disk.path()).unwrap()), (Some(2048), 0), "it has files");
        let other = disk.path().join("other");
        fs::create_dir_all(other.join("file")).unwrap();
        assert!(limit(&other, &work, Bytes(1 << 20)).is_err(), "its files would not count");
        for directory in [&upper, &work] {
            fs::remove_dir_all(directory).unwrap();
        }
        assert_eq!(clear_unused(disk.path()).unwrap(), 1);
        assert_eq!((limit_now(), clear_unused(disk.path()).unwrap()), (Some(0), 0));
    }
}
