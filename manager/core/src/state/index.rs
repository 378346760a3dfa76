//! Everything the deciding code reads by that is not the id of an object. Derived: an index can always be
//! built again from the objects, and the invariants compare the two.

use std::net::Ipv4Addr;
use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use warren_types::{
    Availability, Desired, Node, NodeId, NodeName, Protocol, PublishedPort, Revision, Service, ServiceId,
    ServiceName, Task, TaskId, TaskState, Token, TokenHash, TokenId,
};

use super::Usage;

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

/// A port of a node as it is opened, ordered so that those that may collide are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub port: u16,
    pub protocol: Protocol,
    pub ip: Option<Ipv4Addr>,
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

/// Who publishes a host port, and how often: once for its spec, once for each revision that tasks still hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Publisher {
    pub service: ServiceId,
    pub times: u32,
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
    pub token_hashes: OrdMap<TokenHash, TokenId>,
    /// Host ports that services publish, over the whole cluster. A service has the ports of its spec, and those of
    /// each earlier revision until the last task of it is gone: so no other service takes a port while an update
    /// that gives it up is under way, and until then a rollback finds it free.
    pub published: OrdMap<HostPort, Publisher>,
    /// Host ports that tasks hold, per node.
    pub opened: OrdMap<(NodeId, HostPort), Opener>,
    /// Who occupies a slot: the numbers of its live tasks. The second is there to replace the first.
    pub live: OrdSet<(ServiceId, u32, u64)>,
    /// Slots with two live tasks.
    pub paired: OrdSet<(ServiceId, u32)>,
    /// Live tasks by the number of their revision, then by their own.
    pub by_revision: OrdSet<(ServiceId, u64, u64)>,
    pub revisions: OrdMap<(ServiceId, u64), Users>,
    /// Nodes that are to have no tasks.
    pub drained: OrdSet<NodeId>,
    /// Live tasks without a node.
    pub waiting: OrdSet<TaskId>,
    /// Tasks that a reconciler may have to do something about: not live any more, on a node that is down, or
    /// waiting to replace another.
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
    revision: u64,
    slot: u32,
    live: bool,
    /// To be prepared and not started yet.
    standby: bool,
    lost: bool,
    running: bool,
    ready: bool,
    node: Option<NodeId>,
    held: Option<(NodeId, Ipv4Addr)>,
    /// The node on which its reservations count. What has ended needs no memory, even while its files are kept.
    reserved: Option<NodeId>,
}

impl Facets {
    pub(super) fn of(task: &Task) -> Self {
        let live = task.is_live();
        let lost = task.lost_since.is_some();
        let running = live && !lost && task.observed.state == TaskState::Running;
        Self {
            id: task.id,
            revision: task.revision.number,
            slot: task.slot,
            live,
            standby: live && task.desired == Desired::Ready,
            lost,
            running,
            ready: running && task.observed.ready,
            node: task.node,
            held: if task.holds_node() { task.node.zip(task.address) } else { None },
            reserved: task.node.filter(|_| task.holds_node() && !task.observed.state.is_terminal()),
        }
    }

    fn live_slot(&self) -> Option<(ServiceId, u32, u64)> {
        self.live.then_some((self.id.service, self.slot, self.id.number))
    }

    fn live_revision(&self) -> Option<(ServiceId, u64, u64)> {
        self.live.then_some((self.id.service, self.revision, self.id.number))
    }

    /// What counts in [`Users`], beside the record itself.
    fn use_of_revision(&self) -> Option<[bool; 2]> {
        Some([self.live, self.live || self.held.is_some()])
    }

    fn waiting(&self) -> Option<TaskId> {
        (self.live && self.node.is_none()).then_some(self.id)
    }

    fn unsettled(&self) -> Option<TaskId> {
        (!self.live || self.lost || self.standby).then_some(self.id)
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
        tokens: impl Iterator<Item = &'a Arc<Token>>,
    ) -> Self {
        let token_hashes = tokens.map(|token| (token.hash, token.id)).collect();
        let mut index = Self { token_hashes, ..Self::default() };
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
        self.publish(service.id, &service.spec.ports);
    }

    pub(super) fn remove_service(&mut self, service: &Service) {
        self.service_names.remove(&service.spec.name);
        self.counts.remove(&service.id);
        self.withdraw(&service.spec.ports);
    }

    pub(super) fn publish(&mut self, service: ServiceId, ports: &[PublishedPort]) {
        for port in ports {
            let publisher = Publisher { service, times: 0 };
            self.published.entry(HostPort::of(port)).or_insert(publisher).times += 1;
        }
    }

    pub(super) fn withdraw(&mut self, ports: &[PublishedPort]) {
        for key in ports.iter().map(HostPort::of) {
            let Some(publisher) = self.published.get_mut(&key) else { continue };
            publisher.times = publisher.times.saturating_sub(1);
            if publisher.times == 0 {
                self.published.remove(&key);
            }
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

    /// The service other than this one that publishes the port.
    pub(super) fn other_publisher(&self, port: &PublishedPort, service: ServiceId) -> Option<ServiceId> {
        let wanted = HostPort::of(port);
        let (least, greatest) = wanted.neighbours();
        let near = self.published.range(least..=greatest);
        let mut owners =
            near.filter(|(other, _)| wanted.shares_address(**other)).map(|(_, owner)| owner.service);
        owners.find(|owner| *owner != service)
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
        leaves.map(|place| self.live.remove(&place));
        enters.map(|place| self.live.insert(place));
        if let Some((service, slot, _)) = leaves.or(enters) {
            self.pair(service, slot);
        }
        let (leaves, enters) = differ(before, after, Facets::live_revision);
        leaves.map(|place| self.by_revision.remove(&place));
        enters.map(|place| self.by_revision.insert(place));
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
            self.give_back(revision, node, address);
        }
        if let Some((node, address)) = enters {
            self.take(id, revision, node, address);
        }
        self.count(id.service, differ(before, after, Facets::tally));
        self.count_users(id.service, revision, differ(before, after, Facets::use_of_revision));
    }

    /// Who occupies the slot; the second is there to replace the first.
    pub fn occupants(&self, service: ServiceId, slot: u32) -> impl Iterator<Item = TaskId> + use<'_> {
        let all = (service, slot, 0)..=(service, slot, u64::MAX);
        self.live.range(all).map(move |(_, _, number)| TaskId { service, number: *number })
    }

    /// How many of a service's slots have a live task.
    pub fn occupied(&self, service: &ServiceId) -> u32 {
        let pairs = self.paired.range((*service, 0)..=(*service, u32::MAX)).count();
        let live = self.counts.get(service).map_or(0, |counts| counts.live);
        live.saturating_sub(u32::try_from(pairs).unwrap_or(u32::MAX))
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
            (0, 1..) => self.publish(service, &revision.ports),
            (1.., 0) => self.withdraw(&revision.ports),
            _ => {}
        }
    }

    fn take(&mut self, id: TaskId, revision: &Revision, node: NodeId, address: Ipv4Addr) {
        self.addresses.insert(address, id);
        self.usage.entry(node).or_default().tasks += 1;
        for port in &revision.ports {
            let opener = Opener { service: id.service, tasks: 0 };
            self.opened.entry((node, HostPort::of(port))).or_insert(opener).tasks += 1;
        }
    }

    fn give_back(&mut self, revision: &Revision, node: NodeId, address: Ipv4Addr) {
        self.addresses.remove(&address);
        self.usage.entry(node).or_default().tasks -= 1;
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
