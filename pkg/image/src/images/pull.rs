//! Pulling: downloads an image by name into the store.
//!
//! [`active`] shares one pull among concurrent calls for the same name; [`remote_digest`] resolves a name
//! to its digest, so that nothing present is fetched; [`resolve`] fetches and checks the documents, which
//! determine the remaining download; [`layers`] fetches layers in parallel and resumes each after a broken
//! connection. Unpacking is shared with imports.

pub(super) mod active;
mod layers;
pub(super) mod progress;
mod remote_digest;
mod resolve;

use std::collections::HashMap;

use warren_registry::{AttemptFailure, Digest, Reference, RegistryError, Repository, RetryCounter};

use super::ImageStore;
use crate::document::Descriptor;
use crate::error::Error;
use crate::store::Lease;

use progress::ProgressSender;
use resolve::ResolvedImage;

pub(super) const REF_MANIFEST: &str = "containerd.io/gc.ref.content.m.0";

/// An image that was pulled or was already present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PulledImage {
    /// Local name: the requested reference, without a tag when it has a digest.
    pub reference: Reference,
    /// The digest in the registry: an index, or a manifest when there is only one platform. A reference
    /// with this digest gives the same image on every node.
    pub digest: Digest,
    /// Digest of the manifest for this machine.
    pub manifest: Digest,
    /// Stored bytes of its layers and configuration.
    pub size: u64,
}

impl ImageStore {
    /// Downloads an image into the store; the name is set last.
    async fn fetch(
        &self,
        lease: &Lease,
        repository: &Repository,
        reference: &Reference,
        reporter: &ProgressSender,
    ) -> Result<PulledImage, Error> {
        let ResolvedImage { index, parts } =
            resolve::resolve(&self.store, repository, reference, reporter).await?;
        if parts.size() > self.pull_size_limit {
            return Err(Error::ImageTooLarge { what: reference.to_string(), limit: self.pull_size_limit });
        }
        reporter.set_layers(&parts.layers);
        let arriving = layers::fetch(&self.store, lease, repository, &parts.layers, reporter);
        self.assemble(lease, &parts, arriving, |position| reporter.set_unpacked(position)).await?;
        let manifest = parts.manifest.0.clone();
        let target = match index {
            None => manifest.clone(),
            Some((descriptor, bytes)) => {
                let references = HashMap::from([(REF_MANIFEST.to_owned(), manifest.digest.to_string())]);
                self.store.write_document(lease, &bytes, references).await?;
                descriptor
            }
        };
        self.set_target(reference, &target).await?;
        let Descriptor { digest, .. } = target;
        let (reference, size) = (reference.canonical(), parts.size());
        Ok(PulledImage { reference, digest, manifest: manifest.digest, size })
    }
}

/// Retries until success or the end of the retry policy, and reports the retry reason meanwhile.
async fn retry<T, F>(
    repository: &Repository,
    reporter: &ProgressSender,
    mut attempt: impl FnMut() -> F,
) -> Result<T, RegistryError>
where
    F: Future<Output = Result<T, AttemptFailure>>,
{
    let mut tries = RetryCounter::new(&repository.policy);
    loop {
        match attempt().await {
            Ok(done) => {
                reporter.set_retry_reason(None);
                return Ok(done);
            }
            Err(failure) => wait_for_retry(&mut tries, failure, reporter).await?,
        }
    }
}

async fn wait_for_retry(
    tries: &mut RetryCounter,
    failure: AttemptFailure,
    reporter: &ProgressSender,
) -> Result<(), RegistryError> {
    let reason = failure.error.to_string();
    let pause = tries.next_delay(failure)?;
    let (failed, most) = tries.count();
    tracing::debug!(reason, failed, ?pause, "retrying registry request");
    reporter.set_retry_reason(Some(format!("{reason}; retrying ({} of {most})", failed + 1)));
    tokio::time::sleep(pause).await;
    Ok(())
}
