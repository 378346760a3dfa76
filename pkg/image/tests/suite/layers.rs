//! Layers that try to escape their directory, or are invalid.

use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;
use std::io::Write;
use tar::{EntryType, Header};
use warren_image::{Digest, Error};
use warren_testkit::scratch::ScratchDir;

use crate::scripted::{SampleImage, ScriptedServer};
use crate::world::ImageFixture;

const TAR: &str = "application/vnd.oci.image.layer.v1.tar";

/// An entry with fields that tar libraries refuse to write.
fn entry(kind: EntryType, name: &str, link: &str, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o755);
    header.set_size(content.len() as u64);
    let raw = header.as_gnu_mut().unwrap();
    raw.name[..name.len()].copy_from_slice(name.as_bytes());
    raw.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn layer(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 1024]].concat()
}

/// An image of one layer with correct digests.
fn image(media_type: &str, layer: &[u8], plain: &[u8]) -> SampleImage {
    let mut sample = SampleImage::new(60, &[10]);
    let digest = sample.add(layer);
    sample.manifest["layers"] = json!([{"mediaType": media_type, "digest": digest, "size": layer.len()}]);
    let diff_id = Digest::of(plain);
    sample.reconfigure(|config| config["rootfs"]["diff_ids"] = json!([diff_id.as_str()]));
    sample
}

async fn pull(world: &ImageFixture, sample: SampleImage) -> Result<warren_image::PulledImage, Error> {
    let server = ScriptedServer::start(move |request| sample.answer(request)).await;
    world.pull(&format!("{}/x:1", server.host())).await
}

/// Everything below a directory; does not follow links.
fn below(directory: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        paths.push(entry.path().display().to_string());
        if entry.file_type().unwrap().is_dir() {
            paths.extend(below(&entry.path()));
        }
    }
    paths.sort();
    paths
}

#[tokio::test(flavor = "multi_thread")]
async fn layer_cannot_escape_its_directory() {
    use EntryType as T;
    let world = ImageFixture::start();
    // Deep enough that some of the ways up end in it, from wherever containerd unpacks.
    let outside = ScratchDir::new();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "untouched").unwrap();
    let there = outside.path().to_str().unwrap();
    let up = "../../../../../../../../../../../..";
    let evil = |name: String| entry(T::Regular, &name, "", b"evil");
    let cases: [(&str, Vec<Vec<u8>>); 9] = [
        ("a name with dots", vec![evil(format!("{up}{there}/evil"))]),
        ("an absolute name", vec![evil(format!("{there}/evil"))]),
        ("dots inside", vec![entry(T::Directory, "a/", "", b""), evil(format!("a/{up}{there}/evil"))]),
        ("through an absolute link", vec![entry(T::Symlink, "out", there, b""), evil("out/evil".into())]),
        (
            "through a link with dots",
            vec![entry(T::Symlink, "out", &format!("{up}{there}"), b""), evil("out/evil".into())],
        ),
        (
            "over a link to a file",
            vec![entry(T::Symlink, "out", &format!("{there}/secret"), b""), evil("out".into())],
        ),
        (
            "by a hard link",
            vec![entry(T::Link, "hard", &format!("{up}{there}/secret"), b""), evil("hard".into())],
        ),
        (
            "by a hard link to a link",
            vec![
                entry(T::Symlink, "out", &format!("{there}/secret"), b""),
                entry(T::Link, "hard", "out", b""),
                evil("hard".into()),
            ],
        ),
        (
            "by whiteouts",
            vec![
                entry(T::Symlink, "out", there, b""),
                entry(T::Regular, "out/.wh.secret", "", b""),
                entry(T::Regular, "out/.wh..wh..opq", "", b""),
                entry(T::Regular, ".wh...", "", b""),
            ],
        ),
    ];
    for (what, entries) in cases {
        let bytes = layer(&entries);
        let outcome = pull(&world, image(TAR, &bytes, &bytes)).await;
        assert_eq!(below(outside.path()), [secret.display().to_string()], "{what}: {outcome:?}");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "untouched", "{what}: {outcome:?}");
        match outcome {
            // Names inside the own directory are unrestricted.
            Ok(pulled) => assert!(world.images.remove(&pulled.reference).await.unwrap()),
            Err(error) => assert!(matches!(error, Error::BadLayer { .. }), "{what}: {error:?}"),
        }
        world.assert_nothing().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_layer_is_rejected_by_digest() {
    let world = ImageFixture::start();
    let gzip = |bytes: &[u8]| {
        let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    };
    let good = layer(&[entry(EntryType::Regular, "file", "", &[7; 100_000])]);
    let packed = gzip(&good);
    let (cut, packed_cut) = (&good[..50_000], &packed[..packed.len() / 2]);
    let mut garbled = packed.clone();
    let middle = garbled.len() / 2;
    garbled[middle..].fill(0xff);
    let odd = layer(&[entry(EntryType::new(b'Y'), "odd", "", b"")]);
    let cases: [(&str, String, &[u8]); 6] = [
        ("no tar", TAR.into(), &[7; 5000]),
        ("a tar that is cut", TAR.into(), cut),
        ("gzip that is cut", format!("{TAR}+gzip"), packed_cut),
        ("gzip that is garbled", format!("{TAR}+gzip"), &garbled),
        ("zstd that is none", format!("{TAR}+zstd"), &[0x28, 0xb5, 0x2f, 0xfd, 7, 7, 7, 7]),
        ("an entry of no kind", TAR.into(), &odd),
    ];
    for (what, media_type, bytes) in cases {
        for _ in 0..2 {
            let error = pull(&world, image(&media_type, bytes, &good)).await.expect_err(what);
            let text = error.to_string();
            let is_typed = matches!(error, Error::BadLayer { .. } | Error::DigestMismatch { .. });
            assert!(is_typed && error.is_bad_input() && !error.is_transient(), "{what}: {error:?}");
            let digest = if matches!(error, Error::BadLayer { .. }) { bytes } else { &good };
            assert!(text.contains(Digest::of(digest).as_str()), "{what}: {text}");
            world.assert_nothing().await;
        }
    }
    pull(&world, image(TAR, &good, &good)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_layer_is_accepted() {
    let world = ImageFixture::start();
    let bytes = layer(&[entry(EntryType::Regular, "file", "", b"seven")]);
    let mut sample = image(TAR, &bytes, &bytes);
    let (once, id) = (sample.manifest["layers"][0].clone(), Digest::of(&bytes));
    sample.manifest["layers"] = json!([once, once, once]);
    sample
        .reconfigure(|config| config["rootfs"]["diff_ids"] = json!([id.as_str(), id.as_str(), id.as_str()]));
    let pulled = pull(&world, sample).await.unwrap();
    assert!(world.images.remove(&pulled.reference).await.unwrap());
    world.assert_nothing().await;
}
