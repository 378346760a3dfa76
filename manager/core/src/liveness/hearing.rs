//! What a leader makes of what all managers heard.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{MemberId, NodeId};

use super::{Judgement, Liveness};
use crate::state::State;

/// A manager that judged nobody for longer stood still, and with it what it hears nodes by: it listens anew.
pub const STOOD_STILL: Duration = Duration::from_secs(3);
/// A node that was heard within this has missed no sync.
pub const JUST_HEARD: Duration = Duration::from_secs(4);

/// When nodes were heard, by any manager. Times are those of a monotonic clock, as in [`Liveness`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hearing {
    heard: Option<Heard>,
}

/// A new leader listens anew.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Heard {
    term: u64,
    /// When nodes were last judged.
    judged: Duration,
    liveness: Liveness,
    /// When each of the other managers last answered, and whom it had just heard by then.
    answered: BTreeMap<MemberId, (Duration, Vec<NodeId>)>,
}

impl Hearing {
    /// Whether this leader has judged before.
    pub fn has_listened(&self, term: u64) -> bool {
        self.heard.as_ref().is_some_and(|heard| heard.term == term)
    }

    /// Judges all nodes, as the leader of `term`: by when each was heard here, and by how long ago by each of the other
    /// managers that answered just now.
    pub fn judge(
        &mut self,
        state: &State,
        term: u64,
        now: Duration,
        here: impl IntoIterator<Item = (NodeId, Duration)>,
        told: BTreeMap<MemberId, Vec<(NodeId, Duration)>>,
    ) -> Judgement {
        let goes_on = |heard: &Heard| heard.term == term && now.saturating_sub(heard.judged) < STOOD_STILL;
        let before = self.heard.take().filter(goes_on).map(|heard| (heard.liveness, heard.answered));
        let (mut liveness, mut answered) =
            before.unwrap_or_else(|| (Liveness::start(state, now), BTreeMap::new()));
        for (node, at) in here {
            liveness.heard(node, at);
        }
        for (member, ages) in told {
            let just_heard = ages.iter().filter(|(_, age)| *age <= JUST_HEARD).map(|(node, _)| *node);
            answered.insert(member, (now, just_heard.collect()));
            for (node, age) in ages {
                liveness.heard(node, now.saturating_sub(age));
            }
        }
        // A manager that is gone takes along what its nodes said after its last answer, and they have yet to notice and
        // to find another one: their silence begins with its own.
        for (at, nodes) in answered.values().filter(|(at, _)| *at < now) {
            nodes.iter().for_each(|node| liveness.heard(*node, *at));
        }
        let judgement = liveness.judge(state, now);
        self.heard = Some(Heard { term, judged: now, liveness, answered });
        judgement
    }
}
