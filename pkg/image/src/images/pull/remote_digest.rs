//! Resolves a name in its registry without fetching the image.

use super::progress::ProgressSender;
use super::{PulledImage, resolve, retry};
use crate::digest::Digest;
use crate::document::Descriptor;
use crate::error::Error;
use crate::images::ImageStore;
use crate::reference::Reference;
use crate::registry::{ManifestSelector, RegistryCredentials, RegistryError, Repository};

/// What a name stands for in its registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedName {
    /// Digest of the index, or of the manifest of an image for one platform.
    pub digest: Digest,
    /// Media type of the index or manifest.
    pub media_type: String,
    /// Bytes of the index or manifest.
    pub size: u64,
}

impl ImageStore {
    /// Resolves a name in its registry. Stores nothing.
    ///
    /// # Errors
    /// As for a pull; [`Error::is_transient`]: whether a retry may succeed.
    pub async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, Error> {
        let limit = self.clients.policy().pull_timeout;
        let ask = async {
            let repository = self.clients.repository(reference, credentials).await?;
            let (reporter, _progress) = ProgressSender::new();
            let selector = ManifestSelector::from_reference(reference);
            let (found, _) = resolve::manifest(&repository, selector, &reporter).await?;
            let Descriptor { media_type, digest, size, .. } = found;
            Ok(ResolvedName { digest, media_type, size })
        };
        let late = |_| Err(Error::TooSlow { what: reference.to_string(), limit });
        tokio::time::timeout(limit, ask).await.unwrap_or_else(late)
    }

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
