//! Commands on secrets, configs and credentials.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::secret_object::{KEPT_SECRET_OBJECT_VERSIONS, MAX_SECRET_OBJECT_SIZE};
use warren_types::spec::validate_labels;
use warren_types::{
    SealedData, SecretObject, SecretObjectId, SecretObjectKind, SecretObjectName, ServiceId, Violations,
};

use super::{ApplyContext, revision};
use crate::state::index::total_size;
use crate::state::key_rotation::is_resealed;
use crate::state::{
    CommandResponse, MAX_SECRET_OBJECTS, MAX_SECRET_OBJECTS_SIZE, ObjectKind, Refusal, State, StateChange,
    digest,
};

/// The most bytes that sealing adds to the data.
const MAX_SEALING_OVERHEAD: usize = 256;

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: SecretObjectId,
    (kind, name): (SecretObjectKind, &SecretObjectName),
    labels: &BTreeMap<String, String>,
    first: &SealedData,
) -> Result<CommandResponse, Refusal> {
    state.check_sealed(first)?;
    if let Some(known) = state.secret_objects.get(&id) {
        if let Some(kept) = known.versions.get(&1) {
            state.check_sealed(kept)?;
        }
        return check_repeat(known, (kind, name), labels, first);
    }
    let mut violations = Violations::default();
    validate_labels(labels, &mut violations);
    violations.into_result(()).map_err(Refusal::Invalid)?;
    check_size(first)?;
    if state.secret_object_by_name(kind, name).is_some() {
        return Err(Refusal::AlreadyExists { kind: ObjectKind::SecretObject(kind), name: name.to_string() });
    }
    if state.secret_objects.len() >= MAX_SECRET_OBJECTS {
        return Err(Refusal::TooManySecretObjects {
            found: u32::try_from(state.secret_objects.len()).unwrap_or(u32::MAX),
        });
    }
    let content = SecretObject {
        id,
        kind,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        updated_at: entry.now,
        labels: labels.clone(),
        versions: BTreeMap::from([(1, Arc::new(first.clone()))]),
    };
    check_total_size(state, None, &content)?;
    Ok(put(state, entry, content))
}

/// A create with the id of an existing secret object. If it was changed since, that was another client's
/// write.
fn check_repeat(
    known: &Arc<SecretObject>,
    (kind, name): (SecretObjectKind, &SecretObjectName),
    labels: &BTreeMap<String, String>,
    first: &SealedData,
) -> Result<CommandResponse, Refusal> {
    let is_same = known.kind == kind && known.name == *name && known.labels == *labels;
    let has_first = |version: &Arc<SealedData>| version.fingerprint == first.fingerprint;
    match known.versions.get(&1) {
        Some(version) if is_same && has_first(version) && known.current_version() == 1 => {
            Ok(CommandResponse::SecretObject(known.clone()))
        }
        version if is_same && known.current_version() > 1 && version.is_none_or(has_first) => {
            let (kind, name, found) = (ObjectKind::SecretObject(kind), name.to_string(), known.version);
            Err(Refusal::ChangedSinceCreated { kind, name, found })
        }
        _ => Err(Refusal::AlreadyExists { kind: ObjectKind::SecretObject(kind), name: name.to_string() }),
    }
}

