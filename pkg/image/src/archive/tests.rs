//! Valid and hostile archives, without containerd.

use super::*;
use crate::build::{ImageBuilder, gzip, pack};
use crate::document::DockerSaveEntry;

const NAME: &str = "docker.io/library/tiny:1";

fn tiny_image() -> ImageBuilder {
    ImageBuilder::new(NAME).file("hello", 0o755, "x".repeat(3000)).config("Entrypoint", vec!["/hello"])
}

fn open(bytes: &[u8]) -> Result<IndexedArchive, Error> {
    let dir = tempfile::tempdir().unwrap();
    let mut file = unnamed_file(dir.path()).unwrap();
    file.write_all(bytes).unwrap();
    IndexedArchive::open(file, dir.path(), 1 << 20)
}

fn candidates(bytes: &[u8]) -> Result<Vec<ImageCandidate>, Error> {
    open(bytes)?.candidates(None)
}

/// Unpacks an archive, lets `change` alter name or bytes of each file, and packs it again.
fn tamper(archive: &[u8], mut change: impl FnMut(&mut String, &mut Vec<u8>)) -> Vec<u8> {
    let mut files = Vec::new();
    for entry in tar::Archive::new(archive).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        change(&mut name, &mut bytes);
        if !name.is_empty() {
            files.push((name, bytes));
        }
    }
    pack(&files).unwrap()
}

fn replace(bytes: &mut Vec<u8>, from: &str, to: &str) {
    let text = String::from_utf8(std::mem::take(bytes)).unwrap();
    assert!(text.contains(from), "{from} is not in {text}");
    *bytes = text.replace(from, to).into_bytes();
}

#[track_caller]
fn assert_rejected(bytes: &[u8], reason: &str) {
    let error = candidates(bytes).expect_err("must be refused");
    assert!(error.is_bad_input() && !error.is_transient(), "{error:?}");
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn all_archive_formats_give_same_image() {
    let (oci, docker) = (tiny_image().oci_archive().unwrap(), tiny_image().docker_archive().unwrap());
    for bytes in [&oci, &docker, &gzip(&oci).unwrap(), &gzip(&docker).unwrap()] {
        let found = candidates(bytes).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].names, [Reference::parse(NAME).unwrap()]);
        assert_eq!(found[0].parts.layers.len(), 1);
        assert_eq!(found[0].parts.diff_ids, candidates(&oci).unwrap()[0].parts.diff_ids);
    }
    let (first, second) = (candidates(&docker).unwrap(), candidates(&docker).unwrap());
    assert_eq!(
        first[0].parts.manifest, second[0].parts.manifest,
        "the manifest written for docker-save is always the same"
    );
}

#[test]
fn given_name_overrides_archive_name() {
    let archive = open(&tiny_image().oci_archive().unwrap()).unwrap();
    let name = Reference::parse("other:2").unwrap();
    assert_eq!(archive.candidates(Some(&name)).unwrap()[0].names, [name]);
}

#[test]
fn unnamed_archive_needs_name() {
    let bytes = tamper(&tiny_image().oci_archive().unwrap(), |name, bytes| {
        if name == "index.json" {
            replace(bytes, "io.containerd.image.name", "org.opencontainers.image.ref.name");
            replace(bytes, NAME, "v7");
        }
    });
    assert_rejected(&bytes, "tag: v7");
    let name = Reference::parse("tiny:7").unwrap();
    assert!(open(&bytes).unwrap().candidates(Some(&name)).is_ok());
}

#[test]
fn one_name_for_two_images_is_rejected() {
    let bytes = tamper(&tiny_image().docker_archive().unwrap(), |name, bytes| {
        if name == "manifest.json" {
            let mut saved: Vec<DockerSaveEntry> = serde_json::from_slice(bytes).unwrap();
            let mut second: Vec<DockerSaveEntry> = serde_json::from_slice(bytes).unwrap();
            second[0].repo_tags = vec!["second:1".to_owned()];
            saved.append(&mut second);
            *bytes = serde_json::to_vec(&saved).unwrap();
        }
    });
    let archive = open(&bytes).unwrap();
    assert_eq!(archive.candidates(None).unwrap().len(), 2);
    let name = Reference::parse("x").unwrap();
    assert!(matches!(archive.candidates(Some(&name)), Err(Error::AmbiguousName { found: 2 })));
}

