//! Queries on secret objects and volumes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use warren_types::{
    Id, SealedData, SecretObject, SecretObjectId, SecretObjectKind, SecretObjectName, SecretObjectVersion,
    Service, ServiceId, Task, TaskId, Volume, VolumeName,
};

use super::task_id_range;
use crate::state::State;

impl State {
    /// The secret object of that kind and name.
    pub fn secret_object_by_name(
        &self,
        kind: SecretObjectKind,
        name: &SecretObjectName,
    ) -> Option<&Arc<SecretObject>> {
        let id = self.index.secret_object_names.get(&(kind, name.clone()))?;
        self.secret_objects.get(id)
    }

    /// Secret objects of a kind by name, from the first after `last`; all of them for `None`.
    pub fn secret_objects_after<'a>(
        &'a self,
        kind: SecretObjectKind,
        last: Option<&SecretObjectName>,
    ) -> impl Iterator<Item = &'a Arc<SecretObject>> + use<'a> {
        let least = "0".parse().expect("a digit is a name, and the least one");
        let from = match last {
            Some(last) => Bound::Excluded((kind, last.clone())),
            None => Bound::Included((kind, least)),
        };
        let names = self.index.secret_object_names.range((from, Bound::Unbounded));
        let names = names.take_while(move |((found, _), _)| *found == kind);
        names.filter_map(|(_, id)| self.secret_objects.get(id))
    }

    /// The data of that version; `None` if it is not kept any more.
    pub fn secret_object_data(&self, id: &SecretObjectId, number: u64) -> Option<&Arc<SealedData>> {
        self.secret_objects.get(id)?.versions.get(&number)
    }

    /// The services that use a secret object, by id: those whose current revision uses it and that are not
    /// being removed, and those with a task that is not fully removed and whose revision uses it.
    pub fn secret_object_users<'a>(
        &'a self,
        id: &SecretObjectId,
    ) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        let all = (*id, ServiceId(Id(0)))..=(*id, ServiceId(Id(u128::MAX)));
        let users = self.index.secret_object_users.range(all);
        users.filter_map(|((_, service), _)| self.services.get(service))
    }

    /// Versions of the secrets and configs that the task mounts, each with its data; `None` if that version
    /// is not kept any more.
    pub fn task_secret_objects<'a>(
        &'a self,
        task: &'a Task,
    ) -> impl Iterator<Item = (&'a SecretObjectVersion, Option<&'a Arc<SealedData>>)> + use<'a> {
        task.revision.secret_objects.iter().map(|used| (used, self.secret_object_data(&used.id, used.number)))
    }

    /// The volume with that name.
    pub fn volume_by_name(&self, name: &VolumeName) -> Option<&Arc<Volume>> {
        self.index.volume_names.get(name).and_then(|id| self.volumes.get(id))
    }

    /// Volumes by name, from the first after `last`.
    pub fn volumes_after<'a>(
        &'a self,
        last: Option<&VolumeName>,
    ) -> impl Iterator<Item = &'a Arc<Volume>> + use<'a> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        let names = self.index.volume_names.range::<_, VolumeName>((from, Bound::Unbounded));
        names.filter_map(|(_, id)| self.volumes.get(id))
    }

    /// The users of a volume: tasks that have it (`web.1`), and services that name it and of which no task
    /// has it (`web`). Sorted.
    pub fn volume_users(&self, name: &VolumeName) -> Vec<String> {
        let no_task = TaskId { service: ServiceId(Id(0)), number: 0 };
        let mounted = self.index.mounted_volumes.range((name.clone(), no_task)..);
        let mounted =
            mounted.take_while(|(volume, _)| volume == name).filter_map(|(_, id)| self.tasks.get(id));
        let mut tasks: BTreeSet<(&str, u32)> =
            mounted.filter_map(|task| self.service_and_slot(task)).collect();
        // A service whose volume names differ between tasks uses those of its tasks that have no node yet.
        let makers = self.index.templated_volume_users.iter().map(|(service, _)| *service);
        let waiting = makers.flat_map(|service| self.index.pending.range(task_id_range(service)));
        let waiting = waiting.filter_map(|id| self.tasks.get(id));
        let wanting = waiting.filter(|task| self.volumes_of(task).contains(name));
        tasks.extend(wanting.filter_map(|task| self.service_and_slot(task)));
        let first = (name.clone(), ServiceId(Id(0)));
        let named = self.index.volume_users.range(first..).take_while(|((volume, _), _)| volume == name);
        let named =
            named.filter_map(|((_, id), _)| self.services.get(id)).map(|service| service.spec.name.as_str());
        let without: BTreeSet<&str> =
            named.filter(|name| tasks.range((*name, 0)..=(*name, u32::MAX)).next().is_none()).collect();
        let mut users: Vec<String> =
            tasks.iter().map(|(service, slot)| format!("{service}.{slot}")).collect();
        users.extend(without.into_iter().map(str::to_owned));
        users.sort_unstable();
        users
    }

    /// The name of the task's service, and its slot.
    fn service_and_slot<'a>(&'a self, task: &Task) -> Option<(&'a str, u32)> {
        let service = self.services.get(&task.id.service)?;
        Some((service.spec.name.as_str(), task.slot))
    }

    /// Live tasks of a service that run and are unhealthy, oldest first.
    pub fn unhealthy_tasks_of<'a>(
        &'a self,
        service: &ServiceId,
    ) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        self.index.unhealthy.range(task_id_range(*service)).filter_map(|id| self.tasks.get(id))
    }
}
