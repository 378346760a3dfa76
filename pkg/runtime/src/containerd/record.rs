//! Container records: written from a spec and read back.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use containerd_client::services::v1::Container;
use containerd_client::services::v1::container::Runtime as RecordRuntime;
use oci_spec::runtime as oci;
use prost_types::Any;
use warren_image::RunConfig;

use super::oci_runtime;
use crate::container::{ContainerId, ContainerOwner, ContainerSpec, ContainerStatus, ProcessState};
use crate::error::Error;
use warren_types::{IdRange, Signal};

const RUNTIME: &str = "io.containerd.runc.v2";
pub(super) const TASK: &str = "warren.task";
pub(super) const ATTEMPT: &str = "warren.attempt";
const SPEC_HASH: &str = "warren.spec-hash";
pub(super) const ATTEMPT_HISTORY: &str = "warren.attempt-history";
const STOP_SIGNAL: &str = "warren.stop-signal";
/// Path of the pipe of the container's standard input, if it has one.
pub(super) const STDIN: &str = "warren.stdin";
/// The id on the host of id 0 of the container, if it has a user namespace of its own.
const FIRST_ID: &str = "warren.first-id";
pub(super) const ASSIGNMENT: &str = "warren.assignment";
/// Label of a [`placeholder_record`], so that a later sweep finds it after a crash.
pub(super) const PLACEHOLDER: &str = "warren.stand-in";
/// On snapshots: the container of the snapshot.
pub(super) const CONTAINER: &str = "warren.container";
const PREFIX: &str = "warren.";
const SPEC_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// Plugins of containerd for containers.
pub(super) struct RecordPlugins<'a> {
    pub snapshotter: &'a str,
    /// Path of the OCI runtime.
    pub program: &'a Path,
}

impl RecordPlugins<'_> {
    fn runtime(&self) -> RecordRuntime {
        RecordRuntime { name: RUNTIME.to_owned(), options: Some(oci_runtime::options(self.program)) }
    }
}

/// The record of a new container.
pub(super) fn new_record(
    spec: &ContainerSpec,
    image: &RunConfig,
    document: &oci::Spec,
    plugins: &RecordPlugins<'_>,
) -> Result<Container, Error> {
    let mut labels: HashMap<String, String> = spec.labels.clone().into_iter().collect();
    labels.insert(TASK.to_owned(), spec.owner.task.clone());
    labels.insert(ATTEMPT.to_owned(), spec.owner.attempt.to_string());
    labels.insert(SPEC_HASH.to_owned(), spec.owner.spec_hash.clone());
    labels.insert(STOP_SIGNAL.to_owned(), stop_signal(spec, image)?.number().to_string());
    // Its path is in UTF-8.
    let pipe = spec.stdin.as_ref().map(|input| (STDIN.to_owned(), input.pipe.display().to_string()));
    labels.extend(pipe);
    let users = spec.user_namespace.as_ref();
    labels.extend(users.map(|users| (FIRST_ID.to_owned(), users.ids.first.to_string())));
    Ok(Container {
        id: spec.id.to_string(),
        labels,
        image: spec.image.to_string(),
        runtime: Some(plugins.runtime()),
        spec: Some(Any { type_url: SPEC_TYPE.to_owned(), value: to_json(document) }),
        snapshotter: plugins.snapshotter.to_owned(),
        snapshot_key: spec.id.to_string(),
        extensions: [(ASSIGNMENT.to_owned(), assignment(spec))].into(),
        ..Default::default()
    })
}

/// The first process of a container as its document describes it.
pub(super) fn first_process(record: &Container) -> Option<oci::Process> {
    document(record).ok()?.process().clone()
}

/// The ids of a container with a user namespace of its own.
pub(super) fn ids(record: &Container) -> Option<IdRange> {
    let first = record.labels.get(FIRST_ID)?.parse().ok()?;
    Some(IdRange { first })
}

/// The OCI document of a container.
pub(super) fn document(record: &Container) -> serde_json::Result<oci::Spec> {
    serde_json::from_slice(record.spec.as_ref().map_or(&[], |any| &any.value))
}

