//! A task goes only to nodes that meet its service's constraints.

use std::collections::BTreeMap;

use super::{Candidate, Filter, Group, Phrase};
use crate::state::{admits, fulfils};

pub(super) struct Constraints;

impl Filter for Constraints {
    fn admits(&self, group: &Group<'_>, node: &Candidate<'_>) -> bool {
        admits(group.placement(), node.node)
    }

    /// A node is counted under the first constraint that it does not meet.
    fn explain(&self, group: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let constraints = &group.placement().constraints;
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for node in refused {
            let unmet = constraints.iter().position(|constraint| !fulfils(constraint, node.node));
            unmet.into_iter().for_each(|place| *counts.entry(place).or_default() += 1);
        }
        let phrase = |(place, nodes): (usize, usize)| {
            Phrase::of(nodes, "does not meet", "do not meet", format!("\"{}\"", constraints[place]))
        };
        counts.into_iter().filter_map(phrase).collect()
    }
}
