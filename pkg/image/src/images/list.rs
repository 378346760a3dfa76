//! What images there are, and what each takes on disk.

use std::collections::BTreeMap;

use warren_types::Timestamp;

use super::Images;
use super::record::Record;
use crate::digest::Digest;
use crate::error::Error;
use crate::reference::Reference;

/// Sizes kept in memory; when there are more, all are forgotten, and asked for again.
const SIZES: usize = 16_384;

/// One row of the list of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name as containerd keeps it: `REPOSITORY:TAG`, `REPOSITORY@DIGEST` for an image that was pulled by
    /// digest or that its tag left, or what another tool wrote.
    pub reference: String,
    /// What it points to: a manifest, or an index of them. The digest to bind tasks to.
    pub digest: Digest,
    /// When the name was made.
    pub created: Timestamp,
    /// When the name was last made, moved or marked as used.
    pub changed: Timestamp,
    /// When it was used last. When it was made, if nobody ever used it.
    pub last_used: Timestamp,
    /// What it consists of, with bytes on disk. Images have parts in common. Empty when its documents cannot
    /// be read or are for other machines.
    pub parts: BTreeMap<Part, u64>,
}

/// A part of an image that takes room on disk.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// Bytes as the registry gave them.
    Blob(Digest),
    /// An unpacked layer.
    Layer(Digest),
}

impl Listed {
    /// Bytes on disk of all its parts, packed and unpacked, also of those that other images have.
    pub fn size(&self) -> u64 {
        self.parts.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Whether a reference that a task has stands for this image.
    pub fn is(&self, reference: &Reference) -> bool {
        if self.reference == reference.record() {
            return true;
        }
        reference.digest() == Some(&self.digest)
            && Reference::parse(&self.reference).is_ok_and(|own| own.shares_repository(reference))
    }
}

impl Images {
    /// Every image name of the namespace, whoever made it, in the order of names.
    ///
    /// # Errors
    /// When containerd fails.
    pub async fn list(&self) -> Result<Vec<Listed>, Error> {
        let mut rows = Vec::new();
        for record in self.records(Vec::new()).await? {
            let parts = self.parts(&record).await?;
            let last_used = self.last_used(&record);
            let Record { name: reference, target, created, changed, .. } = record;
            rows.push(Listed { reference, digest: target.digest, created, changed, last_used, parts });
        }
        rows.sort_by(|a, b| a.reference.cmp(&b.reference));
        Ok(rows)
    }

    async fn parts(&self, record: &Record) -> Result<BTreeMap<Part, u64>, Error> {
        let mut parts = BTreeMap::new();
        let info = match self.info(&record.target).await {
            Ok(Some(info)) => info,
            Ok(None) => return Ok(parts),
            Err(error) if error.is_bad_input() => {
                tracing::debug!(image = record.name, %error, "listed without a size: it cannot be run");
                return Ok(parts);
            }
            Err(error) => return Err(error),
        };
        for blob in info.blobs().chain([&record.target]) {
            parts.insert(Part::Blob(blob.digest.clone()), blob.size);
        }
        for chain_id in info.chain() {
            if let Some(bytes) = self.unpacked_size(&chain_id).await? {
                parts.insert(Part::Layer(chain_id), bytes);
            }
        }
        Ok(parts)
    }

    /// What an unpacked layer takes; `None` when it is not unpacked.
    async fn unpacked_size(&self, chain_id: &Digest) -> Result<Option<u64>, Error> {
        if let Some(known) = self.sizes.lock().expect("no holder panics").get(chain_id) {
            return Ok(Some(*known));
        }
        let found = self.unpacker.committed_size(chain_id).await?;
        if let Some(bytes) = found {
            let mut sizes = self.sizes.lock().expect("no holder panics");
            if sizes.len() >= SIZES {
                sizes.clear();
            }
            sizes.insert(chain_id.clone(), bytes);
        }
        Ok(found)
    }
}
