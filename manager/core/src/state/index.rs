//! The indexes of a state: all look-ups other than by id. They are derived: an index can always be rebuilt
//! from the objects, and the invariants compare the two.

mod facets;
mod ports;
mod references;
mod slot_tasks;

use std::net::Ipv4Addr;

use imbl::{OrdMap, OrdSet};
use ipnet::Ipv4Net;
use warren_types::{
    Availability, DnsLabel, NetworkId, NetworkName, Node, NodeId, NodeName, PublicKeyHash, Revision,
    SecretObjectId, SecretObjectKind, SecretObjectName, Service, ServiceId, ServiceName, Taint, TaintEffect,
    Task, TaskId, TokenHash, TokenId, User, UserId, UserName, Volume, VolumeId, VolumeName,
};

use self::facets::diff;
use self::ports::{HostPortKey, PortOwner, PortPublisher};
use self::slot_tasks::SlotTasks;
use super::dense_map::DenseMap;
use super::grouped_map::GroupedMap;
use super::number_set::NumberSet;
use super::{NodeAllocation, State, WithdrawnAddress};

pub(super) use self::facets::Facets;
pub(crate) use self::references::volume_templates;
pub(super) use self::references::{fixed_volumes, total_size};

/// Numbers of a service's tasks, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskCounts {
    /// Records, terminal ones included.
    pub tasks: u32,
    /// Tasks that occupy their slot. During an update or a drain a slot may have two.
    pub live: u32,
    /// Live, and running on a reachable node.
    pub running: u32,
    /// Running, and ready for traffic.
    pub ready: u32,
}

/// How many tasks of a service have a revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RevisionUsers {
    /// Records, terminal ones included.
    pub tasks: u32,
    /// Live tasks.
    pub live: u32,
    /// Live tasks, and those that still hold resources on their node.
    pub holding: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StateIndex {
    pub service_names: OrdMap<ServiceName, ServiceId>,
    pub node_names: OrdMap<NodeName, NodeId>,
    pub token_hashes: OrdMap<TokenHash, TokenId>,
    pub user_names: OrdMap<UserName, UserId>,
    pub user_keys: OrdMap<PublicKeyHash, UserId>,
    pub login_hashes: OrdMap<TokenHash, UserId>,
    /// Host ports that services publish, in the whole cluster. A service has the ports of its spec, and those
    /// of each earlier revision until the last task of it is removed: so no other service takes a port during
    /// an update that gives it up, and until then it is free for a rollback.
    pub published_ports: OrdMap<HostPortKey, PortPublisher>,
    /// Services with ports in ingress mode, counted like published ports.
    pub ingress_users: OrdMap<ServiceId, u32>,
    /// Host ports that tasks hold, per node.
    pub opened_ports: OrdMap<(NodeId, HostPortKey), PortOwner>,
    /// The numbers of each slot's live tasks. The second one replaces the first.
    pub slot_tasks: SlotTasks,
    /// Slots with two live tasks.
    pub paired_slots: OrdSet<(ServiceId, u32)>,
    /// Live tasks by the number of their revision, then by their own.
    pub live_by_revision: OrdMap<(ServiceId, u64), NumberSet>,
    pub revision_users: OrdMap<(ServiceId, u64), RevisionUsers>,
    /// Nodes that tasks may have to leave: drained, or with a taint that has the effect NoExecute.
    pub evicting_nodes: OrdSet<NodeId>,
    /// Live tasks without a node.
    pub pending: OrdSet<TaskId>,
    /// Tasks that a reconciler may have to change: not live any more, on a node that is down, or waiting to
    /// replace another.
    pub unsettled: OrdSet<TaskId>,
    /// Live tasks that run and are unhealthy.
    pub unhealthy: OrdSet<TaskId>,
    /// The task that holds an address. As a node's addresses are its subnet, this is also "tasks by node".
    pub tasks_by_address: DenseMap<TaskId>,
    /// Ended tasks whose logs a node retains.
    pub retained_logs: OrdSet<(NodeId, TaskId)>,
    pub counts: OrdMap<ServiceId, TaskCounts>,
    pub allocations: OrdMap<NodeId, NodeAllocation>,
    /// How many live tasks of a service a node has.
    pub tasks_per_node: GroupedMap<(ServiceId, NodeId), u32>,
    pub secret_object_names: OrdMap<(SecretObjectKind, SecretObjectName), SecretObjectId>,
    /// Bytes of all versions of all secret objects, sealed.
    pub secret_object_bytes: u64,
    /// Which services use a secret object, and how often: once for the current revision unless the service is
    /// being removed, once for each revision whose tasks still hold resources.
    pub secret_object_users: OrdMap<(SecretObjectId, ServiceId), u32>,
    pub volume_names: OrdMap<VolumeName, VolumeId>,
    /// Released volumes by the node that has their data.
    pub released_volumes: OrdMap<(NodeId, VolumeName), VolumeId>,
    /// Which services use a volume whose name is the same in all their tasks, counted like users of a secret
    /// object.
    pub volume_users: OrdMap<(VolumeName, ServiceId), u32>,
    /// Services whose volume names differ between tasks, counted like users of a secret object.
    pub templated_volume_users: OrdMap<ServiceId, u32>,
    pub network_names: OrdMap<NetworkName, NetworkId>,
    /// Which services are in a network, counted like users of a secret object.
    pub network_users: OrdMap<(NetworkName, ServiceId), u32>,
    /// Which services have an alias on a network, counted likewise.
    pub aliases: OrdMap<(NetworkName, DnsLabel, ServiceId), u32>,
    /// The service with a virtual address.
    pub virtual_addresses: OrdMap<Ipv4Addr, ServiceId>,
    /// Subnets of nodes, by their network address.
    pub subnets: OrdMap<Ipv4Addr, (Ipv4Net, NodeId)>,
    /// How many subnets are not assigned again yet.
    pub withdrawn_subnets: u64,
    pub node_numbers: OrdMap<u16, NodeId>,
    /// Which tasks that hold resources on their node have a volume.
    pub mounted_volumes: OrdSet<(VolumeName, TaskId)>,
}

