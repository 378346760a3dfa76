use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::*;

fn small() -> TestImage {
    let lower = ImageLayer::new().file("/etc/motd", "hello", 0o644).directory("/tmp", 0o1777);
    let upper = ImageLayer::new().symlink("/etc/greeting", "motd").removed("/tmp");
    TestImage::new("warren.local/small:7")
        .layer(lower)
        .layer(upper)
        .entrypoint(["/server"])
        .arguments(["--fast"])
        .environment(["A=b"])
        .working_directory("/etc")
        .user("nobody")
        .stop_signal("SIGUSR1")
        .exposed_port("80/tcp")
        .label("a", "b")
}

fn files(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(tar).entries().unwrap() {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        assert!(files.insert(path, content).is_none(), "no path is packed twice");
    }
    files
}

fn parse(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// Reads the blob of `descriptor`, and checks its digest and size.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let hex = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let blob = &files[&format!("blobs/sha256/{hex}")];
    let actual: String = Sha256::digest(blob).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(actual, hex);
    assert_eq!(descriptor["size"], blob.len());
    blob
}

#[test]
fn oci_layout_is_consistent() {
    let archive = small().oci_archive();
    let files = files(&archive.bytes);
    assert_eq!(parse(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
    let descriptor = parse(&files["index.json"])["manifests"][0].clone();
    assert_eq!(descriptor["annotations"]["io.containerd.image.name"], "warren.local/small:7");
    assert_eq!(descriptor["annotations"]["org.opencontainers.image.ref.name"], "7");
    assert_eq!(descriptor["digest"].as_str(), archive.manifest_digest.as_deref());
    let manifest = parse(blob(&files, &descriptor));
    assert_eq!(manifest["config"]["digest"], archive.config_digest.as_str());
    let config = parse(blob(&files, &manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"][0], "/server");
    assert_eq!(config["config"]["Cmd"][0], "--fast");
    assert_eq!(config["config"]["Env"][0], "A=b");
    assert_eq!(config["config"]["WorkingDir"], "/etc");
    assert_eq!(config["config"]["User"], "nobody");
    assert_eq!(config["config"]["StopSignal"], "SIGUSR1");
    assert!(config["config"]["ExposedPorts"]["80/tcp"].is_object());
    assert_eq!(config["config"]["Labels"]["a"], "b");
    for (index, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
        let mut tar = Vec::new();
        GzDecoder::new(blob(&files, layer)).read_to_end(&mut tar).unwrap();
        let diff_id: String = Sha256::digest(&tar).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(config["rootfs"]["diff_ids"][index], format!("sha256:{diff_id}"));
    }
}

#[test]
fn a_layer_keeps_modes_links_and_whiteouts() {
    let layer = ImageLayer::new()
        .file("/a/b/c", "text", 0o4755)
        .directory("/a", 0o700)
        .symlink("/a/link", "b/c")
        .removed("/old/file");
    let mut seen = Vec::new();
    for entry in tar::Archive::new(layer.tar().unwrap().as_slice()).entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (0, 0));
        let link = entry.link_name().unwrap().map(|target| target.to_string_lossy().into_owned());
        let path = entry.path().unwrap().to_string_lossy().into_owned();
        seen.push((path, header.mode().unwrap(), link.unwrap_or_default()));
    }
    let expected = [
        ("a/", 0o700, ""),
        ("a/b/", 0o755, ""),
        ("a/b/c", 0o4755, ""),
        ("a/link", 0o777, "b/c"),
        ("old/", 0o755, ""),
        ("old/.wh.file", 0o644, ""),
    ];
    let seen: Vec<_> = seen.iter().map(|(path, mode, link)| (path.as_str(), *mode, link.as_str())).collect();
    assert_eq!(seen, expected);
}

#[test]
fn docker_archive_is_consistent() {
    let archive = small().docker_archive();
    let files = files(&archive.bytes);
    let manifest = parse(&files["manifest.json"])[0].clone();
    assert_eq!(manifest["RepoTags"][0], "warren.local/small:7");
    let config = parse(&files[manifest["Config"].as_str().unwrap()]);
    assert_eq!(manifest["Config"], format!("{}.json", &archive.config_digest["sha256:".len()..]));
    let layers = manifest["Layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for (index, name) in layers.iter().enumerate() {
        let tar = &files[name.as_str().unwrap()];
        let diff_id: String = Sha256::digest(tar).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(config["rootfs"]["diff_ids"][index], format!("sha256:{diff_id}"));
    }
}

#[test]
fn the_same_image_twice_is_the_same_bytes() {
    assert_eq!(small().oci_archive(), small().oci_archive());
    assert_eq!(small().docker_archive(), small().docker_archive());
    assert_ne!(small().oci_archive().manifest_digest, small().user("0").oci_archive().manifest_digest);
    // The order in which files were named does not matter.
    let one = ImageLayer::new().file("/a", "1", 0o644).file("/b", "2", 0o644);
    let other = ImageLayer::new().file("/b", "2", 0o644).file("/a", "1", 0o644);
    assert_eq!(one.tar().unwrap(), other.tar().unwrap());
}

#[test]
fn equal_layers_are_packed_once() {
    let twice = |name| {
        let layer = ImageLayer::new().file("/a", "1", 0o644);
        TestImage::new(name).layer(layer.clone()).layer(layer)
    };
    files(&twice("warren.local/twice:1").oci_archive().bytes);
    files(&twice("warren.local/twice:1").docker_archive().bytes);
}

#[test]
fn layers_may_stay_uncompressed() {
    let archive = small().compression(Compression::None).oci_archive();
    let files = files(&archive.bytes);
    let index = parse(&files["index.json"]);
    let manifest = parse(blob(&files, &index["manifests"][0]));
    let media_type = "application/vnd.oci.image.layer.v1.tar";
    assert_eq!(manifest["layers"][0]["mediaType"], media_type);
    tar::Archive::new(blob(&files, &manifest["layers"][0])).entries().unwrap().next().unwrap().unwrap();
}

#[test]
fn references_without_a_tag_mean_latest() {
    assert_eq!(TestImage::new("localhost:5000/demo").tag(), "latest");
    assert_eq!(TestImage::new("localhost:5000/demo:2").tag(), "2");
}

#[test]
#[should_panic(expected = "plain components")]
fn a_path_cannot_leave_its_layer() {
    let _ = ImageLayer::new().file("/../etc/passwd", "", 0o644);
}

#[test]
fn busybox_comes_with_its_applets() {
    let image = TestImage::busybox("warren.local/busybox:1");
    let tar = image.layers[0].tar().unwrap();
    let names = files(&tar);
    assert!(
        names.contains_key("bin/busybox") && names.contains_key("bin/sh") && names.contains_key("bin/nc")
    );
}

#[test]
fn an_archive_is_written_whole_and_twice() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("small.tar");
    let archive = small().oci_archive();
    archive.write(&path).unwrap();
    archive.write(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), archive.bytes);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn an_executable_that_needs_a_loader_is_no_image() {
    let dynamic = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    assert!(matches!(TestImage::of_executable("a/b:1", "x", dynamic), Err(StaticCheckError::Dynamic { .. })));
}
