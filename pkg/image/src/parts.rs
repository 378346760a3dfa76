//! A whole image without its layers' bytes: what an archive and a registry have to say before anything is
//! unpacked.

use crate::digest::Digest;
use crate::document::{Configuration, Descriptor};
use crate::error::Error;
use crate::platform::Host;

/// overlayfs takes at most 128 lower directories in one mount, and a container adds its own layer.
const MAX_LAYERS: usize = 127;

/// An image for this machine's platform whose documents agree with each other.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The manifest's descriptor and bytes.
    pub manifest: (Descriptor, Vec<u8>),
    /// The configuration's descriptor and bytes.
    pub config: (Descriptor, Vec<u8>),
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
    /// Digests of the unpacked layers, one for each.
    pub diff_ids: Vec<Digest>,
}

impl Parts {
    /// Puts the documents together; `configuration` is what the bytes of `config` say.
    ///
    /// # Errors
    /// When configuration and layers contradict each other or the platform is another one.
    pub fn new(
        manifest: (Descriptor, Vec<u8>),
        config: (Descriptor, Vec<u8>),
        configuration: Configuration,
        layers: Vec<Descriptor>,
    ) -> Result<Self, Error> {
        let name = config.0.digest.to_string();
        let platform = configuration.platform();
        if Host::native().fit(&platform).is_none() {
            return Err(Error::Platform { what: name, found: platform.to_string() });
        }
        let diff_ids = configuration.rootfs.diff_ids;
        if diff_ids.len() != layers.len() {
            let reason = format!("it lists {} layers, the manifest {}", diff_ids.len(), layers.len());
            return Err(Error::document(name, reason));
        }
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            let reason = format!("it has {} layers; want 1 to {MAX_LAYERS}", layers.len());
            return Err(Error::document(name, reason));
        }
        if let Some(other) = layers.iter().find(|layer| !layer.is_layer()) {
            let what = format!("layer media type {:?}", other.media_type);
            return Err(Error::Unsupported { what, advice: "want a tar layer, plain or compressed" });
        }
        Ok(Self { manifest, config, layers, diff_ids })
    }

    /// Bytes of the layers and the configuration as they are stored; `u64::MAX` when the sum is larger.
    pub fn size(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.size);
        layers.fold(self.config.0.size, u64::saturating_add)
    }
}
