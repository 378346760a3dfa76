//! Pulling: from a name to an image in the store, over the network.
//!
//! [`flight`] joins concurrent pulls of one name to one; [`current`] asks what a name stands for, so that
//! nothing is fetched that is here; [`resolve`] fetches and checks the documents, after which it is known
//! what will come; [`layers`] fetches the layers, several at a time, each resumed where its connection broke.
//! What happens to them then is shared with imports.

mod current;
pub(crate) mod flight;
mod layers;
pub(crate) mod progress;
mod resolve;

use std::collections::HashMap;

use crate::digest::Digest;
use crate::document::Descriptor;
use crate::error::Error;
use crate::images::Images;
use crate::reference::Reference;
use crate::registry::{Failure, RegistryError, Repository, Tries};
use crate::store::Lease;

use progress::Reporter;
use resolve::Resolved;

const REF_MANIFEST: &str = "containerd.io/gc.ref.content.m.0";

/// An image that was pulled, or found to be here already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// Its name here: what was asked for, without a tag beside a digest.
    pub reference: Reference,
    /// What the name stands for in its registry: an index, or a manifest when there is only one platform. A
    /// reference with this digest gives the same image on every node.
    pub digest: Digest,
    /// The manifest for this machine.
    pub manifest: Digest,
    /// Bytes of its layers and configuration as stored.
    pub size: u64,
}

impl Images {
    /// Brings an image into the store and lets its name point to it, last of all.
    async fn fetch(
        &self,
        lease: &Lease,
        repository: &Repository,
        reference: &Reference,
        reporter: &Reporter,
    ) -> Result<Pulled, Error> {
        let Resolved { index, parts } =
            resolve::resolve(&self.store, repository, reference, reporter).await?;
        if parts.size() > self.packed_limit {
            return Err(Error::ImageTooLarge { what: reference.to_string(), limit: self.packed_limit });
        }
        reporter.begin(&parts.layers);
        let arriving = layers::fetch(&self.store, lease, repository, &parts.layers, reporter);
        self.assemble(lease, &parts, arriving, |position| reporter.unpacked(position)).await?;
        let manifest = parts.manifest.0.clone();
        let target = match index {
            None => manifest.clone(),
            Some((descriptor, bytes)) => {
                let references = HashMap::from([(REF_MANIFEST.to_owned(), manifest.digest.to_string())]);
                self.store.write_document(lease, &bytes, references).await?;
                descriptor
            }
        };
        self.point(reference, &target).await?;
        let Descriptor { digest, .. } = target;
        let (reference, size) = (reference.canonical(), parts.size());
        Ok(Pulled { reference, digest, manifest: manifest.digest, size })
    }
}

/// Makes an attempt until it succeeds or no further one is due, and says meanwhile what the trouble is.
async fn persist<T, F>(
    repository: &Repository,
    reporter: &Reporter,
    mut attempt: impl FnMut() -> F,
) -> Result<T, RegistryError>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut tries = Tries::new(&repository.patience);
    loop {
        match attempt().await {
            Ok(done) => {
                reporter.troubled(None);
                return Ok(done);
            }
            Err(failure) => rest(&mut tries, failure, reporter).await?,
        }
    }
}

/// Waits until the next attempt is due.
async fn rest(tries: &mut Tries, failure: Failure, reporter: &Reporter) -> Result<(), RegistryError> {
    let reason = failure.error.to_string();
    let pause = tries.again(failure)?;
    let (failed, most) = tries.count();
    tracing::debug!(reason, failed, ?pause, "will ask the registry again");
    reporter.troubled(Some(format!("{reason}; asking again ({} of {most})", failed + 1)));
    tokio::time::sleep(pause).await;
    Ok(())
}
