//! Raising the cluster's level.

use super::Plan;
use crate::state::{Command, State};

/// Raises the level to what every manager supports. Nothing is planned while there is nothing to raise, or no manager
/// has said what it supports.
pub fn reconcile_level(state: &State) -> Plan {
    let common = state.members().map(|member| member.level).min().filter(|level| *level > state.level());
    let term = state.applied().term;
    let commands = common.map(|level| Command::RaiseLevel { term, level }).into_iter().collect();
    Plan { commands, recheck_after: None }
}
