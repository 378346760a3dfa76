//! Imports archives as images.

use std::path::PathBuf;
use std::sync::Arc;

use futures::stream;
use tokio::io::AsyncRead;
use warren_registry::{Digest, Reference};

use super::ImageStore;
use crate::archive::{ImageCandidate, IndexedArchive, spool};
use crate::error::Error;
use crate::store::Lease;

/// Spool directory, size limit and image name of an import.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// A directory on a disk with room for twice the archive. No file remains in it.
    pub spool_dir: PathBuf,
    /// The largest accepted archive in bytes, packed and unpacked each.
    pub max_bytes: u64,
    /// Name for the only image of the archive. Without it the archive must name its images.
    pub name: Option<Reference>,
}

/// One image name that an import created or moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedName {
    /// Name of the image.
    pub reference: Reference,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Bytes on disk of all its parts, packed and unpacked, as in a list.
    pub size: u64,
}

impl ImageStore {
    /// Imports every image of an OCI-layout or docker-save archive, plain or gzip, detected by content.
    /// Importing the same archive again changes nothing; an existing name moves to the new image.
    ///
    /// After the archive is received the import completes even if this future is dropped, and releases its
    /// lease. Names are set last: a failed import leaves none.
    ///
    /// # Errors
    /// [`Error::is_bad_input`] distinguishes a bad archive from a failing node.
    pub async fn import<R>(&self, archive: R, options: ImportOptions) -> Result<Vec<ImportedName>, Error>
    where
        R: AsyncRead + Unpin + Send,
    {
        let spooled = spool(archive, &options.spool_dir, options.max_bytes).await?;
        let images = self.clone();
        let work = async move {
            let opened = tokio::task::spawn_blocking(move || {
                let archive = IndexedArchive::open(spooled, &options.spool_dir, options.max_bytes)?;
                let candidates = archive.candidates(options.name.as_ref())?;
                let file = archive.file().map_err(|error| Error::spool(&options.spool_dir, error))?;
                Ok::<_, Error>((Arc::new(file), candidates))
            });
            let (file, candidates) = opened.await.expect("reading an archive does not panic")?;
            images
                .store
                .under_lease(async |lease| images.store_candidate(&lease, &file, &candidates).await)
                .await
        };
        tokio::spawn(work).await.expect("an import is neither cancelled nor panics")
    }

    async fn store_candidate(
        &self,
        lease: &Lease,
        file: &Arc<std::fs::File>,
        candidates: &[ImageCandidate],
    ) -> Result<Vec<ImportedName>, Error> {
        for ImageCandidate { parts, spans, .. } in candidates {
            let next = async |position: usize| {
                let (Some(layer), Some(span)) = (parts.layers.get(position), spans.get(position)) else {
                    return Ok(None);
                };
                self.store.write_span(lease, &layer.digest, file, *span).await?;
                Ok(Some(((), position + 1)))
            };
            let arriving = stream::try_unfold(0, next);
            self.assemble(lease, parts, arriving, |_| ()).await?;
        }
        let mut imported = Vec::new();
        for candidate in candidates {
            let manifest = &candidate.parts.manifest.0;
            let size = self.disk_usage(manifest).await?;
            for name in &candidate.names {
                self.set_target(name, manifest).await?;
                let (reference, digest) = (name.clone(), manifest.digest.clone());
                imported.push(ImportedName { reference, digest, size });
            }
        }
        Ok(imported)
    }
}
