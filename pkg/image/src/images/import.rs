//! From an archive to images.

use std::path::PathBuf;
use std::sync::Arc;

use futures::stream;
use tokio::io::AsyncRead;

use super::Images;
use crate::archive::{Archive, Candidate, spool};
use crate::digest::Digest;
use crate::error::Error;
use crate::reference::Reference;
use crate::store::Lease;

/// Where an archive is spooled, how large it may be, what its image shall be called.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// A directory on a disk with room for the archive twice. Nothing is left in it.
    pub spool_dir: PathBuf,
    /// The largest archive accepted, in bytes, packed and unpacked each.
    pub max_bytes: u64,
    /// The name for the archive's only image. Without it the archive must name its images.
    pub name: Option<Reference>,
}

/// One name that an import created or moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The image's name from now on.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its layers and configuration as stored.
    pub size: u64,
}

impl Images {
    /// Imports every image of an OCI-layout or docker-save archive, plain or gzip, told apart by content.
    /// Importing the same archive again changes nothing; a name that exists moves to the new image.
    ///
    /// Once the archive is received the import runs to its end even if this future is dropped, and releases
    /// its lease. Names appear last: an import that fails leaves none.
    ///
    /// # Errors
    /// [`Error::is_bad_input`] tells a bad archive from a failing node.
    pub async fn import<R>(&self, archive: R, options: ImportOptions) -> Result<Vec<Imported>, Error>
    where
        R: AsyncRead + Unpin + Send,
    {
        let spooled = spool(archive, &options.spool_dir, options.max_bytes).await?;
        let images = self.clone();
        let work = async move {
            let opened = tokio::task::spawn_blocking(move || {
                let archive = Archive::open(spooled, &options.spool_dir, options.max_bytes)?;
                let candidates = archive.candidates(options.name.as_ref())?;
                let file = archive.file().map_err(|error| Error::spool(&options.spool_dir, error))?;
                Ok::<_, Error>((Arc::new(file), candidates))
            });
            let (file, candidates) = opened.await.expect("reading an archive does not panic")?;
            images.store.under_lease(async |lease| images.take_in(&lease, &file, &candidates).await).await
        };
        tokio::spawn(work).await.expect("an import is neither cancelled nor panics")
    }

    async fn take_in(
        &self,
        lease: &Lease,
        file: &Arc<std::fs::File>,
        candidates: &[Candidate],
    ) -> Result<Vec<Imported>, Error> {
        for Candidate { parts, spans, .. } in candidates {
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
            let (manifest, size) = (&candidate.parts.manifest.0, candidate.parts.size());
            for name in &candidate.names {
                self.point(name, manifest).await?;
                let (reference, digest) = (name.clone(), manifest.digest.clone());
                imported.push(Imported { reference, digest, size });
            }
        }
        Ok(imported)
    }
}
