//! Tests specific to the local driver: crashes, full disks, and malicious content.

mod crashes;
mod hostile;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use nix::mount::{MntFlags, umount2};

use super::*;
use crate::conformance::DirContent;

fn volume() -> VolumeName {
    "data".parse().unwrap()
}

/// A small disk that is removed with the test.
struct TestDisk(tempfile::TempDir);

impl TestDisk {
    fn new(size: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = Self(dir);
        disk.mount(&format!("size={size}"));
        disk
    }

    fn mount(&self, options: &str) {
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(self.0.path()).status();
        assert!(status.unwrap().success(), "mount {options}");
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for TestDisk {
    fn drop(&mut self) {
        let _ = umount2(self.0.path(), MntFlags::MNT_DETACH);
    }
}

/// Entries next to the volumes.
fn leftovers(root: &Path) -> Vec<String> {
    let names = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

#[tokio::test]
async fn full_disk_leaves_nothing_half_made() {
    let (disk, image) = (TestDisk::new("1m"), tempfile::tempdir().unwrap());
    for number in 0..20 {
        fs::write(image.path().join(format!("file-{number}")), vec![1; 100 << 10]).unwrap();
    }
    let driver = LocalVolumeDriver::new(disk.path().join("volumes"));
    let first = DirContent::new(image.path());
    for _twice in 0..2 {
        let error = driver.ensure(&volume(), &DriverOptions::new(), Some(&first)).await.unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }) && error.is_transient(), "{error}");
        assert!(error.to_string().contains("/volumes/data/file-"), "{error}");
        assert_eq!(leftovers(&disk.path().join("volumes")), [] as [&str; 0]);
        assert_eq!(fs::read_dir(disk.path().join("volumes/data")).unwrap().count(), 0);
    }
    disk.mount("remount,size=8m");
    let path = driver.ensure(&volume(), &DriverOptions::new(), Some(&first)).await.unwrap();
    assert_eq!(fs::read_dir(path).unwrap().count(), 20);
    driver.remove(&volume()).await.unwrap();
}

#[tokio::test]
async fn disk_without_inodes_creates_no_volume() {
    let disk = TestDisk::new("1m,nr_inodes=3");
    fs::create_dir(disk.path().join("volumes")).unwrap();
    // Not a file: a program just started by another test may have a copy of it open, and then it keeps its inode.
    fs::create_dir(disk.path().join("taken")).unwrap();
    let driver = LocalVolumeDriver::new(disk.path().join("volumes"));
    let error = driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }), "{error}");
    assert_eq!(driver.list().await.unwrap(), []);
    assert_eq!(leftovers(&disk.path().join("volumes")), [] as [&str; 0]);
    fs::remove_dir(disk.path().join("taken")).unwrap();
    driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
}

#[tokio::test]
async fn mounted_disk_volume_is_not_deleted() {
    let (dir, disk) = (tempfile::tempdir().unwrap(), TestDisk::new("1m"));
    let driver = LocalVolumeDriver::new(dir.path());
    let path = driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
    fs::create_dir(path.join("disk")).unwrap();
    fs::write(path.join("a file"), "kept").unwrap();
    fs::write(disk.path().join("file"), "kept").unwrap();
    let bind = |to: &Path| {
        assert!(Command::new("mount").arg("--bind").arg(disk.path()).arg(to).status().unwrap().success())
    };
    for place in [path.join("disk"), path.clone()] {
        bind(&place);
        let error = driver.remove(&volume()).await.unwrap_err();
        assert!(matches!(&error, Error::Mounted { path, .. } if *path == place), "{error}");
        if place == path {
            assert_eq!(driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap(), path);
            assert!(path.join("file").exists());
        }
        // Lazily: a program just started by another test may have a copy of a file that is open there.
        umount2(&place, MntFlags::MNT_DETACH).unwrap();
        assert!(path.join("a file").exists(), "nothing was deleted before it was refused");
    }
    driver.remove(&volume()).await.unwrap();
    assert!(!path.exists() && disk.path().join("file").exists());
}

#[tokio::test]
async fn foreign_entry_is_kept_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (root, outside) = (dir.path().join("volumes"), dir.path().join("outside"));
    fs::create_dir_all(root.join(".notes")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(root.join("file"), "").unwrap();
    std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
    let driver = LocalVolumeDriver::new(&root);
    driver.sweep().await.unwrap();
    assert_eq!(driver.list().await.unwrap(), []);
    fs::write(outside.join("file"), "kept").unwrap();
    for name in ["file", "link"] {
        let error = driver.ensure(&name.parse().unwrap(), &DriverOptions::new(), None).await.unwrap_err();
        assert!(matches!(error, Error::NotADirectory { .. }) && error.to_string().contains(name), "{error}");
    }
    assert!(root.join(".notes").exists() && root.join("file").exists());
    driver.remove(&"link".parse().unwrap()).await.unwrap();
    assert!(!root.join("link").exists() && outside.join("file").exists());
}

#[tokio::test]
async fn volumes_are_root_only() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("a/volumes");
    let driver = LocalVolumeDriver::new(&root);
    assert_eq!(driver.usage(&volume()).await.unwrap(), None);
    driver.remove(&volume()).await.unwrap();
    assert!(!root.exists(), "looking makes nothing");
    driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
    assert_eq!(fs::metadata(&root).unwrap().permissions().mode() & 0o7777, 0o700);
}

#[tokio::test]
async fn usage_ignores_holes_links_and_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let driver = LocalVolumeDriver::new(dir.path());
    let path = driver.ensure(&volume(), &DriverOptions::new(), None).await.unwrap();
    File::create(path.join("hole")).unwrap().set_len(1 << 40).unwrap();
    fs::write(path.join("one"), vec![1; 1 << 20]).unwrap();
    fs::hard_link(path.join("one"), path.join("two")).unwrap();
    std::os::unix::fs::symlink("/", path.join("all")).unwrap();
    let Bytes(used) = driver.usage(&volume()).await.unwrap().unwrap();
    assert!((1 << 20..2 << 20).contains(&used), "{used}");
    let stopped = driver.root.usage(&volume(), &AtomicBool::new(true)).unwrap();
    assert_eq!(stopped, None);
}
