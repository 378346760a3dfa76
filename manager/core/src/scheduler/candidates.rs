//! The nodes that fit, best first: one heap, or a tree of heaps if the service has placement preferences.
//!
//! Each preference is one level of the tree: a branch per value of its label, and one for nodes without the label.
//! Below the last level are the nodes. A task goes to the branch with the fewest tasks of the service, and there to
//! the best node.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BTreeMap, BinaryHeap};

use warren_types::PlacementPreference;

use super::TaskGroup;
use super::filter;
use super::score::Score;
use super::view::NodeInfo;

/// Nodes as places in the list of all nodes.
pub(super) enum Candidates {
    Nodes(BinaryHeap<Reverse<(Score, usize)>>),
    Branches { best: BinaryHeap<Reverse<(BranchScore, usize)>>, all: Vec<Branch> },
}

/// The nodes with one value of a label.
pub(super) struct Branch {
    /// Live tasks of the service on them that stay.
    tasks: u32,
    candidates: Candidates,
}

/// Lower is better; fields are compared in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BranchScore {
    /// Of its best node: such taints outweigh a preference.
    avoided_taints: usize,
    /// Live tasks of the service in the branch that stay. As for a node, a recent failure on its best node counts as
    /// two.
    service_tasks: u32,
    best: Score,
}

impl Candidates {
    pub fn new(group: &TaskGroup<'_>, nodes: &[NodeInfo<'_>]) -> Self {
        match group.placement().preferences.as_slice() {
            [] => Self::of_nodes(group, nodes, 0..nodes.len()),
            preferences => Self::of_branches(group, nodes, preferences, (0..nodes.len()).collect()),
        }
    }

    fn of_nodes(
        group: &TaskGroup<'_>,
        nodes: &[NodeInfo<'_>],
        places: impl IntoIterator<Item = usize>,
    ) -> Self {
        let fitting = places.into_iter().filter(|place| filter::admits(group, &nodes[*place]));
        let scored = fitting.map(|place| Reverse((Score::of(group.placement(), &nodes[place]), place)));
        Self::Nodes(scored.collect())
    }

    fn of_branches(
        group: &TaskGroup<'_>,
        nodes: &[NodeInfo<'_>],
        preferences: &[PlacementPreference],
        places: Vec<usize>,
    ) -> Self {
        let Some((preference, rest)) = preferences.split_first() else {
            return Self::of_nodes(group, nodes, places);
        };
        let mut by_value: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for place in places {
            let node = nodes[place].node;
            let value = preference.value_of(&node.labels, &node.description.labels);
            by_value.entry(value).or_default().push(place);
        }
        // Nodes that do not fit count as well: their tasks are in the branch.
        let branch = |places: Vec<usize>| Branch {
            tasks: places.iter().map(|place| nodes[*place].service_tasks).sum(),
            candidates: Self::of_branches(group, nodes, rest, places),
        };
        let all: Vec<Branch> = by_value.into_values().map(branch).collect();
        let scored = all.iter().enumerate().filter_map(|(i, branch)| Some(Reverse((branch.score()?, i))));
        Self::Branches { best: scored.collect(), all }
    }

    /// The score of the best node; `None` if no node fits any more.
    fn best(&self) -> Option<Score> {
        match self {
            Self::Nodes(nodes) => nodes.peek().map(|Reverse((score, _))| *score),
            Self::Branches { best, .. } => best.peek().map(|Reverse((score, _))| score.best),
        }
    }

    /// Places a task: `reserve` gets the best node, and returns its new score if it fits another task. `false` if no
    /// node fits.
    pub fn place(&mut self, reserve: &mut impl FnMut(usize) -> Option<Score>) -> bool {
        match self {
            Self::Nodes(nodes) => {
                let Some(mut best) = nodes.peek_mut() else { return false };
                let Reverse((_, place)) = *best;
                match reserve(place) {
                    Some(score) => *best = Reverse((score, place)),
                    None => drop(PeekMut::pop(best)),
                }
            }
            Self::Branches { best, all } => {
                let Some(mut best) = best.peek_mut() else { return false };
                let Reverse((_, i)) = *best;
                let branch = &mut all[i];
                branch.candidates.place(reserve);
                branch.tasks += 1;
                match branch.score() {
                    Some(score) => *best = Reverse((score, i)),
                    None => drop(PeekMut::pop(best)),
                }
            }
        }
        true
    }
}

impl Branch {
    fn score(&self) -> Option<BranchScore> {
        let best = self.candidates.best()?;
        Some(BranchScore {
            avoided_taints: best.avoided_taints,
            service_tasks: self.tasks.saturating_add(best.failures.saturating_mul(2)),
            best,
        })
    }
}
