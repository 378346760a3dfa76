//! The image of a task: found on the node, or pulled from its registry.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fake;
pub(crate) mod registry_login;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use tokio::sync::watch;
use warren_image::{
    BlobSource, Digest, Error, ImagePullProgress, ImageStore, ImportedName, InvalidReference, ListedImage,
    Reference, RegistryAccess,
};
use warren_types::{ImageDigest, PullPolicy, TaskAssignment, TaskId, Timestamp};

use crate::handlers::secret_fetcher::{ImagePuller, SecretFetcher};
use registry_login::{ImagePullError, RegistryLogin};

/// Interval of progress reports of a pull. Managers store each report.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Source of images for tasks: containerd's store and registries, or a fake.
#[tonic::async_trait]
pub trait ImageSource: Send + Sync {
    /// Digest of an image on this node; `None` if it is not there.
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error>;

    /// Pulls an image from its registry with the given access.
    fn pull(&self, reference: &Reference, access: Option<RegistryAccess>) -> ImagePull;

    /// Records a use of the image.
    async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<(), Error>;

    /// Bytes on disk of the image, packed and unpacked; 0 if it is not on this node.
    async fn size(&self, reference: &Reference) -> Result<u64, Error>;

    /// Names and digests of all images, the last changed first.
    async fn names(&self) -> Result<Vec<(String, Digest)>, Error>;

    /// The bytes of a blob of an image.
    async fn read_blob(&self, image: &Reference, blob: &Digest) -> Result<BlobStream, Error>;

    /// Receives an image with this digest from another node.
    async fn receive(
        &self,
        reference: &Reference,
        digest: &Digest,
        source: &mut dyn BlobSource,
    ) -> Result<ImportedName, Error>;

    /// Every image of this node.
    async fn list(&self) -> Result<Vec<ListedImage>, Error>;

    /// Removes an image by its name in the list. Returns whether it existed.
    async fn remove(&self, name: &str) -> Result<bool, Error>;
}

/// A pull in progress. Dropping it cancels the pull, unless another task waits for it.
pub struct ImagePull {
    /// Progress.
    pub progress: watch::Receiver<ImagePullProgress>,
    /// Result.
    pub result: BoxFuture<'static, Result<Digest, Error>>,
}

/// Bytes of a blob.
pub type BlobStream = BoxStream<'static, Result<Bytes, Error>>;

/// Notifies the tasks that wait for an image that one arrived other than by their pulls. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct ImageArrivals(watch::Sender<u64>);

impl Default for ImageArrivals {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl ImageArrivals {
    /// An image arrived.
    pub fn notify(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Changes when an image arrives.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}

/// Nodes that have the image of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ImageHolders {
    /// Names of some of them.
    pub nodes: Vec<String>,
    /// The name of this node.
    pub this_node: String,
}

/// Finds nodes that have an image.
#[tonic::async_trait]
pub(crate) trait FindImageHolders: Send + Sync {
    /// The other nodes that have the image of the task, as far as the managers know.
    async fn find(&self, task: TaskId) -> ImageHolders;
}

/// Where the images of tasks come from.
#[derive(Clone)]
pub(crate) struct TaskImages {
    pub source: Arc<dyn ImageSource>,
    pub secret_fetcher: Arc<dyn SecretFetcher>,
    pub holders: Arc<dyn FindImageHolders>,
    pub arrivals: ImageArrivals,
}

/// A task has no image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskImageError {
    #[error("task.image: {0}")]
    Reference(#[from] InvalidReference),
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Pull(#[from] ImagePullError),
    #[error(
        "image {reference} is not on this node, and task.pull is never; import or pull it there, or allow pulls"
    )]
    NotPresent { reference: Reference },
    /// Another node has it.
    #[error("{cause}; {hint}")]
    OnOtherNode { cause: Box<TaskImageError>, hint: String },
}

impl TaskImageError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Pull(error) => error.is_transient(),
            Self::OnOtherNode { cause, .. } => cause.is_transient(),
            Self::Reference(_) | Self::NotPresent { .. } => false,
        }
    }
}

#[tonic::async_trait]
impl ImageSource for ImageStore {
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error> {
        Ok(self.get(reference).await?.map(|image| image.digest.clone()))
    }

    fn pull(&self, reference: &Reference, access: Option<RegistryAccess>) -> ImagePull {
        let pull = ImageStore::pull(self, reference, access);
        let progress = pull.progress();
        ImagePull { progress, result: async move { Ok(pull.outcome().await?.digest) }.boxed() }
    }

    async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        ImageStore::mark_used(self, reference, now).await.map(|_| ())
    }

    async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        ImageStore::size(self, reference).await
    }

    async fn names(&self) -> Result<Vec<(String, Digest)>, Error> {
        ImageStore::names(self).await
    }

    async fn read_blob(&self, image: &Reference, blob: &Digest) -> Result<BlobStream, Error> {
        Ok(ImageStore::read_blob(self, image, blob).await?.boxed())
    }

    async fn receive(
        &self,
        reference: &Reference,
        digest: &Digest,
        source: &mut dyn BlobSource,
    ) -> Result<ImportedName, Error> {
        ImageStore::receive(self, reference, digest, source).await
    }

    async fn list(&self) -> Result<Vec<ListedImage>, Error> {
        ImageStore::list(self).await
    }

    async fn remove(&self, name: &str) -> Result<bool, Error> {
        self.remove_listed(name).await
    }
}

