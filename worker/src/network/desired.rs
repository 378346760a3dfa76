//! What the node's network should be, from what managers tell about it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use warren_dns::{ClientDnsSettings, DnsClient, NodeAddresses, PORT, resolv_conf};
use warren_network::{
    Attachment, Balancing, ClusterNetwork, DEFAULT_MTU, DEFAULT_NETWORK, DirectRoutes, Error, HostPort,
    MIN_MTU, NetworkMembers, NodeNetworkSettings, OVERLAY_OVERHEAD, Overlay, PeerNode, TransportProtocol,
    Underlay, WIREGUARD_OVERHEAD, WireGuard, WireGuardPrivateKey, WireGuardPublicKey,
};
use warren_types::{
    Catalogue, CatalogueService, DataPlane, DnsSettings, EndpointMode, INGRESS_NETWORK, Id, NetworkId,
    NetworkName, NetworkView, NodeSettings, ServicePort, TaskAssignment, spec,
};

use super::NetworkOptions;

/// The id of a network of which nothing is known yet: no network has it.
const UNKNOWN_NETWORK: NetworkId = NetworkId(Id(0));

/// A task with an address of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectedTask {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its networks, in the order of its spec.
    pub networks: Vec<NetworkName>,
    /// Its DNS settings.
    pub dns: DnsSettings,
    /// Whether it may reach the metadata service of the cloud.
    pub allows_metadata: bool,
}

/// What the node itself knows of its part in the network of the cluster.
pub(crate) struct OwnNode<'a> {
    /// Where other nodes send packets for its tasks; `None`: it has no overlay.
    pub address: Option<Ipv4Addr>,
    /// Name of the device with that address, if known.
    pub device: Option<String>,
    /// Key for encryption, whether the cluster wants it or not.
    pub private_key: WireGuardPrivateKey,
    /// The flags.
    pub options: &'a NetworkOptions,
}

impl ConnectedTask {
    /// The task; `None` if it has no address of its own.
    pub fn of(task: &TaskAssignment) -> Option<Self> {
        let networks = task.spec.network.attachments().iter().map(|attachment| attachment.network.clone());
        task.spec.network.has_address().then(|| Self {
            address: task.address,
            networks: networks.collect(),
            dns: task.spec.dns.clone(),
            allows_metadata: task.spec.allow_metadata,
        })
    }

    /// Whether all its networks are known.
    pub fn is_known(&self, view: &NetworkView) -> bool {
        self.networks.iter().all(|name| network_number(view, name).is_some())
    }

    /// The networks that it is a member of, as far as they are known.
    pub fn attachment(&self, view: &NetworkView) -> Attachment {
        let networks = self.networks.iter().filter_map(|name| network_number(view, name)).collect();
        Attachment { networks, address: self.address, allows_metadata: self.allows_metadata }
    }

    /// The task as a client of the DNS server.
    pub fn client(&self, view: &NetworkView) -> DnsClient {
        let id = |name| catalogue(view, name).map_or(UNKNOWN_NETWORK, |catalogue| catalogue.network);
        let is_unknown_default = |name: &NetworkName| is_default(name) && catalogue(view, name).is_none();
        DnsClient {
            networks: self.networks.iter().map(id).collect(),
            has_way_out: self.networks.iter().any(is_unknown_default),
            dns: client_dns(&self.dns),
        }
    }
}

fn client_dns(settings: &DnsSettings) -> ClientDnsSettings {
    let DnsSettings { servers, searches } = settings;
    let servers = servers.iter().map(|server| SocketAddr::from((*server, PORT))).collect();
    ClientDnsSettings { servers, searches: searches.clone() }
}

/// The `resolv.conf` of a task with an address of its own.
pub(crate) fn task_resolv_conf(gateway: Ipv4Addr, settings: &DnsSettings) -> String {
    resolv_conf(gateway, &client_dns(settings))
}

