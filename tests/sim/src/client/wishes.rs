//! What clients come to want.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warren_core::State;
use warren_types::{
    Availability, ContentMount, ContentName, HealthCheck, Id, ImageReference, Mode, Mount, MountSource,
    NodeId, OnDisconnect, Placement, Probe, Protocol, PublishMode, PublishedPort, ServiceId, ServiceSpec,
    TaskSpec,
};

use super::request::Request;
use super::{CANNOT_LIVE, Client, SERVICES};
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
        if chance.one_in(4) {
            return self.think_of_storage(chance, nodes);
        }
        let held: Vec<(ServiceId, u64)> = self
            .promises
            .iter()
            .filter(|(_, promise)| promise.wanted().is_some())
            .map(|(id, promise)| (*id, promise.version))
            .collect();
        let replicas = u32::try_from(chance.between(0, 4)).unwrap_or(0);
        if held.len() < SERVICES && (held.is_empty() || chance.one_in(3)) {
            let number = self.next_number();
            self.created += 1;
            let id = ServiceId(Id(u128::from(number) << 64 | u128::from(chance.next())));
            return Some(Request::Create(id, Arc::new(spec(number, replicas, &self.secrets(), chance))));
        }
        let (id, version) = chance.pick(&held)?;
        let promise = self.promises.get(&id)?;
        let current = promise.wanted()?;
        Some(match chance.between(0, 7) {
            0 | 1 => Request::Remove(id, version),
            2 if promise.wanted.len() > 1 => Request::Rollback(id, version),
            3 | 4 if current.mode != Mode::Global => Request::Scale(id, version, replicas),
            _ => {
                let spec = Arc::new(changed(current, &self.secrets(), chance));
                Request::Update(id, version, spec, chance.one_in(5))
            }
        })
    }

    /// What must be done for the nodes to be as they were; one client does it.
    pub(super) fn tidy(&self, state: &State) -> Option<Request> {
        let removing = state.volumes().filter(|_| self.number == 0).find(|volume| volume.removing);
        if let Some(volume) = removing {
            return Some(Request::Purged(volume.id));
        }
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

fn image(chance: &mut Chance) -> ImageReference {
    let image = match chance.one_in(4) {
        true => CANNOT_LIVE.to_string(),
        false => format!("web:{}", chance.between(1, 3)),
    };
    image.parse().expect("a valid reference")
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

/// Some of the client's secrets.
fn secrets(known: &[ContentName], chance: &mut Chance) -> Vec<ContentMount> {
    known.iter().filter(|_| chance.one_in(2)).map(|name| ContentMount::new(name.clone())).collect()
}

/// What its nodes do with a task when they reach no manager.
fn on_disconnect(chance: &mut Chance) -> OnDisconnect {
    match chance.one_in(2) {
        true => OnDisconnect::Keep,
        false => OnDisconnect::StopAfter(Duration::from_secs(chance.between(10, 20))),
    }
}

/// How long it waits for a node that is lost.
fn replace_after(mode: Mode, chance: &mut Chance) -> Duration {
    let waits = mode != Mode::Global && chance.one_in(2);
    Duration::from_millis(if waits { chance.between(1_000, 30_000) } else { 0 })
}

/// A volume for all, or one for each slot or node. It is the same all the service's life, and such a service asks for
/// nothing else of its nodes, so that there is always a place where its volumes are.
fn volumes(number: u64, chance: &mut Chance) -> Vec<Mount> {
    let name = match chance.between(0, 7) {
        0 => format!("data-{number}"),
        1 => format!("data-{number}-{{{{.Task.Slot}}}}"),
        2 => format!("data-{number}-{{{{.Node.Hostname}}}}"),
        _ => return Vec::new(),
    };
    let source = MountSource::Volume { name, subpath: None, no_copy: false };
    vec![Mount { target: "/data".into(), source, read_only: false }]
}

fn spec(number: u64, replicas: u32, known: &[ContentName], chance: &mut Chance) -> ServiceSpec {
    let mode = if chance.one_in(4) { Mode::Global } else { Mode::Replicated { replicas } };
    let mut task = TaskSpec::new(image(chance));
    (task.secrets, task.mounts) = (secrets(known, chance), volumes(number, chance));
    task.on_disconnect = on_disconnect(chance);
    task.health = chance.one_in(2).then(|| HealthCheck::new(Probe::Tcp { port: 80 }));
    let bound = !task.mounts.is_empty();
    // A volume for all is on one node, so not every node can have a task with it.
    let mode = if bound { Mode::Replicated { replicas } } else { mode };
    ServiceSpec {
        name: format!("service-{number}").parse().expect("a valid name"),
        labels: BTreeMap::new(),
        mode,
        task,
        ports: ports(chance),
        placement: if bound { Placement::default() } else { placement(mode, chance) },
        replace_after: replace_after(mode, chance),
    }
}

/// Another spec of the same service.
fn changed(spec: &ServiceSpec, known: &[ContentName], chance: &mut Chance) -> ServiceSpec {
    let mut spec = spec.clone();
    match chance.between(0, 6) {
        0 => spec.ports = ports(chance),
        1 if spec.task.mounts.is_empty() => spec.placement = placement(spec.mode, chance),
        2 => spec.task.secrets = secrets(known, chance),
        3 => spec.task.on_disconnect = on_disconnect(chance),
        4 => spec.replace_after = replace_after(spec.mode, chance),
        _ => spec.task.image = image(chance),
    }
    // One that was removed cannot be asked for any more.
    spec.task.secrets.retain(|mount| known.contains(&mount.source));
    spec
}