impl StateIndex {
    /// Builds the index of the state's objects.
    pub fn of(state: &State) -> Self {
        let token_hashes = state.tokens().map(|token| (token.hash, token.id)).collect();
        let mut index = Self { token_hashes, ..Self::default() };
        state.secret_objects().for_each(|content| index.add_secret_object(content));
        state.volumes().for_each(|volume| index.add_volume(volume));
        state.users().for_each(|user| index.add_user_record(user));
        state.services().for_each(|service| index.add_service(service));
        state.nodes().for_each(|node| index.add_node(node));
        index.network_names = state.networks().map(|network| (network.name.clone(), network.id)).collect();
        state.tasks().for_each(|task| index.change_task(task, None, Some(Facets::of(task))));
        state.withdrawn.keys().for_each(|item| index.add_withdrawn(*item));
        index
    }

    pub(super) fn add_user_record(&mut self, user: &User) {
        self.user_names.insert(user.name.clone(), user.id);
        self.user_keys.extend(user.keys.keys().map(|key| (*key, user.id)));
        self.login_hashes.extend(user.login.iter().map(|login| (login.hash, user.id)));
    }

    pub(super) fn remove_user_record(&mut self, user: &User) {
        self.user_names.remove(&user.name);
        for key in user.keys.keys() {
            self.user_keys.remove(key);
        }
        if let Some(login) = &user.login {
            self.login_hashes.remove(&login.hash);
        }
    }

    pub(super) fn add_volume(&mut self, volume: &Volume) {
        self.volume_names.insert(volume.name.clone(), volume.id);
        if let Some(node) = volume.node.filter(|_| volume.released.is_some()) {
            self.released_volumes.insert((node, volume.name.clone()), volume.id);
        }
    }

    pub(super) fn remove_volume(&mut self, volume: &Volume) {
        self.volume_names.remove(&volume.name);
        if let Some(node) = volume.node {
            self.released_volumes.remove(&(node, volume.name.clone()));
        }
    }

    pub(super) fn add_service(&mut self, service: &Service) {
        self.service_names.insert(service.spec.name.clone(), service.id);
        self.counts.insert(service.id, TaskCounts::default());
        self.publish(service.id, &service.spec.ports);
        let addresses = service.virtual_addresses.values();
        self.virtual_addresses.extend(addresses.map(|address| (*address, service.id)));
        if !service.removing {
            self.add_user(service.id, &service.revision);
        }
    }

    pub(super) fn remove_service(&mut self, service: &Service) {
        self.service_names.remove(&service.spec.name);
        self.counts.remove(&service.id);
        self.unpublish(&service.spec.ports);
        for address in service.virtual_addresses.values() {
            self.virtual_addresses.remove(address);
        }
        if !service.removing {
            self.remove_user(service.id, &service.revision);
        }
    }

