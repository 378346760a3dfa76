//! The number of voters stays odd, nobody votes before it has caught up, and the voters that are left can decide.

use std::collections::BTreeSet;

use warren_consensus::{MemberChange, MemberStep};
use warren_types::Suffrage;

use crate::world::World;

/// A learner that lacks no more entries than this may vote.
const NEAR: u64 = 500;

/// A leader is about to change the members.
pub fn may_change(world: &World, host: usize, change: &MemberChange) -> Result<(), String> {
    let Some(run) = world.life(host) else { return Ok(()) };
    let before: BTreeSet<u64> = run.members().voters.iter().copied().collect();
    let mut after = before.clone();
    for step in change.steps() {
        match *step {
            MemberStep::Voter(id) => {
                after.insert(id);
                let (has, wanted) = (world.last_entry(id), run.state.applied().index);
                if has.is_some_and(|has| has + NEAR < wanted) {
                    return Err(format!(
                        "nobody votes before it has caught up: {id} has {has:?} of {wanted}"
                    ));
                }
            }
            MemberStep::Learner(id) | MemberStep::Remove(id) => drop(after.remove(&id)),
        }
    }
    // The last one that can lead lets another one vote before it goes itself.
    let own = run.state.member(world.managers[host].id);
    let goes = own.is_none_or(|own| own.removing || own.wanted == Suffrage::Learner);
    let hands_over = after.len() == 2 && goes;
    if after.len().is_multiple_of(2) && after != before && !hands_over {
        return Err(format!("the number of voters is odd: {before:?} become {after:?}"));
    }
    Ok(())
}
