//! Failure detection of nodes: the leader collects the contacts of all managers and evaluates them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use warren_core::{FailureDetector, ReconcilePlan};
use warren_proto::v1;
use warren_replica::{ContactRound, NodeContact};
use warren_session::SessionRegistry;
use warren_store::PublishedState;
use warren_types::{MemberId, Timestamp};

/// Fetches the contacts of a manager for the leader of a term; `None` without a reply.
pub type FetchContacts = Arc<
    dyn Fn(MemberId, u64) -> Pin<Box<dyn Future<Output = Option<Vec<v1::NodeContact>>> + Send>> + Send + Sync,
>;

/// Evaluates the last contact of each node with any manager.
pub struct LivenessMonitor {
    registry: SessionRegistry,
    fetch_contacts: FetchContacts,
    /// Times are measured from here, on a monotonic clock.
    started: Instant,
    failure_detector: Mutex<FailureDetector>,
}

impl LivenessMonitor {
    /// Uses the sessions in `registry` and the contacts of `ask`.
    pub fn new(registry: SessionRegistry, fetch_contacts: FetchContacts) -> Self {
        Self { registry, fetch_contacts, started: Instant::now(), failure_detector: Mutex::default() }
    }

    /// Fetches the contacts of every other manager. `published` is the state of the leader `own`.
    pub async fn fetch(&self, published: &PublishedState, own: MemberId) -> ContactRound {
        let term = published.role.term;
        let now = self.started.elapsed();
        let mut round = ContactRound::begin(&self.failure_detector(), &published.state, term, own, now);
        let mut queries = JoinSet::new();
        for member in round.awaited().iter().copied() {
            let answer = timeout(round.timeout(), (self.fetch_contacts)(member, term));
            queries.spawn(async move { Some((member, answer.await.ok()??)) });
        }
        let contact = |v1::NodeContact { node_id, session, age_ms, network_index }| {
            let (node, age) = (node_id.parse().ok()?, Duration::from_millis(age_ms));
            Some(NodeContact { node, session, age, network_index })
        };
        for (member, contacts) in queries.join_all().await.into_iter().flatten() {
            round.record(member, contacts.into_iter().filter_map(contact).collect());
        }
        round
    }

    /// Evaluates all nodes with the fetched contacts and the local sessions. `published` is the leader's
    /// newest state.
    pub fn plan(&self, published: &PublishedState, round: ContactRound, now: Timestamp) -> ReconcilePlan {
        let (state, term) = (&published.state, published.role.term);
        let (now_here, elapsed) = (Instant::now(), self.started.elapsed());
        let local = self.registry.contacts().into_iter().map(|contact| contact.as_of(now_here));
        round.plan(&mut self.failure_detector(), state, term, elapsed, local, now)
    }

    fn failure_detector(&self) -> MutexGuard<'_, FailureDetector> {
        self.failure_detector.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
