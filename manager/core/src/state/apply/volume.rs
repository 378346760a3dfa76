//! Commands on volumes, and the effect of an assignment on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::spec::validate_labels;
use warren_types::{
    Id, NodeId, NodeStatus, ReleasedVolume, Violation, Violations, Volume, VolumeDriver, VolumeId, VolumeName,
};
use xxhash_rust::xxh3::xxh3_128;

use super::ApplyContext;
use crate::state::volume::{HeldVolumes, VolumeData, VolumeReportChanges};
use crate::state::{CommandResponse, MAX_VOLUMES, ObjectKind, Refusal, State, StateChange, digest};

/// The volume in a request.
#[derive(Clone, Copy)]
pub(super) struct DesiredVolume<'a> {
    pub name: &'a VolumeName,
    pub driver: VolumeDriver,
    pub options: &'a BTreeMap<String, String>,
    pub labels: &'a BTreeMap<String, String>,
    pub node: Option<NodeId>,
}

impl DesiredVolume<'_> {
    /// The volume is as requested. One without a node may have got one since.
    fn matches(&self, volume: &Volume) -> bool {
        let Self { name, driver, options, labels, node } = *self;
        volume.name == *name
            && volume.driver == driver
            && volume.options == *options
            && volume.labels == *labels
            && node.is_none_or(|node| volume.node == Some(node))
    }
}

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: VolumeId,
    desired: DesiredVolume<'_>,
    reuse: bool,
) -> Result<CommandResponse, Refusal> {
    let DesiredVolume { name, driver, options, labels, node } = desired;
    let taken = || Refusal::AlreadyExists { kind: ObjectKind::Volume, name: name.to_string() };
    if let Some(known) = state.volumes.get(&id) {
        return match desired.matches(known) {
            true if known.removing || known.released.is_some() => {
                state.check_volume_usable(name)?;
                Err(taken())
            }
            true => Ok(CommandResponse::Volume(known.clone())),
            false => Err(taken()),
        };
    }
    let mut violations = Volume::validate(driver, options);
    validate_labels(labels, &mut violations);
    violations.into_result(()).map_err(Refusal::Invalid)?;
    if let Some(node) = node.filter(|node| !state.nodes.contains_key(node)) {
        return Err(Refusal::not_found(ObjectKind::Node, node));
    }
    let remains = match state.volume_by_name(name).cloned() {
        None => None,
        Some(known) if known.released.is_none() => return Err(taken()),
        Some(known) => {
            if !reuse {
                state.check_volume_usable(name)?;
            }
            check_place(state, &known, node)?;
            Some(known)
        }
    };
    let node = remains.as_ref().map_or(node, |remains| remains.node);
    if let Some(remains) = remains {
        forget(state, entry, &remains);
    }
    if state.volumes.len() >= MAX_VOLUMES {
        return Err(Refusal::TooManyVolumes {
            found: u32::try_from(state.volumes.len()).unwrap_or(u32::MAX),
        });
    }
    let volume = Volume {
        id,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        labels: labels.clone(),
        driver,
        options: options.clone(),
        node,
        removing: false,
        released: None,
    };
    Ok(put(state, entry, volume))
}

/// The data to reuse is on the requested node, if one was requested.
fn check_place(state: &State, remains: &Volume, requested: Option<NodeId>) -> Result<(), Refusal> {
    if requested.is_none() || requested == remains.node {
        return Ok(());
    }
    let node = remains.node.and_then(|node| state.nodes.get(&node));
    let node = node.map_or_else(String::new, |node| node.name.to_string());
    let violation = Violation::new("node", format!("the data of volume {} is on {node}", remains.name));
    Err(Refusal::Invalid(Violations::from(violation)))
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut ApplyContext,
    id: VolumeId,
    purge: bool,
    data: VolumeData,
) -> Result<CommandResponse, Refusal> {
    let known = state.volumes.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Volume, id))?.clone();
    let name = known.name.clone();
    // One that is being removed has no users, and gets none. One whose node was removed keeps its users
    // waiting until it is deleted, and it has no data that they could lose. Tasks that wait for a released
    // one have no data there either, but a service that names it has to be changed first.
    let is_lost = known.node.is_some_and(|node| !state.nodes.contains_key(&node));
    let is_unused = known.released.is_some() && (!purge || !state.is_named_volume(&name));
    let by = match known.removing || (is_lost && !purge) || is_unused {
        true => Vec::new(),
        false => state.volume_users(&name),
    };
    if !by.is_empty() {
        return Err(Refusal::VolumeInUse { name, by });
    }
    let Some(node) = known.node.filter(|_| purge || (!is_lost && data != VolumeData::Absent)) else {
        forget(state, entry, &known);
        return Ok(CommandResponse::Volume(known));
    };
    if !purge {
        if known.released.is_some() {
            return Ok(CommandResponse::Volume(known));
        }
        let released = Some(ReleasedVolume { at: entry.now, size: data.size() });
        let version = entry.index;
        return Ok(put(state, entry, Volume { removing: false, released, version, ..Volume::clone(&known) }));
    }
    let node = state.nodes.get(&node).ok_or_else(|| Refusal::VolumeLost { name: name.clone() })?;
    if node.status != NodeStatus::Ready {
        return Err(Refusal::VolumeUnreachable { name, node: node.name.clone(), status: node.status });
    }
    if known.removing {
        return Ok(CommandResponse::Volume(known));
    }
    let version = entry.index;
    Ok(put(state, entry, Volume { removing: true, released: None, version, ..Volume::clone(&known) }))
}

