//! A file system of a test's own: ext4 in a file, so that the file can be looked at from outside.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use warren_testkit::{scratch::Scratch, tool};

/// A mounted file system. Dropping it unmounts it and removes everything.
pub struct Device {
    scratch: Scratch,
}

impl Device {
    /// Makes and mounts an empty file system of so many MiB.
    pub fn new(mebibytes: u64) -> Self {
        let device = Self { scratch: Scratch::new() };
        File::create(device.backing()).unwrap().set_len(mebibytes << 20).unwrap();
        tool::run("mkfs.ext4", ["-q", "-F", "-m", "0", "-J", "size=4", &text(&device.backing())]);
        device.mount();
        device
    }

    /// Mounts what another device has on its platter at this moment. What its file system still has
    /// in memory only, above the loop device, is not in the backing file: as after a power cut.
    pub fn cut(other: &Device) -> Self {
        let device = Self { scratch: Scratch::new() };
        // A commit of the journal in the midst of the copy would make a picture of no moment.
        while {
            fs::copy(other.backing(), device.backing()).unwrap();
            fs::read(other.backing()).unwrap() != fs::read(device.backing()).unwrap()
        } {}
        device.mount();
        device
    }

    fn mount(&self) {
        fs::create_dir(self.path()).unwrap();
        // The journal is committed when somebody syncs, not meanwhile.
        let options = "loop,commit=900";
        tool::run("mount", ["-t", "ext4", "-o", options, &text(&self.backing()), &text(&self.path())]);
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("mount")
    }

    fn backing(&self) -> PathBuf {
        self.scratch.path().join("platter")
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_device_shows_what_was_synced_and_nothing_else() {
    let device = Device::new(16);
    let write = |name: &str| {
        let mut file = File::create(device.path().join(name)).unwrap();
        std::io::Write::write_all(&mut file, b"content").unwrap();
        file
    };
    write("synced").sync_all().unwrap();
    write("lost");
    let cut = Device::cut(&device);
    assert_eq!(fs::read(cut.path().join("synced")).unwrap(), b"content");
    assert!(!cut.path().join("lost").exists());
    let (one, other) = (device.scratch.path().to_owned(), cut.scratch.path().to_owned());
    drop((device, cut));
    assert!(!one.exists() && !other.exists());
}
