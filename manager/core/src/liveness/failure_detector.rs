//! Failure detection by the leader, from the contacts of all managers.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{MemberId, NodeId};

use super::{Liveness, Verdict};
use crate::state::State;

/// If a manager evaluated nothing for longer, it was stalled and may have missed contacts: its detector is
/// reset.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(3);
/// A node whose last contact is within this time has missed no sync.
pub const RECENT_CONTACT: Duration = Duration::from_secs(4);

/// The last contact of nodes with any manager. Times are those of a monotonic clock, as in [`Liveness`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FailureDetector {
    term_state: Option<TermState>,
}

/// Reset for every new leader.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TermState {
    term: u64,
    /// The time of the last evaluation.
    evaluated_at: Duration,
    liveness: Liveness,
    /// For each other manager, when it last responded, and which nodes had recent contact with it then.
    manager_reports: BTreeMap<MemberId, (Duration, Vec<NodeId>)>,
}

impl FailureDetector {
    /// Whether this leader has evaluated before.
    pub fn has_evaluated(&self, term: u64) -> bool {
        self.term_state.as_ref().is_some_and(|contacts| contacts.term == term)
    }

    /// Evaluates all nodes, as the leader of `term`: by their last contact with this manager, and by the time
    /// since their last contact with each of the other managers that just responded.
    pub fn evaluate(
        &mut self,
        state: &State,
        term: u64,
        now: Duration,
        here: impl IntoIterator<Item = (NodeId, Duration)>,
        sent: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
    ) -> Verdict {
        let goes_on = |contacts: &TermState| {
            contacts.term == term && now.saturating_sub(contacts.evaluated_at) < STALL_TIMEOUT
        };
        let before = self
            .term_state
            .take()
            .filter(goes_on)
            .map(|contacts| (contacts.liveness, contacts.manager_reports));
        let (mut liveness, mut answered) =
            before.unwrap_or_else(|| (Liveness::new(state, now), BTreeMap::new()));
        for (node, at) in here {
            liveness.record_contact(node, at);
        }
        for (member, ages) in sent {
            let just_heard = ages.iter().filter(|(_, age)| *age <= RECENT_CONTACT).map(|(node, _)| *node);
            answered.insert(member, (now, just_heard.collect()));
            for (node, age) in ages {
                liveness.record_contact(node, now.saturating_sub(age));
            }
        }
        // When a manager fails, contacts of its nodes after its last response are lost, and the nodes still
        // have to connect to another one: their time without contact starts with that of the manager.
        for (at, nodes) in answered.values().filter(|(at, _)| *at < now) {
            nodes.iter().for_each(|node| liveness.record_contact(*node, *at));
        }
        let judgement = liveness.evaluate(state, now);
        self.term_state = Some(TermState { term, evaluated_at: now, liveness, manager_reports: answered });
        judgement
    }
}
