//! Everything the deciding code reads by that is not the id of an object. Derived: an index can always be
//! built again from the objects, and the invariants compare the two.

mod facets;
mod occupants;
mod ports;
mod uses;

use std::net::Ipv4Addr;

use imbl::{OrdMap, OrdSet};
use warren_types::{
    Availability, ContentId, ContentKind, ContentName, Node, NodeId, NodeName, Revision, Service, ServiceId,
    ServiceName, Task, TaskId, TokenHash, TokenId, VolumeId, VolumeName,
};

use self::facets::differ;
use self::occupants::Occupants;
use self::ports::{HostPort, Opener, Publisher};
use super::dense::Dense;
use super::grouped::Grouped;
use super::numbers::Numbers;
use super::{State, Usage};

pub(super) use self::facets::Facets;
pub(crate) use self::uses::volume_texts;
pub(super) use self::uses::{bytes, fixed_volumes};

/// How many tasks a service has, by what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Records, ended ones included.
    pub tasks: u32,
    /// Occupy their slot. During an update or a drain a slot may have two of them.
    pub live: u32,
    /// Live, and running on a node that managers hear of.
    pub running: u32,
    /// Running, and should get traffic.
    pub ready: u32,
}

/// How many tasks of a service have a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Users {
    /// Records, ended ones included.
    pub tasks: u32,
    /// Live ones.
    pub live: u32,
    /// Live ones, and those that still hold something on their node.
    pub holding: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub service_names: OrdMap<ServiceName, ServiceId>,
    pub node_names: OrdMap<NodeName, NodeId>,
    pub token_hashes: OrdMap<TokenHash, TokenId>,
    /// Host ports that services publish, over the whole cluster. A service has the ports of its spec, and those of
    /// each earlier revision until the last task of it is gone: so no other service takes a port while an update
    /// that gives it up is under way, and until then a rollback finds it free.
    pub published: OrdMap<HostPort, Publisher>,
    /// Host ports that tasks hold, per node.
    pub opened: OrdMap<(NodeId, HostPort), Opener>,
    /// Who occupies a slot: the numbers of its live tasks. The second is there to replace the first.
    pub live: Occupants,
    /// Slots with two live tasks.
    pub paired: OrdSet<(ServiceId, u32)>,
    /// Live tasks by the number of their revision, then by their own.
    pub by_revision: OrdMap<(ServiceId, u64), Numbers>,
    pub revisions: OrdMap<(ServiceId, u64), Users>,
    /// Nodes that are to have no tasks.
    pub drained: OrdSet<NodeId>,
    /// Live tasks without a node.
    pub waiting: OrdSet<TaskId>,
    /// Tasks that a reconciler may have to do something about: not live any more, on a node that is down, or
    /// waiting to replace another.
    pub unsettled: OrdSet<TaskId>,
    /// Live tasks that run and are not well.
    pub unhealthy: OrdSet<TaskId>,
    /// Who holds an address. As a node's addresses are its subnet, this is also "tasks by node".
    pub addresses: Dense<TaskId>,
    pub counts: OrdMap<ServiceId, Counts>,
    pub usage: OrdMap<NodeId, Usage>,
    /// How many live tasks of a service a node has.
    pub spread: Grouped<(ServiceId, NodeId), u32>,
    pub content_names: OrdMap<(ContentKind, ContentName), ContentId>,
    /// Bytes of all versions of all contents, sealed.
    pub content_bytes: u64,
    /// Which services use a content, and how often: once for the current revision unless the service is being
    /// removed, once for each revision that tasks still hold.
    pub content_users: OrdMap<(ContentId, ServiceId), u32>,
    pub volume_names: OrdMap<VolumeName, VolumeId>,
    /// Which services name a volume as it is called in all their tasks, counted as those of a content.
    pub volume_users: OrdMap<(VolumeName, ServiceId), u32>,
    /// Services whose volumes are called differently from task to task, counted as the users of a content.
    pub volume_makers: OrdMap<ServiceId, u32>,
    /// Which tasks that hold their node have a volume.
    pub mounted: OrdSet<(VolumeName, TaskId)>,
}

impl Index {
    /// The index of the state's objects.
    pub fn of(state: &State) -> Self {
        let token_hashes = state.tokens().map(|token| (token.hash, token.id)).collect();
        let mut index = Self { token_hashes, ..Self::default() };
        state.contents().for_each(|content| index.add_content(content));
        index.volume_names = state.volumes().map(|volume| (volume.name.clone(), volume.id)).collect();
        state.services().for_each(|service| index.add_service(service));
        state.nodes().for_each(|node| index.add_node(node));
        state.tasks().for_each(|task| index.change_task(task, None, Some(Facets::of(task))));
        index
    }

