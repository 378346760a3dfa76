//! The number of voters stays odd, only members that caught up vote, and the remaining voters have a quorum.

use std::collections::BTreeSet;

use warren_consensus::{MemberChange, MemberStep};
use warren_types::Suffrage;

use crate::simulation::ClusterSimulation;

/// A learner that lacks at most this many entries may be promoted.
const NEAR: u64 = 500;

/// A leader proposes a membership change.
pub fn may_change(world: &ClusterSimulation, host: usize, change: &MemberChange) -> Result<(), String> {
    let Some(run) = world.process(host) else { return Ok(()) };
    let before: BTreeSet<u64> = run.members().voters.iter().copied().collect();
    let mut after = before.clone();
    for step in change.steps() {
        match *step {
            MemberStep::Voter(id) => {
                after.insert(id);
                let (has, desired) = (world.last_entry(id), run.state().applied().index);
                if has.is_some_and(|has| has + NEAR < desired) {
                    return Err(format!("only members that caught up vote: {id} has {has:?} of {desired}"));
                }
            }
            MemberStep::Learner(id) | MemberStep::Remove(id) => drop(after.remove(&id)),
        }
    }
    // The last member that can lead promotes another one before it leaves.
    let own = run.state().member(world.managers[host].id);
    let goes = own.is_none_or(|own| own.removing || own.desired_suffrage == Suffrage::Learner);
    let hands_over = after.len() == 2 && goes;
    if after.len().is_multiple_of(2) && after != before && !hands_over {
        return Err(format!("the number of voters is odd: {before:?} become {after:?}"));
    }
    Ok(())
}