#[test]
fn non_archive_is_reported() {
    assert_rejected(b"", "0 files");
    assert_rejected(b"hello, this is not a tar file", "not an image archive");
    assert_rejected(&vec![7; 4096], "not an image archive");
    let garbage = b"\x1b[2J\x07\xff\x9b".repeat(1000);
    assert_rejected(&garbage, "a file that is no tar and starts with the bytes 1b 5b 32 4a; expected");
    assert_rejected(&pack(&[("readme".into(), b"x".to_vec())]).unwrap(), "1 files without index.json");
    assert_rejected(&gzip(b"x").unwrap(), "not an image archive");
    assert_rejected(&[0x1f, 0x8b, 9, 9, 9], "damaged gzip");
    assert_rejected(&[0x28, 0xb5, 0x2f, 0xfd, 0, 0], "zstd");
    let half = tiny_image().oci_archive().unwrap();
    assert!(candidates(&half[..half.len() / 2]).unwrap_err().is_bad_input());
}

#[test]
fn unpacked_size_is_bounded() {
    let bomb = gzip(&vec![0; 4 << 20]).unwrap();
    assert!(bomb.len() < 1 << 20);
    assert_rejected(&bomb, "larger than the limit of 1048576 bytes");
}

/// A tar header written by hand: the tar crate does not write hostile ones.
fn raw_entry(name: &[u8], kind: tar::EntryType, link: &[u8], size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(size);
    let old = header.as_old_mut();
    old.name[..name.len()].copy_from_slice(name);
    old.linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

#[test]
fn hostile_entries_are_rejected() {
    use tar::EntryType as T;
    for (name, kind, link, size, reason) in [
        (&b"/etc/passwd"[..], T::Regular, &b""[..], 0, "absolute"),
        (b"a/../../b", T::Regular, b"", 0, "points outside the archive"),
        (b"link", T::Symlink, b"/etc/shadow", 0, "outside the archive"),
        (b"a/link", T::Symlink, b"../../x", 0, "outside the archive"),
        (b"hard", T::Link, b"/etc/shadow", 0, "outside the archive"),
        (b"dev", T::Block, b"", 0, "are not supported"),
        (b"fifo", T::Fifo, b"", 0, "are not supported"),
        (b"huge", T::Regular, b"", 8 << 30, "exceeds the archive"),
        (b"\xff\xfe", T::Regular, b"", 0, "UTF-8"),
        (b"long", T::GNULongName, b"", 1 << 20, "not an image archive"),
    ] {
        assert_rejected(&raw_entry(name, kind, link, size), reason);
    }
    let mut long = raw_entry(b"x", T::GNULongName, b"", 8192);
    long.resize(512 + 8192, b'a');
    assert_rejected(&long, "longer than 4096");
    let twice = [("index.json".to_owned(), b"{}".to_vec()), ("./index.json".to_owned(), b"{}".to_vec())];
    assert_rejected(&pack(&twice).unwrap(), "twice");
}

#[test]
fn inner_link_is_followed_and_loop_is_rejected() {
    let mut bytes = raw_entry(b"a/index.json", tar::EntryType::Symlink, b"../real", 0)[..512].to_vec();
    bytes.extend(&raw_entry(b"loop", tar::EntryType::Symlink, b"loop", 0)[..512]);
    bytes.extend(pack(&[("real".to_owned(), b"x".to_vec())]).unwrap());
    let archive = open(&bytes).unwrap();
    assert_eq!(archive.document("a/index.json", "").unwrap(), b"x");
    assert!(archive.span("loop").is_none());
}

#[test]
fn damaged_oci_layouts_are_refused() {
    let good = tiny_image().oci_archive().unwrap();
    let config = candidates(&good).unwrap()[0].parts.config.0.digest.hex().to_owned();
    let is_config = |name: &str| name.ends_with(&config);
    let mut missing = 0;
    let incomplete = tamper(&good, |name, _| {
        if is_config(name) {
            name.clear();
            missing += 1;
        }
    });
    assert_eq!(missing, 1);
    assert_rejected(&incomplete, "has no");
    let config_with = |change: fn(&mut Vec<u8>)| {
        tamper(&good, |name, bytes| {
            if is_config(name) {
                change(bytes);
            }
        })
    };
    assert_rejected(&config_with(|bytes| bytes[5] ^= 1), "digest or size mismatch");
    assert_rejected(&config_with(|bytes| bytes.push(0)), "bytes");
    let index = |from: &'static str, to: &'static str| {
        tamper(&good, move |name, bytes| {
            if name == "index.json" {
                replace(bytes, from, to);
            }
        })
    };
    assert_rejected(&index("sha256:", "sha256:../../"), "64 hexadecimal digits");
    assert_rejected(&index(NAME, "Not A Name"), "not an image reference");
    assert_rejected(&index("image.manifest.v1", "artifact.v1"), "not supported");
    assert_rejected(&index("{", "["), "index.json is invalid");
}

#[test]
fn other_platform_is_rejected_by_name() {
    let foreign = ImageBuilder::new(NAME).architecture("s390x").file("x", 0o644, "x");
    assert_rejected(&foreign.oci_archive().unwrap(), "linux/s390x");
    assert_rejected(&foreign.docker_archive().unwrap(), "linux/s390x");
}

#[test]
fn matching_platform_is_chosen() {
    let (ours, foreign) =
        (tiny_image().oci_archive().unwrap(), tiny_image().architecture("s390x").oci_archive().unwrap());
    let mut foreign_index = None;
    let mut files = Vec::new();
    tamper(&foreign, |name, bytes| match name.as_str() {
        "index.json" => {
            foreign_index = Some(serde_json::from_slice::<crate::document::ImageIndex>(bytes).unwrap())
        }
        name if name.starts_with("blobs") => files.push((name.to_owned(), bytes.clone())),
        _ => {}
    });
    let have: Vec<String> = files.iter().map(|(name, _)| name.clone()).collect();
    let both = tamper(&ours, |name, bytes| {
        if name == "index.json" {
            let mut index: crate::document::ImageIndex = serde_json::from_slice(bytes).unwrap();
            index.manifests.splice(0..0, foreign_index.take().unwrap().manifests);
            *bytes = serde_json::to_vec(&index).unwrap();
        }
        if have.contains(name) {
            // The layer is the same in both.
            name.clear();
        }
    });
    let mut bytes = both[..both.len() - 1024].to_vec();
    bytes.extend(pack(&files).unwrap());
    let found = candidates(&bytes).unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].parts.manifest.0.digest, candidates(&ours).unwrap()[0].parts.manifest.0.digest);
}