    pub(super) fn add_service(&mut self, service: &Service) {
        self.service_names.insert(service.spec.name.clone(), service.id);
        self.counts.insert(service.id, Counts::default());
        self.publish(service.id, &service.spec.ports);
        if !service.removing {
            self.use_by(service.id, &service.revision);
        }
    }

    pub(super) fn remove_service(&mut self, service: &Service) {
        self.service_names.remove(&service.spec.name);
        self.counts.remove(&service.id);
        self.withdraw(&service.spec.ports);
        if !service.removing {
            self.unuse_by(service.id, &service.revision);
        }
    }

    pub(super) fn add_node(&mut self, node: &Node) {
        self.node_names.insert(node.name.clone(), node.id);
        self.usage.insert(node.id, Usage::default());
        self.set_availability(node.id, node.availability);
    }

    /// The node has no tasks any more.
    pub(super) fn remove_node(&mut self, node: &Node) {
        self.node_names.remove(&node.name);
        self.usage.remove(&node.id);
        self.drained.remove(&node.id);
    }

    pub(super) fn set_availability(&mut self, node: NodeId, availability: Availability) {
        match availability {
            Availability::Drain => self.drained.insert(node),
            Availability::Active | Availability::Pause => self.drained.remove(&node),
        };
    }

    /// Brings the indexes from one view of a task to another; `None` is "there is no such task". Touches
    /// only what differs, so that a report of a running task costs one look-up and not ten.
    pub(super) fn change_task(&mut self, task: &Task, before: Option<Facets>, after: Option<Facets>) {
        let Task { id, revision, .. } = task;
        let (leaves, enters) = differ(before, after, Facets::live_slot);
        leaves.into_iter().for_each(|place| self.live.remove(place));
        enters.into_iter().for_each(|place| self.live.insert(place));
        if let Some((service, slot, _)) = leaves.or(enters) {
            self.pair(service, slot);
        }
        let (leaves, enters) = differ(before, after, Facets::live_revision);
        if let Some(revision) = leaves {
            self.leave_revision(revision, id.number);
        }
        if let Some(revision) = enters {
            self.by_revision.entry(revision).or_default().insert(id.number);
        }
        let (leaves, enters) = differ(before, after, Facets::waiting);
        leaves.map(|id| self.waiting.remove(&id));
        enters.map(|id| self.waiting.insert(id));
        let (leaves, enters) = differ(before, after, Facets::unsettled);
        leaves.map(|id| self.unsettled.remove(&id));
        enters.map(|id| self.unsettled.insert(id));
        let (leaves, enters) = differ(before, after, Facets::unhealthy);
        leaves.map(|id| self.unhealthy.remove(&id));
        enters.map(|id| self.unhealthy.insert(id));
        let (leaves, enters) = differ(before, after, Facets::spread);
        leaves.into_iter().for_each(|pair| self.leave_node(pair));
        enters.map(|pair| self.spread.insert(pair, self.spread.get(&pair).map_or(1, |tasks| tasks + 1)));
        let (leaves, enters) = differ(before, after, |facets| facets.reserved);
        let reserved = revision.task.reservations;
        if let Some(node) = leaves {
            self.usage.entry(node).or_default().give_back(reserved);
        }
        if let Some(node) = enters {
            self.usage.entry(node).or_default().take(reserved);
        }
        let (leaves, enters) = differ(before, after, |facets| facets.held);
        if let Some((node, address)) = leaves {
            self.give_back(task, node, address);
        }
        if let Some((node, address)) = enters {
            self.take(task, node, address);
        }
        self.count(id.service, differ(before, after, Facets::tally));
        self.count_users(id.service, revision, differ(before, after, Facets::use_of_revision));
    }

