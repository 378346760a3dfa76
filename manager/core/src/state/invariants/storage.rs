//! What is true of contents and volumes, and of those that use them.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::content::{KEPT_CONTENT_VERSIONS, MAX_CONTENT};
use warren_types::{Content, ContentKind, ContentMount, ContentUse, Service, Task, Volume, VolumeName};

use super::{Broken, ensure};
use crate::state::index::{bytes, volume_texts};
use crate::state::{MAX_CONTENT_BYTES, MAX_CONTENTS, State};

pub(super) type VolumesByName<'a> = BTreeMap<&'a VolumeName, &'a Volume>;

impl State {
    pub(super) fn check_contents(&self) -> Result<(), Broken> {
        let mut names = BTreeSet::new();
        let mut all = 0u64;
        for content in self.contents() {
            let Content { id, kind, name, version, created_at, updated_at, versions, .. } = &**content;
            ensure(names.insert((kind, name)), || format!("two of kind {kind} are called {name}"))?;
            let kept = (1..=KEPT_CONTENT_VERSIONS).contains(&versions.len());
            ensure(kept, || format!("content {id} keeps {} versions", versions.len()))?;
            let oldest = versions.first_key_value().map_or(0, |(number, _)| *number);
            let newest = content.number();
            ensure(oldest > 0 && newest - oldest + 1 == versions.len() as u64, || {
                format!("content {id} keeps the versions {:?}", versions.keys())
            })?;
            let large = versions.values().find(|version| version.size as usize > MAX_CONTENT);
            ensure(large.is_none(), || format!("content {id} is too large: {large:?}"))?;
            ensure(*version <= self.applied.index, || format!("content {id} is of a later entry"))?;
            let past = created_at <= updated_at && *updated_at <= self.clock;
            ensure(past, || format!("content {id} was updated in the future, or before it was there"))?;
            all = all.saturating_add(bytes(content));
        }
        let count = self.contents.len();
        ensure(count <= MAX_CONTENTS, || format!("there are {count} contents"))?;
        ensure(all <= MAX_CONTENT_BYTES, || format!("all contents have {all} bytes"))
    }

    /// The current revision uses what the spec names, and all of that is kept.
    pub(super) fn check_uses(&self, service: &Service) -> Result<(), Broken> {
        let Service { id, spec, revision, removing, .. } = service;
        let mounts = |kind, mounts: &[ContentMount]| {
            mounts.iter().map(|mount| (kind, mount.source.clone())).collect::<BTreeSet<_>>()
        };
        let mut wanted = mounts(ContentKind::Secret, &spec.task.secrets);
        wanted.extend(mounts(ContentKind::Config, &spec.task.configs));
        let used: Vec<_> = revision.contents.iter().map(|used| (used.kind, used.name.clone())).collect();
        let same = used.iter().eq(&wanted);
        ensure(same, || format!("service {id} uses {used:?} and should use {wanted:?}"))?;
        let labels = spec.template_labels();
        ensure(revision.labels == labels, || format!("service {id} has not the labels {labels:?}"))?;
        let kept = |used: &&ContentUse| {
            let content = self.content(&used.id).filter(|it| (it.kind, &it.name) == (used.kind, &used.name));
            content.is_some_and(|content| content.versions.contains_key(&used.number))
        };
        let gone = revision.contents.iter().find(|used| !removing && !kept(used));
        ensure(gone.is_none(), || format!("service {id} uses {gone:?}, which is gone"))
    }

    /// All volumes by name, and each of them is right by itself.
    pub(super) fn check_volumes(&self) -> Result<VolumesByName<'_>, Broken> {
        let mut names = BTreeMap::new();
        for volume in self.volumes() {
            let Volume { id, name, version, driver, options, node, removing, .. } = &**volume;
            ensure(names.insert(name, &**volume).is_none(), || format!("two volumes are called {name}"))?;
            ensure(*version <= self.applied.index, || format!("volume {id} is of a later entry"))?;
            Volume::validate(*driver, options).into_result(()).map_err(|wrong| Broken(wrong.to_string()))?;
            ensure(!removing || node.is_some(), || {
                format!("volume {id} has no data, and waits for its end")
            })?;
        }
        Ok(names)
    }

    /// Nothing uses a volume whose data is being deleted. Needs the index.
    pub(super) fn check_removing(&self) -> Result<(), Broken> {
        let removing = self.volumes().filter(|volume| volume.removing);
        let fixed = self.index.volume_users.keys().map(|(name, _)| name).collect::<BTreeSet<_>>();
        let used = removing.map(|volume| &volume.name).find(|name| fixed.contains(name));
        ensure(used.is_none(), || format!("volume {used:?} is being removed, and used"))
    }

    /// What a task has is where the task is, and stays as long as something of the task is left.
    pub(super) fn check_mounts(&self, task: &Task, known: &VolumesByName<'_>) -> Result<(), Broken> {
        let Task { id, node, revision, .. } = task;
        let volumes = task.volumes();
        let wanted = if node.is_some() { volume_texts(revision).count() } else { 0 };
        ensure(volumes.len() == wanted, || format!("task {id} has the volumes {volumes:?}"))?;
        if task.holds_node() {
            let here = |volume: &&Volume| volume.node == *node && !volume.removing;
            let other = volumes.iter().find(|name| !known.get(name).is_some_and(here));
            ensure(other.is_none(), || format!("task {id} has not its volume {other:?} where it is"))?;
        }
        if task.is_live() || task.holds_node() {
            let gone = revision.contents.iter().find(|used| self.content(&used.id).is_none());
            ensure(gone.is_none(), || format!("task {id} uses {gone:?}, which is gone"))?;
        }
        Ok(())
    }
}
