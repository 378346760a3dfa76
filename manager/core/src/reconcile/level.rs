//! Raising the cluster's level.

use super::Plan;
use crate::state::{Command, State};

/// Raises the level to what every member supports: `members` are their [`crate::LEVEL`]s, this one's included. Nothing
/// is planned while there is nothing to raise.
pub fn reconcile_level(state: &State, members: impl IntoIterator<Item = u32>) -> Plan {
    let common = members.into_iter().min().filter(|level| *level > state.level());
    let term = state.applied().term;
    let commands = common.map(|level| Command::RaiseLevel { term, level }).into_iter().collect();
    Plan { commands, recheck_after: None }
}
