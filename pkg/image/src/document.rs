//! The JSON documents of OCI and Docker images, reduced to the fields in use.
//!
//! Source: OCI image specification 1.1 and Docker's image manifest version 2, schema 2. Docker writes
//! `null` where OCI omits a field, so every list is read through [`or_default`].

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use warren_registry::{DOCKER_LIST, DOCKER_MANIFEST, Digest, OCI_INDEX, OCI_MANIFEST};

pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER_TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const OCI_LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
const DOCKER_LAYER_TAR: &str = "application/vnd.docker.image.rootfs.diff.tar";
const DOCKER_LAYER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest, size, platform: None, annotations: BTreeMap::new() }
    }

    pub fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
    }

    pub fn is_manifest(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_MANIFEST | DOCKER_MANIFEST)
    }

    /// Whether it is the configuration of a container image, rather than of a chart, module or signature.
    pub fn is_configuration(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_CONFIG | DOCKER_CONFIG)
    }

    /// Whether containerd's diff service can unpack it. containerd itself validates zstd.
    pub fn is_layer(&self) -> bool {
        matches!(
            self.media_type.as_str(),
            OCI_LAYER_TAR | OCI_LAYER_GZIP | OCI_LAYER_ZSTD | DOCKER_LAYER_TAR | DOCKER_LAYER_GZIP
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    pub architecture: String,
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match self.variant.as_deref() {
            None | Some("") => Ok(()),
            Some(variant) => write!(f, "/{variant}"),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageIndex {
    pub schema_version: u32,
    #[serde(default, deserialize_with = "or_default")]
    pub manifests: Vec<Descriptor>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageManifest {
    pub schema_version: u32,
    #[serde(default = "oci_manifest")]
    pub media_type: String,
    pub config: Descriptor,
    #[serde(default, deserialize_with = "or_default")]
    pub layers: Vec<Descriptor>,
}

fn oci_manifest() -> String {
    OCI_MANIFEST.to_owned()
}

/// One entry of `manifest.json` in a docker-save archive.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct DockerSaveEntry {
    pub config: String,
    #[serde(default, deserialize_with = "or_default")]
    pub repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub layers: Vec<String>,
}

/// The configuration document of an image.
#[derive(Debug, Deserialize)]
pub(crate) struct ImageConfiguration {
    pub architecture: String,
    pub os: String,
    #[serde(default)]
    pub variant: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub config: RunConfig,
    pub rootfs: RootFs,
}

impl ImageConfiguration {
    pub fn platform(&self) -> Platform {
        let (architecture, os) = (self.architecture.clone(), self.os.clone());
        Platform { architecture, os, variant: self.variant.clone() }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct RootFs {
    #[serde(default, deserialize_with = "or_default")]
    pub diff_ids: Vec<Digest>,
}

/// How to run an image. Empty strings and lists mean that the image has no value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RunConfig {
    /// The program and its fixed arguments.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// Arguments appended to the entrypoint, or the whole command without one.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// `NAME=value` pairs.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// `user`, `uid`, `user:group` or `uid:gid`.
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// Working directory of the command.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// The stop signal: a name or a number.
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
}

/// Reads `null` as the default value.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_docker_configuration_with_nulls_reads_as_empty() {
        let text = r#"{"architecture":"amd64","os":"linux","created":"2024-01-01T00:00:00Z",
            "config":{"Entrypoint":null,"Cmd":["/x"],"Env":null,"Volumes":null},
            "rootfs":{"type":"layers","diff_ids":null}}"#;
        let read: ImageConfiguration = serde_json::from_str(text).unwrap();
        assert_eq!(read.config, RunConfig { cmd: vec!["/x".into()], ..RunConfig::default() });
        assert!(read.rootfs.diff_ids.is_empty());
    }

    #[test]
    fn a_configuration_without_config_reads_as_empty() {
        let text = r#"{"architecture":"amd64","os":"linux","config":null,"rootfs":{"diff_ids":[]}}"#;
        assert_eq!(serde_json::from_str::<ImageConfiguration>(text).unwrap().config, RunConfig::default());
    }

    #[test]
    fn a_descriptor_with_a_path_for_digest_is_refused() {
        let text = r#"{"mediaType":"x","digest":"sha256:../../etc/shadow","size":1}"#;
        let error = serde_json::from_str::<Descriptor>(text).unwrap_err().to_string();
        assert!(error.contains("64 hexadecimal digits"), "{error}");
    }
}