/// The `resolv.conf` of a task in the network of its node: that of the node, `host`, with what the settings replace.
pub(crate) fn host_resolv_conf(host: &str, settings: &DnsSettings) -> String {
    let DnsSettings { servers, searches } = settings;
    let is_replaced = |line: &str| match line.split_ascii_whitespace().next() {
        Some("nameserver") => !servers.is_empty(),
        Some("search" | "domain") => !searches.is_empty(),
        _ => false,
    };
    let mut lines: Vec<String> = host.lines().filter(|line| !is_replaced(line)).map(str::to_owned).collect();
    lines.extend(servers.iter().map(|server| format!("nameserver {server}")));
    if !searches.is_empty() {
        lines.push(format!("search {}", searches.join(" ")));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn catalogue<'v>(view: &'v NetworkView, name: &NetworkName) -> Option<&'v Catalogue> {
    view.catalogues.values().find(|catalogue| catalogue.name == *name).map(|found| &**found)
}

/// The number of a network. That of the default network is the same in each cluster, and it has a way out, so that its
/// tasks of one node reach each other and the outside before anything else is known.
fn network_number(view: &NetworkView, name: &NetworkName) -> Option<u32> {
    let default = || is_default(name).then_some(DEFAULT_NETWORK);
    catalogue(view, name).map(|found| found.number).or_else(default)
}

fn is_default(name: &NetworkName) -> bool {
    name.as_str() == spec::DEFAULT_NETWORK
}

/// The gateway address of the node's tasks; `None` before the node has a subnet.
pub(crate) fn gateway(settings: &NodeSettings) -> Option<Ipv4Addr> {
    settings.subnets.first().and_then(|subnet| subnet.hosts().next())
}

/// What the DNS server knows of the node beside its tasks.
pub(crate) fn node_addresses(settings: &NodeSettings) -> NodeAddresses {
    NodeAddresses { own: gateway(settings).into_iter().collect(), ranges: settings.ranges.clone() }
}

/// The settings of the node itself; `mtu` is that of task links, in bytes.
///
/// # Errors
/// A subnet or the end of the overlay is not usable.
pub(crate) fn node_settings(
    settings: &NodeSettings,
    own: OwnNode<'_>,
    mtu: u32,
) -> Result<NodeNetworkSettings, Error> {
    let mut subnets = settings.subnets.iter().copied();
    let first = subnets.next().unwrap_or_default();
    let node = NodeNetworkSettings::new(settings.ranges.clone(), first, mtu)?;
    let node = subnets.try_fold(node, NodeNetworkSettings::with_block)?;
    let OwnNode { address, device, private_key, options } = own;
    let node = node.with_allowed_ports(options.allowed_ports.clone());
    // Without a number, its managers know no overlay yet.
    let Some(address) = address.filter(|_| settings.number > 0) else { return Ok(node) };
    if settings.data_plane == DataPlane::Routes {
        // Without the device the node works without its peers.
        let Some(device) = device else { return Ok(node) };
        return Ok(node.with_direct_routes(DirectRoutes::new(settings.number, address, &device)?));
    }
    let overlay = Overlay::new(settings.number, address, options.vxlan_port, options.vxlan_id)?;
    let node = node.with_overlay(overlay);
    match settings.data_plane {
        DataPlane::Wireguard => node.with_wireguard(WireGuard { private_key, port: options.wireguard_port }),
        DataPlane::Vxlan | DataPlane::Routes => Ok(node),
    }
}

/// The MTU of task links. With a tunnel it is at most the usual one, so that containers need not be changed for the
/// next peer. `None`: the underlay is not known.
///
/// # Errors
/// The underlay leaves too little.
pub(crate) fn task_mtu(data_plane: DataPlane, underlay: Option<&Underlay>) -> Result<u32, Error> {
    let (overhead, largest) = match data_plane {
        DataPlane::Vxlan => (OVERLAY_OVERHEAD, DEFAULT_MTU),
        DataPlane::Wireguard => (OVERLAY_OVERHEAD + WIREGUARD_OVERHEAD, DEFAULT_MTU),
        DataPlane::Routes => (0, u32::MAX),
    };
    let available = underlay.map_or(DEFAULT_MTU + OVERLAY_OVERHEAD, |underlay| underlay.mtu);
    let mtu = available.saturating_sub(overhead).min(largest);
    if mtu < MIN_MTU { Err(Error::MtuTooSmall { mtu, needed: MIN_MTU }) } else { Ok(mtu) }
}

