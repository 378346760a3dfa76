//! Failure detection of nodes: the leader collects the contacts of all managers and evaluates them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::{FailureDetector, ReconcilePlan, State};
use warren_types::{MemberId, NodeId, Timestamp};

/// Evaluation interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new leader waits for the contacts of all managers before it starts any timeout.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long later rounds wait; a late reply counts in the next round.
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);

/// One request for contacts to all other managers. Times are those of a monotonic clock, as in
/// [`warren_core::Liveness`].
#[derive(Debug, Clone)]
pub struct ContactRound {
    requested_at: Duration,
    timeout: Duration,
    /// Members that did not reply yet.
    awaited: BTreeSet<MemberId>,
    /// Time since the last contact with each node, by reporting manager.
    ages: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
}

impl ContactRound {
    /// The leader `own` of `term` begins a round at `now`.
    pub fn begin(detector: &FailureDetector, state: &State, term: u64, own: MemberId, now: Duration) -> Self {
        let members = state.members().map(|member| member.member_id);
        let timeout = if detector.has_evaluated(term) { REPLY_TIMEOUT } else { FIRST_REPLY_TIMEOUT };
        let awaited = members.filter(|member| *member != own).collect();
        Self { requested_at: now, timeout, awaited, ages: BTreeMap::new() }
    }

    /// The members that did not reply yet.
    pub fn awaited(&self) -> &BTreeSet<MemberId> {
        &self.awaited
    }

    /// How long the round lasts at most.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Records the reply of a member: the time since its last contact with each of its nodes.
    pub fn record(&mut self, member: MemberId, ages: Vec<(NodeId, Duration)>) {
        if self.awaited.remove(&member) {
            self.ages.insert(member, ages);
        }
    }

    /// Whether all members replied or the timeout has passed.
    pub fn is_over(&self, now: Duration) -> bool {
        self.awaited.is_empty() || now >= self.requested_at + self.timeout
    }

    /// Evaluates all nodes: by the replies, and by the times of the last contacts with this manager. `stamp` is the
    /// time of the commands.
    pub fn plan(
        self,
        detector: &mut FailureDetector,
        state: &State,
        term: u64,
        now: Duration,
        local: impl IntoIterator<Item = (NodeId, Duration)>,
        stamp: Timestamp,
    ) -> ReconcilePlan {
        let verdict = detector.evaluate(state, term, now, local, self.ages);
        let pause = CHECK_INTERVAL.saturating_sub(now.saturating_sub(self.requested_at));
        let recheck_after = verdict.recheck_after.map_or(pause, |next| next.min(pause));
        ReconcilePlan {
            commands: verdict.commands(state, stamp),
            recheck_after: Some(recheck_after),
            pause: None,
        }
    }
}
