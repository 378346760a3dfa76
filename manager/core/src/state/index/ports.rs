//! Host ports: which services publish them, and for whom they are open on a node.

use std::net::Ipv4Addr;

use warren_types::{NodeId, Protocol, PublishedPort, ServiceId};

use super::Index;

/// A port of a node as it is opened, ordered so that those that may collide are together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HostPort {
    pub port: u16,
    pub protocol: Protocol,
    pub ip: Option<Ipv4Addr>,
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

impl HostPort {
    pub(super) fn of(port: &PublishedPort) -> Self {
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
    pub(in crate::state) fn publish(&mut self, service: ServiceId, ports: &[PublishedPort]) {
        for port in ports {
            let publisher = Publisher { service, times: 0 };
            self.published.entry(HostPort::of(port)).or_insert(publisher).times += 1;
        }
    }

    pub(in crate::state) fn withdraw(&mut self, ports: &[PublishedPort]) {
        for key in ports.iter().map(HostPort::of) {
            let Some(publisher) = self.published.get_mut(&key) else { continue };
            publisher.times = publisher.times.saturating_sub(1);
            if publisher.times == 0 {
                self.published.remove(&key);
            }
        }
    }

    /// The service other than this one that publishes the port.
    pub(in crate::state) fn other_publisher(
        &self,
        port: &PublishedPort,
        service: ServiceId,
    ) -> Option<ServiceId> {
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
}
