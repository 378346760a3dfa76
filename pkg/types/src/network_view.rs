//! What a node knows of the cluster's network beside its assignment, and how managers tell it changes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::{
    AssignmentVersion, Catalogue, CatalogueService, Endpoint, NetworkId, NetworkName, ServiceName,
    Violations, WireGuardKey,
};

/// A node as other nodes reach its tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPeer {
    /// Addresses of its tasks; the first host address of the first one is its gateway.
    pub subnets: Vec<Ipv4Net>,
    /// Where packets for them are sent.
    pub address: Ipv4Addr,
    /// The key with which packets for it are encrypted; `None`: it has not told one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<WireGuardKey>,
}

/// Everything that a node knows. It is replaced as a whole or changed by [`NetworkUpdate`]s.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkView {
    /// The version that was received last.
    pub version: AssignmentVersion,
    /// All nodes by their numbers, this one included; empty for a node without tasks in networks.
    pub peers: BTreeMap<u16, NetworkPeer>,
    /// The networks of the node's tasks.
    pub catalogues: BTreeMap<NetworkId, Arc<Catalogue>>,
}

/// The changes of a [`NetworkView`] from one version to another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkUpdate {
    /// The version that the node must have; `None`: the update contains everything.
    pub base: Option<AssignmentVersion>,
    /// The version after it.
    pub version: AssignmentVersion,
    /// Changed peers.
    pub peers: PeersChange,
    /// Networks that changed, and those that are new to the node.
    pub catalogues: Vec<CatalogueChange>,
    /// Networks in which the node has no task any more.
    pub removed: Vec<NetworkId>,
}

/// Changes of the peers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeersChange {
    /// New or different.
    pub changed: BTreeMap<u16, NetworkPeer>,
    /// Not in the cluster any more, or without an address.
    pub removed: Vec<u16>,
}

/// Changes of one catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueChange {
    /// The network.
    pub network: NetworkId,
    /// Its name.
    pub name: NetworkName,
    /// Its number.
    pub number: u32,
    /// There is no way out of it.
    pub internal: bool,
    /// The change contains all services; the others are removed.
    pub full: bool,
    /// The changed services.
    pub services: BTreeMap<ServiceName, CatalogueServiceChange>,
}

/// Changes of one service of a catalogue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogueServiceChange {
    /// It is not in the network any more; nothing else is set.
    pub removed: bool,
    /// Everything but its endpoints, if that changed or the service is new.
    pub settings: Option<CatalogueService>,
    /// Endpoints that are new or changed. Several may have the same slot, but not the same address.
    pub endpoints: Vec<Endpoint>,
    /// Addresses of endpoints that do not exist any more.
    pub removed_endpoints: Vec<Ipv4Addr>,
}

/// An update that cannot be applied: the node must ask for everything.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NetworkUpdateError {
    /// It changes another version.
    #[error("the update changes version {base:?} and this node has {current:?}")]
    OtherBase {
        /// The version that it changes.
        base: AssignmentVersion,
        /// The version of the node.
        current: AssignmentVersion,
    },
    /// It changes a network or service that the node does not know.
    #[error("the update changes {what}, which this node does not know")]
    Unknown {
        /// The network or service.
        what: String,
    },
    /// The result breaks a rule of catalogues.
    #[error("invalid catalogue of network {network}: {violations}")]
    Invalid {
        /// The network.
        network: NetworkName,
        /// The rules.
        violations: Violations,
    },
}

impl NetworkView {
    /// Applies `update`. Nothing is changed if it cannot be applied as a whole.
    ///
    /// # Errors
    /// The update is for another version, or invalid.
    pub fn apply(&mut self, update: NetworkUpdate) -> Result<(), NetworkUpdateError> {
        let NetworkUpdate { base, version, peers, catalogues, removed } = update;
        if let Some(base) = base.filter(|base| *base != self.version) {
            return Err(NetworkUpdateError::OtherBase { base, current: self.version });
        }
        let mut next = if base.is_some() { self.clone() } else { Self::default() };
        next.version = version;
        next.peers.extend(peers.changed);
        peers.removed.iter().for_each(|number| drop(next.peers.remove(number)));
        removed.iter().for_each(|network| drop(next.catalogues.remove(network)));
        for change in catalogues {
            let before = next.catalogues.remove(&change.network);
            let network = change.network;
            let after = change.apply(before.map(Arc::unwrap_or_clone))?;
            next.catalogues.insert(network, Arc::new(after));
        }
        *self = next;
        Ok(())
    }
}

impl CatalogueChange {
    fn apply(self, before: Option<Catalogue>) -> Result<Catalogue, NetworkUpdateError> {
        let Self { network, name, number, internal, full, services: changes } = self;
        let mut services = match before {
            _ if full => BTreeMap::new(),
            Some(before) => before.services,
            None => return Err(NetworkUpdateError::Unknown { what: format!("network {name}") }),
        };
        for (service, change) in changes {
            if change.removed {
                services.remove(&service);
                continue;
            }
            let Some(mut after) = services.remove(&service).or_else(|| change.settings.clone()) else {
                return Err(NetworkUpdateError::Unknown {
                    what: format!("service {service} of network {name}"),
                });
            };
            let mut endpoints = std::mem::take(&mut after.endpoints);
            after = change.settings.unwrap_or(after);
            let gone = |endpoint: &Endpoint| {
                change.removed_endpoints.contains(&endpoint.address)
                    || change.endpoints.iter().any(|changed| changed.address == endpoint.address)
            };
            endpoints.retain(|endpoint| !gone(endpoint));
            endpoints.extend(&change.endpoints);
            endpoints.sort_unstable();
            after.endpoints = endpoints;
            services.insert(service, after);
        }
        let after = Catalogue { network, name, number, internal, services };
        let violations = after.validate();
        if !violations.0.is_empty() {
            return Err(NetworkUpdateError::Invalid { network: after.name, violations });
        }
        Ok(after)
    }
}