#[test]
fn damaged_docker_archives_are_refused() {
    let good = tiny_image().docker_archive().unwrap();
    let layer = |change: fn(&mut String, &mut Vec<u8>)| {
        tamper(&good, move |name, bytes| {
            if name.ends_with("layer.tar") {
                change(name, bytes)
            }
        })
    };
    assert_rejected(&layer(|_, bytes| bytes[0] ^= 1), "digest or size mismatch");
    assert_rejected(&layer(|name, _| name.clear()), "has no layer/layer.tar");
    let manifest = |from: &'static str, to: &'static str| {
        tamper(&good, move |name, bytes| {
            if name == "manifest.json" {
                replace(bytes, from, to)
            }
        })
    };
    assert_rejected(&manifest("layer/layer.tar", "../../etc/passwd"), "has no ../../etc/passwd");
    assert_rejected(&manifest("\"layer/layer.tar\"", ""), "layers");
    assert_rejected(&manifest(NAME, ""), "not an image reference");
}

#[tokio::test]
async fn spool_is_bounded_and_unlinked() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = vec![1u8; 1 << 20];
    let file = spool(&bytes[..], dir.path(), 1 << 20).await.unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    assert!(matches!(spool(&bytes[..], dir.path(), 1000).await, Err(Error::TooLarge { limit: 1000 })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let nowhere = dir.path().join("nowhere");
    assert!(matches!(spool(&bytes[..], &nowhere, 1 << 20).await, Err(Error::Spool { .. })));
}

#[tokio::test(start_paused = true)]
async fn silent_sender_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let (mut sender, receiver) = tokio::io::duplex(64);
    sender.write_all(b"start").await.unwrap();
    let error = spool(receiver, dir.path(), 1 << 20).await.unwrap_err();
    assert!(matches!(error, Error::Interrupted { received: 5, .. }), "{error:?}");
    assert!(error.is_transient());
}
