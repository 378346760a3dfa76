//! Everything the deciding code reads by that is not the id of an object. Derived: an index can always be
//! built again from the objects, and the invariants compare the two.

use std::net::Ipv4Addr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use warren_types::{
    Node, NodeId, NodeName, Protocol, PublishedPort, Revision, Service, ServiceId, ServiceName, Task, TaskId,
    TaskState,
};

use super::Usage;

/// How many tasks a service has, by what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Records, ended ones included.
    pub tasks: u32,
    /// Occupy their slot.
    pub live: u32,
    /// Live, and running on a node that managers hear of.
    pub running: u32,
    /// Running, and should get traffic.
    pub ready: u32,
}

/// A port of a node as it is opened, ordered so that those that may collide are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub port: u16,
    pub protocol: Protocol,
    pub ip: Option<Ipv4Addr>,
}

/// Who opened a port on a node, and for how many tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Opener {
    pub service: ServiceId,
    pub tasks: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    pub service_names: OrdMap<ServiceName, ServiceId>,
    pub node_names: OrdMap<NodeName, NodeId>,
    /// Host ports that services publish, over the whole cluster.
    pub published: OrdMap<HostPort, ServiceId>,
    /// Host ports that tasks hold, per node.
    pub opened: OrdMap<(NodeId, HostPort), Opener>,
    /// The number of the task that occupies a slot.
    pub live: OrdMap<(ServiceId, u32), u64>,
    /// Live tasks without a node.
    pub waiting: OrdSet<TaskId>,
    /// Tasks that a reconciler may have to do something about: not live any more, or on a node that is down.
    pub unsettled: OrdSet<TaskId>,
    /// Who holds an address. As a node's addresses are its subnet, this is also "tasks by node".
    pub addresses: OrdMap<Ipv4Addr, TaskId>,
    pub counts: OrdMap<ServiceId, Counts>,
    pub usage: OrdMap<NodeId, Usage>,
    /// How many live tasks of a service a node has.
    pub spread: OrdMap<(ServiceId, NodeId), u32>,
}

/// What the indexes know of one task.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Facets {
    id: TaskId,
    slot: u32,
    live: bool,
    lost: bool,
    running: bool,
    ready: bool,
    node: Option<NodeId>,
    held: Option<(NodeId, Ipv4Addr)>,
}

impl Facets {
    pub(super) fn of(task: &Task) -> Self {
        let live = task.is_live();
        let lost = task.lost_since.is_some();
        let running = live && !lost && task.observed.state == TaskState::Running;
        Self {
            id: task.id,
            slot: task.slot,
            live,
            lost,
            running,
            ready: running && task.observed.ready,
            node: task.node,
            held: if task.holds_node() { task.node.zip(task.address) } else { None },
        }
    }

    fn live_slot(&self) -> Option<(ServiceId, u32)> {
        self.live.then_some((self.id.service, self.slot))
    }

    fn waiting(&self) -> Option<TaskId> {
        (self.live && self.node.is_none()).then_some(self.id)
    }

    fn unsettled(&self) -> Option<TaskId> {
        (!self.live || self.lost).then_some(self.id)
    }

    fn spread(&self) -> Option<(ServiceId, NodeId)> {
        self.node.filter(|_| self.live).map(|node| (self.id.service, node))
    }

    fn tally(&self) -> Option<[bool; 3]> {
        Some([self.live, self.running, self.ready])
    }
}

impl HostPort {
    fn of(port: &PublishedPort) -> Self {
        Self { port: port.host_port, protocol: port.protocol, ip: port.host_ip }
    }

    /// The least and the greatest port that may collide with this one.
    fn neighbours(self) -> (Self, Self) {
        (Self { ip: None, ..self }, Self { ip: Some(Ipv4Addr::BROADCAST), ..self })
    }

    /// Of two neighbours: both want the port on one address. Same rule as `PublishedPort::collides`.
    fn shares_address(self, other: Self) -> bool {
        self.ip.is_none() || other.ip.is_none() || self.ip == other.ip
    }
}

