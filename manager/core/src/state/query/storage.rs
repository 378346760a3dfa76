//! Questions about contents and volumes.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use warren_types::{
    Content, ContentId, ContentKind, ContentName, ContentUse, Id, SealedContent, Service, ServiceId, Task,
    TaskId, Volume, VolumeName,
};

use super::numbers;
use crate::state::State;

impl State {
    /// The content of that kind and name.
    pub fn content_named(&self, kind: ContentKind, name: &ContentName) -> Option<&Arc<Content>> {
        let id = self.index.content_names.get(&(kind, name.clone()))?;
        self.contents.get(id)
    }

    /// Contents of a kind by name, from the first after `last`; all of them for `None`.
    pub fn contents_after<'a>(
        &'a self,
        kind: ContentKind,
        last: Option<&ContentName>,
    ) -> impl Iterator<Item = &'a Arc<Content>> + use<'a> {
        let least = "0".parse().expect("a digit is a name, and the least one");
        let from = match last {
            Some(last) => Bound::Excluded((kind, last.clone())),
            None => Bound::Included((kind, least)),
        };
        let names = self.index.content_names.range((from, Bound::Unbounded));
        let names = names.take_while(move |((found, _), _)| *found == kind);
        names.filter_map(|(_, id)| self.contents.get(id))
    }

    /// The bytes of that version; `None` when it is not kept any more.
    pub fn content_version(&self, id: &ContentId, number: u64) -> Option<&Arc<SealedContent>> {
        self.contents.get(id)?.versions.get(&number)
    }

    /// The services that use a content, by id: those whose current revision does and that are not being removed, and
    /// those with a task of which something is left and whose revision does.
    pub fn content_users<'a>(&'a self, id: &ContentId) -> impl Iterator<Item = &'a Arc<Service>> + use<'a> {
        let all = (*id, ServiceId(Id(0)))..=(*id, ServiceId(Id(u128::MAX)));
        let users = self.index.content_users.range(all);
        users.filter_map(|((_, service), _)| self.services.get(service))
    }

    /// Which versions of secrets and configs the task sees, each with its bytes; `None` where that version is not kept
    /// any more.
    pub fn task_contents<'a>(
        &'a self,
        task: &'a Task,
    ) -> impl Iterator<Item = (&'a ContentUse, Option<&'a Arc<SealedContent>>)> + use<'a> {
        task.revision.contents.iter().map(|used| (used, self.content_version(&used.id, used.number)))
    }

    /// The volume of that name.
    pub fn volume_named(&self, name: &VolumeName) -> Option<&Arc<Volume>> {
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

    /// Who uses a volume: tasks that have it (`web.1`), and services that name it and of which no task has it (`web`).
    /// Sorted.
    pub fn volume_users(&self, name: &VolumeName) -> Vec<String> {
        let no_task = TaskId { service: ServiceId(Id(0)), number: 0 };
        let mounted = self.index.mounted.range((name.clone(), no_task)..);
        let mounted =
            mounted.take_while(|(volume, _)| volume == name).filter_map(|(_, id)| self.tasks.get(id));
        let mut tasks: BTreeSet<(&str, u32)> = mounted.filter_map(|task| self.place_of(task)).collect();
        // A service that calls its volumes differently in each task wants those of its tasks that have no node yet.
        let makers = self.index.volume_makers.iter().map(|(service, _)| *service);
        let waiting = makers.flat_map(|service| self.index.waiting.range(numbers(service)));
        let waiting = waiting.filter_map(|id| self.tasks.get(id));
        let wanting = waiting.filter(|task| self.volumes_of(task).contains(name));
        tasks.extend(wanting.filter_map(|task| self.place_of(task)));
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
    fn place_of<'a>(&'a self, task: &Task) -> Option<(&'a str, u32)> {
        let service = self.services.get(&task.id.service)?;
        Some((service.spec.name.as_str(), task.slot))
    }

    /// Live tasks of a service that run and are not well, oldest first.
    pub fn unhealthy_of<'a>(&'a self, service: &ServiceId) -> impl Iterator<Item = &'a Arc<Task>> + use<'a> {
        self.index.unhealthy.range(numbers(*service)).filter_map(|id| self.tasks.get(id))
    }
}
