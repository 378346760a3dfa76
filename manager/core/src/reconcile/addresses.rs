//! When what was withdrawn is assigned again.

use std::collections::BTreeMap;

use warren_types::{NodeId, Timestamp};

use crate::state::{Command, State};

/// The command that makes withdrawn addresses free, if some are due. `acknowledged` is the index of the state up to
/// which each node has forgotten what was withdrawn; a node that is missing there may know everything.
pub fn release_addresses(
    state: &State,
    acknowledged: &BTreeMap<NodeId, u64>,
    now: Timestamp,
) -> Option<Command> {
    state.oldest_withdrawal()?;
    let of_node = |id| acknowledged.get(id).copied().unwrap_or(0);
    // Without a node nobody knows anything.
    let acknowledged = state.nodes().map(|node| of_node(&node.id)).min().unwrap_or(u64::MAX);
    let is_due = state.releasable_addresses(acknowledged, now).next().is_some();
    let term = state.applied().term;
    is_due.then_some(Command::ReleaseAddresses { term, acknowledged, at: now })
}
