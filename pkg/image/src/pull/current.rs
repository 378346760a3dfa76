//! What a name stands for in its registry now, asked without fetching anything.

use super::progress::Reporter;
use super::{Pulled, persist, resolve};
use crate::digest::Digest;
use crate::error::Error;
use crate::images::Images;
use crate::reference::Reference;
use crate::registry::{Credentials, Named, RegistryError, Repository};

impl Images {
    /// Asks the registry what a name stands for now: the digest to bind tasks to. Nothing is stored.
    ///
    /// # Errors
    /// As for a pull; [`Error::is_transient`] tells what another try may mend.
    pub async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<Credentials>,
    ) -> Result<Digest, Error> {
        let limit = self.hub.patience().pull;
        let ask = async {
            let repository = self.hub.repository(reference, credentials).await?;
            let (reporter, _progress) = Reporter::new();
            if let Some(digest) = digest(&repository, reference, &reporter).await? {
                return Ok(digest);
            }
            let found = resolve::manifest(&repository, Named::of(reference), &reporter).await?;
            Ok(found.0.digest)
        };
        let late = |_| Err(Error::TooSlow { what: reference.to_string(), limit });
        tokio::time::timeout(limit, ask).await.unwrap_or_else(late)
    }

    /// The image that is here, when the registry still says the same and nothing of it is missing.
    pub(super) async fn unchanged(
        &self,
        repository: &Repository,
        reference: &Reference,
        reporter: &Reporter,
    ) -> Result<Option<Pulled>, Error> {
        let Some(target) = self.target(reference).await? else { return Ok(None) };
        if digest(repository, reference, reporter).await?.as_ref() != Some(&target.digest) {
            return Ok(None);
        }
        // What is wrong with an image that cannot be read, the pull that follows will find out.
        let Ok(Some(info)) = self.info(&target).await else { return Ok(None) };
        if !self.is_complete(&info).await? {
            return Ok(None);
        }
        let (digest, manifest) = (info.digest.clone(), info.manifest.clone());
        Ok(Some(Pulled { reference: reference.canonical(), digest, manifest, size: info.size() }))
    }
}

/// The digest that the registry names; `None` when it does not say, for a reason that the next request, which
/// has an answer in words, will find too.
async fn digest(
    repository: &Repository,
    reference: &Reference,
    reporter: &Reporter,
) -> Result<Option<Digest>, RegistryError> {
    match persist(repository, reporter, || repository.digest(Named::of(reference))).await {
        Err(error) if !error.is_transient() => Ok(None),
        answer => answer,
    }
}
