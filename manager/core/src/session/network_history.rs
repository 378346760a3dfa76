//! What nodes are told about the cluster's network, and at which version each part changed last. Kept by every
//! manager in memory, from its applied state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::num::NonZeroU16;
use std::sync::Arc;

use warren_types::{
    AssignmentVersion, CatalogueChange, CatalogueService, CatalogueServiceChange, DesiredTaskState, Endpoint,
    INGRESS_NETWORK, INGRESS_NETWORK_NAME, INGRESS_NETWORK_NUMBER, Network, NetworkId, NetworkPeer,
    NetworkUpdate, Node, NodeId, NodeStatus, PeersChange, PublishedPort, Service, ServiceId, ServiceName,
    ServicePort, Task, TaskId, TaskState, Timestamp,
};

use super::change_log::ChangeLog;
use super::entry_nodes::{entry_nodes, is_outdated};
use super::missed_entries::MissedEntries;
use crate::state::{State, StateChange};

/// The peers and catalogues of the cluster with their changes.
#[derive(Debug, Clone)]
pub struct NetworkHistory {
    /// Every change until it is included.
    version: AssignmentVersion,
    /// Index of the state that was compared last; it may be later.
    compared_at: u64,
    peers: ChangeLog<u16, NetworkPeer>,
    networks: BTreeMap<NetworkId, NetworkLog>,
    /// The numbers of the nodes that were compared.
    nodes: BTreeMap<NodeId, u16>,
    /// The services with an entry, and the networks that have it.
    services: BTreeMap<ServiceId, (ServiceName, BTreeSet<NetworkId>)>,
    /// The tasks with an entry, and the networks that have it.
    tasks: BTreeMap<TaskId, ListedTask>,
    /// Until this index entries may have come and gone that were never listed here.
    missed_until: u64,
    missed: MissedEntries,
}

#[derive(Debug, Clone)]
struct NetworkLog {
    network: Arc<Network>,
    entries: ChangeLog<EntryKey, Entry>,
}

/// A service's settings (without an address), or one of its endpoints: all of a service are beside each other.
type EntryKey = (ServiceName, Option<Ipv4Addr>);

#[derive(Debug, Clone, PartialEq)]
enum Entry {
    Settings(Box<CatalogueService>),
    Endpoint { slot: u32, ready: bool },
}

#[derive(Debug, Clone)]
struct ListedTask {
    service: ServiceName,
    address: Ipv4Addr,
    networks: Box<[NetworkId]>,
}

/// What changed between two versions of the state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkChanges {
    /// The nodes with tasks in any network must be told.
    pub peers: bool,
    /// The nodes with tasks in these networks must be told.
    pub networks: BTreeSet<NetworkId>,
}

/// The parts of the next update of one node. Equal parts have equal bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkUpdateParts {
    /// The version that the node must have; `None`: the update contains everything.
    pub base: Option<AssignmentVersion>,
    /// The version after it.
    pub version: AssignmentVersion,
    /// Changed peers, and after which index; `None` there: all of them.
    pub peers: Option<Option<u64>>,
    /// Changed networks, and after which index; `None` there: all of their services.
    pub catalogues: Vec<(NetworkId, Option<u64>)>,
    /// Networks in which the node has no task any more.
    pub removed: Vec<NetworkId>,
}

impl NetworkHistory {
    /// What the state contains; it knows no earlier version.
    pub fn new(state: &State) -> Self {
        let mut history = Self::empty(state_version(state));
        let keys = history.everything(state);
        history.compare(state, &keys);
        history
    }

    /// Every change until this version is included.
    pub fn version(&self) -> AssignmentVersion {
        self.version
    }

    /// Compares with a later state. `changes` is what changed until that index, which may be earlier than the state's;
    /// `None`: not known.
    pub fn update<'a>(
        &mut self,
        state: &State,
        changes: Option<(u64, impl Iterator<Item = &'a StateChange>)>,
    ) -> NetworkChanges {
        let now = state_version(state);
        let is_same = now.incarnation == self.version.incarnation;
        if !is_same {
            *self = Self::empty(now);
        }
        // A value may be newer than the change that it is read for, so it counts as changed as late as possible.
        self.compared_at = now.index;
        let keys = match changes.filter(|_| is_same) {
            Some((until, changes)) => {
                self.version.index = self.version.index.max(until.min(now.index));
                self.changed_keys(state, changes)
            }
            None => {
                self.version = now;
                self.missed_until = now.index;
                self.everything(state)
            }
        };
        self.compare(state, &keys)
    }