/// The image of the task's container, with its digest once that is resolved.
pub(crate) fn image_reference(task: &TaskAssignment) -> Result<Reference, InvalidReference> {
    let reference = Reference::parse(task.spec.image.as_str())?;
    let Some(pin) = warren_task::resolved_digest(task) else { return Ok(reference) };
    let pin = Digest::parse(pin.as_str()).expect("both kinds of digest are sha256 and 64 digits");
    Ok(reference.with_digest(&pin))
}

impl TaskImages {
    /// Ensures that the task's image is on the node, and returns its digest. Access to registries comes from
    /// the managers. Takes as long as a pull; progress is sent to `progress_tx`. Dropping the future cancels
    /// the pull.
    pub async fn ensure(
        &self,
        task: &TaskAssignment,
        progress_tx: Option<&watch::Sender<String>>,
    ) -> Result<ImageDigest, TaskImageError> {
        let (reference, pin) = (image_reference(task)?, warren_task::resolved_digest(task));
        // A tag is resolved once per revision: a pinned image is the same everywhere.
        let asks_anyway = task.spec.pull == PullPolicy::Always && pin.is_none();
        let arrivals = self.arrivals.subscribe();
        let found = if asks_anyway { None } else { self.source.find(&reference).await? };
        let digest = match found {
            Some(found) => found,
            None if task.spec.pull == PullPolicy::Never => {
                return Err(self.with_holders(task, TaskImageError::NotPresent { reference }).await);
            }
            None => {
                let arrived = async {
                    match asks_anyway {
                        true => std::future::pending().await,
                        false => self.await_arrival(&reference, arrivals).await,
                    }
                };
                let pulled = tokio::select! {
                    pulled = self.pull(task, &reference, progress_tx) => pulled,
                    arrived = arrived => arrived.map_err(TaskImageError::from),
                };
                match pulled {
                    Ok(digest) => digest,
                    Err(error) => return Err(self.with_holders(task, error).await),
                }
            }
        };
        let digest = digest.as_str().parse().expect("both kinds of digest are sha256 and 64 digits");
        Ok(pin.unwrap_or(digest))
    }

    /// Waits until the image is on the node.
    async fn await_arrival(
        &self,
        reference: &Reference,
        mut arrivals: watch::Receiver<u64>,
    ) -> Result<Digest, Error> {
        while arrivals.changed().await.is_ok() {
            if let Some(digest) = self.source.find(reference).await? {
                return Ok(digest);
            }
        }
        std::future::pending().await
    }

    async fn pull(
        &self,
        task: &TaskAssignment,
        reference: &Reference,
        progress_tx: Option<&watch::Sender<String>>,
    ) -> Result<Digest, TaskImageError> {
        let puller = ImagePuller::Task(task.id);
        let mut login = RegistryLogin::resolve(&self.secret_fetcher, puller, reference).await?;
        let mut arrival = self.source.pull(reference, login.access());
        // Asked for at the first failure: a registry is retried for minutes.
        let mut hint = None;
        loop {
            tokio::select! {
                outcome = &mut arrival.result => match outcome {
                    Ok(digest) => return Ok(digest),
                    Err(error) => {
                        login = login.after_failure(error).await?;
                        arrival = self.source.pull(reference, login.access());
                    }
                },
                () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                    let progress = arrival.progress.borrow_and_update().clone();
                    if progress.retry_reason.is_some() && hint.is_none() {
                        hint = Some(self.copy_hint(task).await);
                    }
                    let mut words = progress.to_string();
                    if let Some(hint) = hint.iter().flatten().find(|_| progress.retry_reason.is_some()) {
                        words = format!("{words}; {hint}");
                    }
                    if let Some(progress_tx) = progress_tx {
                        progress_tx.send_if_modified(|known| std::mem::replace(known, words.clone()) != words);
                    }
                }
            }
        }
    }

    async fn with_holders(&self, task: &TaskAssignment, cause: TaskImageError) -> TaskImageError {
        match self.copy_hint(task).await {
            Some(hint) => TaskImageError::OnOtherNode { cause: Box::new(cause), hint },
            None => cause,
        }
    }

    /// How to copy the task's image from a node that has it; `None` if none is known.
    async fn copy_hint(&self, task: &TaskAssignment) -> Option<String> {
        let ImageHolders { nodes, this_node } = self.holders.find(task.id).await;
        let (last, others) = nodes.split_last()?;
        let image = &task.spec.image;
        let names = match others.is_empty() {
            true => format!("{last} has it"),
            false => format!("{} and {last} have it", others.join(", ")),
        };
        Some(format!("{names}: `warren image copy {image} --to {this_node}`"))
    }
}
