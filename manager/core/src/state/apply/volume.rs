//! Commands on volumes, and what a placement does to them.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_types::spec::validate_labels;
use warren_types::{Id, NodeId, NodeStatus, Volume, VolumeDriver, VolumeId, VolumeName};
use xxhash_rust::xxh3::xxh3_128;

use super::Entry;
use crate::state::{Answer, Change, Kind, MAX_VOLUMES, Refusal, State, digest};

/// A volume as a person asks for it.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub name: &'a VolumeName,
    pub driver: VolumeDriver,
    pub options: &'a BTreeMap<String, String>,
    pub labels: &'a BTreeMap<String, String>,
    pub node: Option<NodeId>,
}

impl Wanted<'_> {
    /// The volume is what was asked for. One that had no place may have found one since.
    fn is(&self, volume: &Volume) -> bool {
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
    entry: &mut Entry,
    id: VolumeId,
    wanted: Wanted<'_>,
) -> Result<Answer, Refusal> {
    let Wanted { name, driver, options, labels, node } = wanted;
    let taken = || Refusal::AlreadyExists { kind: Kind::Volume, name: name.to_string() };
    if let Some(known) = state.volumes.get(&id) {
        return match wanted.is(known) {
            true if known.removing => Err(Refusal::VolumeRemoving { name: name.clone() }),
            true => Ok(Answer::Volume(known.clone())),
            false => Err(taken()),
        };
    }
    let mut wrong = Volume::validate(driver, options);
    validate_labels(labels, &mut wrong);
    wrong.into_result(()).map_err(Refusal::Invalid)?;
    if state.volume_named(name).is_some() {
        return Err(taken());
    }
    if let Some(node) = node.filter(|node| !state.nodes.contains_key(node)) {
        return Err(Refusal::not_found(Kind::Node, node));
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
    };
    Ok(put(state, entry, volume))
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut Entry,
    id: VolumeId,
    purge: bool,
) -> Result<Answer, Refusal> {
    let known = state.volumes.get(&id).ok_or_else(|| Refusal::not_found(Kind::Volume, id))?.clone();
    let name = known.name.clone();
    // One that is being removed has no users, and gets none. One whose node is gone keeps its users waiting until it is
    // forgotten, and there is no data that they could lose.
    let is_lost = known.node.is_some_and(|node| !state.nodes.contains_key(&node));
    let by = if known.removing || (is_lost && !purge) { Vec::new() } else { state.volume_users(&name) };
    if !by.is_empty() {
        return Err(Refusal::VolumeInUse { name, by });
    }
    let Some(node) = known.node.filter(|_| purge) else {
        forget(state, entry, &known);
        return Ok(Answer::Volume(known));
    };
    let node = state.nodes.get(&node).ok_or_else(|| Refusal::VolumeLost { name: name.clone() })?;
    if node.status != NodeStatus::Ready {
        return Err(Refusal::VolumeUnreachable { name, node: node.name.clone(), status: node.status });
    }
    if known.removing {
        return Ok(Answer::Volume(known));
    }
    let version = entry.index;
    Ok(put(state, entry, Volume { removing: true, version, ..Volume::clone(&known) }))
}

pub(super) fn delete(state: &mut State, entry: &mut Entry, id: VolumeId) -> Result<Answer, Refusal> {
    let Some(known) = state.volumes.get(&id).cloned() else { return Ok(Answer::Done) };
    if !known.removing {
        return Err(Refusal::VolumeStays { name: known.name.clone() });
    }
    forget(state, entry, &known);
    Ok(Answer::Done)
}

/// A task with these volumes goes to the node: those that have no place yet are there from now on, and those that
/// nobody made are made. The caller has seen that none of them is elsewhere.
pub(super) fn settle(state: &mut State, entry: &mut Entry, names: &[VolumeName], node: NodeId) {
    for name in names {
        let version = entry.index;
        let volume = match state.volume_named(name) {
            Some(known) if known.node.is_some() => continue,
            Some(known) => Volume { node: Some(node), version, ..Volume::clone(known) },
            None => Volume {
                id: id_for(state, entry, name),
                name: name.clone(),
                version,
                created_at: entry.now,
                labels: BTreeMap::new(),
                driver: VolumeDriver::Local,
                options: BTreeMap::new(),
                node: Some(node),
                removing: false,
            },
        };
        put(state, entry, volume);
    }
}

/// An id that nothing has, the same on every member: of the name and the entry, which makes a name only once.
fn id_for(state: &State, entry: &Entry, name: &VolumeName) -> VolumeId {
    let mut bytes = [entry.index.to_le_bytes().as_slice(), name.as_str().as_bytes()].concat();
    loop {
        let id = VolumeId(Id(xxh3_128(&bytes)));
        if !state.volumes.contains_key(&id) {
            return id;
        }
        bytes.push(0);
    }
}

fn put(state: &mut State, entry: &mut Entry, volume: Volume) -> Answer {
    let (id, volume) = (volume.id, Arc::new(volume));
    state.sum.add(digest::volume(&volume));
    state.index.volume_names.insert(volume.name.clone(), id);
    if let Some(before) = state.volumes.insert(id, volume.clone()) {
        state.sum.remove(digest::volume(&before));
    }
    entry.changes.push(Change::Volume(id));
    Answer::Volume(volume)
}

fn forget(state: &mut State, entry: &mut Entry, volume: &Volume) {
    state.index.volume_names.remove(&volume.name);
    state.sum.remove(digest::volume(volume));
    state.volumes.remove(&volume.id);
    entry.changes.push(Change::Volume(volume.id));
}
