//! A service may say how many of its tasks one node has at most.

use super::{Candidate, Filter, Group, Phrase};

pub(super) struct MaxPerNode;

impl Filter for MaxPerNode {
    /// The task that this one replaces does not count: it goes as soon as this one runs.
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool {
        let Some(most) = group.placement().max_per_node else { return true };
        let replaced = group.replaces_on == Some(node.node.id);
        node.occupied.saturating_sub(u32::from(replaced)) < most
    }

    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let most = group.placement().max_per_node.unwrap_or_default();
        let tasks = if most == 1 { "task" } else { "tasks" };
        let rest = format!("{most} {tasks} of the service already, as many as one node may have");
        Phrase::of(refused.len(), "has", "have", rest).into_iter().collect()
    }
}
