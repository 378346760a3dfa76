//! Failure detection of nodes: the leader collects the contacts of all managers and evaluates them.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use warren_core::{FailureDetector, ReconcilePlan};
use warren_proto::v1;
use warren_types::{MemberId, NodeId, Timestamp};

use crate::session::SessionRegistry;
use crate::store::PublishedState;

/// Evaluation interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new leader waits for the contacts of all managers before it starts any timeout.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long later rounds wait; a late reply counts in the next round.
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);
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

/// Contacts reported by other managers.
#[derive(Debug)]
pub struct ContactReports {
    requested_at: Instant,
    /// Time since the last contact with each node, by reporting manager.
    ages: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
}

impl LivenessMonitor {
    /// Uses the sessions in `registry` and the contacts of `ask`.
    pub fn new(registry: SessionRegistry, fetch_contacts: FetchContacts) -> Self {
        Self { registry, fetch_contacts, started: Instant::now(), failure_detector: Mutex::default() }
    }

    /// Fetches the contacts of every other manager. `published` is the state of the leader `own`.
    pub async fn fetch(&self, published: &PublishedState, own: MemberId) -> ContactReports {
        let requested_at = Instant::now();
        let members = published.state.members().map(|member| member.member_id);
        let others = members.filter(|member| *member != own).collect();
        let term = published.role.term;
        let within =
            if self.failure_detector().has_evaluated(term) { REPLY_TIMEOUT } else { FIRST_REPLY_TIMEOUT };
        ContactReports { requested_at, ages: self.fetch_all(others, term, within).await }
    }

    /// Evaluates all nodes with the fetched contacts and the local sessions. `published` is the leader's
    /// newest state.
    pub fn plan(&self, published: &PublishedState, reports: ContactReports, now: Timestamp) -> ReconcilePlan {
        let (state, term) = (&published.state, published.role.term);
        let contacts = self.registry.contacts().into_iter();
        let local =
            contacts.map(|contact| (contact.node, contact.at.saturating_duration_since(self.started)));
        let verdict =
            self.failure_detector().evaluate(state, term, self.started.elapsed(), local, reports.ages);
        let pause = CHECK_INTERVAL.saturating_sub(reports.requested_at.elapsed());
        let recheck_after = verdict.recheck_after.map_or(pause, |next| next.min(pause));
        ReconcilePlan { commands: verdict.commands(state, now), recheck_after: Some(recheck_after) }
    }

    fn failure_detector(&self) -> MutexGuard<'_, FailureDetector> {
        self.failure_detector.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time since the last contact of each node with each of `others` that reply in time.
    async fn fetch_all(
        &self,
        others: Vec<MemberId>,
        term: u64,
        within: Duration,
    ) -> BTreeMap<MemberId, Vec<(NodeId, Duration)>> {
        let mut queries = JoinSet::new();
        for member in others {
            let answer = timeout(within, (self.fetch_contacts)(member, term));
            queries.spawn(async move { Some((member, answer.await.ok()??)) });
        }
        let contact = |v1::NodeContact { node_id, age_ms, .. }| {
            Some((node_id.parse().ok()?, Duration::from_millis(age_ms)))
        };
        let replies = queries.join_all().await.into_iter().flatten();
        replies
            .map(|(member, contacts)| (member, contacts.into_iter().filter_map(contact).collect()))
            .collect()
    }
}

#[cfg(test)]
mod tests;
