//! Pulls under way: those of one name by one user are one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::Pulled;
use super::progress::{Progress, Reporter};
use crate::error::Error;
use crate::images::Images;
use crate::reference::Reference;
use crate::registry::Credentials;
use crate::store::Lease;

/// The same name with other credentials is another pull: who may have an image is the registry's to say.
type Key = (Reference, Option<Credentials>);
type Outcome = Option<Result<Pulled, Error>>;

/// All pulls under way.
#[derive(Debug, Default)]
pub(crate) struct Flights(Mutex<HashMap<Key, Weak<Flight>>>);

#[derive(Debug)]
struct Flight {
    progress: watch::Receiver<Progress>,
    outcome: watch::Receiver<Outcome>,
}

/// A pull under way, shared by all who want the same. It ends unfinished when the last of them is dropped.
#[derive(Clone, Debug)]
pub struct Pull(Arc<Flight>);

impl Pull {
    /// How far it has come. The channel closes at the end.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.0.progress.clone()
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`Error::is_transient`] tells what another pull may mend.
    pub async fn outcome(&self) -> Result<Pulled, Error> {
        let mut outcome = self.0.outcome.clone();
        let done = outcome.wait_for(Option::is_some).await.expect("a pull says how it ended");
        done.clone().expect("it was just seen")
    }
}

impl Images {
    /// Pulls an image from its registry, or joins the pull of it that is under way. The registry is always
    /// asked, and the name points to what it says now, also when there was such an image before; what is
    /// here is not fetched again. Without credentials this node's own for the registry are used.
    ///
    /// Must be called within a tokio runtime. The name appears last: a pull that fails leaves nothing.
    pub fn pull(&self, reference: &Reference, credentials: Option<Credentials>) -> Pull {
        let key = (reference.canonical(), credentials);
        let mut flights = self.flights.0.lock().expect("no holder panics");
        if let Some(flight) = flights.get(&key).and_then(Weak::upgrade) {
            return Pull(flight);
        }
        let (reporter, progress) = Reporter::new();
        let (sender, outcome) = watch::channel(None);
        let flight = Arc::new(Flight { progress, outcome });
        flights.insert(key.clone(), Arc::downgrade(&flight));
        tokio::spawn(self.clone().fly(key, Arc::downgrade(&flight), reporter, sender));
        Pull(flight)
    }

    async fn fly(self, key: Key, flight: Weak<Flight>, reporter: Reporter, outcome: watch::Sender<Outcome>) {
        let reference = &key.0;
        let done = self.bring(&key, &reporter, &outcome).await;
        let mut flights = self.flights.0.lock().expect("no holder panics");
        if flights.get(&key).is_some_and(|current| current.ptr_eq(&flight)) {
            flights.remove(&key);
        }
        drop(flights);
        match &done {
            Ok(pulled) => tracing::info!(image = %reference, digest = %pulled.digest, "pulled"),
            Err(error) => tracing::info!(image = %reference, %error, "not pulled"),
        }
        outcome.send_replace(Some(done));
    }

    async fn bring(
        &self,
        (reference, credentials): &Key,
        reporter: &Reporter,
        outcome: &watch::Sender<Outcome>,
    ) -> Result<Pulled, Error> {
        let limit = self.hub.patience().pull;
        let bounds = Bounds { reference, limit, until: Instant::now() + limit, outcome };
        let repository = self.hub.repository(reference, credentials.clone()).await?;
        let unchanged = self.unchanged(&repository, reference, reporter);
        if let Some(pulled) = bounds.around(unchanged).await? {
            return Ok(pulled);
        }
        let fetch = async |lease: Lease| {
            // Cut off in here, so that the lease is released.
            bounds.around(self.fetch(&lease, &repository, reference, reporter)).await
        };
        self.store.under_lease(fetch).await
    }
}

/// How long a pull may go on.
struct Bounds<'a> {
    reference: &'a Reference,
    limit: Duration,
    until: Instant,
    outcome: &'a watch::Sender<Outcome>,
}

impl Bounds<'_> {
    async fn around<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let what = || self.reference.to_string();
        tokio::select! {
            done = tokio::time::timeout_at(self.until, work) => {
                done.unwrap_or_else(|_| Err(Error::TooSlow { what: what(), limit: self.limit }))
            }
            () = self.outcome.closed() => Err(Error::Abandoned { what: what() }),
        }
    }
}
