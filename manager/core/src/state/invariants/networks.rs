//! Invariants of networks and virtual addresses.

use std::collections::{BTreeMap, BTreeSet};

use warren_types::{EndpointMode, Network};

use super::{InvariantViolation, ensure};
use crate::state::{State, WithdrawnAddress};

impl State {
    /// Names and numbers are unique, services are in networks that exist, and no two have a virtual address.
    pub(super) fn check_networks(&self) -> Result<(), InvariantViolation> {
        let (mut names, mut numbers) = (BTreeMap::new(), BTreeSet::new());
        for network in self.networks() {
            let Network { id, name, version, number, .. } = &**network;
            ensure(names.insert(name, *id).is_none(), || format!("two networks are called {name}"))?;
            ensure(*number > 0 && numbers.insert(*number), || format!("two networks have number {number}"))?;
            ensure(*version <= self.applied.index, || format!("network {id} is of a later entry"))?;
        }
        let mut addresses = BTreeMap::new();
        for service in self.services() {
            let id = service.id;
            let attachments = service.revision.task.network.attachments();
            let unknown = attachments.iter().find(|it| !names.contains_key(&it.network));
            ensure(unknown.is_none() || service.removing, || format!("service {id} is in {unknown:?}"))?;
            for attachment in attachments.iter().filter(|_| !service.removing) {
                let has = names.get(&attachment.network).map(|it| service.virtual_addresses.contains_key(it));
                let wanted = service.spec.endpoint_mode == EndpointMode::Vip;
                ensure(has == Some(wanted), || {
                    format!(
                        "service {id} in mode {} has {:?}",
                        service.spec.endpoint_mode, service.virtual_addresses
                    )
                })?;
            }
            for (network, address) in &service.virtual_addresses {
                let other = addresses.insert(*address, id);
                ensure(other.is_none(), || format!("{address} belongs to service {id} and {other:?}"))?;
                ensure(self.network(network).is_some(), || format!("{address} is of a removed network"))?;
                let is_withdrawn = self.withdrawn.contains_key(&WithdrawnAddress::Address(*address));
                ensure(!is_withdrawn, || format!("{address} of service {id} was given too early"))?;
                let mut ranges = self.cluster.iter().flat_map(|cluster| cluster.virtual_ranges());
                let is_virtual = ranges.any(|range| range.contains(address));
                ensure(is_virtual, || format!("{address} of service {id} is no virtual address"))?;
            }
        }
        Ok(())
    }
}