/// The rest of the cluster for the node with the number `own`.
pub(crate) fn cluster_network(view: &NetworkView, own: u16) -> ClusterNetwork {
    let others = view.peers.iter().filter(|(number, _)| **number != own);
    let peers = others.map(|(number, peer)| {
        let key = peer.key.map(|key| WireGuardPublicKey(key.0));
        (*number, PeerNode { blocks: peer.subnets.clone(), underlay: peer.address, key })
    });
    // Also of ports in ingress mode: connections to a task that is not ready any more go on.
    let networks = view.catalogues.values().map(|catalogue| {
        let endpoints = catalogue.services.values().flat_map(|service| &service.endpoints);
        let members = endpoints.map(|endpoint| endpoint.address).collect();
        (catalogue.number, NetworkMembers { internal: catalogue.internal, members })
    });
    let services = view.catalogues.values().flat_map(|catalogue| catalogue.services.values());
    let ingress = view.catalogues.get(&INGRESS_NETWORK);
    ClusterNetwork {
        peers: peers.collect(),
        networks: networks.collect(),
        services: services.filter_map(backends).collect::<BTreeMap<_, _>>(),
        ingress: ingress.map(|catalogue| ingress_ports(catalogue, own)).unwrap_or_default(),
        balancing: ingress.map(|catalogue| balancing(catalogue, own)).unwrap_or_default(),
    }
}

/// The services whose ports the node with the number `own` opens.
fn opened(catalogue: &Catalogue, own: u16) -> impl Iterator<Item = &CatalogueService> {
    let is_entry = move |service: &&CatalogueService| {
        service.entry_nodes.as_ref().is_none_or(|nodes| nodes.contains(&own))
    };
    catalogue.services.values().filter(is_entry)
}

/// The ports in ingress mode that the node opens, and where they lead.
fn ingress_ports(catalogue: &Catalogue, own: u16) -> BTreeMap<HostPort, BTreeSet<SocketAddrV4>> {
    let mut ports = BTreeMap::new();
    for service in opened(catalogue, own) {
        for ServicePort { port, protocol, published, .. } in &service.ports {
            let Some(published) = *published else { continue };
            let ready = service.endpoints.iter().filter(|endpoint| endpoint.ready);
            let backends = ready.map(|endpoint| SocketAddrV4::new(endpoint.address, *port));
            ports.insert(HostPort::new(None, published, protocol_of(*protocol)), backends.collect());
        }
    }
    ports
}

/// Those of these ports with options.
fn balancing(catalogue: &Catalogue, own: u16) -> BTreeMap<HostPort, Balancing> {
    let ports = opened(catalogue, own).flat_map(|service| &service.ports);
    let with_options = ports.filter_map(|port| {
        let ServicePort { prefer_local, client_affinity, .. } = *port;
        let at = HostPort::new(None, port.published?, protocol_of(port.protocol));
        (prefer_local || client_affinity).then_some((at, Balancing { prefer_local, client_affinity }))
    });
    with_options.collect()
}

pub(crate) fn protocol_of(protocol: warren_types::Protocol) -> TransportProtocol {
    match protocol {
        warren_types::Protocol::Tcp => TransportProtocol::Tcp,
        warren_types::Protocol::Udp => TransportProtocol::Udp,
        warren_types::Protocol::Sctp => TransportProtocol::Sctp,
    }
}

/// The virtual address of a service and where it leads.
fn backends(service: &CatalogueService) -> Option<(Ipv4Addr, BTreeSet<Ipv4Addr>)> {
    let address = service.virtual_address.filter(|_| service.mode == EndpointMode::Vip)?;
    let ready = service.endpoints.iter().filter(|endpoint| endpoint.ready);
    Some((address, ready.map(|endpoint| endpoint.address).collect()))
}

#[cfg(test)]
mod tests;
