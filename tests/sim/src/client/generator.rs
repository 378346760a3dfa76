//! Random requests of clients.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use warren_core::State;
use warren_types::{
    Availability, FailureAction, FailureRatio, HealthCheck, Id, ImageReference, ImageResolver, MilliCpu,
    Mount, MountSource, Node, NodeId, OnDisconnect, Parallelism, Placement, PlacementPreference, Probe,
    Protocol, PublishMode, PublishedPort, SecretObjectMount, SecretObjectName, ServiceId, ServiceMode,
    ServiceSpec, Taint, TaintEffect, TaintSelector, TaskSpec, UpdateOrder, UpdatePolicy,
};

use super::request::ClientRequest;
use super::{ExpectedService, SERVICES, SimClient, UNHEALTHY_IMAGE};
use crate::random::SimRng;
use crate::worker::zone_of;

/// Replicas of a service.
const MOST_REPLICAS: u32 = 4;
/// Replicas of a service that are more than there is room for.
const CROWD: u32 = 500;
/// Each task of a service that may become a crowd reserves this: there is room for 16 of them on a worker.
const RESERVED: MilliCpu = MilliCpu(250);

impl SimClient {
    /// A new request.
    pub(super) fn next_request(&mut self, chance: &mut SimRng, nodes: &[NodeId]) -> Option<ClientRequest> {
        if chance.one_in(6) {
            let node = chance.pick(nodes)?;
            return Some(match chance.between(0, 2) {
                0 => ClientRequest::SetAvailability(node, chance.pick(&Availability::ALL)?),
                1 => ClientRequest::SetZone(node, chance.pick(&[None, Some("a"), Some("b")])?),
                _ => {
                    let effect = chance.pick(&TaintEffect::ALL)?;
                    ClientRequest::SetTaint(node, (!chance.one_in(3)).then_some(effect))
                }
            });
        }
        if chance.one_in(4) {
            return self.next_storage_request(chance, nodes);
        }
        let held: Vec<(ServiceId, u64)> = self
            .expected
            .iter()
            .filter(|(_, promise)| promise.desired_spec().is_some())
            .map(|(id, promise)| (*id, promise.version))
            .collect();
        let replicas = u32::try_from(chance.between(0, MOST_REPLICAS.into())).unwrap_or(0);
        let crowd = if self.is_crowding && replicas == MOST_REPLICAS { CROWD } else { replicas };
        if held.len() < SERVICES && (held.is_empty() || chance.one_in(3)) {
            let number = self.next_number();
            self.created += 1;
            let id = ServiceId(Id(u128::from(number) << 64 | u128::from(chance.next())));
            let mut spec = spec(number, replicas, &self.secrets(), chance);
            if self.is_crowding && spec.task.mounts.is_empty() && spec.mode != ServiceMode::Global {
                spec.task.reservations.cpu = RESERVED;
                spec.mode = ServiceMode::Replicated { replicas: crowd };
            }
            return Some(ClientRequest::Create(id, Arc::new(spec)));
        }
        let (id, version) = chance.pick(&held)?;
        let promise = self.expected.get(&id)?;
        let current = promise.desired_spec()?;
        Some(match chance.between(0, 7) {
            0 | 1 => ClientRequest::Remove(id, version),
            2 if promise.revisions.len() > 1 => ClientRequest::Rollback(id, version),
            3 | 4 if current.mode != ServiceMode::Global => {
                let may_crowd = current.task.reservations.cpu == RESERVED;
                ClientRequest::Scale(id, version, if may_crowd { crowd } else { replicas })
            }
            _ => {
                let spec = Arc::new(changed(current, &self.secrets(), chance));
                ClientRequest::Update(id, version, spec, chance.one_in(5))
            }
        })
    }

    /// The request that restores the nodes to their original state, but for a taint of one; one client sends it. A
    /// crowd is scaled down.
    pub(super) fn cleanup_request(&self, state: &State) -> Option<ClientRequest> {
        let replicas = |promise: &ExpectedService| promise.desired_spec().and_then(|spec| spec.replicas());
        let crowd = self.expected.iter().find(|(_, promise)| replicas(promise) > Some(MOST_REPLICAS));
        if let Some((id, promise)) = crowd {
            return Some(ClientRequest::Scale(*id, promise.version, MOST_REPLICAS));
        }
        let removing = state.volumes().filter(|_| self.number == 0).find(|volume| volume.removing);
        if let Some(volume) = removing {
            return Some(ClientRequest::ConfirmPurge(volume.id));
        }
        let node = state.nodes().filter(|_| self.number == 0).find(|node| !has_final_settings(node))?;
        Some(match node.availability {
            Availability::Active if node.taints != final_taints(node.id) => {
                ClientRequest::SetTaint(node.id, final_taints(node.id).first().map(|taint| taint.effect))
            }
            Availability::Active => ClientRequest::SetZone(node.id, Some(zone_of(node.id))),
            Availability::Pause | Availability::Drain => {
                ClientRequest::SetAvailability(node.id, Availability::Active)
            }
        })
    }
}

