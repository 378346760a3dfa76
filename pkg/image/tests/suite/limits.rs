//! Images that are small until they are unpacked.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use warren_image::{Digest, Error, ImportOptions};
use warren_testkit::scratch::ScratchDir;

use crate::scripted::{LONGER_THAN_TIMEOUT, SampleImage, ScriptedServer};
use crate::world::ImageFixture;

const LIMIT: u64 = 16 << 20;

/// A layer whose tar is written by `fill`, compressed, in an image of its own.
fn image_of(fill: impl FnOnce(&mut tar::Builder<&mut HashingEncoder>)) -> SampleImage {
    let mut out =
        HashingEncoder { packed: GzEncoder::new(Vec::new(), Compression::fast()), plain: Vec::new() };
    let mut tar = tar::Builder::new(&mut out);
    fill(&mut tar);
    tar.into_inner().unwrap();
    let HashingEncoder { packed, plain } = out;
    let (layer, diff_id) = (packed.finish().unwrap(), Digest::of(&plain));
    let mut sample = SampleImage::new(3, &[10]);
    sample.manifest["layers"] = json!([{
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        "digest": sample.add(&layer), "size": layer.len()}]);
    sample.reconfigure(|config| config["rootfs"]["diff_ids"] = json!([diff_id.as_str()]));
    sample
}

/// Compresses what is written and retains it for hashing.
struct HashingEncoder {
    packed: GzEncoder<Vec<u8>>,
    plain: Vec<u8>,
}

impl Write for HashingEncoder {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.plain.extend_from_slice(bytes);
        self.packed.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn header(size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(size);
    header
}

/// One file of zeros in a layer of a thousandth of its size: gzip takes one stream after the other for one.
fn bomb(bytes: usize) -> SampleImage {
    const BLOCK: usize = 1 << 20;
    let member = |bytes: &[u8]| {
        let mut writer = GzEncoder::new(Vec::new(), Compression::best());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    };
    let mut head = header(bytes as u64);
    head.set_path("zeros").unwrap();
    head.set_cksum();
    let (zeros, end) = (member(&vec![0; BLOCK]), member(&[0; 1024]));
    let mut layer = member(head.as_bytes());
    for _ in 0..bytes / BLOCK {
        layer.extend_from_slice(&zeros);
    }
    layer.extend_from_slice(&end);
    let mut sample = SampleImage::new(3, &[10]);
    sample.manifest["layers"] = json!([{
        "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
        "digest": sample.add(&layer), "size": layer.len()}]);
    sample
}

/// Disk usage of the files below a directory.
fn disk_use(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    // Files removed during the walk count as zero.
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_use(&entry.path()),
        Ok(data) => data.blocks() * 512,
        Err(_) => 0,
    };
    entries.map(size).sum()
}

