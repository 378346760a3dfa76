//! A node that managers do not hear of gets no tasks.

use warren_types::NodeStatus;

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct Status;

impl Filter for Status {
    fn admits(&self, _: &Group<'_>, node: &Candidate<'_>) -> bool {
        node.node.status == NodeStatus::Ready
    }

    fn explain(&self, _: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let count = |status| refused.iter().filter(|node| node.node.status == status).count();
        let down = Phrase::of(count(NodeStatus::Down), "is", "are", "down");
        let silent = Phrase::of(count(NodeStatus::Unknown), "has", "have", "joined but not connected yet");
        down.into_iter().chain(silent).collect()
    }
}
