//! A node has as many tasks as its subnet has addresses.

use super::{Candidate, Filter, Group, Phrase};
use crate::state::capacity;

pub(super) struct FreeAddresses;

impl Filter for FreeAddresses {
    fn admits(&self, _: &Group<'_>, node: &Candidate<'_>) -> bool {
        node.usage.tasks < capacity(node.node.subnet)
    }

    fn explain(&self, _: &Group<'_>, refused: &[&Candidate<'_>]) -> Vec<Phrase> {
        let most = refused.iter().map(|node| capacity(node.node.subnet)).max().unwrap_or(0);
        let rest = format!("no free address (all {most} of the subnet are held)");
        Phrase::of(refused.len(), "has", "have", rest).into_iter().collect()
    }
}
