//! A disk that fills while an image comes.

use std::path::Path;

use warren_image::{Error, ImportOptions};
use warren_testkit::image::{Compression, Image, Layer};
use warren_testkit::registry::Registry;
use warren_testkit::scratch::Scratch;
use warren_testkit::small_disk::SmallDisk;
use warren_testkit::tool;

use crate::world::{World, noise};

const MIB: u64 = 1 << 20;
/// The image has this many, packed and unpacked each.
const IMAGE: usize = 12 << 20;

/// Bytes that a disk has left.
fn left(path: &Path) -> u64 {
    let said = tool::run("stat", ["--file-system", "--format", "%a %S", &path.to_string_lossy()]);
    said.split_whitespace().map(|number| number.parse::<u64>().unwrap()).product()
}

/// Takes room until only `rest` bytes are left.
fn squeeze(disk: &SmallDisk, rest: u64) {
    let much = left(disk.path()).checked_sub(rest).unwrap();
    std::fs::write(disk.path().join("ballast"), vec![7; usize::try_from(much).unwrap()]).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_named_and_left_as_it_was() {
    let scratch = Scratch::new();
    let disk = SmallDisk::new(scratch.path(), 64);
    let (world, registry) = (World::on(&disk.path().join("root")), Registry::start());
    let image = Image::busybox("warren.local/large:1").compression(Compression::None);
    let image = image.layer(Layer::new().file("/noise", noise(50, IMAGE), 0o644));
    let archive = image.oci_archive();
    let name = registry.push("team/large", "1", &archive);
    // It does not fit packed; packed but not unpacked; nothing at all fits.
    for rest in [Some(6 * MIB), Some(18 * MIB), None] {
        match rest {
            Some(rest) => squeeze(&disk, rest),
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
                // Nor is there room for an archive on its way.
                let spool_dir = disk.path().to_owned();
                let before = std::fs::read_dir(&spool_dir).unwrap().count();
                let options = ImportOptions { spool_dir: spool_dir.clone(), max_bytes: 1 << 30, name: None };
                let error = world.images.import(&archive.bytes[..], options).await.unwrap_err();
                assert!(matches!(&error, Error::DiskFull { .. }), "{error}");
                assert_eq!(std::fs::read_dir(&spool_dir).unwrap().count(), before);
                disk.free();
            }
        }
        // What containerd could not note on a full disk it is told again.
        world.images.sweep_leases().await.unwrap();
        world.images.collect_garbage().await.unwrap();
        world.assert_nothing().await;
    }
    let before = left(disk.path());
    let pulled = world.pull(&name).await.unwrap();
    assert_eq!(world.says(&name, &["stat", "-c", "%s", "/noise"]).trim(), IMAGE.to_string());
    assert!(world.images.remove(&pulled.reference).await.unwrap());
    world.assert_nothing().await;
    world
        .eventually("the room to be given back", || async {
            let lost = before.saturating_sub(left(disk.path()));
            if lost < MIB { Ok(()) } else { Err(format!("{lost} bytes are gone")) }
        })
        .await;
}
