//! Commands that change keys of the cluster.

use std::sync::Arc;

use warren_types::{CaRotation, KeyPhase, KeyRotation, SealedData, SealedItem, SealedUnlockKey, UnlockKeyId};

use super::{ApplyContext, secret_object, user};
use crate::state::key_rotation::is_resealed;
use crate::state::{
    Cluster, CommandResponse, KeyCommand, KeyRotationStep, KeyStep, Refusal, State, StateChange, digest,
};

pub(super) fn execute(
    state: &mut State,
    entry: &mut ApplyContext,
    command: &KeyCommand,
) -> Result<CommandResponse, Refusal> {
    match command {
        KeyCommand::SetUnlockKey { key, replaces, at: _ } => {
            set_unlock_key(state, entry, key.as_ref(), *replaces)
        }
        KeyCommand::Rotate { number, step, at: _ } => rotate(state, entry, *number, step),
        KeyCommand::Reseal { number, items, at: _ } => Ok(reseal(state, entry, *number, items)),
        KeyCommand::Revoke { key, at: _ } => user::revoke_key(state, entry, *key),
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
    if let Some(key) = key {
        state.check_sealed(&key.sealed)?;
    }
    let changed = Cluster { unlock_key: key.cloned().map(Arc::new), ..Cluster::clone(&known) };
    entry.changes.push(StateChange::Cluster);
    Ok(CommandResponse::Cluster(store(state, &known, changed)))
}

fn rotate(
    state: &mut State,
    entry: &mut ApplyContext,
    number: u64,
    step: &KeyRotationStep,
) -> Result<CommandResponse, Refusal> {
    let known = state.cluster.clone().ok_or(Refusal::NoCluster)?;
    if let KeyRotationStep::Offer(next) = step {
        state.check_sealed(&next.sealed)?;
    }
    let Some(changed) = next_rotation(state, entry, number, step) else {
        return Ok(CommandResponse::Cluster(known));
    };
    let changed = Cluster { key_rotation: Some(Arc::new(changed)), ..Cluster::clone(&known) };
    entry.changes.push(match step {
        KeyRotationStep::Record { .. } => StateChange::KeyRotation,
        KeyRotationStep::Begin | KeyRotationStep::Offer(_) | KeyRotationStep::Advance(_) => {
            StateChange::Cluster
        }
    });
    Ok(CommandResponse::Cluster(store(state, &known, changed)))
}

/// The rotation after the step; `None` if it changes nothing.
fn next_rotation(
    state: &State,
    entry: &ApplyContext,
    number: u64,
    step: &KeyRotationStep,
) -> Option<KeyRotation> {
    let known = state.key_rotation();
    if *step == KeyRotationStep::Begin {
        return state.may_begin_key_rotation(number).then(|| KeyRotation {
            number: entry.index,
            phase: KeyPhase::Disks,
            began_at: entry.now,
            sealing: known.and_then(|known| known.sealing),
            next: None,
            managers: Default::default(),
        });
    }
    let known = known.filter(|known| known.number == number)?;
    let mut changed = known.clone();
    match step {
        KeyRotationStep::Begin => return None,
        KeyRotationStep::Record { phase, member } => {
            let is_asked = match phase {
                KeyPhase::Disks | KeyPhase::Managers => *phase == known.phase,
                KeyPhase::Objects | KeyPhase::Complete => false,
            };
            let is_new = is_asked && state.members.contains_key(member) && changed.managers.insert(*member);
            return is_new.then_some(changed);
        }
        KeyRotationStep::Offer(next) if state.next_key_step() == Some(KeyStep::Offer) => {
            (changed.phase, changed.next) = (KeyPhase::Managers, Some(next.clone()));
        }
        KeyRotationStep::Advance(phase) if state.next_key_step() == Some(KeyStep::Advance(*phase)) => {
            changed.phase = *phase;
            // Absent before the last phase.
            if let Some(next) = changed.next.take() {
                changed.sealing = Some(next.id);
            }
        }
        KeyRotationStep::Offer(_) | KeyRotationStep::Advance(_) => return None,
    }
    changed.managers.clear();
    Some(changed)
}

fn reseal(
    state: &mut State,
    entry: &mut ApplyContext,
    number: u64,
    items: &[(SealedItem, SealedData)],
) -> CommandResponse {
    let current = state.key_rotation().filter(|known| known.number == number);
    let Some(sealing) = current.and_then(|current| current.sealing) else { return CommandResponse::Done };
    for (item, data) in items.iter().filter(|(_, data)| data.key() == Some(sealing)) {
        let is_changed = match item {
            SealedItem::SecretObject { id, number } => secret_object::reseal(state, *id, *number, data),
            SealedItem::Authority | SealedItem::UnlockKey => reseal_in_cluster(state, *item, data),
        };
        // Nothing that a watcher sees.
        if is_changed && entry.changes.is_empty() {
            entry.changes.push(StateChange::KeyRotation);
        }
    }
    CommandResponse::Done
}

fn reseal_in_cluster(state: &mut State, item: SealedItem, data: &SealedData) -> bool {
    let Some(known) = state.cluster.clone() else { return false };
    let mut changed = Cluster::clone(&known);
    match (item, &known.ca_rotation, &known.unlock_key) {
        (SealedItem::Authority, Some(rotation), _) if is_resealed(&rotation.sealed, data) => {
            let rotation = CaRotation { sealed: data.clone(), ..CaRotation::clone(rotation) };
            changed.ca_rotation = Some(Arc::new(rotation));
        }
        (SealedItem::UnlockKey, _, Some(key)) if is_resealed(&key.sealed, data) => {
            changed.unlock_key = Some(Arc::new(SealedUnlockKey { id: key.id, sealed: data.clone() }));
        }
        _ => return false,
    }
    store(state, &known, changed);
    true
}

fn store(state: &mut State, known: &Cluster, changed: Cluster) -> Arc<Cluster> {
    let changed = Arc::new(changed);
    state.digest_sum.remove(digest::cluster(known));
    state.digest_sum.add(digest::cluster(&changed));
    state.cluster = Some(changed.clone());
    changed
}
