//! Packs an image into the two common archive formats.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use flate2::GzBuilder;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType};

use super::TestImage;
use super::layer::header;

/// The format of layers in an OCI layout.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// As plain tar.
    None,
    /// As gzip without a time in its header.
    #[default]
    Gzip,
}

/// A finished archive and its digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedImage {
    /// The image name in the archive.
    pub reference: String,
    /// `sha256:…` of the OCI manifest. A docker archive has none; its importer makes one.
    pub manifest_digest: Option<String>,
    /// `sha256:…` of the image's configuration (Docker's image id).
    pub config_digest: String,
    /// The tar.
    pub bytes: Vec<u8>,
}

impl PackedImage {
    /// Writes the tar to `path`, complete or not at all, readable by all users.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut file = tempfile::Builder::new()
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(directory.unwrap_or(Path::new(".")))?;
        file.write_all(&self.bytes)?;
        file.persist(path)?;
        Ok(())
    }
}

impl TestImage {
    /// Packs an OCI image layout. The index names the image twice, as image builders do:
    /// `io.containerd.image.name` with the full reference, `org.opencontainers.image.ref.name` with the tag.
    #[must_use]
    pub fn oci_archive(&self) -> PackedImage {
        let mut blobs = Blobs::default();
        let mut layers = Vec::new();
        let mut diff_ids = Vec::new();
        for layer in &self.layers {
            let tar = layer.tar().expect("memory takes any tar");
            diff_ids.push(digest(&tar));
            let (media_type, blob) = match self.compression {
                Compression::None => ("application/vnd.oci.image.layer.v1.tar", tar),
                Compression::Gzip => ("application/vnd.oci.image.layer.v1.tar+gzip", gzip(&tar)),
            };
            layers.push(blobs.add(media_type, blob));
        }
        let config_media_type = "application/vnd.oci.image.config.v1+json";
        let config = blobs.add(config_media_type, json_bytes(&self.configuration(&diff_ids)));
        let config_digest = text(&config["digest"]);
        let manifest_media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({
            "config": config,
            "layers": layers,
            "mediaType": manifest_media_type,
            "schemaVersion": 2,
        });
        let mut descriptor = blobs.add(manifest_media_type, json_bytes(&manifest));
        let manifest_digest = text(&descriptor["digest"]);
        descriptor["annotations"] = json!({
            "io.containerd.image.name": self.reference,
            "org.opencontainers.image.ref.name": self.tag(),
        });
        descriptor["platform"] = json!({ "architecture": self.machine(), "os": "linux" });
        let index = json!({
            "manifests": [descriptor],
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "schemaVersion": 2,
        });
        let mut files = vec![
            ("oci-layout".to_owned(), json_bytes(&json!({ "imageLayoutVersion": "1.0.0" }))),
            ("index.json".to_owned(), json_bytes(&index)),
        ];
        files.extend(blobs.0.into_iter().map(|(hex, blob)| (format!("blobs/sha256/{hex}"), blob)));
        PackedImage {
            reference: self.reference.clone(),
            manifest_digest: Some(manifest_digest),
            config_digest,
            bytes: pack(&["blobs/", "blobs/sha256/"], &files),
        }
    }

