//! A disk that fills during a pull.

use std::path::Path;

use warren_image::{Error, ImportOptions};
use warren_testkit::image::{Compression, ImageLayer, TestImage};
use warren_testkit::registry::TestRegistry;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::tool;

use crate::world::{ImageFixture, random_bytes};

const MIB: u64 = 1 << 20;
/// Size of the image, packed and unpacked each.
const IMAGE: usize = 12 << 20;

/// Free bytes of a disk.
fn left(path: &Path) -> u64 {
    let output = tool::run("stat", ["--file-system", "--format", "%a %S", &path.to_string_lossy()]);
    output.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product()
}

/// Fills the disk until only `rest` bytes are free.
fn fill_disk(disk: &SmallDisk, rest: u64) {
    let much = left(disk.path()).checked_sub(rest).unwrap();
    std::fs::write(disk.path().join("ballast"), vec![7; usize::try_from(much).unwrap()]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_reported_and_left_unchanged() {
    let scratch = ScratchDir::new();
    let disk = SmallDisk::new(scratch.path(), 64);
    let (world, registry) = (ImageFixture::on(&disk.path().join("root")), TestRegistry::start());
    let image = TestImage::busybox("warren.local/large:1").compression(Compression::None);
    let image = image.layer(ImageLayer::new().file("/noise", random_bytes(50, IMAGE), 0o644));
    let archive = image.oci_archive();
    let name = registry.push("team/large", "1", &archive);
    // It does not fit packed; packed but not unpacked; nothing fits at all.
    for rest in [Some(6 * MIB), Some(18 * MIB), None] {
        match rest {
            Some(rest) => fill_disk(&disk, rest),
            None => disk.fill(),
        }
        for _ in 0..2 {
            let error = world.pull(&name).await.unwrap_err();
            assert!(matches!(&error, Error::DiskFull { .. }), "{rest:?}: {error}");
            assert!(error.is_transient() && !error.is_bad_input());
            assert!(error.to_string().contains("no space left on device"), "{error}");
        }
        if rest.is_some() {
            let error = world.import(&archive, None).await.unwrap_err();
            assert!(matches!(&error, Error::DiskFull { .. }), "{rest:?}: {error}");
        }
        match rest {
            Some(_) => std::fs::remove_file(disk.path().join("ballast")).unwrap(),
            None => {
                // Nor is there space for an archive in transit.
                let spool_dir = disk.path().to_owned();
                let before = std::fs::read_dir(&spool_dir).unwrap().count();
                let options = ImportOptions { spool_dir: spool_dir.clone(), max_bytes: 1 << 30, name: None };
                let error = world.images.import(&archive.bytes[..], options).await.unwrap_err();
                assert!(matches!(&error, Error::DiskFull { .. }), "{error}");
                assert_eq!(std::fs::read_dir(&spool_dir).unwrap().count(), before);
                disk.free();
            }
        }
        // What containerd could not record on a full disk is repeated.
        world.images.sweep_leases().await.unwrap();
        world.images.collect_garbage().await.unwrap();
        world.assert_nothing().await;
    }
    let before = left(disk.path());
    let pulled = world.pull(&name).await.unwrap();
    assert_eq!(world.run_output(&name, &["stat", "-c", "%s", "/noise"]).trim(), IMAGE.to_string());
    assert!(world.images.remove(&pulled.reference).await.unwrap());
    world.assert_nothing().await;
    world
        .eventually("the room to be given back", || async {
            let lost = before.saturating_sub(left(disk.path()));
            if lost < MIB { Ok(()) } else { Err(format!("{lost} bytes are gone")) }
        })
        .await;
}