impl Index {
    /// The index of these objects.
    pub fn of<'a>(
        services: impl Iterator<Item = &'a Arc<Service>>,
        nodes: impl Iterator<Item = &'a Arc<Node>>,
        tasks: impl Iterator<Item = &'a Arc<Task>>,
    ) -> Self {
        let mut index = Self::default();
        services.for_each(|service| index.add_service(service));
        nodes.for_each(|node| index.add_node(node));
        for task in tasks {
            index.change_task(&task.revision, None, Some(Facets::of(task)));
        }
        index
    }

    pub(super) fn add_service(&mut self, service: &Service) {
        self.service_names.insert(service.spec.name.clone(), service.id);
        self.counts.insert(service.id, Counts::default());
        for port in &service.spec.ports {
            self.published.insert(HostPort::of(port), service.id);
        }
    }

    pub(super) fn remove_service(&mut self, service: &Service) {
        self.service_names.remove(&service.spec.name);
        self.counts.remove(&service.id);
        for port in &service.spec.ports {
            self.published.remove(&HostPort::of(port));
        }
    }

    pub(super) fn add_node(&mut self, node: &Node) {
        self.node_names.insert(node.name.clone(), node.id);
        self.usage.insert(node.id, Usage::default());
    }

    /// Another service that publishes the port.
    pub(super) fn publisher(&self, port: &PublishedPort) -> Option<ServiceId> {
        let wanted = HostPort::of(port);
        let (least, greatest) = wanted.neighbours();
        let mut near = self.published.range(least..=greatest);
        near.find(|(other, _)| wanted.shares_address(**other)).map(|(_, service)| *service)
    }

    /// The service that has the port open on the node.
    pub fn opener(&self, node: NodeId, port: &PublishedPort) -> Option<ServiceId> {
        let wanted = HostPort::of(port);
        let (least, greatest) = wanted.neighbours();
        let mut near = self.opened.range((node, least)..=(node, greatest));
        near.find(|((_, other), _)| wanted.shares_address(*other)).map(|(_, opener)| opener.service)
    }

    /// Brings the indexes from one view of a task to another; `None` is "there is no such task". Touches
    /// only what differs, so that a report of a running task costs one look-up and not ten.
    pub(super) fn change_task(&mut self, revision: &Revision, before: Option<Facets>, after: Option<Facets>) {
        let Some(id) = before.or(after).map(|facets| facets.id) else { return };
        let (leaves, enters) = differ(before, after, Facets::live_slot);
        leaves.map(|slot| self.live.remove(&slot));
        enters.map(|slot| self.live.insert(slot, id.number));
        let (leaves, enters) = differ(before, after, Facets::waiting);
        leaves.map(|id| self.waiting.remove(&id));
        enters.map(|id| self.waiting.insert(id));
        let (leaves, enters) = differ(before, after, Facets::unsettled);
        leaves.map(|id| self.unsettled.remove(&id));
        enters.map(|id| self.unsettled.insert(id));
        let (leaves, enters) = differ(before, after, Facets::spread);
        if let Some(pair) = leaves {
            lower(&mut self.spread, pair);
        }
        if let Some(pair) = enters {
            *self.spread.entry(pair).or_default() += 1;
        }
        let (leaves, enters) = differ(before, after, |facets| facets.held);
        if let Some((node, address)) = leaves {
            self.give_back(revision, node, address);
        }
        if let Some((node, address)) = enters {
            self.take(id, revision, node, address);
        }
        self.count(id.service, differ(before, after, Facets::tally));
    }

    fn take(&mut self, id: TaskId, revision: &Revision, node: NodeId, address: Ipv4Addr) {
        self.addresses.insert(address, id);
        self.usage.entry(node).or_default().take(revision.task.reservations);
        for port in &revision.ports {
            let opener = Opener { service: id.service, tasks: 0 };
            self.opened.entry((node, HostPort::of(port))).or_insert(opener).tasks += 1;
        }
    }

    fn give_back(&mut self, revision: &Revision, node: NodeId, address: Ipv4Addr) {
        self.addresses.remove(&address);
        self.usage.entry(node).or_default().give_back(revision.task.reservations);
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

/// What a facet was and what it becomes, if that differs.
fn differ<T: PartialEq>(
    before: Option<Facets>,
    after: Option<Facets>,
    facet: impl Fn(&Facets) -> Option<T>,
) -> (Option<T>, Option<T>) {
    let (before, after) = (before.as_ref().and_then(&facet), after.as_ref().and_then(&facet));
    if before == after { (None, None) } else { (before, after) }
}

/// Counts one down, and forgets what reached zero.
fn lower<K: Ord + Clone>(counters: &mut OrdMap<K, u32>, key: K) {
    let Some(counter) = counters.get_mut(&key) else { return };
    *counter -= 1;
    if *counter == 0 {
        counters.remove(&key);
    }
}