    pub(super) fn add_node(&mut self, node: &Node) {
        self.node_names.insert(node.name.clone(), node.id);
        self.allocations.insert(node.id, NodeAllocation::default());
        self.node_numbers.insert(node.number, node.id);
        node.subnets.iter().for_each(|subnet| self.add_subnet(node.id, *subnet));
        self.update_evicting_node(node);
    }

    /// The node has no tasks any more.
    pub(super) fn remove_node(&mut self, node: &Node) {
        self.node_names.remove(&node.name);
        self.allocations.remove(&node.id);
        self.node_numbers.remove(&node.number);
        for subnet in &node.subnets {
            self.subnets.remove(&subnet.network());
        }
        self.evicting_nodes.remove(&node.id);
    }

    pub(super) fn add_subnet(&mut self, node: NodeId, subnet: Ipv4Net) {
        self.subnets.insert(subnet.network(), (subnet, node));
    }

    /// Nothing has it any more, and it is not assigned again yet.
    pub(super) fn add_withdrawn(&mut self, item: WithdrawnAddress) {
        self.withdrawn_subnets += u64::from(matches!(item, WithdrawnAddress::Subnet(_)));
        if let Some(allocation) = self.allocation_with(item) {
            allocation.withdrawn += 1;
        }
    }

    /// The inverse of [`Self::add_withdrawn`].
    pub(super) fn remove_withdrawn(&mut self, item: WithdrawnAddress) {
        self.withdrawn_subnets -= u64::from(matches!(item, WithdrawnAddress::Subnet(_)));
        if let Some(allocation) = self.allocation_with(item) {
            allocation.withdrawn -= 1;
        }
    }

    /// The allocation of the node to which the address of a task belongs.
    fn allocation_with(&mut self, item: WithdrawnAddress) -> Option<&mut NodeAllocation> {
        let WithdrawnAddress::Address(address) = item else { return None };
        let (_, (subnet, node)) = self.subnets.range(..=address).next_back()?;
        subnet.contains(&address).then_some(*node).and_then(|node| self.allocations.get_mut(&node))
    }

    /// The availability or the taints of the node changed.
    pub(super) fn update_evicting_node(&mut self, node: &Node) {
        let evicts = |taint: &Taint| taint.effect == TaintEffect::NoExecute;
        match node.availability == Availability::Drain || node.taints.iter().any(evicts) {
            true => self.evicting_nodes.insert(node.id),
            false => self.evicting_nodes.remove(&node.id),
        };
    }

    /// Changes the indexes from one version of a task to another; `None` means that the task does not exist.
    /// Touches only what differs, so that a report of a running task costs one look-up and not ten.
    pub(super) fn change_task(&mut self, task: &Task, before: Option<Facets>, after: Option<Facets>) {
        let Task { id, revision, .. } = task;
        let (leaves, enters) = diff(before, after, Facets::live_slot);
        leaves.into_iter().for_each(|place| self.slot_tasks.remove(place));
        enters.into_iter().for_each(|place| self.slot_tasks.insert(place));
        if let Some((service, slot, _)) = leaves.or(enters) {
            self.update_paired(service, slot);
        }
        let (leaves, enters) = diff(before, after, Facets::live_revision);
        if let Some(revision) = leaves {
            self.remove_from_revision(revision, id.number);
        }
        if let Some(revision) = enters {
            self.live_by_revision.entry(revision).or_default().insert(id.number);
        }
        let (leaves, enters) = diff(before, after, Facets::pending);
        leaves.map(|id| self.pending.remove(&id));
        enters.map(|id| self.pending.insert(id));
        let (leaves, enters) = diff(before, after, Facets::unsettled);
        leaves.map(|id| self.unsettled.remove(&id));
        enters.map(|id| self.unsettled.insert(id));
        let (leaves, enters) = diff(before, after, Facets::unhealthy);
        leaves.map(|id| self.unhealthy.remove(&id));
        enters.map(|id| self.unhealthy.insert(id));
        let (leaves, enters) = diff(before, after, Facets::retained_log);
        leaves.map(|log| self.retained_logs.remove(&log));
        enters.map(|log| self.retained_logs.insert(log));
        let (leaves, enters) = diff(before, after, Facets::task_per_node);
        leaves.into_iter().for_each(|pair| self.remove_from_node(pair));
        enters.map(|pair| {
            self.tasks_per_node.insert(pair, self.tasks_per_node.get(&pair).map_or(1, |tasks| tasks + 1))
        });
        let (leaves, enters) = diff(before, after, |facets| facets.reserved);
        let reserved = revision.task.reservations;
        if let Some(node) = leaves {
            self.allocations.entry(node).or_default().release(reserved);
        }
        if let Some(node) = enters {
            self.allocations.entry(node).or_default().allocate(reserved);
        }
        let (leaves, enters) = diff(before, after, |facets| facets.held);
        if let Some((node, address)) = leaves {
            self.release(task, node, address);
        }
        if let Some((node, address)) = enters {
            self.allocate(task, node, address);
        }
        self.count(id.service, diff(before, after, Facets::counts));
        self.count_users(id.service, revision, diff(before, after, Facets::revision_users));
    }