/// A record for a process that lost its own: enough for containerd to return the process again.
pub(super) fn placeholder_record(id: &ContainerId, plugins: &RecordPlugins<'_>) -> Container {
    Container {
        id: id.to_string(),
        labels: [(PLACEHOLDER.to_owned(), "true".to_owned())].into(),
        runtime: Some(plugins.runtime()),
        // containerd requires a document and does not read it.
        spec: Some(Any { type_url: SPEC_TYPE.to_owned(), value: b"{}".to_vec() }),
        snapshotter: plugins.snapshotter.to_owned(),
        snapshot_key: id.to_string(),
        ..Default::default()
    }
}

fn stop_signal(spec: &ContainerSpec, image: &RunConfig) -> Result<Signal, Error> {
    match (spec.stop_signal, image.stop_signal.as_str()) {
        (Some(signal), _) => Ok(signal),
        (None, "") => Ok(Signal::TERM),
        (None, text) => {
            let unknown =
                || Error::invalid_field("image", format!("its stop signal {text:?} is not a signal"));
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

/// What the wanted record changes in the existing one: the record to send, and the paths to update.
pub(super) fn record_update(existing: &Container, desired: &Container) -> Option<(Container, Vec<String>)> {
    let mut paths = Vec::new();
    let document = |record: &Container| {
        let any = record.spec.as_ref()?;
        serde_json::from_slice::<oci::Spec>(&any.value).ok()
    };
    // Compared after parsing: sets in it are written in any order.
    if document(existing) != document(desired) {
        paths.push("spec".to_owned());
    }
    if existing.extensions.get(ASSIGNMENT) != desired.extensions.get(ASSIGNMENT) {
        paths.push(format!("extensions.{ASSIGNMENT}"));
    }
    let changed = desired.labels.iter().filter(|(key, value)| existing.labels.get(*key) != Some(value));
    paths.extend(changed.map(|(key, _)| format!("labels.{key}")));
    if existing.image != desired.image {
        paths.push("image".to_owned());
    }
    (!paths.is_empty()).then(|| (desired.clone(), paths))
}

/// Why an existing record is of another container, if it is.
pub(super) fn conflict_reason(existing: &Container, desired: &Container) -> Option<String> {
    for key in [TASK, SPEC_HASH, FIRST_ID] {
        let (found, want) = (existing.labels.get(key), desired.labels.get(key));
        if found != want {
            let found = found.map_or("none", String::as_str);
            return Some(format!("the id is taken by a container with {key} {found:?}; remove it first"));
        }
    }
    (existing.snapshotter != desired.snapshotter)
        .then(|| format!("its snapshotter is {:?}, not {:?}", existing.snapshotter, desired.snapshotter))
}

/// Parses a record. `None` for an id that this crate does not accept: it cannot be inspected.
pub(super) fn parse_record(
    record: Container,
    process: ProcessState,
    snapshot: bool,
) -> Option<ContainerStatus> {
    let (id, ids) = (ContainerId::parse(&record.id).ok()?, ids(&record));
    let mut labels: BTreeMap<String, String> = record.labels.into_iter().collect();
    let owner = owner(&labels);
    let history = labels.remove(ATTEMPT_HISTORY).unwrap_or_default();
    let stop_signal = labels.get(STOP_SIGNAL).and_then(|text| Signal::parse(text)).unwrap_or(Signal::TERM);
    labels.retain(|key, _| !key.starts_with(PREFIX));
    let mut extensions = record.extensions;
    let assignment = extensions.remove(ASSIGNMENT).map(|any| any.value).unwrap_or_default();
    Some(ContainerStatus {
        id,
        owner,
        image: record.image,
        assignment,
        attempt_history: history,
        labels,
        stop_signal,
        process,
        has_snapshot: snapshot,
        ids,
    })
}

fn owner(labels: &BTreeMap<String, String>) -> Option<ContainerOwner> {
    Some(ContainerOwner {
        task: labels.get(TASK)?.clone(),
        attempt: labels.get(ATTEMPT)?.parse().ok()?,
        spec_hash: labels.get(SPEC_HASH)?.clone(),
    })
}

#[cfg(test)]
mod tests;
