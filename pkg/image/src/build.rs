//! Builds small single-layer images from files, in both archive formats: for the demo image and for tests.

use std::io::Write;

use serde_json::{Value, json};
use warren_registry::{Digest, OCI_MANIFEST};

use crate::document::{
    Descriptor, DockerSaveEntry, ImageIndex, ImageManifest, OCI_CONFIG, OCI_LAYER_GZIP, Platform,
};

/// Builder of an image.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    reference: String,
    architecture: String,
    config: Value,
    entries: Vec<BuilderEntry>,
}

#[derive(Clone, Debug)]
enum BuilderEntry {
    Dir { path: String, mode: u32 },
    File { path: String, mode: u32, bytes: Vec<u8> },
    Link { path: String, target: String },
}

impl ImageBuilder {
    /// An empty image for this machine with the name `reference`.
    pub fn new(reference: &str) -> Self {
        Self {
            reference: reference.to_owned(),
            architecture: crate::native_architecture().to_owned(),
            config: json!({}),
            entries: Vec::new(),
        }
    }

    /// Sets the architecture, in OCI terms.
    pub fn architecture(mut self, name: &str) -> Self {
        self.architecture = name.to_owned();
        self
    }

    /// Sets a field of the image's run configuration, such as `Entrypoint` or `User`.
    pub fn config(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.config[field] = value.into();
        self
    }

    /// Adds a directory.
    pub fn dir(mut self, path: &str, mode: u32) -> Self {
        self.entries.push(BuilderEntry::Dir { path: path.to_owned(), mode });
        self
    }

    /// Adds a file owned by root.
    pub fn file(mut self, path: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Self {
        self.entries.push(BuilderEntry::File { path: path.to_owned(), mode, bytes: bytes.into() });
        self
    }

    /// Adds a symbolic link.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.entries.push(BuilderEntry::Link { path: path.to_owned(), target: target.to_owned() });
        self
    }

    /// Builds an OCI layout in a tar, with a gzip-compressed layer.
    ///
    /// # Errors
    /// When an entry name does not fit into a tar header.
    pub fn oci_archive(&self) -> std::io::Result<Vec<u8>> {
        let plain = self.layer()?;
        let layer = gzip(&plain)?;
        let config = self.configuration(&Digest::of(&plain));
        let config_descriptor = descriptor(OCI_CONFIG, &config);
        let manifest = to_json(&ImageManifest {
            schema_version: 2,
            media_type: OCI_MANIFEST.to_owned(),
            config: config_descriptor.clone(),
            layers: vec![descriptor(OCI_LAYER_GZIP, &layer)],
        });
        let mut listed = descriptor(OCI_MANIFEST, &manifest);
        let architecture = self.architecture.clone();
        listed.platform = Some(Platform { architecture, os: "linux".to_owned(), variant: None });
        listed.annotations.insert("io.containerd.image.name".to_owned(), self.reference.clone());
        let index = to_json(&ImageIndex { schema_version: 2, manifests: vec![listed] });
        let mut files = vec![
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
            ("index.json".to_owned(), index),
        ];
        for blob in [config, manifest, layer] {
            files.push((format!("blobs/sha256/{}", Digest::of(&blob).hex()), blob));
        }
        pack(&files)
    }

    /// Builds the format of `docker save`, with a plain layer.
    ///
    /// # Errors
    /// When an entry name does not fit into a tar header.
    pub fn docker_archive(&self) -> std::io::Result<Vec<u8>> {
        let layer = self.layer()?;
        let config = self.configuration(&Digest::of(&layer));
        let name = format!("{}.json", Digest::of(&config).hex());
        let saved = DockerSaveEntry {
            config: name.clone(),
            repo_tags: vec![self.reference.clone()],
            layers: vec!["layer/layer.tar".to_owned()],
        };
        pack(&[
            (name, config),
            ("layer/layer.tar".to_owned(), layer),
            ("manifest.json".to_owned(), to_json(&vec![saved])),
        ])
    }

    fn configuration(&self, diff_id: &Digest) -> Vec<u8> {
        to_json(&json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        }))
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for entry in &self.entries {
            let mut header = tar::Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            match entry {
                BuilderEntry::Dir { path, mode } => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, path, std::io::empty())?;
                }
                BuilderEntry::File { path, mode, bytes } => {
                    header.set_mode(*mode);
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, path, &bytes[..])?;
                }
                BuilderEntry::Link { path, target } => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)?;
                }
            }
        }
        tar.into_inner()
    }
}

/// A plain tar of files, in this order.
///
/// # Errors
/// When a name does not fit into a tar header.
pub fn pack(files: &[(String, Vec<u8>)]) -> std::io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(bytes.len() as u64);
        tar.append_data(&mut header, name, &bytes[..])?;
    }
    tar.into_inner()
}

/// Compresses with gzip.
///
/// # Errors
/// Never in memory; the signature comes from the writer.
pub fn gzip(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes)?;
    writer.finish()
}

fn descriptor(media_type: &str, bytes: &[u8]) -> Descriptor {
    Descriptor::new(media_type, Digest::of(bytes), bytes.len() as u64)
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("documents with string keys serialise")
}
