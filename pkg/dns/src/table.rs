//! What a node can answer: the names of its networks, and which of its clients is on which network. Pure.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use ipnet::Ipv4Net;
use smallvec::SmallVec;
use warren_types::{Catalogue, DnsLabel, Endpoint, EndpointMode, NetworkId, ServiceName, ServicePort};

/// A task of this node as a client of its DNS server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DnsClient {
    /// The networks it is attached to, in the order of its spec. A name in several of them means that of the first.
    pub networks: Vec<NetworkId>,
    /// One of them has a way out, also if its catalogue is not known.
    pub has_way_out: bool,
    /// Its own upstreams and search domains.
    pub dns: ClientDnsSettings,
}

/// DNS settings of one task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientDnsSettings {
    /// Asked instead of the upstreams of the node.
    pub servers: Vec<SocketAddr>,
    /// Domains that its resolver appends, after `warren`.
    pub searches: Vec<String>,
}

/// Addresses that belong to the node or to the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeAddresses {
    /// The node's own: its gateways. Queries from them, and from 127.0.0.0/8, come from the node itself.
    pub own: Vec<Ipv4Addr>,
    /// The ranges of the cluster. Reverse lookups of their addresses are never forwarded.
    pub ranges: Vec<Ipv4Net>,
}

/// The names of one network, indexed. It is made once from a catalogue and shared by the tables of all later changes
/// to other networks and to clients.
#[derive(Debug)]
pub struct NetworkNames {
    id: NetworkId,
    number: u32,
    internal: bool,
    services: Box<[ServiceNames]>,
    by_name: HashMap<ServiceName, u32>,
    by_alias: HashMap<DnsLabel, SmallVec<[u32; 2]>>,
    by_address: HashMap<Ipv4Addr, AddressOwner>,
}

/// One service of a network.
#[derive(Debug)]
pub(crate) struct ServiceNames {
    pub(crate) name: ServiceName,
    /// What its name resolves to, instead of its endpoints.
    pub(crate) virtual_address: Option<Ipv4Addr>,
    ports: Box<[ServicePort]>,
    /// In order of slots.
    endpoints: Box<[Endpoint]>,
}

/// What an address of a network is.
#[derive(Debug, Clone, Copy)]
struct AddressOwner {
    service: u32,
    /// `None` for a virtual address.
    slot: Option<u32>,
}

/// Everything that a node answers, and to whom.
#[derive(Debug, Default)]
pub struct NameTable {
    clients: HashMap<Ipv4Addr, ClientNames>,
    /// What the node itself sees: every network.
    node: ClientNames,
    addresses: NodeAddresses,
}

/// What one client sees.
#[derive(Debug, Default)]
pub(crate) struct ClientNames {
    networks: Box<[Arc<NetworkNames>]>,
    /// Whether the catalogue of each of its networks is known.
    pub(crate) is_complete: bool,
    pub(crate) outside: Outside,
}

/// Where questions about names outside the cluster go.
#[derive(Debug, Default)]
pub(crate) enum Outside {
    /// To these upstreams; if there are none, to those of the node.
    Forwarded(Box<[SocketAddr]>),
    /// All networks of the client are internal, so it has no way out, also not through questions.
    Hidden,
    /// It is not known yet whether a network of the client has a way out.
    Unknown,
    /// The node itself has other resolvers. One of them that used this server as upstream would make a loop.
    #[default]
    Refused,
}

impl NetworkNames {
    /// Indexes a catalogue.
    pub fn new(catalogue: &Catalogue) -> Self {
        let count = catalogue.services.len();
        let mut names = Self {
            id: catalogue.network,
            number: catalogue.number,
            internal: catalogue.internal,
            services: Box::default(),
            by_name: HashMap::with_capacity(count),
            by_alias: HashMap::new(),
            by_address: HashMap::new(),
        };
        let mut services = Vec::with_capacity(count);
        for (number, (name, service)) in (0..).zip(&catalogue.services) {
            let mut endpoints: Box<[Endpoint]> = service.endpoints.as_slice().into();
            endpoints.sort_unstable();
            for endpoint in &endpoints {
                let owner = AddressOwner { service: number, slot: Some(endpoint.slot) };
                names.by_address.insert(endpoint.address, owner);
            }
            if let Some(address) = service.virtual_address {
                names.by_address.insert(address, AddressOwner { service: number, slot: None });
            }
            for alias in &service.aliases {
                names.by_alias.entry(alias.clone()).or_default().push(number);
            }
            names.by_name.insert(name.clone(), number);
            services.push(ServiceNames {
                name: name.clone(),
                virtual_address: service.virtual_address.filter(|_| service.mode == EndpointMode::Vip),
                ports: service.ports.as_slice().into(),
                endpoints,
            });
        }
        names.by_address.shrink_to_fit();
        names.services = services.into();
        names
    }