    /// Who occupies the slot; the second is there to replace the first.
    pub fn occupants(&self, service: ServiceId, slot: u32) -> impl Iterator<Item = TaskId> + use<'_> {
        self.live.of(service, slot).map(move |number| TaskId { service, number })
    }

    /// The numbers of a revision's live tasks, in order.
    pub fn of_revision(&self, service: ServiceId, revision: u64) -> impl Iterator<Item = u64> + use<'_> {
        self.by_revision.get(&(service, revision)).into_iter().flat_map(Numbers::iter)
    }

    /// How many of a service's slots have a live task.
    pub fn occupied(&self, service: &ServiceId) -> u32 {
        let pairs = self.paired.range((*service, 0)..=(*service, u32::MAX)).count();
        let live = self.counts.get(service).map_or(0, |counts| counts.live);
        live.saturating_sub(u32::try_from(pairs).unwrap_or(u32::MAX))
    }

    fn leave_revision(&mut self, revision: (ServiceId, u64), number: u64) {
        let Some(numbers) = self.by_revision.get_mut(&revision) else { return };
        numbers.remove(number);
        if numbers.is_empty() {
            self.by_revision.remove(&revision);
        }
    }

    fn leave_node(&mut self, pair: (ServiceId, NodeId)) {
        match self.spread.get(&pair) {
            Some(tasks) if *tasks > 1 => drop(self.spread.insert(pair, tasks - 1)),
            _ => drop(self.spread.remove(&pair)),
        }
    }

    fn pair(&mut self, service: ServiceId, slot: u32) {
        let second = self.occupants(service, slot).nth(1);
        match second.is_some() {
            true => drop(self.paired.insert((service, slot))),
            false => drop(self.paired.remove(&(service, slot))),
        }
    }

    fn count_users(
        &mut self,
        service: ServiceId,
        revision: &Revision,
        (leaves, enters): (Option<[bool; 2]>, Option<[bool; 2]>),
    ) {
        if leaves == enters {
            return;
        }
        let users = self.revisions.entry((service, revision.number)).or_default();
        let before = users.holding;
        if let Some([live, holding]) = leaves {
            users.tasks -= 1;
            users.live -= u32::from(live);
            users.holding -= u32::from(holding);
        }
        if let Some([live, holding]) = enters {
            users.tasks += 1;
            users.live += u32::from(live);
            users.holding += u32::from(holding);
        }
        let after = *users;
        if after.tasks == 0 {
            self.revisions.remove(&(service, revision.number));
        }
        match (before, after.holding) {
            (0, 1..) => {
                self.publish(service, &revision.ports);
                self.use_by(service, revision);
            }
            (1.., 0) => {
                self.withdraw(&revision.ports);
                self.unuse_by(service, revision);
            }
            _ => {}
        }
    }

    fn take(&mut self, task: &Task, node: NodeId, address: Ipv4Addr) {
        let Task { id, revision, .. } = task;
        self.addresses.insert(address.into(), *id);
        self.usage.entry(node).or_default().tasks += 1;
        task.volumes().iter().for_each(|volume| drop(self.mounted.insert((volume.clone(), *id))));
        for port in &revision.ports {
            let opener = Opener { service: id.service, tasks: 0 };
            self.opened.entry((node, HostPort::of(port))).or_insert(opener).tasks += 1;
        }
    }

    /// Its volumes are those that it had: they never change once it has a node.
    fn give_back(&mut self, task: &Task, node: NodeId, address: Ipv4Addr) {
        let Task { id, revision, .. } = task;
        self.addresses.remove(address.into());
        self.usage.entry(node).or_default().tasks -= 1;
        task.volumes().iter().for_each(|volume| drop(self.mounted.remove(&(volume.clone(), *id))));
        for port in &revision.ports {
            let key = (node, HostPort::of(port));
            let Some(opener) = self.opened.get_mut(&key) else { continue };
            opener.tasks -= 1;
            if opener.tasks == 0 {
                self.opened.remove(&key);
            }
        }
    }

    fn count(&mut self, service: ServiceId, (leaves, enters): (Option<[bool; 3]>, Option<[bool; 3]>)) {
        if leaves == enters {
            return;
        }
        let counts = self.counts.entry(service).or_default();
        if let Some([live, running, ready]) = leaves {
            counts.tasks -= 1;
            counts.live -= u32::from(live);
            counts.running -= u32::from(running);
            counts.ready -= u32::from(ready);
        }
        if let Some([live, running, ready]) = enters {
            counts.tasks += 1;
            counts.live += u32::from(live);
            counts.running += u32::from(running);
            counts.ready += u32::from(ready);
        }
    }
}

/// Counts one down, and forgets what reached zero.
fn lower<K: Ord + Clone>(counters: &mut OrdMap<K, u32>, key: K) {
    let Some(counter) = counters.get_mut(&key) else { return };
    *counter -= 1;
    if *counter == 0 {
        counters.remove(&key);
    }
}
