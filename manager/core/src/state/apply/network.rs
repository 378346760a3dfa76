//! Commands on networks, and the virtual addresses of services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

use warren_types::spec::{DEFAULT_NETWORK, validate_labels};
use warren_types::{
    DnsLabel, EndpointMode, INGRESS_NETWORK_NAME, Id, Network, NetworkId, NetworkName, Service, ServiceId,
    ServiceName, ServiceSpec, TaskSpec, Timestamp, Violations,
};
use xxhash_rust::xxh3::xxh3_128;

use super::{ApplyContext, address};
use crate::state::{CommandResponse, MAX_NETWORKS, ObjectKind, Refusal, State, StateChange, digest};

/// The virtual address of a service on each of its networks.
pub(in crate::state) type VirtualAddresses = BTreeMap<NetworkId, Ipv4Addr>;

/// The number of the default network.
const DEFAULT_NUMBER: u32 = 1;

/// The network in a request.
#[derive(Clone, Copy)]
pub(super) struct DesiredNetwork<'a> {
    pub name: &'a NetworkName,
    pub labels: &'a BTreeMap<String, String>,
    pub internal: bool,
}

impl DesiredNetwork<'_> {
    fn matches(&self, network: &Network) -> bool {
        let Self { name, labels, internal } = *self;
        network.name == *name && network.labels == *labels && network.internal == internal
    }
}

/// The network that exists from the start. Its id is derived from that of the cluster.
pub(super) fn create_default(state: &mut State, entry: &mut ApplyContext, cluster: Id) {
    add(state, entry, default_network(cluster, entry.index, entry.now));
}

/// The default network of a cluster.
pub(in crate::state) fn default_network(cluster: Id, version: u64, created_at: Timestamp) -> Network {
    Network {
        id: NetworkId(Id(xxh3_128(&cluster.0.to_le_bytes()))),
        name: DEFAULT_NETWORK.parse().expect("it is a name of a network"),
        version,
        created_at,
        labels: BTreeMap::new(),
        internal: false,
        number: DEFAULT_NUMBER,
    }
}

pub(super) fn create(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NetworkId,
    desired: DesiredNetwork<'_>,
) -> Result<CommandResponse, Refusal> {
    let DesiredNetwork { name, labels, internal } = desired;
    let taken = || Refusal::AlreadyExists { kind: ObjectKind::Network, name: name.to_string() };
    if let Some(known) = state.networks.get(&id) {
        return match desired.matches(known) {
            true => Ok(CommandResponse::Network(known.clone())),
            false => Err(taken()),
        };
    }
    let mut violations = Violations::default();
    if name.as_str() == INGRESS_NETWORK_NAME {
        violations.add("name", "the name is reserved for published ports; choose another one");
    }
    if matches!(name.as_str(), "host" | "none") {
        violations
            .add("name", format!("{name} is not a network: `--network {name}` has a meaning of its own"));
    }
    validate_labels(labels, &mut violations);
    violations.into_result(()).map_err(Refusal::Invalid)?;
    if state.index.network_names.contains_key(name) {
        return Err(taken());
    }
    if state.networks.len() >= MAX_NETWORKS {
        return Err(Refusal::TooManyNetworks);
    }
    let network = Network {
        id,
        name: name.clone(),
        version: entry.index,
        created_at: entry.now,
        labels: labels.clone(),
        internal,
        number: free_number(state),
    };
    Ok(CommandResponse::Network(add(state, entry, network)))
}

/// The smallest number that no network has. Nodes replace what they know of a number when its network changes.
fn free_number(state: &State) -> u32 {
    let used: BTreeSet<u32> = state.networks.values().map(|network| network.number).collect();
    (DEFAULT_NUMBER..).find(|number| !used.contains(number)).unwrap_or(u32::MAX)
}

fn add(state: &mut State, entry: &mut ApplyContext, network: Network) -> Arc<Network> {
    let network = Arc::new(network);
    state.digest_sum.add(digest::network(&network));
    state.index.network_names.insert(network.name.clone(), network.id);
    state.networks.insert(network.id, network.clone());
    entry.changes.push(StateChange::Network(network.id));
    network
}

pub(super) fn remove(
    state: &mut State,
    entry: &mut ApplyContext,
    id: NetworkId,
) -> Result<CommandResponse, Refusal> {
    let known = state.networks.get(&id).ok_or_else(|| Refusal::not_found(ObjectKind::Network, id))?.clone();
    if known.number == DEFAULT_NUMBER {
        return Err(Refusal::DefaultNetwork);
    }
    let by = state.network_users(&known.name);
    if !by.is_empty() {
        return Err(Refusal::NetworkInUse { name: known.name.clone(), by });
    }
    // Earlier revisions may name it; a rollback to them is refused from now on.
    let with_address = state.services.values().filter(|it| it.virtual_addresses.contains_key(&id));
    let left: Vec<(ServiceId, VirtualAddresses)> =
        with_address.map(|service| (service.id, service.virtual_addresses.clone())).collect();
    for (service, mut addresses) in left {
        addresses.remove(&id);
        set_virtual_addresses(state, entry, service, addresses);
    }
    state.digest_sum.remove(digest::network(&known));
    state.index.network_names.remove(&known.name);
    state.networks.remove(&id);
    entry.changes.push(StateChange::Network(id));
    Ok(CommandResponse::Network(known))
}