    fn empty(version: AssignmentVersion) -> Self {
        Self {
            version,
            compared_at: version.index,
            peers: ChangeLog::new(version.index),
            networks: BTreeMap::from([(
                INGRESS_NETWORK,
                NetworkLog { network: ingress_network(), entries: ChangeLog::new(version.index) },
            )]),
            nodes: BTreeMap::new(),
            services: BTreeMap::new(),
            tasks: BTreeMap::new(),
            missed_until: version.index,
            missed: MissedEntries::default(),
        }
    }

    fn everything(&self, state: &State) -> ChangedKeys {
        ChangedKeys {
            networks: true,
            nodes: self.nodes.keys().copied().chain(state.nodes().map(|node| node.id)).collect(),
            services: self.services.keys().copied().chain(state.services().map(|it| it.id)).collect(),
            tasks: self.tasks.keys().copied().chain(state.tasks_after(None).map(|task| task.id)).collect(),
        }
    }

    fn changed_keys<'a>(&self, state: &State, changes: impl Iterator<Item = &'a StateChange>) -> ChangedKeys {
        let mut keys = ChangedKeys::default();
        for change in changes {
            match *change {
                StateChange::Service(id) => drop(keys.services.insert(id)),
                StateChange::Task(id) => {
                    keys.tasks.insert(id);
                    keys.services.insert(id.service);
                }
                StateChange::Node(id) => {
                    // Its tasks are not ready while it is DOWN.
                    keys.tasks.extend(state.tasks_on(&id).map(|task| task.id));
                    keys.nodes.insert(id);
                }
                StateChange::Network(_) => keys.networks = true,
                StateChange::Cluster
                | StateChange::Assignment(_)
                | StateChange::Token(_)
                | StateChange::User(_)
                | StateChange::SecretObject(_)
                | StateChange::Volume(_)
                | StateChange::Addresses
                | StateChange::ImportedImages
                | StateChange::CaRenewals
                | StateChange::KeyRotation
                | StateChange::Member(_) => {}
            }
        }
        keys.services.extend(self.with_other_entry_nodes(state, &keys.nodes));
        keys
    }

    /// The services whose ports one of these nodes opens now and did not when it was compared, or the other way round.
    fn with_other_entry_nodes(&self, state: &State, nodes: &BTreeSet<NodeId>) -> Vec<ServiceId> {
        let Some(log) = self.networks.get(&INGRESS_NETWORK) else { return Vec::new() };
        let is_other = |service: &&Arc<Service>| {
            let listed = match log.entries.get(&(service.spec.name.clone(), None)) {
                Some(Entry::Settings(settings)) => settings.entry_nodes.as_ref(),
                _ => None,
            };
            nodes.iter().any(|id| {
                let (before, node) = (self.nodes.get(id).copied(), state.node(id).map(Arc::as_ref));
                is_outdated(listed, &service.spec, before, node)
            })
        };
        let selecting = state.ingress_services().filter(|service| !service.spec.publish_on.is_empty());
        selecting.filter(is_other).map(|service| service.id).collect()
    }

    fn compare(&mut self, state: &State, keys: &ChangedKeys) -> NetworkChanges {
        let mut changes = NetworkChanges::default();
        if keys.networks {
            self.compare_networks(state, &mut changes);
        }
        for id in &keys.nodes {
            let before = self.nodes.get(id).copied();
            changes.peers |= self.compare_node(id, state.node(id));
            let now = self.nodes.get(id).copied();
            // It was replaced by another one, or nothing is known of it.
            if before.zip(now).is_some_and(|(before, now)| before != now)
                || before.is_none() && state.node(id).is_none()
            {
                self.missed_until = self.compared_at;
            }
        }
        let was_listed: Vec<(TaskId, bool)> =
            keys.tasks.iter().map(|id| (*id, self.tasks.contains_key(id))).collect();
        // What is gone first: a name or an address may belong to another one now.
        for id in &keys.tasks {
            self.compare_task(state, *id, None, &mut changes);
        }
        for id in keys.services.iter().filter(|id| state.service(id).is_none()) {
            self.compare_service(state, *id, &BTreeSet::new(), &mut changes);
        }
        let mut networks: BTreeMap<ServiceId, BTreeSet<NetworkId>> = BTreeMap::new();
        for task in keys.tasks.iter().filter_map(|id| state.task(id)) {
            let of_service = networks.entry(task.id.service).or_default();
            of_service.extend(task_networks(state, task).map(|network| network.id));
        }
        for id in &keys.services {
            let of_tasks = networks.remove(id).unwrap_or_default();
            self.compare_service(state, *id, &of_tasks, &mut changes);
        }
        for task in keys.tasks.iter().filter_map(|id| state.task(id)) {
            self.compare_task(state, task.id, Some(task), &mut changes);
        }
        for (id, was_listed) in was_listed {
            let (task, is_listed) = (state.task(&id).map(Arc::as_ref), self.tasks.contains_key(&id));
            if self.missed.record_task(id, task, was_listed, is_listed) {
                self.missed_until = self.compared_at;
            }
        }
        for id in &keys.services {
            if self.missed.record_service(*id, state.service(id).map(Arc::as_ref)) {
                self.missed_until = self.compared_at;
            }
        }
        changes
    }

    fn compare_networks(&mut self, state: &State, changes: &mut NetworkChanges) {
        for network in state.networks() {
            let entries = || ChangeLog::new(self.compared_at);
            let known = self.networks.entry(network.id);
            let known = known.or_insert_with(|| NetworkLog { network: network.clone(), entries: entries() });
            if known.network != *network {
                changes.networks.insert(network.id);
                known.network = network.clone();
            }
        }
        self.networks.retain(|id, _| *id == INGRESS_NETWORK || state.network(id).is_some());
    }

    fn compare_node(&mut self, id: &NodeId, node: Option<&Arc<Node>>) -> bool {
        let peer = node.and_then(|node| {
            let address = node.description.data_address?;
            let (subnets, key) = (node.subnets.clone(), node.description.wireguard_key);
            Some((node.number, NetworkPeer { subnets, address, key }))
        });
        let before = self.nodes.remove(id);
        let number = peer.as_ref().map(|(number, _)| *number);
        let index = self.compared_at;
        let mut changed = false;
        // Another node may have the number already.
        if let Some(before) = before.filter(|before| Some(*before) != number)
            && !self.nodes.values().any(|other| *other == before)
        {
            changed |= self.peers.set(index, before, None);
        }
        if let Some((number, peer)) = peer {
            self.nodes.insert(*id, number);
            changed |= self.peers.set(index, number, Some(peer));
        }
        changed
    }

    fn compare_service(
        &mut self,
        state: &State,
        id: ServiceId,
        of_tasks: &BTreeSet<NetworkId>,
        changes: &mut NetworkChanges,
    ) {
        let service = state.service(&id);
        let (name, before) = match self.services.remove(&id) {
            Some((name, networks)) => (name, networks),
            None => match service {
                Some(service) => (service.spec.name.clone(), BTreeSet::new()),
                None => return,
            },
        };
        let attachments = service.map_or(&[][..], |service| service.spec.task.network.attachments());
        let own = attachments.iter().filter_map(|it| Some(state.network_by_name(&it.network)?.id));
        let ingress = state.is_ingress_user(&id).then_some(INGRESS_NETWORK);
        let candidates: BTreeSet<NetworkId> =
            own.chain(before.iter().chain(of_tasks).copied()).chain(ingress).collect();
        let mut now = BTreeSet::new();
        let mut has_other_ports = false;
        for network in candidates {
            let Some(log) = self.networks.get_mut(&network) else { continue };
            let is_ingress = network == INGRESS_NETWORK;
            let is_listed = match is_ingress {
                true => ingress.is_some(),
                false => service.is_some() && state.is_network_user(&log.network.name, id),
            };
            let settings = service.filter(|_| is_listed).map(|service| {
                let attachment = attachments.iter().find(|it| it.network == log.network.name);
                let listed = service.spec.ports.iter().filter(|port| !is_ingress || port.is_ingress());
                let mut ports: Vec<ServicePort> = listed
                    .map(|port| ServicePort {
                        port: port.container_port,
                        protocol: port.protocol,
                        name: None,
                        published: NonZeroU16::new(port.host_port).filter(|_| is_ingress),
                        prefer_local: is_ingress && port.prefer_local,
                        client_affinity: is_ingress && port.client_affinity,
                    })
                    .collect();
                ports.sort_unstable();
                ports.dedup();
                Entry::Settings(Box::new(CatalogueService {
                    aliases: attachment.map(|it| it.aliases.clone()).unwrap_or_default(),
                    mode: service.spec.endpoint_mode,
                    virtual_address: service.virtual_addresses.get(&network).copied(),
                    ports,
                    entry_nodes: entry_nodes(state, &service.spec).filter(|_| is_ingress),
                    endpoints: Vec::new(),
                }))
            });
            if is_listed {
                now.insert(network);
            }
            if log.entries.set(self.compared_at, (name.clone(), None), settings) {
                changes.networks.insert(network);
                has_other_ports |= is_ingress;
            }
        }
        if !now.is_empty() {
            self.services.insert(id, (name, now));
        }
        if has_other_ports {
            for task in state.tasks_of(&id) {
                self.compare_task(state, task.id, Some(task), changes);
            }
        }
    }

    /// The entry of the task in each network; `None` removes those that it has not any more, and adds none.
    fn compare_task(&mut self, state: &State, id: TaskId, add: Option<&Task>, changes: &mut NetworkChanges) {
        let now = state.task(&id).and_then(|task| listed_task(state, task));
        let index = self.compared_at;
        if let Some(before) = self.tasks.get(&id) {
            let is_same = |now: &ListedTask| now.address == before.address && now.networks == before.networks;
            if !now.as_ref().is_some_and(is_same) {
                for network in &before.networks {
                    let Some(log) = self.networks.get_mut(network) else { continue };
                    if log.entries.set(index, (before.service.clone(), Some(before.address)), None) {
                        changes.networks.insert(*network);
                    }
                }
                self.tasks.remove(&id);
            }
        }
        let (Some(now), Some(task)) = (now, add) else { return };
        let ready = is_ready(state, task);
        for network in &now.networks {
            let Some(log) = self.networks.get_mut(network) else { continue };
            let ready = ready && (*network != INGRESS_NETWORK || has_published_ports(state, task));
            let entry = Entry::Endpoint { slot: task.slot, ready };
            if log.entries.set(index, (now.service.clone(), Some(now.address)), Some(entry)) {
                changes.networks.insert(*network);
            }
        }
        self.tasks.insert(id, now);
    }

    /// Whether the changes after `version` are known.
    pub(super) fn covers(&self, version: AssignmentVersion) -> bool {
        version.incarnation == self.version.incarnation
            && version <= self.version
            && self.peers.covers(version.index)
    }

    /// Whether a node with that version, which another manager sent, may have entries that were never listed here.
    pub(super) fn has_missed(&self, version: AssignmentVersion) -> bool {
        version.index < self.missed_until
    }

    /// Where the changes of the peers begin for a node with that version; `None`: there are none.
    pub(super) fn peers_part(&self, since: u64) -> Option<Option<u64>> {
        self.peers.has_changed_since(since).then(|| Some(self.peers.last_change_until(since)))
    }

    /// Where the changes of the network begin for a node with that version; `None`: there are none.
    pub(super) fn catalogue_part(&self, network: NetworkId, since: u64) -> Option<Option<u64>> {
        let log = self.networks.get(&network)?;
        // A changed network is sent as a whole: that is rare.
        if log.network.version > since || !log.entries.covers(since) {
            return Some(None);
        }
        log.entries.has_changed_since(since).then(|| Some(log.entries.last_change_until(since)))
    }

    /// The network, if it exists.
    pub fn has_network(&self, network: NetworkId) -> bool {
        self.networks.contains_key(&network)
    }

    /// The peers that changed after an index; `None`: all of them.
    pub fn peers_since(&self, since: Option<u64>) -> PeersChange {
        let Some(since) = since else {
            let changed = self.peers.iter().map(|(number, peer)| (*number, peer.clone())).collect();
            return PeersChange { changed, removed: Vec::new() };
        };
        let mut change = PeersChange::default();
        for (number, peer) in self.peers.changes_since(since) {
            match peer {
                Some(peer) => drop(change.changed.insert(*number, peer.clone())),
                None => change.removed.push(*number),
            }
        }
        change
    }

    /// What changed in a network after an index; `None`: all of it. `None` if the network does not exist.
    pub fn catalogue_since(&self, network: NetworkId, since: Option<u64>) -> Option<CatalogueChange> {
        let NetworkLog { network, entries } = self.networks.get(&network)?;
        let mut services: BTreeMap<ServiceName, CatalogueServiceChange> = BTreeMap::new();
        let mut add = |(name, address): &EntryKey, entry: Option<&Entry>| {
            let change = services.entry(name.clone()).or_default();
            match (entry, address) {
                (Some(Entry::Settings(settings)), _) => change.settings = Some((**settings).clone()),
                (Some(Entry::Endpoint { slot, ready }), Some(address)) => {
                    change.endpoints.push(Endpoint { slot: *slot, address: *address, ready: *ready });
                }
                (Some(Entry::Endpoint { .. }), None) => {}
                (None, Some(address)) => change.removed_endpoints.push(*address),
                (None, None) => change.removed = true,
            }
        };
        match since {
            Some(since) => entries.changes_since(since).into_iter().for_each(|(key, entry)| add(key, entry)),
            None => entries.iter().for_each(|(key, entry)| add(key, Some(entry))),
        }
        for (name, change) in &mut services {
            // Its tasks may still be listed, if they were removed by a later entry.
            if entries.get(&(name.clone(), None)).is_none() {
                *change = CatalogueServiceChange { removed: true, ..CatalogueServiceChange::default() };
            }
            change.endpoints.sort_unstable();
        }
        Some(CatalogueChange {
            network: network.id,
            name: network.name.clone(),
            number: network.number,
            internal: network.internal,
            full: since.is_none(),
            services,
        })
    }

    /// The update of these parts.
    pub fn network_update(&self, parts: &NetworkUpdateParts) -> NetworkUpdate {
        let catalogues = parts.catalogues.iter();
        NetworkUpdate {
            base: parts.base,
            version: parts.version,
            peers: parts.peers.map(|since| self.peers_since(since)).unwrap_or_default(),
            catalogues: catalogues.filter_map(|(id, since)| self.catalogue_since(*id, *since)).collect(),
            removed: parts.removed.clone(),
        }
    }
}