    /// Packs the archive that `docker save` wrote up to Docker 24: a `manifest.json`, a configuration and one
    /// directory with a plain tar per layer.
    #[must_use]
    pub fn docker_archive(&self) -> PackedImage {
        let tars: Vec<Vec<u8>> =
            self.layers.iter().map(|layer| layer.tar().expect("memory takes any tar")).collect();
        let diff_ids: Vec<String> = tars.iter().map(|tar| digest(tar)).collect();
        let config = json_bytes(&self.configuration(&diff_ids));
        let config_digest = digest(&config);
        let config_name = format!("{}.json", hex_of(&config_digest));
        let layer_names: Vec<String> =
            diff_ids.iter().map(|diff_id| format!("{}/layer.tar", hex_of(diff_id))).collect();
        let manifest = json!([{
            "Config": config_name,
            "Layers": layer_names,
            "RepoTags": [self.reference],
        }]);
        let mut files = vec![(config_name, config)];
        for (name, tar) in layer_names.into_iter().zip(tars) {
            // Two equal layers are one file that the manifest names twice.
            if files.iter().all(|(other, _)| *other != name) {
                files.push((name, tar));
            }
        }
        files.push(("manifest.json".to_owned(), json_bytes(&manifest)));
        PackedImage {
            reference: self.reference.clone(),
            manifest_digest: None,
            config_digest,
            bytes: pack(&[], &files),
        }
    }

    pub(super) fn tag(&self) -> &str {
        match self.reference.rsplit_once(':') {
            Some((_, tag)) if !tag.contains('/') => tag,
            _ => "latest",
        }
    }

    /// The image configuration of OCI `config.md`. Unset fields are omitted: an empty list would mean the
    /// same, but real builders do not write one.
    fn configuration(&self, diff_ids: &[String]) -> Value {
        let mut config = Map::new();
        let lists = [("Cmd", &self.arguments), ("Entrypoint", &self.entrypoint), ("Env", &self.environment)];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            config.insert(name.to_owned(), json!(list));
        }
        let strings = [
            ("StopSignal", &self.stop_signal),
            ("User", &self.user),
            ("WorkingDir", &self.working_directory),
        ];
        for (name, value) in strings {
            if let Some(value) = value {
                config.insert(name.to_owned(), json!(value));
            }
        }
        if !self.exposed.is_empty() {
            let ports: Map<String, Value> =
                self.exposed.iter().map(|port| (port.clone(), json!({}))).collect();
            config.insert("ExposedPorts".to_owned(), Value::Object(ports));
        }
        if !self.labels.is_empty() {
            let labels: Map<String, Value> =
                self.labels.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
            config.insert("Labels".to_owned(), Value::Object(labels));
        }
        json!({
            "architecture": self.machine(),
            "config": config,
            "created": "1970-01-01T00:00:00Z",
            "os": "linux",
            "rootfs": { "diff_ids": diff_ids, "type": "layers" },
        })
    }
}

impl TestImage {
    fn machine(&self) -> &str {
        self.architecture.as_deref().unwrap_or_else(|| native())
    }
}

/// Blobs in the order in which they were added, each once.
#[derive(Default)]
struct Blobs(Vec<(String, Vec<u8>)>);

impl Blobs {
    fn add(&mut self, media_type: &str, blob: Vec<u8>) -> Value {
        let digest = digest(&blob);
        let descriptor = json!({ "digest": digest, "mediaType": media_type, "size": blob.len() });
        let hex = hex_of(&digest);
        if self.0.iter().all(|(other, _)| other != hex) {
            self.0.push((hex.to_owned(), blob));
        }
        descriptor
    }
}

fn pack(directories: &[&str], files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for directory in directories {
        let mut header = header(EntryType::Directory, 0o755, 0);
        builder.append_data(&mut header, directory, io::empty()).expect("memory takes any tar");
    }
    for (name, content) in files {
        let mut header = header(EntryType::Regular, 0o644, content.len());
        builder.append_data(&mut header, name, content.as_slice()).expect("memory takes any tar");
    }
    builder.into_inner().expect("memory takes any tar")
}

fn gzip(tar: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(tar).expect("memory takes any stream");
    encoder.finish().expect("memory takes any stream")
}

fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

fn hex_of(digest: &str) -> &str {
    digest.strip_prefix("sha256:").expect("digests are made by `digest`")
}

fn json_bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a JSON value can be written")
}

fn text(value: &Value) -> String {
    value.as_str().expect("descriptors carry their digest as text").to_owned()
}

/// The machine's architecture by its name in Go, which images use.
fn native() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