/// Every network of the task exists, and none of its aliases is the name or an alias of another service there.
pub(super) fn check(state: &State, id: ServiceId, spec: &ServiceSpec, wrong: &mut Violations) {
    let own: DnsLabel = spec.name.as_str().parse().expect("names of services are labels");
    for (i, attachment) in spec.task.network.attachments().iter().enumerate() {
        let path = |field: &str| format!("spec.task.network.networks[{i}].{field}");
        let name = &attachment.network;
        if !state.index.network_names.contains_key(name) {
            let message =
                format!("network {name} does not exist; create it with `warren network create {name}`");
            wrong.add(path("network"), message);
            continue;
        }
        for alias in &attachment.aliases {
            let owner = state.index.service_names.get(alias.as_str()).filter(|owner| **owner != id);
            let is_here = owner.is_some_and(|owner| state.is_network_user(name, *owner));
            if is_here {
                let message =
                    format!("{alias} is the name of a service on network {name}; choose another alias");
                wrong.add(path("aliases"), message);
            }
        }
        if let Some(other) = state.service_with_alias(name, &own).filter(|other| *other != id) {
            let other = state.services.get(&other).map_or_else(String::new, |it| it.spec.name.to_string());
            let message = format!(
                "{} is an alias of service {other} on network {name}; choose another name or network",
                spec.name
            );
            wrong.add(path("network"), message);
        }
    }
}

/// The virtual addresses of a service on `networks`: those that it has, and free ones.
///
/// # Errors
/// [`Refusal::VirtualAddressesExhausted`].
pub(super) fn plan_virtual_addresses(
    state: &State,
    service: &ServiceName,
    known: &VirtualAddresses,
    networks: BTreeSet<NetworkId>,
) -> Result<VirtualAddresses, Refusal> {
    let mut assigned: BTreeSet<Ipv4Addr> = known.values().copied().collect();
    let mut planned = VirtualAddresses::new();
    for network in networks {
        let exhausted = || Refusal::VirtualAddressesExhausted { service: service.clone() };
        let free = || address::free_virtual_address(state, &assigned).ok_or_else(exhausted);
        let address = known.get(&network).copied().map_or_else(free, Ok)?;
        assigned.insert(address);
        planned.insert(network, address);
    }
    Ok(planned)
}

/// The virtual addresses of a service that has none yet.
///
/// # Errors
/// [`Refusal::VirtualAddressesExhausted`].
pub(in crate::state) fn first_virtual_addresses(
    state: &State,
    service: &Service,
) -> Result<VirtualAddresses, Refusal> {
    let revisions = service.history.iter().chain([&service.revision]).map(|earlier| &earlier.task);
    let networks = virtual_networks(state, service.spec.endpoint_mode, revisions);
    plan_virtual_addresses(state, &service.spec.name, &service.virtual_addresses, networks)
}

/// The networks on which a service has a virtual address: those of all revisions that its tasks have or can have.
pub(super) fn virtual_networks<'a>(
    state: &State,
    mode: EndpointMode,
    tasks: impl Iterator<Item = &'a TaskSpec>,
) -> BTreeSet<NetworkId> {
    match mode {
        EndpointMode::Dnsrr => BTreeSet::new(),
        EndpointMode::Vip => tasks.flat_map(|task| networks_of(state, task)).collect(),
    }
}

/// Gives the service these virtual addresses, and withdraws the others that it has.
pub(super) fn set_virtual_addresses(
    state: &mut State,
    entry: &mut ApplyContext,
    id: ServiceId,
    addresses: VirtualAddresses,
) {
    let Some(service) = state.services.get(&id).filter(|it| it.virtual_addresses != addresses).cloned()
    else {
        return;
    };
    let kept: BTreeSet<Ipv4Addr> = addresses.values().copied().collect();
    for address in service.virtual_addresses.values().filter(|address| !kept.contains(*address)) {
        state.index.virtual_addresses.remove(address);
        address::withdraw(state, entry, (*address).into());
    }
    state.index.virtual_addresses.extend(kept.into_iter().map(|address| (address, id)));
    state.update_service_status(entry, id, |service| service.virtual_addresses = addresses);
}

/// The ids of the task's networks.
pub(in crate::state) fn networks_of<'a>(
    state: &'a State,
    task: &'a TaskSpec,
) -> impl Iterator<Item = NetworkId> + use<'a> {
    task.network.attachments().iter().filter_map(|it| state.index.network_names.get(&it.network).copied())
}
