//! From a name to what running the image needs.

use std::sync::Arc;

use futures::stream;

use super::Images;
use crate::digest::Digest;
use crate::document::{Configuration, Descriptor, Index, Manifest, RunConfig};
use crate::error::Error;
use crate::platform::Host;
use crate::reference::Reference;
use crate::store::Lease;

/// Parsed images kept in memory; the cache is emptied when it is full.
const CACHED: usize = 256;

/// What running an image needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageInfo {
    /// What its name points to, an index or a manifest. Bound to this digest, a reference gives the same
    /// image on every node.
    pub digest: Digest,
    /// The digest of the manifest for this platform.
    pub manifest: Digest,
    /// The name of the committed snapshot that holds its file system.
    pub chain_id: Digest,
    /// How it wants to be run.
    pub config: RunConfig,
    layers: Vec<Descriptor>,
    diff_ids: Vec<Digest>,
    manifest_blob: Descriptor,
    config_blob: Descriptor,
}

impl ImageInfo {
    /// Bytes of its layers and configuration as stored; `u64::MAX` when the sum is larger.
    pub fn size(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.size);
        layers.fold(self.config_blob.size, u64::saturating_add)
    }

    /// Every blob that this machine needs of it.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Descriptor> {
        self.layers.iter().chain([&self.config_blob, &self.manifest_blob])
    }

    /// The names of its committed snapshots, lowest first.
    pub(crate) fn chain(&self) -> Vec<Digest> {
        Digest::chain(&self.diff_ids)
    }
}

impl Images {
    /// Looks an image up in the store, never in a registry; `None` when it is not here or not complete.
    ///
    /// A reference with a digest means that content alone: it is found whatever its tag points to now, and
    /// when only other content is here under its tag, it is not here.
    ///
    /// # Errors
    /// When containerd fails, or the image's documents are unusable or for another platform.
    pub async fn get(&self, reference: &Reference) -> Result<Option<Arc<ImageInfo>>, Error> {
        match self.find(reference).await? {
            Some(record) => self.info(&record.target).await,
            None => Ok(None),
        }
    }

    /// What running an image needs, by what its record points to.
    pub(crate) async fn info(&self, target: &Descriptor) -> Result<Option<Arc<ImageInfo>>, Error> {
        if let Some(info) = self.parsed.lock().expect("no holder panics").get(&target.digest) {
            return Ok(Some(info.clone()));
        }
        let Some(info) = self.read(target.clone()).await?.map(Arc::new) else { return Ok(None) };
        let mut parsed = self.parsed.lock().expect("no holder panics");
        if parsed.len() >= CACHED {
            parsed.clear();
        }
        parsed.insert(target.digest.clone(), info.clone());
        Ok(Some(info))
    }

    /// Reads an image's documents from the store. One index is followed, as other tools record it.
    async fn read(&self, target: Descriptor) -> Result<Option<ImageInfo>, Error> {
        let digest = target.digest.clone();
        let manifest = match target.is_index() {
            false => target,
            true => {
                let Some(index) = self.document::<Index>(&target.digest).await? else { return Ok(None) };
                let missing = |found| Error::Platform { what: target.digest.to_string(), found };
                Host::native().choose(&index.manifests).map_err(missing)?.clone()
            }
        };
        let Some(parsed) = self.document::<Manifest>(&manifest.digest).await? else { return Ok(None) };
        let Some(configuration) = self.document::<Configuration>(&parsed.config.digest).await? else {
            return Ok(None);
        };
        let diff_ids = configuration.rootfs.diff_ids;
        let chain = Digest::chain(&diff_ids);
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
            _ => {
                Err(Error::document(manifest.digest.to_string(), "its layers and configuration do not agree"))
            }
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
        // A committed snapshot has all those below it.
        Ok(self.unpacker.committed_size(&image.chain_id).await?.is_some())
    }

    /// Unpacks an image whose content is stored but whose snapshots are not there: another tool pulled it
    /// without unpacking, or they were deleted by hand. Harmless when they are there.
    ///
    /// # Errors
    /// As for an import.
    pub async fn ensure_unpacked(&self, image: &ImageInfo) -> Result<(), Error> {
        let (layers, diff_ids) = (&image.layers, &image.diff_ids);
        let stored = stream::repeat(());
        let unpack = async |lease: Lease| {
            let chain_id = self.unpacker.ensure_unpacked(&lease, layers, diff_ids, stored, |_| ()).await?;
            self.hold_snapshots(&image.config_blob.digest, &chain_id).await
        };
        self.store.under_lease(unpack).await
    }
}