fn archive_of(sample: &SampleImage) -> Vec<u8> {
    let manifest = sample.manifest.to_string().into_bytes();
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
    let index = json!({"schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": Digest::of(&manifest).as_str(), "size": manifest.len(),
        "annotations": {"io.containerd.image.name": "warren.local/bomb:1"}}]});
    files.push(("index.json".to_owned(), index.to_string().into_bytes()));
    let mut blobs: Vec<Vec<u8>> = sample.manifest["layers"]
        .as_array()
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(position, _)| sample.layer(position).1)
        .collect();
    blobs.push(sample.blobs[sample.manifest["config"]["digest"].as_str().unwrap()].clone());
    blobs.push(manifest);
    files.extend(blobs.into_iter().map(|blob| (format!("blobs/sha256/{}", Digest::of(&blob).hex()), blob)));
    warren_image::build::pack(&files).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn decompression_bomb_is_stopped() {
    const WHOLE: usize = 8 << 30;
    let world = ImageFixture::start();
    let images = world.images.clone().with_limit(LIMIT);
    let sample = bomb(WHOLE);
    assert!((sample.layer(0).1.len() as u64) < LIMIT);
    let archive = archive_of(&sample);
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    let reference = format!("{}/bomb:1", server.host()).parse().unwrap();
    let pull = images.pull(&reference, None);
    let outcome = pull.outcome();
    tokio::pin!(outcome);
    let mut most = 0;
    let error = loop {
        tokio::select! {
            outcome = &mut outcome => break outcome.unwrap_err(),
            // Between two checks; the pull has a deadline.
            () = tokio::time::sleep(Duration::from_millis(5)) => most = most.max(disk_use(world.directory())),
        }
    };
    assert!(matches!(error, Error::ImageTooLarge { limit: LIMIT, .. }) && error.is_bad_input(), "{error}");
    assert!(most < WHOLE as u64 / 4, "{most} bytes were written");
    world.assert_nothing().await;

    let spool = ScratchDir::new();
    let options = ImportOptions { spool_dir: spool.path().to_owned(), max_bytes: 1 << 30, name: None };
    let begun = Instant::now();
    let error = images.import(&archive[..], options).await.unwrap_err();
    assert!(matches!(error, Error::ImageTooLarge { limit: LIMIT, .. }), "{error}");
    assert!(begun.elapsed() < LONGER_THAN_TIMEOUT, "{:?}", begun.elapsed());
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_files_count_against_limit() {
    let world = ImageFixture::start();
    let images = world.images.clone().with_limit(LIMIT);
    let sample = image_of(|tar| {
        for number in 0..20_000 {
            tar.append_data(&mut header(0), format!("empty{number}"), std::io::empty()).unwrap();
        }
    });
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    let reference = format!("{}/files:1", server.host()).parse().unwrap();
    let error = images.pull(&reference, None).outcome().await.unwrap_err();
    assert!(matches!(error, Error::ImageTooLarge { .. }), "{error}");
    world.assert_nothing().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn size_limit_covers_all_layers_packed_and_unpacked() {
    let world = ImageFixture::start();
    let sample = SampleImage::new(4, &[6 << 20, 6 << 20]);
    let size = sample.layer(0).1.len() as u64;
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    let reference = format!("{}/two:1", server.host()).parse().unwrap();
    // Neither layer alone exceeds the limit.
    let error = world.images.clone().with_limit(2 * size).pull(&reference, None).outcome().await.unwrap_err();
    assert!(error.to_string().starts_with(&reference.to_string()), "packed: {error}");
    assert_eq!(server.requests("blobs").len(), 1, "no layer is fetched of an image that is too large");

    let zeros = image_of(|tar| {
        tar.append_data(&mut header(10 << 20), "zeros", &vec![0; 10 << 20][..]).unwrap();
    });
    let mut both = zeros.clone();
    let other = image_of(|tar| {
        tar.append_data(&mut header(10 << 20), "ones", &vec![1; 10 << 20][..]).unwrap();
    });
    let (digest, bytes) = other.layer(0);
    both.blobs.insert(digest, bytes);
    let layer = other.manifest["layers"][0].clone();
    both.manifest["layers"].as_array_mut().unwrap().push(layer);
    let config = &other.blobs[other.manifest["config"]["digest"].as_str().unwrap()];
    let config: serde_json::Value = serde_json::from_slice(config).unwrap();
    let id = config["rootfs"]["diff_ids"][0].clone();
    both.reconfigure(|config| config["rootfs"]["diff_ids"].as_array_mut().unwrap().push(id));
    for (sample, fits) in [(zeros, true), (both, false)] {
        let server = ScriptedServer::start(move |request| sample.answer(request)).await;
        let reference = format!("{}/sum:1", server.host()).parse().unwrap();
        let images = world.images.clone().with_limit(LIMIT);
        let outcome = images.pull(&reference, None).outcome().await;
        assert_eq!(outcome.is_ok(), fits, "{outcome:?}");
        images.remove(&reference).await.unwrap();
        world.assert_nothing().await;
    }
}