/// Whether a node has what each has at the end of a history: it is active, and labelled with its zone.
pub fn has_final_settings(node: &Node) -> bool {
    let labels = [("zone".to_owned(), zone_of(node.id).to_owned())].into();
    node.availability == Availability::Active && node.labels == labels && node.taints == final_taints(node.id)
}

/// One node keeps a taint, of the zone with three nodes: services that do not tolerate it have two in each zone.
fn final_taints(node: NodeId) -> BTreeSet<Taint> {
    let is_tainted = node == NodeId(Id(100));
    is_tainted.then(|| super::request::taint(TaintEffect::NoExecute)).into_iter().collect()
}

fn image(chance: &mut SimRng) -> ImageReference {
    let image = match chance.one_in(4) {
        true => UNHEALTHY_IMAGE.to_string(),
        false => format!("web:{}", chance.between(1, 3)),
    };
    image.parse().expect("a valid reference")
}

fn ports(chance: &mut SimRng) -> Vec<PublishedPort> {
    let port = PublishedPort {
        host_ip: None,
        host_port: u16::try_from(chance.between(8000, 8003)).unwrap_or(8000),
        container_port: 80,
        protocol: Protocol::Tcp,
        mode: PublishMode::Host,
        prefer_local: false,
        client_affinity: false,
    };
    if chance.one_in(2) { vec![port] } else { Vec::new() }
}

fn placement(mode: ServiceMode, chance: &mut SimRng) -> Placement {
    let zone = if chance.one_in(2) { "a" } else { "b" };
    let zone = format!("node.labels.zone == {zone}").parse().expect("a valid constraint");
    let constraints = if chance.one_in(4) { vec![zone] } else { Vec::new() };
    // At least two machines of each zone have room for two tasks each.
    let bounded = mode != ServiceMode::Global && chance.one_in(4);
    let tolerations = if chance.one_in(3) { tolerations(chance) } else { Vec::new() };
    let spread = mode != ServiceMode::Global && chance.one_in(3);
    let preferences = spread.then(|| PlacementPreference::Spread("zone".into())).into_iter().collect();
    Placement { constraints, tolerations, max_per_node: bounded.then_some(2), preferences }
}

fn tolerations(chance: &mut SimRng) -> Vec<TaintSelector> {
    let given = chance.pick(&["*", "sim", "sim:NoSchedule", "sim=:NoExecute", "sim=other", "x"]);
    given.into_iter().map(|text| text.parse().expect("a valid toleration")).collect()
}

/// Tolerates all taints, so that a volume is on a node to which its tasks may go.
fn tolerant() -> Placement {
    Placement { tolerations: vec!["*".parse().expect("a valid toleration")], ..Placement::default() }
}

/// Some of the client's secrets.
fn secrets(known: &[SecretObjectName], chance: &mut SimRng) -> Vec<SecretObjectMount> {
    known.iter().filter(|_| chance.one_in(2)).map(|name| SecretObjectMount::new(name.clone())).collect()
}

/// The disconnect policy of its tasks.
fn on_disconnect(chance: &mut SimRng) -> OnDisconnect {
    match chance.one_in(2) {
        true => OnDisconnect::Keep,
        false => OnDisconnect::StopAfter(Duration::from_secs(chance.between(10, 20))),
    }
}

/// The replacement delay for tasks of lost nodes.
fn replace_after(mode: ServiceMode, per_value: bool, chance: &mut SimRng) -> Duration {
    let waits = (mode != ServiceMode::Global || per_value) && chance.one_in(2);
    Duration::from_millis(if waits { chance.between(1_000, 30_000) } else { 0 })
}

