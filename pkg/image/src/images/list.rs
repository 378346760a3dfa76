//! Lists images and their disk usage.

use std::collections::BTreeMap;

use warren_registry::{Digest, Reference};
use warren_types::Timestamp;

use super::ImageStore;
use super::record::ImageRecord;
use crate::document::Descriptor;
use crate::error::Error;

/// Limit of cached sizes; at the limit the cache is cleared and filled again.
const MAX_CACHED_SIZES: usize = 16_384;

/// One row of the image list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    /// Name in containerd: `REPOSITORY:TAG`, `REPOSITORY@DIGEST` for an image pulled by digest or whose tag
    /// moved, or the format of another tool.
    pub reference: String,
    /// Target of the name: a manifest or an index. The digest to bind tasks to.
    pub digest: Digest,
    /// When the name was created.
    pub created: Timestamp,
    /// When the name was last created, moved or marked as used.
    pub updated: Timestamp,
    /// Last use, or the creation time of an image that was never used.
    pub last_used: Timestamp,
    /// Its parts with bytes on disk. Images may share parts. Empty when its documents are unreadable or for
    /// other platforms.
    pub parts: BTreeMap<ImagePart, u64>,
}

/// A part of an image that uses disk space.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImagePart {
    /// A blob as stored by the registry.
    Blob(Digest),
    /// An unpacked layer.
    Layer(Digest),
}

impl ListedImage {
    /// Bytes on disk of all its parts, packed and unpacked, including parts shared with other images.
    pub fn size(&self) -> u64 {
        self.parts.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Whether the reference of a task resolves to this image.
    pub fn matches(&self, reference: &Reference) -> bool {
        if self.reference == reference.record_name() {
            return true;
        }
        reference.digest() == Some(&self.digest)
            && Reference::parse(&self.reference).is_ok_and(|own| own.shares_repository(reference))
    }
}

impl ImageStore {
    /// Every image name of the namespace, including those of other tools, sorted by name.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn list(&self) -> Result<Vec<ListedImage>, Error> {
        let mut rows = Vec::new();
        for record in self.records(Vec::new()).await? {
            let parts = self.parts(&record.target).await?;
            let last_used = self.last_used(&record);
            let ImageRecord { name: reference, target, created, updated: changed, .. } = record;
            rows.push(ListedImage {
                reference,
                digest: target.digest,
                created,
                updated: changed,
                last_used,
                parts,
            });
        }
        rows.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(rows)
    }

    /// Names and targets of all images, the last changed first.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn names(&self) -> Result<Vec<(String, Digest)>, Error> {
        let mut records = self.records(Vec::new()).await?;
        records.sort_by_key(|record| std::cmp::Reverse(record.updated));
        Ok(records.into_iter().map(|record| (record.name, record.target.digest)).collect())
    }

    /// Bytes on disk of an image, packed and unpacked; 0 when it does not exist.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        match self.find(reference).await? {
            Some(record) => self.disk_usage(&record.target).await,
            None => Ok(0),
        }
    }

    /// Bytes on disk of all parts of the image.
    pub(super) async fn disk_usage(&self, target: &Descriptor) -> Result<u64, Error> {
        let parts = self.parts(target).await?;
        Ok(parts.values().fold(0, |sum, bytes| sum.saturating_add(*bytes)))
    }

    async fn parts(&self, target: &Descriptor) -> Result<BTreeMap<ImagePart, u64>, Error> {
        let mut parts = BTreeMap::new();
        let info = match self.info(target).await {
            Ok(Some(info)) => info,
            Ok(None) => return Ok(parts),
            Err(error) if error.is_bad_input() => {
                tracing::debug!(image = %target.digest, %error, "cannot determine image size; the image cannot run");
                return Ok(parts);
            }
            Err(error) => return Err(error),
        };
        for blob in info.blobs().chain([target]) {
            parts.insert(ImagePart::Blob(blob.digest.clone()), blob.size);
        }
        for chain_id in info.chain() {
            if let Some(bytes) = self.unpacked_size(&chain_id).await? {
                parts.insert(ImagePart::Layer(chain_id), bytes);
            }
        }
        Ok(parts)
    }

    /// Disk usage of an unpacked layer; `None` when it is not unpacked.
    async fn unpacked_size(&self, chain_id: &Digest) -> Result<Option<u64>, Error> {
        if let Some(known) = self.sizes.lock().expect("no holder panics").get(chain_id) {
            return Ok(Some(*known));
        }
        let found = self.unpacker.committed_size(chain_id).await?;
        if let Some(bytes) = found {
            let mut sizes = self.sizes.lock().expect("no holder panics");
            if sizes.len() >= MAX_CACHED_SIZES {
                sizes.clear();
            }
            sizes.insert(chain_id.clone(), bytes);
        }
        Ok(found)
    }
}
