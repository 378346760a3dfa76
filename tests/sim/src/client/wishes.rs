//! What clients come to want.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_core::State;
use warren_types::{
    Availability, Id, Mode, NodeId, Placement, Protocol, PublishMode, PublishedPort, ServiceId, ServiceSpec,
    TaskSpec,
};

use super::{CANNOT_LIVE, Client, Request, SERVICES};
use crate::chance::Chance;

impl Client {
    /// Something new.
    pub(super) fn think(&mut self, chance: &mut Chance, nodes: &[NodeId]) -> Option<Request> {
        if chance.one_in(6) {
            let node = chance.pick(nodes)?;
            return Some(match chance.one_in(2) {
                true => Request::Availability(node, chance.pick(&Availability::ALL)?),
                false => Request::Zone(node, chance.pick(&[None, Some("a"), Some("b")])?),
            });
        }
        let held: Vec<(ServiceId, u64)> = self
            .promises
            .iter()
            .filter(|(_, promise)| promise.wanted().is_some())
            .map(|(id, promise)| (*id, promise.version))
            .collect();
        let replicas = u32::try_from(chance.between(0, 4)).unwrap_or(0);
        if held.len() < SERVICES && (held.is_empty() || chance.one_in(3)) {
            self.created += 1;
            let number = self.created << 8 | self.number as u64;
            let id = ServiceId(Id(u128::from(number) << 64 | u128::from(chance.next())));
            return Some(Request::Create(id, Arc::new(spec(number, replicas, chance))));
        }
        let (id, version) = chance.pick(&held)?;
        let promise = self.promises.get(&id)?;
        let current = promise.wanted()?;
        Some(match chance.between(0, 7) {
            0 | 1 => Request::Remove(id, version),
            2 if promise.wanted.len() > 1 => Request::Rollback(id, version),
            3 | 4 if current.mode != Mode::Global => Request::Scale(id, version, replicas),
            _ => {
                let spec = Arc::new(changed(current, chance));
                Request::Update(id, version, spec, chance.one_in(5))
            }
        })
    }

    /// What must be done for the nodes to be as they were; one client does it.
    pub(super) fn tidy(&self, state: &State) -> Option<Request> {
        let node = state
            .nodes()
            .filter(|_| self.number == 0)
            .find(|node| node.availability != Availability::Active || !node.labels.is_empty())?;
        Some(match node.availability {
            Availability::Active => Request::Zone(node.id, None),
            Availability::Pause | Availability::Drain => Request::Availability(node.id, Availability::Active),
        })
    }
}

fn image(chance: &mut Chance) -> TaskSpec {
    let image = match chance.one_in(4) {
        true => CANNOT_LIVE.to_string(),
        false => format!("web:{}", chance.between(1, 3)),
    };
    TaskSpec::new(image.parse().expect("a valid reference"))
}

fn ports(chance: &mut Chance) -> Vec<PublishedPort> {
    let port = PublishedPort {
        host_ip: None,
        host_port: u16::try_from(chance.between(8000, 8003)).unwrap_or(8000),
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
    };
    if chance.one_in(2) { vec![port] } else { Vec::new() }
}

fn placement(mode: Mode, chance: &mut Chance) -> Placement {
    let zone = if chance.one_in(2) { "a" } else { "b" };
    let zone = format!("node.labels.zone == {zone}").parse().expect("a valid constraint");
    let constraints = if chance.one_in(4) { vec![zone] } else { Vec::new() };
    // Two of each zone's machines at least have room for two tasks each.
    let bounded = mode != Mode::Global && chance.one_in(4);
    Placement { constraints, max_per_node: bounded.then_some(2) }
}

fn spec(number: u64, replicas: u32, chance: &mut Chance) -> ServiceSpec {
    let mode = if chance.one_in(4) { Mode::Global } else { Mode::Replicated { replicas } };
    ServiceSpec {
        name: format!("service-{number}").parse().expect("a valid name"),
        labels: BTreeMap::new(),
        mode,
        task: image(chance),
        ports: ports(chance),
        placement: placement(mode, chance),
    }
}

/// Another spec of the same service.
fn changed(spec: &ServiceSpec, chance: &mut Chance) -> ServiceSpec {
    let mut spec = spec.clone();
    match chance.between(0, 3) {
        0 => spec.ports = ports(chance),
        1 => spec.placement = placement(spec.mode, chance),
        _ => spec.task = image(chance),
    }
    spec
}
