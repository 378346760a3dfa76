//! Invariants of secret objects and volumes, and of their users.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::secret_object::{KEPT_SECRET_OBJECT_VERSIONS, MAX_SECRET_OBJECT_SIZE};
use warren_types::{SecretObject, SecretObjectVersion, Service, Task, Volume, VolumeName};

use super::{InvariantViolation, ensure};
use crate::state::index::{total_size, volume_templates};
use crate::state::secret_object::named_secret_objects;
use crate::state::{MAX_SECRET_OBJECTS, MAX_SECRET_OBJECTS_SIZE, State};

pub(super) type VolumesByName<'a> = BTreeMap<&'a VolumeName, &'a Volume>;

impl State {
    pub(super) fn check_secret_objects(&self) -> Result<(), InvariantViolation> {
        let mut names = BTreeSet::new();
        let mut all = 0u64;
        for content in self.secret_objects() {
            let SecretObject { id, kind, name, version, created_at, updated_at, versions, .. } = &**content;
            ensure(names.insert((kind, name)), || format!("two of kind {kind} are called {name}"))?;
            let kept = (1..=KEPT_SECRET_OBJECT_VERSIONS).contains(&versions.len());
            ensure(kept, || format!("secret object {id} keeps {} versions", versions.len()))?;
            let oldest = versions.first_key_value().map_or(0, |(number, _)| *number);
            let newest = content.current_version();
            ensure(oldest > 0 && newest - oldest + 1 == versions.len() as u64, || {
                format!("secret object {id} keeps the versions {:?}", versions.keys())
            })?;
            let large = versions.values().find(|version| version.size as usize > MAX_SECRET_OBJECT_SIZE);
            ensure(large.is_none(), || format!("secret object {id} is too large: {large:?}"))?;
            ensure(*version <= self.applied.index, || format!("secret object {id} is of a later entry"))?;
            let past = created_at <= updated_at && *updated_at <= self.clock;
            ensure(past, || format!("secret object {id} was updated in the future, or before it was there"))?;
            all = all.saturating_add(total_size(content));
        }
        let count = self.secret_objects.len();
        ensure(count <= MAX_SECRET_OBJECTS, || format!("there are {count} contents"))?;
        ensure(all <= MAX_SECRET_OBJECTS_SIZE, || format!("all contents have {all} bytes"))
    }

    /// The current revision uses what the spec names, and all of that is kept.
    pub(super) fn check_secret_object_versions(&self, service: &Service) -> Result<(), InvariantViolation> {
        let Service { id, spec, revision, removing, .. } = service;
        let named = named_secret_objects(&spec.task);
        let desired: BTreeSet<_> = named.map(|(_, kind, name)| (kind, name.clone())).collect();
        let used: Vec<_> =
            revision.secret_objects.iter().map(|used| (used.kind, used.name.clone())).collect();
        let same = used.iter().eq(&desired);
        ensure(same, || format!("service {id} uses {used:?} and should use {desired:?}"))?;
        let labels = spec.template_labels();
        ensure(revision.labels == labels, || format!("service {id} has not the labels {labels:?}"))?;
        let kept = |used: &&SecretObjectVersion| {
            let content =
                self.secret_object(&used.id).filter(|it| (it.kind, &it.name) == (used.kind, &used.name));
            content.is_some_and(|content| content.versions.contains_key(&used.number))
        };
        let gone = revision.secret_objects.iter().find(|used| !removing && !kept(used));
        ensure(gone.is_none(), || format!("service {id} uses {gone:?}, which is gone"))
    }

    /// All volumes by name, each valid by itself.
    pub(super) fn check_volumes(&self) -> Result<VolumesByName<'_>, InvariantViolation> {
        let mut names = BTreeMap::new();
        for volume in self.volumes() {
            let Volume { id, name, version, driver, options, node, removing, released, .. } = &**volume;
            ensure(names.insert(name, &**volume).is_none(), || format!("two volumes are called {name}"))?;
            ensure(*version <= self.applied.index, || format!("volume {id} is of a later entry"))?;
            Volume::validate(*driver, options)
                .into_result(())
                .map_err(|violations| InvariantViolation(violations.to_string()))?;
            ensure(!(*removing || released.is_some()) || node.is_some(), || {
                format!("volume {id} has no data, and waits for its end")
            })?;
            ensure(!(*removing && released.is_some()), || format!("volume {id} is released and removed"))?;
        }
        Ok(names)
    }

    /// Nothing uses a volume whose data is being deleted. Needs the index.
    pub(super) fn check_removing_volumes(&self) -> Result<(), InvariantViolation> {
        let removing = self.volumes().filter(|volume| volume.removing);
        let fixed = self.index.volume_users.keys().map(|(name, _)| name).collect::<BTreeSet<_>>();
        let used = removing.map(|volume| &volume.name).find(|name| fixed.contains(name));
        ensure(used.is_none(), || format!("volume {used:?} is being removed, and used"))
    }

    /// A task's volumes are on its node, and stay as long as the task is not fully removed.
    pub(super) fn check_mounts(
        &self,
        task: &Task,
        known: &VolumesByName<'_>,
    ) -> Result<(), InvariantViolation> {
        let Task { id, node, revision, .. } = task;
        let volumes = task.volumes();
        let desired = if node.is_some() { volume_templates(revision).count() } else { 0 };
        ensure(volumes.len() == desired, || format!("task {id} has the volumes {volumes:?}"))?;
        if task.holds_resources() {
            let here =
                |volume: &&Volume| volume.node == *node && !volume.removing && volume.released.is_none();
            let other = volumes.iter().find(|name| !known.get(name).is_some_and(here));
            ensure(other.is_none(), || format!("task {id} has not its volume {other:?} where it is"))?;
        }
        if task.is_live() || task.holds_resources() {
            let gone = revision.secret_objects.iter().find(|used| self.secret_object(&used.id).is_none());
            ensure(gone.is_none(), || format!("task {id} uses {gone:?}, which is gone"))?;
        }
        Ok(())
    }
}