pub(super) fn update(
    state: &mut State,
    entry: &mut ApplyContext,
    id: SecretObjectId,
    version: Option<u64>,
    next: &SealedData,
) -> Result<CommandResponse, Refusal> {
    let known = find(state, id)?;
    state.check_sealed(next)?;
    let current = known.versions.last_key_value();
    if let Some((_, current)) = current {
        // The fingerprints of two keys say nothing about each other.
        state.check_sealed(current)?;
    }
    if current.is_some_and(|(_, current)| current.fingerprint == next.fingerprint) {
        return Ok(CommandResponse::SecretObject(known.clone()));
    }
    check_size(next)?;
    if let Some(desired) = version.filter(|version| *version != known.version) {
        let (kind, name, found) =
            (ObjectKind::SecretObject(known.kind), known.name.to_string(), known.version);
        return Err(Refusal::VersionConflict { kind, name, expected: desired, found });
    }
    let mut content = SecretObject::clone(known);
    let number = content.current_version().saturating_add(1);
    content.versions.insert(number, Arc::new(next.clone()));
    while content.versions.len() > KEPT_SECRET_OBJECT_VERSIONS {
        content.versions.pop_first();
    }
    (content.version, content.updated_at) = (entry.index, entry.now);
    check_total_size(state, Some(known), &content)?;
    let answer = put(state, entry, content);
    let users: Vec<ServiceId> = state.secret_object_users(&id).map(|service| service.id).collect();
    users
        .into_iter()
        .try_for_each(|service| revision::adopt_secret_object_version(state, entry, service, id, number))?;
    Ok(answer)
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut ApplyContext,
    id: SecretObjectId,
) -> Result<CommandResponse, Refusal> {
    let known = find(state, id)?.clone();
    let mut by: Vec<String> = state.secret_object_users(&id).map(|user| user.spec.name.to_string()).collect();
    if !by.is_empty() {
        by.sort_unstable();
        return Err(Refusal::SecretObjectInUse { kind: known.kind, name: known.name.clone(), users: by });
    }
    state.index.remove_secret_object(&known);
    state.digest_sum.remove(digest::secret_object(&known));
    state.secret_objects.remove(&id);
    entry.changes.push(StateChange::SecretObject(id));
    Ok(CommandResponse::SecretObject(known))
}

/// Replaces the data of that version by the same, sealed with another key; whether it did.
pub(super) fn reseal(state: &mut State, id: SecretObjectId, number: u64, data: &SealedData) -> bool {
    let Some(known) = state.secret_objects.get(&id) else { return false };
    let is_resealed = known.versions.get(&number).is_some_and(|old| is_resealed(old, data));
    if !is_resealed || check_size(data).is_err() {
        return false;
    }
    let mut content = SecretObject::clone(known);
    content.versions.insert(number, Arc::new(data.clone()));
    store(state, Arc::new(content));
    true
}

fn find(state: &State, id: SecretObjectId) -> Result<&Arc<SecretObject>, Refusal> {
    // Its kind is not known any more; most are secrets.
    state
        .secret_objects
        .get(&id)
        .ok_or_else(|| Refusal::not_found(ObjectKind::SecretObject(SecretObjectKind::Secret), id))
}

/// Checks that the stated size is possible.
fn check_size(content: &SealedData) -> Result<(), Refusal> {
    let size = content.size as usize;
    let mut violations = Violations::default();
    if size > MAX_SECRET_OBJECT_SIZE {
        violations.add("data", format!("{size} bytes are more than {MAX_SECRET_OBJECT_SIZE}"));
    }
    if content.sealed.len() > size.saturating_add(MAX_SEALING_OVERHEAD) {
        violations
            .add("data.sealed", format!("{} bytes cannot be {size} bytes sealed", content.sealed.len()));
    }
    violations.into_result(()).map_err(Refusal::Invalid)
}

/// Checks the total size with this one replacing `before`.
fn check_total_size(
    state: &State,
    before: Option<&SecretObject>,
    after: &SecretObject,
) -> Result<(), Refusal> {
    let others = state.index.secret_object_bytes.saturating_sub(before.map_or(0, total_size));
    let desired = others.saturating_add(total_size(after));
    if desired > MAX_SECRET_OBJECTS_SIZE {
        Err(Refusal::SecretObjectsTooLarge { wanted: desired })
    } else {
        Ok(())
    }
}

fn put(state: &mut State, entry: &mut ApplyContext, content: SecretObject) -> CommandResponse {
    let content = Arc::new(content);
    store(state, content.clone());
    entry.changes.push(StateChange::SecretObject(content.id));
    CommandResponse::SecretObject(content)
}

fn store(state: &mut State, content: Arc<SecretObject>) {
    state.digest_sum.add(digest::secret_object(&content));
    state.index.add_secret_object(&content);
    if let Some(before) = state.secret_objects.insert(content.id, content) {
        state.digest_sum.remove(digest::secret_object(&before));
        state.index.release_bytes(&before);
    }
}
