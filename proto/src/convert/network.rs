//! What nodes are told about the cluster's network. Its parts are encoded apart, so that all sessions share the bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::num::NonZeroU16;

use prost::Message;
use warren_types::{
    AssignmentVersion, CatalogueChange, CatalogueService, CatalogueServiceChange, Endpoint, NetworkPeer,
    NetworkUpdate, PeersChange, PortName, ServicePort, Violation, Violations,
};

use super::fields::FieldReader;
use super::wire_form::{WireForm, field, wire_structs};
use crate::v1;

wire_structs! {
    ServicePort as CataloguePort { port, protocol, name, published, prefer_local, client_affinity };
    CatalogueChange as CatalogueChange { network, name, number, internal, full, services };
}

impl WireForm<String> for Option<PortName> {
    fn to_wire(&self) -> String {
        self.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    fn from_wire(wire: String) -> Result<Self, Violations> {
        (!wire.is_empty()).then(|| wire.parse()).transpose().map_err(|why| Violation::new("", why).into())
    }
}

impl WireForm<u32> for Option<NonZeroU16> {
    fn to_wire(&self) -> u32 {
        self.map_or(0, |port| port.get().into())
    }

    fn from_wire(wire: u32) -> Result<Self, Violations> {
        let port = u16::try_from(wire).map_err(|_| Violation::new("", format!("{wire} is not a port")))?;
        Ok(NonZeroU16::new(port))
    }
}

impl WireForm<v1::CatalogueEndpoint> for Endpoint {
    fn to_wire(&self) -> v1::CatalogueEndpoint {
        let Self { slot, address, ready } = *self;
        v1::CatalogueEndpoint { slot, address: address.into(), ready }
    }

    fn from_wire(wire: v1::CatalogueEndpoint) -> Result<Self, Violations> {
        let v1::CatalogueEndpoint { slot, address, ready } = wire;
        Ok(Self { slot, address: address.into(), ready })
    }
}

/// Without its endpoints.
fn settings_to_wire(service: &CatalogueService) -> v1::CatalogueServiceSettings {
    let CatalogueService { aliases, mode, virtual_address, ports, entry_nodes, endpoints: _ } = service;
    v1::CatalogueServiceSettings {
        aliases: aliases.to_wire(),
        mode: mode.to_wire(),
        virtual_address: virtual_address.map_or(0, Into::into),
        ports: ports.to_wire(),
        entry_nodes: entry_nodes
            .as_ref()
            .map(|nodes| v1::NodeNumbers { numbers: nodes.iter().map(|number| (*number).into()).collect() }),
    }
}

fn settings_from_wire(wire: v1::CatalogueServiceSettings) -> Result<CatalogueService, Violations> {
    let v1::CatalogueServiceSettings { aliases, mode, virtual_address, ports, entry_nodes } = wire;
    let mut fields = FieldReader::default();
    let aliases = field(&mut fields, "aliases", WireForm::from_wire(aliases));
    let mode = field(&mut fields, "mode", WireForm::from_wire(mode));
    let ports = field(&mut fields, "ports", WireForm::from_wire(ports));
    // A number that no node can have is none's.
    let numbers = |nodes: v1::NodeNumbers| -> BTreeSet<u16> {
        nodes.numbers.into_iter().filter_map(|number| number.try_into().ok()).collect()
    };
    let virtual_address = (virtual_address != 0).then(|| Ipv4Addr::from(virtual_address));
    let built = || {
        Some(CatalogueService {
            aliases: aliases?,
            mode: mode?,
            virtual_address,
            ports: ports?,
            entry_nodes: entry_nodes.map(numbers),
            endpoints: Vec::new(),
        })
    };
    fields.finish(built())
}

impl WireForm<Vec<v1::CatalogueServiceChange>>
    for BTreeMap<warren_types::ServiceName, CatalogueServiceChange>
{
    fn to_wire(&self) -> Vec<v1::CatalogueServiceChange> {
        let change = |(name, change): (&warren_types::ServiceName, &CatalogueServiceChange)| {
            let CatalogueServiceChange { removed, settings, endpoints, removed_endpoints } = change;
            v1::CatalogueServiceChange {
                name: name.to_wire(),
                removed: *removed,
                settings: settings.as_ref().map(settings_to_wire),
                endpoints: endpoints.to_wire(),
                removed_endpoints: removed_endpoints.iter().map(|address| (*address).into()).collect(),
            }
        };
        self.iter().map(change).collect()
    }

    fn from_wire(wire: Vec<v1::CatalogueServiceChange>) -> Result<Self, Violations> {
        let (mut services, mut violations) = (Self::new(), Violations::default());
        for (i, wire) in wire.into_iter().enumerate() {
            let v1::CatalogueServiceChange { name, removed, settings, endpoints, removed_endpoints } = wire;
            let mut fields = FieldReader::default();
            let name = field(&mut fields, "name", WireForm::from_wire(name));
            let settings = field(&mut fields, "settings", settings.map(settings_from_wire).transpose());
            let endpoints = field(&mut fields, "endpoints", WireForm::from_wire(endpoints));
            let removed_endpoints = removed_endpoints.into_iter().map(Ipv4Addr::from).collect();
            let built = || {
                let (settings, endpoints) = (settings?, endpoints?);
                Some((name?, CatalogueServiceChange { removed, settings, endpoints, removed_endpoints }))
            };
            match fields.finish(built()) {
                Ok((name, change)) => drop(services.insert(name, change)),
                Err(inner) => violations.nest(&format!("[{i}]"), inner),
            }
        }
        violations.into_result(services)
    }
}

impl WireForm<v1::PeersChange> for PeersChange {
    fn to_wire(&self) -> v1::PeersChange {
        let peer = |(number, peer): (&u16, &NetworkPeer)| v1::NetworkPeer {
            number: (*number).into(),
            subnets: peer.subnets.to_wire(),
            address: peer.address.to_wire(),
            key: peer.key.to_wire(),
        };
        let removed = self.removed.iter().map(|number| (*number).into()).collect();
        v1::PeersChange { changed: self.changed.iter().map(peer).collect(), removed }
    }