pub(super) fn delete(
    state: &mut State,
    entry: &mut ApplyContext,
    id: VolumeId,
) -> Result<CommandResponse, Refusal> {
    let Some(known) = state.volumes.get(&id).cloned() else { return Ok(CommandResponse::Done) };
    if !known.removing {
        return Err(Refusal::VolumeNotRemoving { name: known.name.clone() });
    }
    forget(state, entry, &known);
    Ok(CommandResponse::Done)
}

/// Records data that no volume has, and deletes released volumes whose data is gone.
pub(super) fn report(
    state: &mut State,
    entry: &mut ApplyContext,
    node: NodeId,
    session: u64,
    held: &HeldVolumes,
) -> Result<CommandResponse, Refusal> {
    let known = state.nodes.get(&node).ok_or_else(|| Refusal::not_found(ObjectKind::Node, node))?;
    if session != known.session {
        let (node, current) = (known.name.clone(), known.session);
        return Err(Refusal::StaleSession { node, sent: session, current });
    }
    let VolumeReportChanges { unrecorded, gone } = state.volume_report_changes(node, held, entry.now);
    for volume in gone {
        forget(state, entry, &volume);
    }
    for name in unrecorded {
        let volume = Volume {
            released: Some(ReleasedVolume { at: entry.now, size: None }),
            ..new_volume(state, entry, &name, node)
        };
        put(state, entry, volume);
    }
    Ok(CommandResponse::Done)
}

/// A node is removed: the data that remained there has no reachable place.
pub(super) fn forget_released(state: &mut State, entry: &mut ApplyContext, node: NodeId) {
    let released: Vec<Arc<Volume>> = state.released_volumes(node).cloned().collect();
    for volume in released {
        forget(state, entry, &volume);
    }
}

/// A task with these volumes is assigned to the node: volumes without a node are bound to it, and missing
/// ones are created. The caller has checked that none of them is on another node.
pub(super) fn bind(state: &mut State, entry: &mut ApplyContext, names: &[VolumeName], node: NodeId) {
    for name in names {
        let version = entry.index;
        let volume = match state.volume_by_name(name) {
            Some(known) if known.node.is_some() => continue,
            Some(known) => Volume { node: Some(node), version, ..Volume::clone(known) },
            None => new_volume(state, entry, name, node),
        };
        put(state, entry, volume);
    }
}

/// A volume on the node that no user created.
fn new_volume(state: &State, entry: &ApplyContext, name: &VolumeName, node: NodeId) -> Volume {
    Volume {
        id: derive_id(state, entry, name),
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        labels: BTreeMap::new(),
        driver: VolumeDriver::Local,
        options: BTreeMap::new(),
        node: Some(node),
        removing: false,
        released: None,
    }
}

/// An unused id, the same on every member: derived from the name and the entry, which creates a name only
/// once.
fn derive_id(state: &State, entry: &ApplyContext, name: &VolumeName) -> VolumeId {
    let mut bytes = [entry.index.to_le_bytes().as_slice(), name.as_str().as_bytes()].concat();
    loop {
        let id = VolumeId(Id(xxh3_128(&bytes)));
        if !state.volumes.contains_key(&id) {
            return id;
        }
        bytes.push(0);
    }
}

fn put(state: &mut State, entry: &mut ApplyContext, volume: Volume) -> CommandResponse {
    let (id, volume) = (volume.id, Arc::new(volume));
    state.digest_sum.add(digest::volume(&volume));
    if let Some(before) = state.volumes.insert(id, volume.clone()) {
        state.digest_sum.remove(digest::volume(&before));
        state.index.remove_volume(&before);
    }
    state.index.add_volume(&volume);
    entry.changes.push(StateChange::Volume(id));
    CommandResponse::Volume(volume)
}

fn forget(state: &mut State, entry: &mut ApplyContext, volume: &Volume) {
    state.index.remove_volume(volume);
    state.digest_sum.remove(digest::volume(volume));
    state.volumes.remove(&volume.id);
    entry.changes.push(StateChange::Volume(volume.id));
}
