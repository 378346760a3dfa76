//! A private file system: ext4 in a file, so that its content can be inspected from outside.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use warren_testkit::{scratch::ScratchDir, tool};

/// A mounted file system. Dropping it unmounts it and removes everything.
pub struct LoopDevice {
    scratch: ScratchDir,
}

impl LoopDevice {
    /// Creates and mounts an empty file system of the given size in MiB.
    pub fn new(mebibytes: u64) -> Self {
        let device = Self { scratch: ScratchDir::new() };
        File::create(device.backing()).unwrap().set_len(mebibytes << 20).unwrap();
        tool::run("mkfs.ext4", ["-q", "-F", "-m", "0", "-J", "size=4", &text(&device.backing())]);
        device.mount();
        device
    }

    /// Mounts a copy of another device's current backing file. Data in the memory of its file system, above
    /// the loop device, is not in the backing file, as after a power cut.
    pub fn snapshot_of(other: &LoopDevice) -> Self {
        let device = Self { scratch: ScratchDir::new() };
        // A journal commit during the copy would make the copy inconsistent.
        while {
            fs::copy(other.backing(), device.backing()).unwrap();
            fs::read(other.backing()).unwrap() != fs::read(device.backing()).unwrap()
        } {}
        device.mount();
        device
    }

    fn mount(&self) {
        fs::create_dir(self.path()).unwrap();
        // The journal is committed by syncs only.
        let options = "loop,commit=900";
        tool::run("mount", ["-t", "ext4", "-o", options, &text(&self.backing()), &text(&self.path())]);
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("mount")
    }

    fn backing(&self) -> PathBuf {
        self.scratch.path().join("disk")
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn device_keeps_only_synced_data() {
    let device = LoopDevice::new(16);
    let write = |name: &str| {
        let mut file = File::create(device.path().join(name)).unwrap();
        std::io::Write::write_all(&mut file, b"content").unwrap();
        file
    };
    write("synced").sync_all().unwrap();
    write("lost");
    let cut = LoopDevice::snapshot_of(&device);
    assert_eq!(fs::read(cut.path().join("synced")).unwrap(), b"content");
    assert!(!cut.path().join("lost").exists());
    let (one, other) = (device.scratch.path().to_owned(), cut.scratch.path().to_owned());
    drop((device, cut));
    assert!(!one.exists() && !other.exists());
}
