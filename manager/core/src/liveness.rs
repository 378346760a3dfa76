//! Which nodes are silent. Contact is not data: the leader keeps it in memory, and only a change of a
//! node's status is written.

mod hearing;

use std::collections::BTreeMap;
use std::time::Duration;

use warren_types::{Node, NodeId, NodeStatus, Timestamp};

use crate::state::{Command, State};

pub use hearing::{Hearing, JUST_HEARD, STOOD_STILL};

/// When each node was last heard. Times are those of a monotonic clock, counted from any fixed moment; wall
/// clocks jump, and a jump must not take a cluster down.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Liveness {
    contacts: BTreeMap<NodeId, Contact>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Contact {
    /// Last word of the node, or when the leader began to wait for one.
    at: Duration,
    /// It was a word of the node.
    heard: bool,
    /// A newer session is a word too, also if nobody passed it on.
    session: u64,
}

/// Which nodes changed, and when to look again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Judgement {
    /// Nodes that must be set down, with the session in which they fell silent.
    pub down: Vec<(NodeId, u64)>,
    /// Nodes that are down and were heard again, with their session.
    pub back: Vec<(NodeId, u64)>,
    /// When the next node would be down if nothing is heard of it.
    pub recheck_after: Option<Duration>,
}

impl Liveness {
    /// For a leader that starts at `now`: every node gets the full time to be heard, whatever the last
    /// leader knew.
    pub fn start(state: &State, now: Duration) -> Self {
        Self { contacts: state.nodes().map(|node| (node.id, Contact::awaited(node, now))).collect() }
    }

    /// The node was heard. Digests arrive late and out of order; the latest time counts.
    pub fn heard(&mut self, node: NodeId, at: Duration) {
        let contact = self.contacts.entry(node).or_insert(Contact { at, heard: true, session: 0 });
        if at >= contact.at {
            contact.at = at;
            contact.heard = true;
        }
    }

    /// When the node was last heard, or when this leader began to wait for it.
    pub fn last_contact(&self, node: &NodeId) -> Option<Duration> {
        self.contacts.get(node).map(|contact| contact.at)
    }

    /// Which nodes have been silent for longer than the cluster allows, and which came back. Says the same
    /// again until the state shows that it was written down.
    pub fn judge(&mut self, state: &State, now: Duration) -> Judgement {
        let mut judgement = Judgement::default();
        let Some(limit) = state.cluster().map(|cluster| cluster.node_down_after) else { return judgement };
        for node in state.nodes() {
            let contact = self.contacts.entry(node.id).or_insert(Contact::awaited(node, now));
            if contact.session != node.session {
                *contact = Contact { at: now, heard: true, session: node.session };
            }
            let silent = now.saturating_sub(contact.at);
            match node.status {
                NodeStatus::Ready if silent > limit => judgement.down.push((node.id, node.session)),
                NodeStatus::Ready => {
                    // At the limit itself a node is still in time: look just after it.
                    let wait = limit - silent + Duration::from_millis(1);
                    judgement.recheck_after =
                        Some(judgement.recheck_after.map_or(wait, |next| next.min(wait)));
                }
                NodeStatus::Down if contact.heard && silent <= limit => {
                    judgement.back.push((node.id, node.session));
                }
                NodeStatus::Down | NodeStatus::Unknown => {}
            }
        }
        judgement
    }
}

impl Contact {
    fn awaited(node: &Node, now: Duration) -> Self {
        Self { at: now, heard: false, session: node.session }
    }
}

impl Judgement {
    /// The commands that write it down.
    pub fn commands(&self, state: &State, now: Timestamp) -> Vec<Command> {
        let term = state.applied().term;
        let down = self.down.iter().map(|node| (node, NodeStatus::Down));
        let back = self.back.iter().map(|node| (node, NodeStatus::Ready));
        down.chain(back)
            .map(|((node, session), status)| {
                let (node, session) = (*node, *session);
                Command::SetNodeStatus { term, node, session, status, at: now }
            })
            .collect()
    }
}
