//! A small disk, which a test fills and frees.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

use crate::tool;

/// An ext4 file system in a file of the test's directory. Dropping it unmounts it; the owner of the directory
/// removes the file.
#[derive(Debug)]
pub struct SmallDisk {
    mounted: PathBuf,
}

impl SmallDisk {
    /// Creates a file system of `mebibytes` in `directory` and mounts it there. Ext4 uses some of the space
    /// itself.
    #[must_use]
    #[track_caller]
    pub fn new(directory: &Path, mebibytes: u64) -> SmallDisk {
        let (image, mounted) = file_system(directory, mebibytes, &[]);
        tool::run("mount", ["-o", "loop", &image.to_string_lossy(), &mounted.to_string_lossy()]);
        SmallDisk { mounted }
    }

    /// As [`SmallDisk::new`], with project quotas. `false`: the kernel was built without them, so the disk has none.
    #[must_use]
    #[track_caller]
    pub fn with_quotas(directory: &Path, mebibytes: u64) -> (SmallDisk, bool) {
        let features = ["-O", "quota,project", "-E", "quotatype=prjquota"];
        let (image, mounted) = file_system(directory, mebibytes, &features);
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop,prjquota"]).arg(&image).arg(&mounted);
        match tool::stdout(mount, tool::DEADLINE) {
            Ok(_) => (SmallDisk { mounted }, true),
            Err(_) if kernel_lacks_quotas() => (SmallDisk::new(directory, mebibytes), false),
            Err(error) => {
                panic!("the kernel has project quotas, and a disk with them is not mounted: {error}")
            }
        }
    }

    /// The mount point for a disk in `directory`.
    #[must_use]
    pub fn mount_point(directory: &Path) -> PathBuf {
        directory.join("small")
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.mounted
    }

    /// Fills all free space.
    #[track_caller]
    pub fn fill(&self) {
        let path = self.filler();
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let mut file = file.unwrap_or_else(|error| panic!("cannot open {}: {error}", path.display()));
        for size in [1 << 20, 1 << 12, 1] {
            let some = vec![7; size];
            loop {
                match file.write_all(&some).and_then(|()| if size == 1 { Ok(()) } else { file.sync_data() }) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => panic!("cannot fill {}: {error}", path.display()),
                }
            }
        }
    }

    /// Fills the disk until at most `left` bytes are free, plus or minus a block or two.
    #[track_caller]
    pub fn fill_until(&self, left: u64) {
        let path = self.filler();
        let filled = self.available().and_then(|room| {
            let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
            let piece = vec![7; 1 << 16];
            for _ in 0..room.saturating_sub(left).div_ceil(1 << 16) {
                file.write_all(&piece)?;
            }
            file.sync_all()
        });
        filled.unwrap_or_else(|error| panic!("cannot fill {}: {error}", path.display()));
    }

    /// The number of free bytes.
    pub fn available(&self) -> std::io::Result<u64> {
        let found = statvfs(&self.mounted)?;
        Ok(found.blocks_available() * found.fragment_size())
    }

    /// Frees the filled space. Harmless when there is none.
    ///
    /// The file is truncated first: a child that another test has just forked may still have it open.
    #[track_caller]
    pub fn free(&self) {
        let truncated = OpenOptions::new().write(true).truncate(true).open(self.filler());
        match truncated.and_then(|_| std::fs::remove_file(self.filler())) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => panic!("cannot remove {}: {error}", self.filler().display()),
        }
    }

    fn filler(&self) -> PathBuf {
        self.mounted.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = umount2(&self.mounted, MntFlags::MNT_DETACH) {
            eprintln!("cannot unmount {}: {error}", self.mounted.display());
        }
    }
}

/// Makes an ext4 file system in a file in `directory`, in place of an earlier one; the file and the mount point.
#[track_caller]
fn file_system(directory: &Path, mebibytes: u64, features: &[&str]) -> (PathBuf, PathBuf) {
    let (image, mounted) = (directory.join("small-disk"), SmallDisk::mount_point(directory));
    let made = File::create(&image).and_then(|file| file.set_len(mebibytes << 20));
    made.and_then(|()| std::fs::create_dir_all(&mounted))
        .unwrap_or_else(|error| panic!("cannot make {}: {error}", image.display()));
    let file = image.to_string_lossy();
    tool::run("mkfs.ext4", ["-q", "-m", "0"].iter().chain(features).copied().chain([&*file]));
    (image, mounted)
}

/// Whether the kernel says that it was built without quotas for ext4.
fn kernel_lacks_quotas() -> bool {
    let mut running = Command::new("zcat");
    running.arg("/proc/config.gz");
    let packaged = || {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
        std::fs::read_to_string(format!("/boot/config-{}", release.trim())).ok()
    };
    match tool::stdout(running, tool::DEADLINE).ok().or_else(packaged) {
        Some(config) => !enables_quotas(&config),
        // Every kernel with quotas has it.
        None => !Path::new("/proc/sys/fs/quota").exists(),
    }
}

/// Whether a kernel with this configuration has quotas for ext4.
fn enables_quotas(config: &str) -> bool {
    let is_set =
        |option: &str| config.lines().any(|line| matches!(line.strip_prefix(option), Some("=y" | "=m")));
    is_set("CONFIG_QUOTA") && is_set("CONFIG_QFMT_V2")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::ScratchDir;

    #[test]
    fn kernel_has_quotas_with_both_options() {
        assert!(enables_quotas("CONFIG_QUOTA=y\n# CONFIG_QFMT_V1 is not set\nCONFIG_QFMT_V2=m\n"));
        for without in
            ["", "CONFIG_QUOTA=y\n# CONFIG_QFMT_V2 is not set\n", "CONFIG_QUOTACTL=y\nCONFIG_QFMT_V2=y\n"]
        {
            assert!(!enables_quotas(without), "{without}");
        }
    }

    #[test]
    fn a_full_disk_takes_nothing_until_it_is_freed() {
        let scratch = ScratchDir::new();
        let disk = SmallDisk::new(scratch.path(), 4);
        let file = disk.path().join("file");
        for _ in 0..2 {
            disk.fill();
            let refused = std::fs::write(&file, "something").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::StorageFull);
            disk.free();
            disk.free();
            disk.fill_until(1 << 20);
            assert!((1 << 19..=1 << 20).contains(&disk.available().unwrap()), "{:?}", disk.available());
            disk.free();
            std::fs::write(&file, "something").unwrap();
            std::fs::remove_file(&file).unwrap();
        }
    }
}