/// One volume for all tasks, or one per slot or node. It stays the same for the whole time of the service,
/// and such a service has no other placement constraints, so there is always a node with its volumes.
fn volumes(number: u64, chance: &mut SimRng) -> Vec<Mount> {
    let name = match chance.between(0, 7) {
        0 => format!("data-{number}"),
        1 => format!("data-{number}-{{{{.Task.Slot}}}}"),
        2 => format!("data-{number}-{{{{.Node.Hostname}}}}"),
        _ => return Vec::new(),
    };
    let source = MountSource::Volume { name, subpath: None, no_copy: false };
    vec![Mount { target: "/data".into(), source, read_only: false }]
}

/// How an update replaces tasks. Tasks with a volume are always stopped first.
fn update_policy(is_bound: bool, chance: &mut SimRng) -> UpdatePolicy {
    let parallelism =
        [Parallelism::Slots(1), Parallelism::Slots(2), Parallelism::Percent(50), Parallelism::Slots(0)];
    let order = [None, Some(UpdateOrder::StartFirst), Some(UpdateOrder::StopFirst)];
    let action =
        [None, Some(FailureAction::Rollback), Some(FailureAction::Pause), Some(FailureAction::Continue)];
    let default = UpdatePolicy::default();
    UpdatePolicy {
        parallelism: chance.pick(&parallelism).unwrap_or(default.parallelism),
        delay: Duration::from_millis(if chance.one_in(3) { chance.between(100, 3_000) } else { 0 }),
        order: chance.pick(&order).flatten().filter(|_| !is_bound),
        monitor: Duration::from_millis(chance.between(0, 4_000)),
        failure_ratio: FailureRatio(if chance.one_in(4) { 250 } else { 0 }),
        on_failure: chance.pick(&action).flatten(),
    }
}

fn rollback_policy(is_bound: bool, chance: &mut SimRng) -> UpdatePolicy {
    let policy = update_policy(is_bound, chance);
    UpdatePolicy {
        on_failure: policy.on_failure.filter(|action| *action != FailureAction::Rollback),
        ..policy
    }
}

fn spec(number: u64, replicas: u32, known: &[SecretObjectName], chance: &mut SimRng) -> ServiceSpec {
    let mode = if chance.one_in(4) { ServiceMode::Global } else { ServiceMode::Replicated { replicas } };
    let mut task = TaskSpec::new(image(chance));
    task.resolve_image =
        if number.is_multiple_of(2) { ImageResolver::Manager } else { ImageResolver::Worker };
    (task.secrets, task.mounts) = (secrets(known, chance), volumes(number, chance));
    task.on_disconnect = on_disconnect(chance);
    task.health = chance.one_in(2).then(|| HealthCheck::new(Probe::Tcp { port: 80 }));
    let bound = !task.mounts.is_empty();
    // A volume for all tasks is on one node, so not every node can have a task with it.
    let mode = if bound { ServiceMode::Replicated { replicas } } else { mode };
    let is_global = mode == ServiceMode::Global;
    let per = (is_global && chance.one_in(2)).then(|| "node.labels.zone".parse().expect("a valid label"));
    ServiceSpec {
        mode,
        bootstrap: is_global && chance.one_in(3),
        ports: ports(chance),
        placement: if bound { tolerant() } else { placement(mode, chance) },
        replace_after: replace_after(mode, per.is_some(), chance),
        per,
        update: update_policy(bound, chance),
        rollback: rollback_policy(bound, chance),
        ..ServiceSpec::new(format!("service-{number}").parse().expect("a valid name"), task)
    }
}

/// Another spec of the same service.
fn changed(spec: &ServiceSpec, known: &[SecretObjectName], chance: &mut SimRng) -> ServiceSpec {
    let mut spec = spec.clone();
    let is_bound = !spec.task.mounts.is_empty();
    match chance.between(0, 8) {
        0 => spec.ports = ports(chance),
        1 if spec.task.mounts.is_empty() => spec.placement = placement(spec.mode, chance),
        2 => spec.task.secrets = secrets(known, chance),
        3 => spec.task.on_disconnect = on_disconnect(chance),
        4 => spec.replace_after = replace_after(spec.mode, spec.per.is_some(), chance),
        5 => spec.update = update_policy(is_bound, chance),
        6 => spec.bootstrap = spec.mode == ServiceMode::Global && chance.one_in(2),
        _ => spec.task.image = image(chance),
    }
    // A removed one cannot be requested any more.
    spec.task.secrets.retain(|mount| known.contains(&mount.source));
    spec
}
