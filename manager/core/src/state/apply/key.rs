//! Commands that change keys of the cluster.

use std::sync::Arc;

use warren_types::{SealedUnlockKey, UnlockKeyId};

use super::ApplyContext;
use crate::state::{Cluster, CommandResponse, KeyCommand, Refusal, State, StateChange, digest};

pub(super) fn execute(
    state: &mut State,
    entry: &mut ApplyContext,
    command: &KeyCommand,
) -> Result<CommandResponse, Refusal> {
    match command {
        KeyCommand::SetUnlockKey { key, replaces, at: _ } => {
            set_unlock_key(state, entry, key.as_ref(), *replaces)
        }
    }
}

fn set_unlock_key(
    state: &mut State,
    entry: &mut ApplyContext,
    key: Option<&SealedUnlockKey>,
    replaces: Option<UnlockKeyId>,
) -> Result<CommandResponse, Refusal> {
    let known = state.cluster.clone().ok_or(Refusal::NoCluster)?;
    let current = known.unlock_key.as_ref().map(|current| current.id);
    let is_stale = key.is_some() && current != replaces;
    if is_stale || (key.is_none() && current.is_none()) {
        return Ok(CommandResponse::Cluster(known));
    }
    let changed = Arc::new(Cluster { unlock_key: key.cloned().map(Arc::new), ..Cluster::clone(&known) });
    state.digest_sum.remove(digest::cluster(&known));
    state.digest_sum.add(digest::cluster(&changed));
    state.cluster = Some(changed.clone());
    entry.changes.push(StateChange::Cluster);
    Ok(CommandResponse::Cluster(changed))
}
