//! Resolves an image name to what a container start needs.

use std::sync::Arc;

use futures::stream;
use warren_registry::{Digest, Reference};

use super::ImageStore;
use crate::document::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, RunConfig};
use crate::error::Error;
use crate::platform::HostPlatform;
use crate::store::Lease;

/// Limit of parsed images in memory; the cache is cleared at the limit.
const MAX_CACHED_IMAGES: usize = 256;

/// What a container start needs of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// Target of the name, an index or a manifest. A reference with this digest gives the same image on
    /// every node.
    pub digest: Digest,
    /// Digest of the manifest for this platform.
    pub manifest: Digest,
    /// Name of the committed snapshot that holds its file system.
    pub chain_id: Digest,
    /// Run configuration of the image.
    pub config: RunConfig,
    layers: Vec<Descriptor>,
    diff_ids: Vec<Digest>,
    manifest_blob: Descriptor,
    config_blob: Descriptor,
}

impl ImageInfo {
    /// Stored bytes of its layers and configuration; saturates at `u64::MAX`.
    pub fn size(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.size);
        layers.fold(self.config_blob.size, u64::saturating_add)
    }

    /// Every blob that this machine needs of it.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        self.layers.iter().chain([&self.config_blob, &self.manifest_blob])
    }

    /// Names of its committed snapshots, lowest first.
    pub(crate) fn chain(&self) -> Vec<Digest> {
        Digest::chain_ids(&self.diff_ids)
    }
}

impl ImageStore {
    /// Looks an image up in the local store; `None` when it does not exist or is incomplete.
    ///
    /// A reference with a digest matches only that digest, whatever its tag points to now.
    ///
    /// # Errors
    /// When containerd fails, or the image's documents are invalid or for another platform.
    pub async fn get(&self, reference: &Reference) -> Result<Option<Arc<ImageInfo>>, Error> {
        match self.find(reference).await? {
            Some(record) => self.info(&record.target).await,
            None => Ok(None),
        }
    }

    /// Returns what running an image needs, by the target of its record.
    pub(crate) async fn info(&self, target: &Descriptor) -> Result<Option<Arc<ImageInfo>>, Error> {
        if let Some(info) = self.parsed.lock().expect("no holder panics").get(&target.digest) {
            return Ok(Some(info.clone()));
        }
        let Some(info) = self.read(target.clone()).await?.map(Arc::new) else { return Ok(None) };
        let mut parsed = self.parsed.lock().expect("no holder panics");
        if parsed.len() >= MAX_CACHED_IMAGES {
            parsed.clear();
        }
        parsed.insert(target.digest.clone(), info.clone());
        Ok(Some(info))
    }

    /// Reads an image's documents from the store. Follows one level of index, as other tools record it.
    async fn read(&self, target: Descriptor) -> Result<Option<ImageInfo>, Error> {
        let digest = target.digest.clone();
        let manifest = match target.is_index() {
            false => target,
            true => {
                let Some(index) = self.document::<ImageIndex>(&target.digest).await? else { return Ok(None) };
                let missing = |found| Error::NoMatchingPlatform { what: target.digest.to_string(), found };
                HostPlatform::native().choose(&index.manifests).map_err(missing)?.clone()
            }
        };
        let Some(parsed) = self.document::<ImageManifest>(&manifest.digest).await? else { return Ok(None) };
        let Some(configuration) = self.document::<ImageConfiguration>(&parsed.config.digest).await? else {
            return Ok(None);
        };
        let diff_ids = configuration.rootfs.diff_ids;
        let chain = Digest::chain_ids(&diff_ids);
        match chain.into_iter().next_back() {
            Some(chain_id) if diff_ids.len() == parsed.layers.len() => Ok(Some(ImageInfo {
                digest,
                manifest: manifest.digest.clone(),
                chain_id,
                config: configuration.config,
                layers: parsed.layers,
                diff_ids,
                manifest_blob: manifest,
                config_blob: parsed.config,
            })),
            _ => Err(Error::document(
                manifest.digest.to_string(),
                "the layer count differs from the configuration",
            )),
        }
    }

    async fn document<T: serde::de::DeserializeOwned>(&self, digest: &Digest) -> Result<Option<T>, Error> {
        let Some(bytes) = self.store.read_document(digest).await? else { return Ok(None) };
        let parsed = serde_json::from_slice(&bytes);
        parsed.map(Some).map_err(|error| Error::document(digest.to_string(), error))
    }

    /// Whether all of an image is stored and unpacked.
    pub(crate) async fn is_complete(&self, image: &ImageInfo) -> Result<bool, Error> {
        for blob in image.blobs() {
            if !self.store.has(&blob.digest).await? {
                return Ok(false);
            }
        }
        // A committed snapshot includes all snapshots below it.
        Ok(self.unpacker.committed_size(&image.chain_id).await?.is_some())
    }

    /// Unpacks an image that is stored without snapshots: another tool pulled it without unpacking, or the
    /// snapshots were deleted by hand. Idempotent.
    ///
    /// # Errors
    /// As for an import.
    pub async fn ensure_unpacked(&self, image: &ImageInfo) -> Result<(), Error> {
        let (layers, diff_ids) = (&image.layers, &image.diff_ids);
        let stored = stream::repeat(());
        let unpack = async |lease: Lease| {
            let chain_id = self.unpacker.ensure_unpacked(&lease, layers, diff_ids, stored, |_| ()).await?;
            self.reference_snapshots(&image.config_blob.digest, &chain_id).await
        };
        self.store.under_lease(unpack).await
    }
}
