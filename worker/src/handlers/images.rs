//! The image of a task: found on the node, or pulled from its registry.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fake;
pub(crate) mod registry_login;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use warren_image::{
    Digest, Error, ImagePullProgress, ImageStore, InvalidReference, ListedImage, Reference,
    RegistryCredentials,
};
use warren_types::{ImageDigest, PullPolicy, TaskAssignment, Timestamp};

use crate::handlers::secret_fetcher::{FetchPurpose, SecretFetcher};
use registry_login::{ImagePullError, RegistryLogin};

/// Interval of progress reports of a pull. Managers store each report.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Source of images for tasks: containerd's store and registries, or a fake.
#[tonic::async_trait]
pub trait ImageSource: Send + Sync {
    /// Digest of an image on this node; `None` if it is not there.
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error>;

    /// Pulls an image from its registry with the given credentials.
    fn pull(&self, reference: &Reference, credentials: Option<RegistryCredentials>) -> ImagePull;

    /// Records a use of the image.
    async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<(), Error>;

    /// Stored bytes of the image's layers and configuration; 0 if it is not on this node.
    async fn size(&self, reference: &Reference) -> Result<u64, Error>;

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
}

impl TaskImageError {
    /// Whether a retry can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Pull(error) => error.is_transient(),
            Self::Reference(_) | Self::NotPresent { .. } => false,
        }
    }
}

#[tonic::async_trait]
impl ImageSource for ImageStore {
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error> {
        Ok(self.get(reference).await?.map(|image| image.digest.clone()))
    }

    fn pull(&self, reference: &Reference, credentials: Option<RegistryCredentials>) -> ImagePull {
        let pull = ImageStore::pull(self, reference, credentials);
        let progress = pull.progress();
        ImagePull { progress, result: async move { Ok(pull.outcome().await?.digest) }.boxed() }
    }

    async fn mark_used(&self, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        ImageStore::mark_used(self, reference, now).await.map(|_| ())
    }

    async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        Ok(self.get(reference).await?.map_or(0, |image| image.size()))
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

/// Ensures that the task's image is on the node, and returns its digest. Registry credentials come from the
/// managers. Takes as long as a pull; progress is sent to `progress_tx`. Dropping the future cancels the pull.
pub(crate) async fn ensure(
    source: &dyn ImageSource,
    secret_fetcher: &dyn SecretFetcher,
    task: &TaskAssignment,
    progress_tx: Option<&watch::Sender<String>>,
) -> Result<ImageDigest, TaskImageError> {
    let (reference, pin) = (image_reference(task)?, warren_task::resolved_digest(task));
    // A tag is resolved once per revision: a pinned image is the same everywhere.
    let asks_anyway = task.spec.pull == PullPolicy::Always && pin.is_none();
    let found = if asks_anyway { None } else { source.find(&reference).await? };
    let digest = match found {
        Some(found) => found,
        None if task.spec.pull == PullPolicy::Never => return Err(TaskImageError::NotPresent { reference }),
        None => {
            let login =
                RegistryLogin::resolve(secret_fetcher, FetchPurpose::TaskCredential(task.id), &reference)
                    .await;
            let arrival = source.pull(&reference, login.credentials());
            await_pull(arrival, progress_tx).await.map_err(|error| login.classify_error(error))?
        }
    };
    let digest = digest.as_str().parse().expect("both kinds of digest are sha256 and 64 digits");
    Ok(pin.unwrap_or(digest))
}

async fn await_pull(
    mut arrival: ImagePull,
    progress_tx: Option<&watch::Sender<String>>,
) -> Result<Digest, Error> {
    loop {
        tokio::select! {
            outcome = &mut arrival.result => return outcome,
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {
                let words = arrival.progress.borrow_and_update().to_string();
                if let Some(progress_tx) = progress_tx {
                    progress_tx.send_if_modified(|progress_tx| std::mem::replace(progress_tx, words.clone()) != words);
                }
            }
        }
    }
}
