//! Asks a registry whether a local image is current, without fetching it.

use warren_registry::{Digest, ManifestSelector, Reference, RegistryError, Repository};

use super::progress::ProgressSender;
use super::{PulledImage, retry};
use crate::error::Error;
use crate::images::ImageStore;

impl ImageStore {
    /// The local image if it is complete and has the current digest of the registry.
    pub(super) async fn unchanged(
        &self,
        repository: &Repository,
        reference: &Reference,
        reporter: &ProgressSender,
    ) -> Result<Option<PulledImage>, Error> {
        let Some(target) = self.target(reference).await? else { return Ok(None) };
        if digest(repository, reference, reporter).await?.as_ref() != Some(&target.digest) {
            return Ok(None);
        }
        // If the documents are unreadable, the pull that follows returns the error.
        let Ok(Some(info)) = self.info(&target).await else { return Ok(None) };
        if !self.is_complete(&info).await? {
            return Ok(None);
        }
        let (digest, manifest) = (info.digest.clone(), info.manifest.clone());
        Ok(Some(PulledImage { reference: reference.canonical(), digest, manifest, size: info.size() }))
    }
}

/// The digest that the registry returns; `None` when it returns none: the next request fails with a
/// message.
async fn digest(
    repository: &Repository,
    reference: &Reference,
    reporter: &ProgressSender,
) -> Result<Option<Digest>, RegistryError> {
    match retry(repository, reporter, || repository.digest(ManifestSelector::from_reference(reference))).await
    {
        Err(error) if !error.is_transient() => Ok(None),
        answer => answer,
    }
}
