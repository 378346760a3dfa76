//! An image without the bytes of its layers: the documents from an archive or a registry before unpacking.

use warren_registry::Digest;

use crate::document::{Descriptor, ImageConfiguration};
use crate::error::Error;
use crate::platform::HostPlatform;

/// overlayfs accepts at most 128 lower directories per mount, and a container adds its own layer.
const MAX_LAYERS: usize = 127;

/// An image for this machine's platform with consistent documents.
#[derive(Debug)]
pub(crate) struct ImageParts {
    /// The manifest's descriptor and bytes.
    pub manifest: (Descriptor, Vec<u8>),
    /// The configuration's descriptor and bytes.
    pub config: (Descriptor, Vec<u8>),
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// Digests of the unpacked layers, one for each.
    pub diff_ids: Vec<Digest>,
}

impl ImageParts {
    /// Combines the documents; `configuration` is the parsed form of the bytes in `config`.
    ///
    /// # Errors
    /// When configuration and layers do not match, or the platform is another one.
    pub fn new(
        manifest: (Descriptor, Vec<u8>),
        config: (Descriptor, Vec<u8>),
        configuration: ImageConfiguration,
        layers: Vec<Descriptor>,
    ) -> Result<Self, Error> {
        let name = config.0.digest.to_string();
        let platform = configuration.platform();
        if HostPlatform::native().rank(&platform).is_none() {
            return Err(Error::NoMatchingPlatform { what: name, found: platform.to_string() });
        }
        let diff_ids = configuration.rootfs.diff_ids;
        if diff_ids.len() != layers.len() {
            let reason = format!("it lists {} layers, the manifest {}", diff_ids.len(), layers.len());
            return Err(Error::document(name, reason));
        }
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            let reason = format!("it has {} layers; expected 1 to {MAX_LAYERS}", layers.len());
            return Err(Error::document(name, reason));
        }
        if let Some(other) = layers.iter().find(|layer| !layer.is_layer()) {
            let what = format!("layer media type {:?}", other.media_type);
            return Err(Error::Unsupported { what, advice: "use a tar layer, plain or compressed" });
        }
        Ok(Self { manifest, config, layers, diff_ids })
    }

    /// Stored bytes of the layers and the configuration; saturates at `u64::MAX`.
    pub fn size(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.size);
        layers.fold(self.config.0.size, u64::saturating_add)
    }
}
