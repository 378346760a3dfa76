//! Failure detection of nodes: the leader collects the contacts of all managers and evaluates them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_core::{FailureDetector, ReconcilePlan, State, release_addresses};
use warren_types::{MemberId, NodeId, Timestamp};

/// Evaluation interval.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new leader waits for the contacts of all managers before it starts any timeout.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// How long later rounds wait; a late reply counts in the next round.
const REPLY_TIMEOUT: Duration = Duration::from_millis(400);

/// What a manager knows of a node that is connected to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeContact {
    /// The node.
    pub node: NodeId,
    /// Its session there.
    pub session: u64,
    /// Time since its last frame.
    pub age: Duration,
    /// Index of the state up to which the node has forgotten whatever was withdrawn.
    pub network_index: u64,
}

/// One request for contacts to all other managers. Times are those of a monotonic clock, as in
/// [`warren_core::Liveness`].
#[derive(Debug, Clone)]
pub struct ContactRound {
    requested_at: Duration,
    timeout: Duration,
    /// Members that did not reply yet.
    awaited: BTreeSet<MemberId>,
    /// The nodes of each manager that replied.
    contacts: BTreeMap<MemberId, Vec<NodeContact>>,
}

impl ContactRound {
    /// The leader `own` of `term` begins a round at `now`.
    pub fn begin(detector: &FailureDetector, state: &State, term: u64, own: MemberId, now: Duration) -> Self {
        let members = state.members().map(|member| member.member_id);
        let timeout = if detector.has_evaluated(term) { REPLY_TIMEOUT } else { FIRST_REPLY_TIMEOUT };
        let awaited = members.filter(|member| *member != own).collect();
        Self { requested_at: now, timeout, awaited, contacts: BTreeMap::new() }
    }

    /// The members that did not reply yet.
    pub fn awaited(&self) -> &BTreeSet<MemberId> {
        &self.awaited
    }

    /// How long the round lasts at most.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Records the reply of a member: the nodes that are connected to it.
    pub fn record(&mut self, member: MemberId, contacts: Vec<NodeContact>) {
        if self.awaited.remove(&member) {
            self.contacts.insert(member, contacts);
        }
    }

    /// Whether all members replied or the timeout has passed.
    pub fn is_over(&self, now: Duration) -> bool {
        self.awaited.is_empty() || now >= self.requested_at + self.timeout
    }

    /// Evaluates all nodes by the replies and the `local` contacts of this manager, and releases the addresses that
    /// all nodes have forgotten. `stamp` is the time of the commands.
    pub fn plan(
        self,
        detector: &mut FailureDetector,
        state: &State,
        term: u64,
        now: Duration,
        local: impl IntoIterator<Item = NodeContact>,
        stamp: Timestamp,
    ) -> ReconcilePlan {
        let local: Vec<NodeContact> = local.into_iter().collect();
        let acknowledged = self.contacts.values().flatten().chain(&local).filter_map(|contact| {
            let is_newest = state.node(&contact.node)?.session == contact.session;
            is_newest.then_some((contact.node, contact.network_index))
        });
        let release = release_addresses(state, &acknowledged.collect(), stamp);
        let seen = local.iter().map(|contact| (contact.node, now.saturating_sub(contact.age)));
        let age = |contact: &NodeContact| (contact.node, contact.age);
        let ages =
            self.contacts.iter().map(|(member, contacts)| (*member, contacts.iter().map(age).collect()));
        let verdict = detector.evaluate(state, term, now, seen, ages.collect());
        let pause = CHECK_INTERVAL.saturating_sub(now.saturating_sub(self.requested_at));
        let recheck_after = verdict.recheck_after.map_or(pause, |next| next.min(pause));
        ReconcilePlan {
            commands: verdict.commands(state, stamp).into_iter().chain(release).collect(),
            recheck_after: Some(recheck_after),
            pause: None,
        }
    }
}
