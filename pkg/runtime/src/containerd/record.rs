//! The container record: how a spec is written into it and read back.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use containerd_client::services::v1::Container;
use containerd_client::services::v1::container::Runtime as RecordRuntime;
use oci_spec::runtime as oci;
use prost_types::Any;
use warren_image::RunConfig;

use super::oci_runtime;
use crate::container::{ContainerId, ContainerSpec, Found, Owner, Process};
use crate::error::Error;
use warren_types::Signal;

const RUNTIME: &str = "io.containerd.runc.v2";
pub(super) const TASK: &str = "warren.task";
pub(super) const ATTEMPT: &str = "warren.attempt";
const SPEC_HASH: &str = "warren.spec-hash";
pub(super) const LEDGER: &str = "warren.ledger";
const STOP_SIGNAL: &str = "warren.stop-signal";
pub(super) const ASSIGNMENT: &str = "warren.assignment";
/// Marks a [`stand_in`], so that it is found again by who comes after one that was killed.
pub(super) const STAND_IN: &str = "warren.stand-in";
/// On snapshots: the container that owns it.
pub(super) const CONTAINER: &str = "warren.container";
const PREFIX: &str = "warren.";
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// What of containerd keeps our containers.
pub(super) struct Keeper<'a> {
    pub snapshotter: &'a str,
    /// The program that makes them.
    pub program: &'a Path,
}

impl Keeper<'_> {
    fn runtime(&self) -> RecordRuntime {
        RecordRuntime { name: RUNTIME.to_owned(), options: Some(oci_runtime::options(self.program)) }
    }
}

/// The record of a container that does not exist yet.
pub(super) fn new(
    spec: &ContainerSpec,
    image: &RunConfig,
    document: &oci::Spec,
    keeper: &Keeper<'_>,
) -> Result<Container, Error> {
    let mut labels: HashMap<String, String> = spec.labels.clone().into_iter().collect();
    labels.insert(TASK.to_owned(), spec.owner.task.clone());
    labels.insert(ATTEMPT.to_owned(), spec.owner.attempt.to_string());
    labels.insert(SPEC_HASH.to_owned(), spec.owner.spec_hash.clone());
    labels.insert(STOP_SIGNAL.to_owned(), stop_signal(spec, image)?.number().to_string());
    Ok(Container {
        id: spec.id.to_string(),
        labels,
        image: spec.image.to_string(),
        runtime: Some(keeper.runtime()),
        spec: Some(Any { type_url: SPEC_TYPE.to_owned(), value: to_json(document) }),
        snapshotter: keeper.snapshotter.to_owned(),
        snapshot_key: spec.id.to_string(),
        extensions: [(ASSIGNMENT.to_owned(), assignment(spec))].into(),
        ..Default::default()
    })
}

/// A record for a process that lost its own: enough for containerd to speak of the process again.
pub(super) fn stand_in(id: &ContainerId, keeper: &Keeper<'_>) -> Container {
    Container {
        id: id.to_string(),
        labels: [(STAND_IN.to_owned(), "true".to_owned())].into(),
        runtime: Some(keeper.runtime()),
        // containerd insists on a document and does not read it.
        spec: Some(Any { type_url: SPEC_TYPE.to_owned(), value: b"{}".to_vec() }),
        snapshotter: keeper.snapshotter.to_owned(),
        snapshot_key: id.to_string(),
        ..Default::default()
    }
}

fn stop_signal(spec: &ContainerSpec, image: &RunConfig) -> Result<Signal, Error> {
    match (spec.stop_signal, image.stop_signal.as_str()) {
        (Some(signal), _) => Ok(signal),
        (None, "") => Ok(Signal::TERM),
        (None, text) => {
            let unknown = || Error::invalid("image", format!("its stop signal {text:?} is not a signal"));
            Signal::parse(text).ok_or_else(unknown)
        }
    }
}

fn assignment(spec: &ContainerSpec) -> Any {
    Any { type_url: ASSIGNMENT.to_owned(), value: spec.assignment.clone() }
}

fn to_json(document: &oci::Spec) -> Vec<u8> {
    serde_json::to_vec(document).expect("the runtime document has string keys only")
}

/// What of an existing record a wanted one changes: the record to send, and the paths to take from it.
pub(super) fn update(existing: &Container, wanted: &Container) -> Option<(Container, Vec<String>)> {
    let mut paths = Vec::new();
    let document = |record: &Container| {
        let any = record.spec.as_ref()?;
        serde_json::from_slice::<oci::Spec>(&any.value).ok()
    };
    // Read, not compared byte by byte: sets inside are written in any order.
    if document(existing) != document(wanted) {
        paths.push("spec".to_owned());
    }
    if existing.extensions.get(ASSIGNMENT) != wanted.extensions.get(ASSIGNMENT) {
        paths.push(format!("extensions.{ASSIGNMENT}"));
    }
    let changed = wanted.labels.iter().filter(|(key, value)| existing.labels.get(*key) != Some(value));
    paths.extend(changed.map(|(key, _)| format!("labels.{key}")));
    if existing.image != wanted.image {
        paths.push("image".to_owned());
    }
    (!paths.is_empty()).then(|| (wanted.clone(), paths))
}

/// Why an existing record is not the wanted container, if it is not.
pub(super) fn conflict(existing: &Container, wanted: &Container) -> Option<String> {
    for key in [TASK, SPEC_HASH] {
        let (found, want) = (existing.labels.get(key), wanted.labels.get(key));
        if found != want {
            let found = found.map_or("none", String::as_str);
            return Some(format!("the id is taken by a container with {key} {found:?}; remove it first"));
        }
    }
    (existing.snapshotter != wanted.snapshotter).then(|| {
        format!("its file system is kept by {:?}, not {:?}", existing.snapshotter, wanted.snapshotter)
    })
}

/// A record read back. `None` for an id that this crate would not accept: nothing can be asked about it.
pub(super) fn read(record: Container, process: Process, snapshot: bool) -> Option<Found> {
    let id = ContainerId::parse(&record.id).ok()?;
    let mut labels: BTreeMap<String, String> = record.labels.into_iter().collect();
    let owner = owner(&labels);
    let ledger = labels.remove(LEDGER).unwrap_or_default();
    let stop_signal = labels.get(STOP_SIGNAL).and_then(|text| Signal::parse(text)).unwrap_or(Signal::TERM);
    labels.retain(|key, _| !key.starts_with(PREFIX));
    let mut extensions = record.extensions;
    let assignment = extensions.remove(ASSIGNMENT).map(|any| any.value).unwrap_or_default();
    Some(Found { id, owner, image: record.image, assignment, ledger, labels, stop_signal, process, snapshot })
}

fn owner(labels: &BTreeMap<String, String>) -> Option<Owner> {
    Some(Owner {
        task: labels.get(TASK)?.clone(),
        attempt: labels.get(ATTEMPT)?.parse().ok()?,
        spec_hash: labels.get(SPEC_HASH)?.clone(),
    })
}

#[cfg(test)]
mod tests;
