//! Project quotas of ext4 and XFS (quotactl(2)) for writable layers: the kernel refuses to write beyond the limit.
//!
//! Nothing is recorded elsewhere. The project of a layer is an attribute of its directories, which everything that is
//! created below inherits; its number is derived from the inode of the directory. The limit is in the file system's own
//! table. The limit of a layer that was removed is that of a project without files, whoever removed the layer:
//! [`clear_unused`] finds it.
//!
//! A process of root in the container may give its files another project. So a quota stops programs with a fault at
//! once, and does not replace measuring the layer; and a project is that of a layer only with the number that its inode
//! gives.
//!
//! `unsafe` because neither the standard library nor nix wraps quotactl(2) for projects. It gets a structure of the
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
use warren_tree::{project, set_project};
use warren_types::Bytes;

/// Projects of layers. Docker and the kubelet number theirs from 1 and from 1048577 on.
const PROJECTS: Range<u32> = 1 << 30..1 << 31;
/// How many projects in use are skipped before giving up: two directories have one number only if their inodes are a
/// multiple of the range apart.
const MAX_TRIES: u32 = 64;
/// `PRJQUOTA` and `Q_GETNEXTQUOTA` of linux/quota.h.
const PROJECT_QUOTA: libc::c_int = 2;
const Q_GETNEXTQUOTA: libc::c_int = 0x80_0009;
/// Unit of limits, `QIF_DQBLKSIZE` of linux/quota.h.
const BLOCK: u64 = 1024;

/// Only one layer at a time chooses a number, and none while numbers are cleared.
static CHOICE: Mutex<()> = Mutex::new(());

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

/// Limits what the two directories of a layer hold together, before anything is written to it. Idempotent.
///
/// # Errors
/// The file system or the kernel (before 5.14) has no project quotas, or the layer has files without a project.
pub(crate) fn limit(upper: &Path, work: &Path, limit: Bytes) -> io::Result<()> {
    let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
    let (upper_dir, work_dir) = (File::open(upper)?, File::open(work)?);
    let project = match project(&upper_dir)? {
        own if candidates(&upper_dir)?.any(|candidate| candidate == own) => own,
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
    let _choice = CHOICE.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The projects that a directory may have: the one that its inode gives, and those after it.
fn candidates(directory: &File) -> io::Result<impl Iterator<Item = u32> + use<>> {
    let numbers = PROJECTS.end - PROJECTS.start;
    let first = u32::try_from(directory.metadata()?.ino() % u64::from(numbers)).unwrap_or(0);
    Ok((0..MAX_TRIES).map(move |skipped| PROJECTS.start + (first + skipped) % numbers))
}

/// The first of its projects without files.
fn unused_project(directory: &File) -> io::Result<u32> {
    for project in candidates(directory)? {
        if usage(directory, libc::Q_GETQUOTA, project)?.is_none_or(|found| found.inodes == 0) {
            return Ok(project);
        }
    }
    Err(io::Error::new(ErrorKind::AlreadyExists, "its projects are in use"))
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
    use std::os::fd::AsFd;

    use warren_testkit::scratch::ScratchDir;
    use warren_testkit::small_disk::SmallDisk;

    use super::*;

    /// As in the kernel's headers.
    #[test]
    fn structure_has_the_size_of_the_kernel() {
        assert_eq!(size_of::<ProjectUsage>(), 72);
    }

    #[test]
    fn directory_has_few_projects_that_begin_with_its_inode() {
        let scratch = ScratchDir::new();
        let directory = File::open(scratch.path()).unwrap();
        let found: Vec<u32> = candidates(&directory).unwrap().collect();
        assert_eq!(u64::from(found[0]), (1 << 30) + directory.metadata().unwrap().ino() % (1 << 30));
        assert!(found.len() == 64 && found.iter().all(|project| PROJECTS.contains(project)), "{found:?}");
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
        let project = project(File::open(&upper).unwrap()).unwrap_or(0);
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
        // Root of a container may give its files another project, but no layer gets the quota of another one.
        let foreign = disk.path().join("foreign");
        fs::create_dir_all(foreign.join("a/b/c")).unwrap();
        let foreign_dir = File::open(&foreign).unwrap();
        set_project(&foreign_dir, PROJECTS.end - 1).unwrap();
        assert!(limit(&foreign, &work, Bytes(1 << 20)).is_err(), "it is that of another layer");
        set_project(File::open(foreign.join("a/b/c")).unwrap(), 7).unwrap();
        set_project(File::open(foreign.join("a")).unwrap(), 8).unwrap();
        warren_tree::remove(root.as_fd(), "foreign".as_ref()).unwrap();
        assert!(!foreign.exists());
        for directory in [&upper, &work] {
            fs::remove_dir_all(directory).unwrap();
        }
        assert_eq!(clear_unused(disk.path()).unwrap(), 1);
        assert_eq!((limit_now(), clear_unused(disk.path()).unwrap()), (Some(0), 0));
    }
}
