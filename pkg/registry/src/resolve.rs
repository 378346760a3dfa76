//! Resolves a name in its registry without fetching the image, and asks for the signatures of one and for a token.

use std::fmt::Debug;

use crate::client::{FetchedManifest, ManifestHead, ManifestSelector, Repository};
use crate::clients::RegistryClients;
use crate::credentials::{RegistryAccess, RegistryCredentials};
use crate::digest::Digest;
use crate::error::RegistryError;
use crate::media_type::IMAGE_TYPES;
use crate::reference::Reference;
use crate::retry::{AttemptFailure, RetryCounter};
use crate::signature::ImageSignature;
use crate::token::PullGrant;

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

/// Tells what names stand for, who signed that, and what pulls need: [`RegistryClients`], or in tests a table.
#[async_trait::async_trait]
pub trait ResolveNames: Debug + Send + Sync {
    /// What the name stands for now. Stores nothing.
    ///
    /// # Errors
    /// [`RegistryError::is_transient`]: whether a retry may succeed.
    async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, RegistryError>;

    /// The signatures that the repository of `reference` has of the digest `image`, not verified.
    ///
    /// # Errors
    /// As above. That there is none is no error.
    async fn signatures(
        &self,
        reference: &Reference,
        image: &Digest,
        credentials: Option<RegistryCredentials>,
    ) -> Result<Vec<ImageSignature>, RegistryError>;

    /// What somebody needs who pulls the image as this user and does not have the password; one attempt of at most
    /// [`crate::GRANT_TIMEOUT`].
    ///
    /// # Errors
    /// As above: it is not known what the registry demands.
    async fn pull_grant(
        &self,
        reference: &Reference,
        credentials: RegistryCredentials,
    ) -> Result<PullGrant, RegistryError>;
}

#[async_trait::async_trait]
impl ResolveNames for RegistryClients {
    async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<RegistryCredentials>,
    ) -> Result<ResolvedName, RegistryError> {
        let repository = self.repository(reference, credentials.map(RegistryAccess::Password)).await?;
        let selector = ManifestSelector::from_reference(reference);
        self.repeat(|| repository.resolve(selector, reference.digest())).await
    }

    async fn signatures(
        &self,
        reference: &Reference,
        image: &Digest,
        credentials: Option<RegistryCredentials>,
    ) -> Result<Vec<ImageSignature>, RegistryError> {
        let repository = self.repository(reference, credentials.map(RegistryAccess::Password)).await?;
        self.repeat(|| repository.signatures(image)).await
    }

    async fn pull_grant(
        &self,
        reference: &Reference,
        credentials: RegistryCredentials,
    ) -> Result<PullGrant, RegistryError> {
        let repository = self.repository(reference, None).await?;
        let selector = ManifestSelector::from_reference(reference);
        repository.pull_grant(selector, &credentials).await
    }
}

impl RegistryClients {
    /// Makes attempts until one succeeds, or a further one cannot help.
    async fn repeat<T, F>(&self, mut attempt: impl FnMut() -> F + Send) -> Result<T, RegistryError>
    where
        T: Send,
        F: Future<Output = Result<T, AttemptFailure>> + Send,
    {
        let mut tries = RetryCounter::new(self.policy());
        loop {
            match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(failure) => tokio::time::sleep(tries.next_delay(failure)?).await,
            }
        }
    }
}

impl Repository {
    /// What the name stands for; one attempt. The document is only fetched if the head of the answer does not tell:
    /// registries count what is fetched.
    async fn resolve(
        &self,
        selector: ManifestSelector<'_>,
        expected: Option<&Digest>,
    ) -> Result<ResolvedName, AttemptFailure> {
        let is_image = |media_type: &str| IMAGE_TYPES.contains(&media_type);
        let is_expected = |digest: &Digest| expected.is_none_or(|expected| expected == digest);
        if let ManifestHead { digest: Some(digest), media_type: Some(media_type), size: Some(size) } =
            self.manifest_head(selector).await?
            && is_image(&media_type)
            && is_expected(&digest)
        {
            return Ok(ResolvedName { digest, media_type, size });
        }
        let FetchedManifest { media_type, bytes } = self.manifest(selector).await?;
        let digest = Digest::of(&bytes);
        let invalid = |reason| Err(self.invalid_answer("the manifest", reason).into());
        if !is_expected(&digest) {
            return invalid(format!("its digest is {digest}"));
        }
        if !is_image(&media_type) {
            return invalid(format!("its media type is {media_type:?}; use an OCI or Docker image"));
        }
        Ok(ResolvedName { digest, media_type, size: bytes.len() as u64 })
    }
}
