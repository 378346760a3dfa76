//! Host ports: which services publish them, and which have them open on a node.

use std::net::Ipv4Addr;

use warren_types::{NodeId, Protocol, PublishedPort, ServiceId};

use super::StateIndex;

/// A port of a node as it is opened, ordered so that ports that may conflict are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPortKey {
    pub port: u16,
    pub protocol: Protocol,
    pub ip: Option<Ipv4Addr>,
}

/// The service that publishes a host port, and how often: once for its spec, once for each revision whose
/// tasks still hold resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortPublisher {
    pub service: ServiceId,
    pub references: u32,
}

/// The service that opened a port on a node, and for how many tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortOwner {
    pub service: ServiceId,
    pub tasks: u32,
}

impl HostPortKey {
    pub(super) fn of(port: &PublishedPort) -> Self {
        Self { port: port.host_port, protocol: port.protocol, ip: port.host_ip }
    }

    /// The least and the greatest port that may conflict with this one.
    fn conflict_range(self) -> (Self, Self) {
        (Self { ip: None, ..self }, Self { ip: Some(Ipv4Addr::BROADCAST), ..self })
    }

    /// Of two neighbours: both have the port on one address. Same rule as `PublishedPort::conflicts_with`.
    fn has_common_address(self, other: Self) -> bool {
        self.ip.is_none() || other.ip.is_none() || self.ip == other.ip
    }
}

impl StateIndex {
    pub(in crate::state) fn publish(&mut self, service: ServiceId, ports: &[PublishedPort]) {
        for port in ports {
            let publisher = PortPublisher { service, references: 0 };
            self.published_ports.entry(HostPortKey::of(port)).or_insert(publisher).references += 1;
            if port.is_ingress() {
                *self.ingress_users.entry(service).or_default() += 1;
            }
        }
    }

    pub(in crate::state) fn unpublish(&mut self, ports: &[PublishedPort]) {
        for port in ports {
            let key = HostPortKey::of(port);
            let Some(publisher) = self.published_ports.get_mut(&key) else { continue };
            publisher.references = publisher.references.saturating_sub(1);
            let PortPublisher { service, references } = *publisher;
            if references == 0 {
                self.published_ports.remove(&key);
            }
            if port.is_ingress()
                && let Some(uses) = self.ingress_users.get_mut(&service)
            {
                *uses = uses.saturating_sub(1);
                if *uses == 0 {
                    self.ingress_users.remove(&service);
                }
            }
        }
    }

    /// The service other than this one that publishes the port.
    pub(in crate::state) fn other_publisher(
        &self,
        port: &PublishedPort,
        service: ServiceId,
    ) -> Option<ServiceId> {
        let desired = HostPortKey::of(port);
        let (least, greatest) = desired.conflict_range();
        let near = self.published_ports.range(least..=greatest);
        let mut owners =
            near.filter(|(other, _)| desired.has_common_address(**other)).map(|(_, owner)| owner.service);
        owners.find(|owner| *owner != service)
    }

    /// The service that has the port open on the node.
    pub fn port_owner(&self, node: NodeId, port: &PublishedPort) -> Option<ServiceId> {
        let desired = HostPortKey::of(port);
        let (least, greatest) = desired.conflict_range();
        let mut near = self.opened_ports.range((node, least)..=(node, greatest));
        near.find(|((_, other), _)| desired.has_common_address(*other)).map(|(_, opener)| opener.service)
    }
}
