//! The image of a task: what is on the node already, or what its registry gives.

#[cfg(any(test, feature = "testing"))]
pub(crate) mod fake;
pub(crate) mod login;

use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use warren_image::{Credentials, Digest, Error, Images, InvalidReference, Listed, Progress, Reference};
use warren_types::{ImageDigest, PullPolicy, TaskAssignment, Timestamp};

use crate::handlers::contents::courier::{Courier, Need};
use login::{PullError, Standing};

/// How often it is said how far a pull has come. Each time is a report to managers, who store it.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Where tasks get their images from: containerd's store and registries, or a fake.
#[tonic::async_trait]
pub trait ImageSource: Send + Sync {
    /// What the image on this node is; `None` when it is not here.
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error>;

    /// Asks the registry as the user that is given, and brings what it says.
    fn pull(&self, reference: &Reference, credentials: Option<Credentials>) -> Arrival;

    /// Notes that the image is used.
    async fn touch(&self, reference: &Reference, now: Timestamp) -> Result<(), Error>;

    /// Bytes of the image's layers and configuration as stored; 0 when it is not here.
    async fn size(&self, reference: &Reference) -> Result<u64, Error>;

    /// Every image of this node.
    async fn list(&self) -> Result<Vec<Listed>, Error>;

    /// Removes an image by its name in the list. Says whether it was there.
    async fn remove(&self, name: &str) -> Result<bool, Error>;
}

/// A pull under way. Dropping it gives the pull up, unless another task waits for the same.
pub struct Arrival {
    /// How far it has come.
    pub progress: watch::Receiver<Progress>,
    /// What came.
    pub outcome: BoxFuture<'static, Result<Digest, Error>>,
}

/// Why a task has no image.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("task.image: {0}")]
    Reference(#[from] InvalidReference),
    #[error(transparent)]
    Store(#[from] Error),
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error(
        "image {reference} is not on this node, and task.pull is never; import or pull it there, or allow pulls"
    )]
    NotHere { reference: Reference },
}

impl ImageError {
    /// Whether trying again can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) => error.is_transient(),
            Self::Pull(error) => error.is_transient(),
            Self::Reference(_) | Self::NotHere { .. } => false,
        }
    }
}

#[tonic::async_trait]
impl ImageSource for Images {
    async fn find(&self, reference: &Reference) -> Result<Option<Digest>, Error> {
        Ok(self.get(reference).await?.map(|image| image.digest.clone()))
    }

    fn pull(&self, reference: &Reference, credentials: Option<Credentials>) -> Arrival {
        let pull = Images::pull(self, reference, credentials);
        let progress = pull.progress();
        Arrival { progress, outcome: async move { Ok(pull.outcome().await?.digest) }.boxed() }
    }

    async fn touch(&self, reference: &Reference, now: Timestamp) -> Result<(), Error> {
        Images::touch(self, reference, now).await.map(|_| ())
    }

    async fn size(&self, reference: &Reference) -> Result<u64, Error> {
        Ok(self.get(reference).await?.map_or(0, |image| image.size()))
    }

    async fn list(&self) -> Result<Vec<Listed>, Error> {
        Images::list(self).await
    }

    async fn remove(&self, name: &str) -> Result<bool, Error> {
        self.remove_listed(name).await
    }
}

/// The image that the task's container is made from, bound to its content once that is settled.
pub(crate) fn reference(task: &TaskAssignment) -> Result<Reference, InvalidReference> {
    let reference = Reference::parse(task.spec.image.as_str())?;
    let Some(pin) = warren_task::pin(task) else { return Ok(reference) };
    let pin = Digest::parse(pin.as_str()).expect("both kinds of digest are sha256 and 64 digits");
    Ok(reference.pinned(&pin))
}

/// Makes the task's image present on the node, and says what it is. A registry is asked as the user that managers know
/// for it. Takes as long as a pull does; `said` gets now and then how far that has come. Dropping the future gives the
/// pull up.
pub(crate) async fn ensure(
    source: &dyn ImageSource,
    courier: &dyn Courier,
    task: &TaskAssignment,
    said: Option<&watch::Sender<String>>,
) -> Result<ImageDigest, ImageError> {
    let (reference, pin) = (reference(task)?, warren_task::pin(task));
    // What a tag means now is asked once for the revision: what is bound already means the same everywhere.
    let asks_anyway = task.spec.pull == PullPolicy::Always && pin.is_none();
    let found = if asks_anyway { None } else { source.find(&reference).await? };
    let digest = match found {
        Some(found) => found,
        None if task.spec.pull == PullPolicy::Never => return Err(ImageError::NotHere { reference }),
        None => {
            let standing = Standing::ask(courier, Need::Credential(task.id), &reference).await;
            let arrival = source.pull(&reference, standing.credentials());
            follow(arrival, said).await.map_err(|error| standing.judge(error))?
        }
    };
    let digest = digest.as_str().parse().expect("both kinds of digest are sha256 and 64 digits");
    Ok(pin.unwrap_or(digest))
}

async fn follow(mut arrival: Arrival, said: Option<&watch::Sender<String>>) -> Result<Digest, Error> {
    loop {
        tokio::select! {
            outcome = &mut arrival.outcome => return outcome,
            () = tokio::time::sleep(SAY_EVERY) => {
                let words = arrival.progress.borrow_and_update().to_string();
                if let Some(said) = said {
                    said.send_if_modified(|said| std::mem::replace(said, words.clone()) != words);
                }
            }
        }
    }
}