    /// The tasks of the slot; the second one replaces the first.
    pub fn slot_tasks(&self, service: ServiceId, slot: u32) -> impl Iterator<Item = TaskId> + use<'_> {
        self.slot_tasks.tasks_in(service, slot).map(move |number| TaskId { service, number })
    }

    /// The numbers of a revision's live tasks, in order.
    pub fn live_tasks_of_revision(
        &self,
        service: ServiceId,
        revision: u64,
    ) -> impl Iterator<Item = u64> + use<'_> {
        self.live_by_revision.get(&(service, revision)).into_iter().flat_map(NumberSet::iter)
    }

    /// How many of a service's slots have a live task.
    pub fn count_occupied_slots(&self, service: &ServiceId) -> u32 {
        let pairs = self.paired_slots.range((*service, 0)..=(*service, u32::MAX)).count();
        let live = self.counts.get(service).map_or(0, |counts| counts.live);
        live.saturating_sub(u32::try_from(pairs).unwrap_or(u32::MAX))
    }

    fn remove_from_revision(&mut self, revision: (ServiceId, u64), number: u64) {
        let Some(numbers) = self.live_by_revision.get_mut(&revision) else { return };
        numbers.remove(number);
        if numbers.is_empty() {
            self.live_by_revision.remove(&revision);
        }
    }

    fn remove_from_node(&mut self, pair: (ServiceId, NodeId)) {
        match self.tasks_per_node.get(&pair) {
            Some(tasks) if *tasks > 1 => drop(self.tasks_per_node.insert(pair, tasks - 1)),
            _ => drop(self.tasks_per_node.remove(&pair)),
        }
    }

    fn update_paired(&mut self, service: ServiceId, slot: u32) {
        let second = self.slot_tasks(service, slot).nth(1);
        match second.is_some() {
            true => drop(self.paired_slots.insert((service, slot))),
            false => drop(self.paired_slots.remove(&(service, slot))),
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
        let users = self.revision_users.entry((service, revision.number)).or_default();
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
            self.revision_users.remove(&(service, revision.number));
        }
        match (before, after.holding) {
            (0, 1..) => {
                self.publish(service, &revision.ports);
                self.add_user(service, revision);
            }
            (1.., 0) => {
                self.unpublish(&revision.ports);
                self.remove_user(service, revision);
            }
            _ => {}
        }
    }

    fn allocate(&mut self, task: &Task, node: NodeId, address: Ipv4Addr) {
        let Task { id, revision, .. } = task;
        self.tasks_by_address.insert(address.into(), *id);
        self.allocations.entry(node).or_default().tasks += 1;
        task.volumes().iter().for_each(|volume| drop(self.mounted_volumes.insert((volume.clone(), *id))));
        for port in &revision.ports {
            let opener = PortOwner { service: id.service, tasks: 0 };
            self.opened_ports.entry((node, HostPortKey::of(port))).or_insert(opener).tasks += 1;
        }
    }

    /// Its volumes never change once it has a node.
    fn release(&mut self, task: &Task, node: NodeId, address: Ipv4Addr) {
        let Task { id, revision, .. } = task;
        self.tasks_by_address.remove(address.into());
        self.allocations.entry(node).or_default().tasks -= 1;
        task.volumes().iter().for_each(|volume| drop(self.mounted_volumes.remove(&(volume.clone(), *id))));
        for port in &revision.ports {
            let key = (node, HostPortKey::of(port));
            let Some(opener) = self.opened_ports.get_mut(&key) else { continue };
            opener.tasks -= 1;
            if opener.tasks == 0 {
                self.opened_ports.remove(&key);
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

/// Decrements one counter, and removes it at zero.
fn decrement<K: Ord + Clone>(counters: &mut OrdMap<K, u32>, key: K) {
    let Some(counter) = counters.get_mut(&key) else { return };
    *counter -= 1;
    if *counter == 0 {
        counters.remove(&key);
    }
}
