//! Images and a registry in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use warren_image::{
    BlobSource, Digest, Error, ImagePart, ImagePullProgress, ImportedName, ListedImage, Reference,
    RegistryAccess,
};
use warren_types::Timestamp;

use super::{BlobStream, ImagePull, ImageSource};

/// Size of each image, in bytes.
const SIZE: u64 = 1 << 20;

/// The registry's answer to a pull.
#[derive(Debug, Clone)]
enum RegistryAnswer {
    /// The image.
    Image(Digest),
    /// An error.
    Error(Error),
    /// The pull stalls at this progress.
    Stalled(ImagePullProgress),
}

#[derive(Debug, Default)]
struct State {
    present: BTreeMap<String, Digest>,
    registry: BTreeMap<String, RegistryAnswer>,
    pulled: Vec<String>,
    users: Vec<Option<String>>,
    used: BTreeMap<String, Timestamp>,
}

/// The images of a node and a registry, set by a test. Clones share them.
#[derive(Debug, Clone)]
pub struct FakeImages {
    state: watch::Sender<State>,
    waiter_count: Arc<AtomicUsize>,
}

impl Default for FakeImages {
    fn default() -> Self {
        Self { state: watch::Sender::new(State::default()), waiter_count: Arc::default() }
    }
}

/// Counts waiting pulls.
struct WaiterGuard(Arc<AtomicUsize>);

impl Drop for WaiterGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeImages {
    /// Puts the image on the node.
    pub fn add(&self, reference: &Reference, digest: Digest) {
        self.state.send_modify(|state| state.present.extend([(reference.record_name(), digest)]));
    }

    /// Removes all images from the node.
    pub fn remove_all(&self) {
        self.state.send_modify(|state| state.present.clear());
    }

    /// Makes the registry serve the image, also for waiting pulls.
    pub fn serve(&self, reference: &Reference, digest: Digest) {
        self.set_answer(reference, RegistryAnswer::Image(digest));
    }

    /// Makes pulls of the image fail, also waiting ones.
    pub fn fail(&self, reference: &Reference, error: Error) {
        self.set_answer(reference, RegistryAnswer::Error(error));
    }

    /// Makes pulls of the image stall.
    pub fn stall_at(&self, reference: &Reference, progress: ImagePullProgress) {
        self.set_answer(reference, RegistryAnswer::Stalled(progress));
    }

    /// Names of pulled images, in order.
    pub fn pulled(&self) -> Vec<String> {
        self.state.borrow().pulled.clone()
    }

    /// Registry user of each pull.
    pub fn registry_users(&self) -> Vec<Option<String>> {
        self.state.borrow().users.clone()
    }

    /// Number of waiting pulls.
    pub fn waiter_count(&self) -> usize {
        self.waiter_count.load(Ordering::SeqCst)
    }

    /// The images with a recorded use.
    pub fn used(&self) -> Vec<String> {
        self.state.borrow().used.keys().cloned().collect()
    }

    fn set_answer(&self, reference: &Reference, answer: RegistryAnswer) {
        self.state.send_modify(|state| state.registry.extend([(reference.record_name(), answer)]));
    }
}

#[tonic::async_trait]
impl ImageSource for FakeImages {
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error> {
        let state = self.state.borrow();
        Ok(match reference.digest() {
            Some(digest) => state.present.values().find(|here| *here == digest).cloned(),
            None => state.present.get(&reference.record_name()).cloned(),
        })
    }

    fn pull(&self, reference: &Reference, access: Option<RegistryAccess>) -> ImagePull {
        let name = reference.record_name();
        self.state.send_modify(|state| {
            state.pulled.push(name.clone());
            state.users.push(access.map(|access| access.user().to_owned()));
        });
        self.waiter_count.fetch_add(1, Ordering::SeqCst);
        let waiting = WaiterGuard(Arc::clone(&self.waiter_count));
        let (output, progress) = watch::channel(ImagePullProgress::default());
        let (mut answers, state) = (self.state.subscribe(), self.state.clone());
        let outcome = async move {
            let _waiting = waiting;
            loop {
                let answer = answers.borrow_and_update().registry.get(&name).cloned();
                match answer {
                    Some(RegistryAnswer::Image(digest)) => {
                        state.send_modify(|state| state.present.extend([(name.clone(), digest.clone())]));
                        return Ok(digest);
                    }
                    Some(RegistryAnswer::Error(error)) => return Err(error),
                    Some(RegistryAnswer::Stalled(progress)) => output.send_modify(|text| *text = progress),
                    None => {}
                }
                answers.changed().await.expect("its sender is held above");
            }
        };
        ImagePull { progress, result: outcome.boxed() }
    }

    async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        self.state.send_modify(|state| state.used.extend([(reference.record_name(), now)]));
        Ok(())
    }

    async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        Ok(self.find(reference).await?.map_or(0, |_| SIZE))
    }

    async fn names(&self) -> Result<Vec<(String, Digest)>, Error> {
        Ok(self.state.borrow().present.clone().into_iter().collect())
    }

    /// The only blob of an image is its digest.
    async fn read_blob(&self, image: &Reference, blob: &Digest) -> Result<BlobStream, Error> {
        if self.find(image).await?.as_ref() != Some(blob) {
            return Err(Error::Transfer { reason: format!("the image {image} has no blob {blob}") });
        }
        Ok(futures::stream::iter([Ok(Bytes::from(blob.to_string()))]).boxed())
    }

    async fn receive(
        &self,
        reference: &Reference,
        digest: &Digest,
        source: &mut dyn BlobSource,
    ) -> Result<ImportedName, Error> {
        source.request(std::slice::from_ref(digest)).await?;
        let mut bytes = Vec::new();
        while let Some(chunk) = source.next_chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        if bytes != digest.as_str().as_bytes() {
            return Err(Error::DigestMismatch { what: reference.to_string(), expected: digest.clone() });
        }
        self.add(reference, digest.clone());
        Ok(ImportedName { reference: reference.clone(), digest: digest.clone(), size: SIZE })
    }

    async fn list(&self) -> Result<Vec<ListedImage>, Error> {
        let state = self.state.borrow();
        let row = |(name, digest): (&String, &Digest)| ListedImage {
            reference: name.clone(),
            digest: digest.clone(),
            created: Timestamp(0),
            updated: Timestamp(0),
            last_used: state.used.get(name).copied().unwrap_or(Timestamp(0)),
            parts: BTreeMap::from([(ImagePart::Blob(digest.clone()), SIZE)]),
        };
        Ok(state.present.iter().map(row).collect())
    }

    async fn remove(&self, name: &str) -> Result<bool, Error> {
        let mut was_here = false;
        self.state.send_modify(|state| was_here = state.present.remove(name).is_some());
        Ok(was_here)
    }
}