/// What is compared.
#[derive(Debug, Default)]
struct ChangedKeys {
    networks: bool,
    nodes: BTreeSet<NodeId>,
    services: BTreeSet<ServiceId>,
    tasks: BTreeSet<TaskId>,
}

fn state_version(state: &State) -> AssignmentVersion {
    let incarnation = state.cluster().map_or(0, |cluster| cluster.incarnation);
    AssignmentVersion { incarnation, index: state.applied().index }
}

/// The networks of the task, by its revision, in the order of its spec.
fn task_networks<'a>(state: &'a State, task: &'a Task) -> impl Iterator<Item = &'a Arc<Network>> + use<'a> {
    task.revision.task.network.attachments().iter().filter_map(|it| state.network_by_name(&it.network))
}

/// A task is listed while its container runs.
fn listed_task(state: &State, task: &Task) -> Option<ListedTask> {
    let is_running = task.observed.state == TaskState::Running && !task.observed.removed;
    let address = task.address.filter(|_| is_running)?;
    let service = state.service(&task.id.service)?.spec.name.clone();
    let ingress = task.revision.ports.iter().any(PublishedPort::is_ingress).then_some(INGRESS_NETWORK);
    let networks: Box<[NetworkId]> =
        task_networks(state, task).map(|network| network.id).chain(ingress).collect();
    (!networks.is_empty()).then_some(ListedTask { service, address, networks })
}

/// The ports of the task in ingress mode, by its revision, are those of its service: others lead nowhere.
fn has_published_ports(state: &State, task: &Task) -> bool {
    let service = state.service(&task.id.service);
    service.is_some_and(|service| {
        let of_task = task.revision.ports.iter().filter(|port| port.is_ingress());
        let of_spec = service.spec.ports.iter().filter(|port| port.is_ingress());
        of_task.map(PublishedPort::mapping).eq(of_spec.map(PublishedPort::mapping))
    })
}

fn ingress_network() -> Arc<Network> {
    Arc::new(Network {
        id: INGRESS_NETWORK,
        name: INGRESS_NETWORK_NAME.parse().expect("it is a valid name"),
        version: 0,
        created_at: Timestamp(0),
        labels: BTreeMap::new(),
        internal: false,
        number: INGRESS_NETWORK_NUMBER,
    })
}

/// It gets new connections.
fn is_ready(state: &State, task: &Task) -> bool {
    let node = task.node.and_then(|node| state.node(&node));
    task.observed.ready
        && task.desired == DesiredTaskState::Running
        && node.is_some_and(|node| node.status != NodeStatus::Down)
}
