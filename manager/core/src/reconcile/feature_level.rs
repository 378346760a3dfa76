//! Raises the cluster's feature level.

use super::ReconcilePlan;
use crate::state::{Command, State};

/// Raises the feature level to what every manager supports. The plan is empty while there is nothing to
/// raise, or no manager has registered.
pub fn reconcile_feature_level(state: &State) -> ReconcilePlan {
    let common =
        state.members().map(|member| member.level).min().filter(|level| *level > state.feature_level());
    let term = state.applied().term;
    let commands = common.map(|level| Command::RaiseFeatureLevel { term, level }).into_iter().collect();
    ReconcilePlan { commands, ..ReconcilePlan::default() }
}
