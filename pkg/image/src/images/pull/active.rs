//! Pulls in progress; concurrent pulls of one name with the same access share one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use warren_registry::{Reference, RegistryAccess};

use super::PulledImage;
use super::progress::{ImagePullProgress, ProgressSender};
use crate::error::Error;
use crate::images::ImageStore;
use crate::store::Lease;

/// The same name with other access is another pull: the registry decides access per user.
type PullKey = (Reference, Option<RegistryAccess>);
type PullResult = Option<Result<PulledImage, Error>>;

/// All pulls in progress.
#[derive(Debug, Default)]
pub(in crate::images) struct ActivePulls(Mutex<HashMap<PullKey, Weak<ActivePull>>>);

#[derive(Debug)]
struct ActivePull {
    progress: watch::Receiver<ImagePullProgress>,
    outcome: watch::Receiver<PullResult>,
}

/// A pull in progress, shared by its callers. Dropping the last handle cancels it.
#[derive(Clone, Debug)]
pub struct PullHandle(Arc<ActivePull>);

impl PullHandle {
    /// Progress of the pull. The channel closes at the end.
    pub fn progress(&self) -> watch::Receiver<ImagePullProgress> {
        self.0.progress.clone()
    }

    /// Waits for the result.
    ///
    /// # Errors
    /// [`Error::is_transient`]: whether another pull may succeed.
    pub async fn outcome(&self) -> Result<PulledImage, Error> {
        let mut outcome = self.0.outcome.clone();
        let done = outcome.wait_for(Option::is_some).await.expect("a pull sends its result before it ends");
        done.clone().expect("the result was just checked")
    }
}

impl ImageStore {
    /// Pulls an image from its registry, or joins the pull of it in progress. Always asks the registry and
    /// sets the name to its current digest, even if the image exists; present content is not fetched again.
    /// Without access the credentials of this node for the registry are used.
    ///
    /// Must be called within a tokio runtime. The name is set last: a failed pull leaves nothing.
    pub fn pull(&self, reference: &Reference, access: Option<RegistryAccess>) -> PullHandle {
        let key = (reference.canonical(), access);
        let mut pulls = self.active_pulls.0.lock().expect("no holder panics");
        if let Some(pull) = pulls.get(&key).and_then(Weak::upgrade) {
            return PullHandle(pull);
        }
        let (reporter, progress) = ProgressSender::new();
        let (sender, outcome) = watch::channel(None);
        let pull = Arc::new(ActivePull { progress, outcome });
        pulls.insert(key.clone(), Arc::downgrade(&pull));
        tokio::spawn(self.clone().run_pull(key, Arc::downgrade(&pull), reporter, sender));
        PullHandle(pull)
    }

    async fn run_pull(
        self,
        key: PullKey,
        pull: Weak<ActivePull>,
        reporter: ProgressSender,
        outcome: watch::Sender<PullResult>,
    ) {
        let reference = &key.0;
        let done = self.pull_with_fallback(&key, &reporter, &outcome).await;
        let mut pulls = self.active_pulls.0.lock().expect("no holder panics");
        if pulls.get(&key).is_some_and(|current| current.ptr_eq(&pull)) {
            pulls.remove(&key);
        }
        drop(pulls);
        match &done {
            Ok(pulled) => tracing::info!(image = %reference, digest = %pulled.digest, "pulled"),
            Err(error) => tracing::info!(image = %reference, %error, "image pull failed"),
        }
        outcome.send_replace(Some(done));
    }

    async fn pull_with_fallback(
        &self,
        (reference, access): &PullKey,
        reporter: &ProgressSender,
        outcome: &watch::Sender<PullResult>,
    ) -> Result<PulledImage, Error> {
        let limit = self.clients.policy().pull_timeout;
        let bounds = PullDeadline { reference, limit, until: Instant::now() + limit, outcome };
        let repository = self.clients.repository(reference, access.clone()).await?;
        let unchanged = self.unchanged(&repository, reference, reporter);
        if let Some(pulled) = bounds.run(unchanged).await? {
            return Ok(pulled);
        }
        let fetch = async |lease: Lease| {
            // Cancelled inside the lease scope, so that the lease is released.
            bounds.run(self.fetch(&lease, &repository, reference, reporter)).await
        };
        self.store.under_lease(fetch).await
    }
}

/// Limits of a pull.
struct PullDeadline<'a> {
    reference: &'a Reference,
    limit: Duration,
    until: Instant,
    outcome: &'a watch::Sender<PullResult>,
}

impl PullDeadline<'_> {
    async fn run<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let what = || self.reference.to_string();
        tokio::select! {
            done = tokio::time::timeout_at(self.until, work) => {
                done.unwrap_or_else(|_| Err(Error::TooSlow { what: what(), limit: self.limit }))
            }
            () = self.outcome.closed() => Err(Error::Cancelled { what: what() }),
        }
    }
}
