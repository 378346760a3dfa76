//! Which nodes have no contact. Contact is not data: the leader keeps it in memory, and only a change of a
//! node's status is written.

mod failure_detector;

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{Node, NodeId, NodeStatus, Timestamp};

use crate::state::{Command, State};

pub use failure_detector::{FailureDetector, RECENT_CONTACT, STALL_TIMEOUT};

/// The last contact of each node. Times are those of a monotonic clock, counted from any fixed moment; wall
/// clocks jump, and a jump must not set nodes down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Liveness {
    contacts: BTreeMap<NodeId, LastContact>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LastContact {
    /// The last contact of the node, or when the leader began to wait for one.
    at: Duration,
    /// There was a contact, not only a wait.
    is_reported: bool,
    /// A newer session counts as contact too, also if no manager reported it.
    session: u64,
}

/// Which nodes changed, and when to evaluate again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Nodes that must be set down, with the session in which they lost contact.
    pub down: Vec<(NodeId, u64)>,
    /// Nodes that are down and have contact again, with their session.
    pub recovered: Vec<(NodeId, u64)>,
    /// When the next node would be down without further contact.
    pub recheck_after: Option<Duration>,
}

impl Liveness {
    /// For a leader that starts at `now`: every node gets the full time, whatever contacts the last leader had.
    pub fn new(state: &State, now: Duration) -> Self {
        Self { contacts: state.nodes().map(|node| (node.id, LastContact::expected(node, now))).collect() }
    }

    /// Records a contact of the node. Reports arrive late and reordered; the latest time counts.
    pub fn record_contact(&mut self, node: NodeId, at: Duration) {
        let contact = self.contacts.entry(node).or_insert(LastContact { at, is_reported: true, session: 0 });
        if at >= contact.at {
            contact.at = at;
            contact.is_reported = true;
        }
    }

    /// The last contact of the node, or when this leader began to wait for it.
    pub fn last_contact(&self, node: &NodeId) -> Option<Duration> {
        self.contacts.get(node).map(|contact| contact.at)
    }

    /// Which nodes had no contact for longer than the cluster allows, and which returned. The result is
    /// repeated until the state contains the change.
    pub fn evaluate(&mut self, state: &State, now: Duration) -> Verdict {
        let mut judgement = Verdict::default();
        let Some(limit) = state.cluster().map(|cluster| cluster.node_down_after) else { return judgement };
        for node in state.nodes() {
            let contact = self.contacts.entry(node.id).or_insert(LastContact::expected(node, now));
            if contact.session != node.session {
                *contact = LastContact { at: now, is_reported: true, session: node.session };
            }
            let silent = now.saturating_sub(contact.at);
            match node.status {
                NodeStatus::Ready if silent > limit => judgement.down.push((node.id, node.session)),
                NodeStatus::Ready => {
                    // At the limit itself a node is still in time: evaluate just after it.
                    let wait = limit - silent + Duration::from_millis(1);
                    judgement.recheck_after =
                        Some(judgement.recheck_after.map_or(wait, |next| next.min(wait)));
                }
                NodeStatus::Down if contact.is_reported && silent <= limit => {
                    judgement.recovered.push((node.id, node.session));
                }
                NodeStatus::Down | NodeStatus::Unknown => {}
            }
        }
        judgement
    }
}

impl LastContact {
    fn expected(node: &Node, now: Duration) -> Self {
        Self { at: now, is_reported: false, session: node.session }
    }
}

impl Verdict {
    /// The commands that write the changes.
    pub fn commands(&self, state: &State, now: Timestamp) -> Vec<Command> {
        let term = state.applied().term;
        let down = self.down.iter().map(|node| (node, NodeStatus::Down));
        let back = self.recovered.iter().map(|node| (node, NodeStatus::Ready));
        down.chain(back)
            .map(|((node, session), status)| {
                let (node, session) = (*node, *session);
                Command::SetNodeStatus { term, node, session, status, at: now }
            })
            .collect()
    }
}