    /// The network.
    pub fn network(&self) -> NetworkId {
        self.id
    }

    fn service(&self, number: u32) -> Option<&ServiceNames> {
        self.services.get(number as usize)
    }

    fn named(&self, name: &str) -> Option<&ServiceNames> {
        self.service(*self.by_name.get(name)?)
    }
}

impl ServiceNames {
    /// The endpoints that get traffic.
    pub(crate) fn ready(&self) -> impl Iterator<Item = &Endpoint> {
        self.endpoints.iter().filter(|endpoint| endpoint.ready)
    }

    /// The endpoints of a slot, also those that are not ready: two while one replaces the other.
    pub(crate) fn in_slot(&self, slot: u32) -> &[Endpoint] {
        let start = self.endpoints.partition_point(|endpoint| endpoint.slot < slot);
        let length = self.endpoints[start..].iter().take_while(|endpoint| endpoint.slot == slot).count();
        &self.endpoints[start..start + length]
    }

    /// The ports of its containers.
    pub(crate) fn ports(&self) -> &[ServicePort] {
        &self.ports
    }
}

impl ClientNames {
    /// The service of that name.
    pub(crate) fn service(&self, name: &str) -> Option<&ServiceNames> {
        self.networks.iter().find_map(|network| network.named(name))
    }

    /// The services with that alias on the first network that has it.
    pub(crate) fn aliased(&self, alias: &str) -> Option<SmallVec<[&ServiceNames; 2]>> {
        self.networks.iter().find_map(|network| {
            let numbers = network.by_alias.get(alias)?;
            Some(numbers.iter().filter_map(|number| network.service(*number)).collect())
        })
    }

    /// The services with that address on any of the networks, and the slot if it is an endpoint's.
    pub(crate) fn owners(&self, address: Ipv4Addr) -> impl Iterator<Item = (&ServiceNames, Option<u32>)> {
        self.networks.iter().filter_map(move |network| {
            let owner = network.by_address.get(&address)?;
            Some((network.service(owner.service)?, owner.slot))
        })
    }
}

impl NameTable {
    /// A table of the networks whose catalogues are known, and of the tasks of this node by their addresses.
    pub fn new(
        networks: impl IntoIterator<Item = Arc<NetworkNames>>,
        clients: &BTreeMap<Ipv4Addr, DnsClient>,
        addresses: NodeAddresses,
    ) -> Self {
        let by_id: BTreeMap<NetworkId, Arc<NetworkNames>> =
            networks.into_iter().map(|network| (network.id, network)).collect();
        let clients = clients.iter().map(|(address, client)| (*address, client_names(client, &by_id)));
        let clients = clients.collect();
        let mut all: Vec<_> = by_id.into_values().collect();
        all.sort_by_key(|network| network.number);
        let node = ClientNames { networks: all.into(), is_complete: true, outside: Outside::Refused };
        Self { clients, node, addresses }
    }

    /// What the sender of a query sees; `None` if it is neither a task of this node nor the node itself.
    pub(crate) fn client(&self, from: IpAddr) -> Option<&ClientNames> {
        let IpAddr::V4(address) = from.to_canonical() else { return None };
        let is_node = || address.is_loopback() || self.addresses.own.contains(&address);
        self.clients.get(&address).or_else(|| is_node().then_some(&self.node))
    }

    /// Whether all addresses of `block` are of the cluster.
    pub(crate) fn is_of_cluster(&self, block: Ipv4Net) -> bool {
        self.addresses.ranges.iter().any(|range| range.contains(&block))
    }
}

fn client_names(client: &DnsClient, by_id: &BTreeMap<NetworkId, Arc<NetworkNames>>) -> ClientNames {
    let networks: Box<[_]> = client.networks.iter().filter_map(|id| by_id.get(id).cloned()).collect();
    let is_complete = networks.len() == client.networks.len();
    let outside = match client.has_way_out || networks.iter().any(|network| !network.internal) {
        true => Outside::Forwarded(client.dns.servers.as_slice().into()),
        false if is_complete => Outside::Hidden,
        false => Outside::Unknown,
    };
    ClientNames { networks, is_complete, outside }
}