    fn from_wire(wire: v1::PeersChange) -> Result<Self, Violations> {
        let (mut changed, mut violations) = (BTreeMap::new(), Violations::default());
        for (i, v1::NetworkPeer { number, subnets, address, key }) in wire.changed.into_iter().enumerate() {
            let mut fields = FieldReader::default();
            let number = field(&mut fields, "number", WireForm::from_wire(number));
            let subnets = field(&mut fields, "subnets", WireForm::from_wire(subnets));
            let address = field(&mut fields, "address", WireForm::from_wire(address));
            let key = field(&mut fields, "key", WireForm::from_wire(key));
            let built = || Some((number?, NetworkPeer { subnets: subnets?, address: address?, key: key? }));
            match fields.finish(built()) {
                Ok((number, peer)) => drop(changed.insert(number, peer)),
                Err(inner) => violations.nest(&format!("changed[{i}]"), inner),
            }
        }
        // A number that no node can have removes none.
        let removed = wire.removed.into_iter().filter_map(|number| number.try_into().ok()).collect();
        violations.into_result(Self { changed, removed })
    }
}

impl TryFrom<v1::NetworkUpdate> for NetworkUpdate {
    type Error = Violations;

    fn try_from(wire: v1::NetworkUpdate) -> Result<Self, Violations> {
        let v1::NetworkUpdate { base, version, peers, catalogues, removed_networks } = wire;
        let mut fields = FieldReader::default();
        let peers = field(&mut fields, "peers", decode::<v1::PeersChange, _>(&peers));
        let catalogues: Vec<_> = (0..)
            .zip(&catalogues)
            .map_while(|(i, bytes)| {
                field(&mut fields, &format!("catalogues[{i}]"), decode::<v1::CatalogueChange, _>(bytes))
            })
            .collect();
        let removed = fields.parse_list("removedNetworks", &removed_networks);
        let version = version.map(AssignmentVersion::from).unwrap_or_default();
        let base = base.map(AssignmentVersion::from);
        let built = || Some(Self { base, version, peers: peers?, catalogues, removed: removed? });
        fields.finish(built())
    }
}

fn decode<W: Message + Default, T: WireForm<W>>(bytes: &[u8]) -> Result<T, Violations> {
    let wire = W::decode(bytes).map_err(|why| Violations::from(Violation::new("", why)))?;
    T::from_wire(wire)
}
