//! The requests of clients, and what is acknowledged with each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_core::state::VolumeData;
use warren_core::{Command, CommandResponse};
use warren_types::{
    Availability, NodeId, SecretObjectId, SecretObjectKind, SecretObjectName, ServiceId, ServiceMode,
    ServiceSpec, Taint, TaintEffect, Timestamp, VolumeDriver, VolumeId, VolumeName,
};

use super::ExpectedRevision;
use super::secrets::{SecretVersions, sealed};

/// The taint with that effect.
pub(super) fn taint(effect: TaintEffect) -> Taint {
    Taint { key: "sim".into(), effect, value: String::new() }
}

/// One request. Requests about a service are rejected if it changed since the client's last request.
#[derive(Debug, Clone)]
pub(super) enum ClientRequest {
    Create(ServiceId, Arc<ServiceSpec>),
    Scale(ServiceId, u64, u32),
    Update(ServiceId, u64, Arc<ServiceSpec>, bool),
    Rollback(ServiceId, u64),
    Remove(ServiceId, u64),
    SetAvailability(NodeId, Availability),
    /// The zone label that an operator sets; `None` leaves it to the machine.
    SetZone(NodeId, Option<&'static str>),
    /// Its only taint.
    SetTaint(NodeId, Option<TaintEffect>),
    /// Creates a secret of that byte.
    CreateSecret(SecretObjectId, SecretObjectName, u8),
    /// Updates it to another byte, if it has not changed.
    UpdateSecret(SecretObjectId, u64, u8),
    RemoveSecret(SecretObjectId),
    CreateVolume(VolumeId, VolumeName, Option<NodeId>),
    /// Removes a volume; with its data, or without.
    RemoveVolume(VolumeId, bool),
    /// The data of a volume is lost.
    ConfirmPurge(VolumeId),
}

impl ClientRequest {
    pub(super) fn service(&self) -> Option<ServiceId> {
        match self {
            Self::Create(id, _)
            | Self::Scale(id, ..)
            | Self::Update(id, ..)
            | Self::Rollback(id, _)
            | Self::Remove(id, _) => Some(*id),
            Self::SetAvailability(..)
            | Self::SetZone(..)
            | Self::SetTaint(..)
            | Self::CreateSecret(..)
            | Self::UpdateSecret(..)
            | Self::RemoveSecret(_)
            | Self::CreateVolume(..)
            | Self::RemoveVolume(..)
            | Self::ConfirmPurge(_) => None,
        }
    }

    /// The secret of the request.
    pub(super) fn secret(&self) -> Option<SecretObjectId> {
        match self {
            Self::CreateSecret(id, ..) | Self::UpdateSecret(id, ..) | Self::RemoveSecret(id) => Some(*id),
            _ => None,
        }
    }

    pub(super) fn command(&self, at: Timestamp) -> Command {
        let node = |id, zone: Option<Option<&str>>, availability| {
            let label = "zone".to_string();
            let add = zone.flatten().map(|zone| (label.clone(), zone.to_string()));
            let label_rm = zone.filter(Option::is_none).map(|_| label.clone()).into_iter().collect();
            let label_add = add.into_iter().collect();
            Command::UpdateNode {
                id,
                version: None,
                label_add,
                label_rm,
                availability,
                taint_add: Default::default(),
                taint_rm: Default::default(),
                at,
            }
        };
        match self.clone() {
            Self::Create(id, spec) => Command::CreateService { id, spec: (*spec).clone(), at },
            Self::Scale(id, version, replicas) => {
                Command::ScaleService { id, version: Some(version), replicas, at }
            }
            Self::Update(id, version, spec, force) => {
                Command::UpdateService { id, version: Some(version), spec: (*spec).clone(), force, at }
            }
            Self::Rollback(id, version) => {
                Command::RollbackService { id, version: Some(version), revision: None, at }
            }
            Self::Remove(id, version) => {
                Command::RemoveService { id, version: Some(version), force: true, at }
            }
            Self::SetAvailability(id, availability) => node(id, None, Some(availability)),
            Self::SetZone(id, zone) => node(id, Some(zone), None),
            Self::SetTaint(id, effect) => Command::UpdateNode {
                id,
                version: None,
                label_add: BTreeMap::new(),
                label_rm: BTreeSet::new(),
                availability: None,
                taint_add: effect.map(taint).into_iter().collect(),
                taint_rm: BTreeSet::from(["sim".parse().expect("a valid selector")]),
                at,
            },
            Self::CreateSecret(id, name, byte) => {
                let (kind, labels, content) = (SecretObjectKind::Secret, BTreeMap::new(), sealed(byte));
                Command::CreateSecretObject { id, kind, name, labels, data: content, at }
            }
            Self::UpdateSecret(id, version, byte) => {
                Command::UpdateSecretObject { id, version: Some(version), data: sealed(byte), at }
            }
            Self::RemoveSecret(id) => Command::RemoveSecretObject { id, at },
            Self::CreateVolume(id, name, node) => {
                let (driver, options, labels) = (VolumeDriver::Local, BTreeMap::new(), BTreeMap::new());
                Command::CreateVolume { id, name, driver, options, labels, node, reuse: false, at }
            }
            Self::RemoveVolume(id, purge) => {
                Command::RemoveVolume { id, purge, data: VolumeData::Absent, at }
            }
            Self::ConfirmPurge(id) => Command::DeleteVolume { id, at },
        }
    }

    /// Whether the answer shows the request itself, and not a later write.
    pub(super) fn matches_answer(&self, answer: &CommandResponse) -> bool {
        match (self, answer) {
            (Self::Create(id, spec) | Self::Update(id, _, spec, _), CommandResponse::Service(found)) => {
                found.id == *id && found.spec == *spec && !found.removing
            }
            (Self::Scale(id, _, replicas), CommandResponse::Service(found)) => {
                found.id == *id && found.spec.replicas() == Some(*replicas)
            }
            (Self::Rollback(id, version), CommandResponse::Service(found)) => {
                found.id == *id && found.version >= *version && !found.removing
            }
            (Self::Remove(id, _), CommandResponse::Service(found)) => found.id == *id && found.removing,
            (Self::SetAvailability(id, desired), CommandResponse::Node(found)) => {
                found.id == *id && found.availability == *desired
            }
            (Self::SetZone(id, zone), CommandResponse::Node(found)) => {
                found.id == *id && found.labels.get("zone").map(String::as_str) == *zone
            }
            (Self::SetTaint(id, effect), CommandResponse::Node(found)) => {
                found.id == *id && found.taints == effect.map(taint).into_iter().collect()
            }
            (
                Self::CreateSecret(id, _, byte) | Self::UpdateSecret(id, _, byte),
                CommandResponse::SecretObject(found),
            ) => {
                let newest = found.versions.values().next_back();
                found.id == *id && newest.is_some_and(|newest| newest.fingerprint == [*byte; 32])
            }
            (Self::RemoveSecret(id), CommandResponse::SecretObject(found)) => found.id == *id,
            (Self::CreateVolume(id, name, node), CommandResponse::Volume(found)) => {
                (found.id, &found.name) == (*id, name) && node.is_none_or(|node| found.node == Some(node))
            }
            (Self::RemoveVolume(id, _), CommandResponse::Volume(found)) => found.id == *id,
            (Self::ConfirmPurge(_), _) => true,
            _ => false,
        }
    }

    /// The acknowledged revisions after the request, given those before.
    pub(super) fn expected_after(
        &self,
        before: Vec<ExpectedRevision>,
        uses: impl Fn(&ServiceSpec) -> SecretVersions,
    ) -> Vec<ExpectedRevision> {
        let mut desired = before;
        let request = |spec: &Arc<ServiceSpec>| ExpectedRevision { uses: uses(spec), spec: spec.clone() };
        let Some(current) = desired.last().cloned() else {
            return match self {
                Self::Create(_, spec) => vec![request(spec)],
                _ => desired,
            };
        };
        let shape = |ExpectedRevision { spec, uses }: &ExpectedRevision| {
            (spec.task.clone(), spec.ports.clone(), spec.placement.clone(), uses.clone())
        };
        match self {
            Self::Create(_, spec) => return vec![request(spec)],
            Self::Remove(..) => desired.clear(),
            Self::Scale(_, _, replicas) => {
                let mode = ServiceMode::Replicated { replicas: *replicas };
                let spec = Arc::new(ServiceSpec { mode, ..(*current.spec).clone() });
                desired.pop();
                desired.push(ExpectedRevision { spec, ..current });
            }
            Self::Update(_, _, spec, force) => {
                let next = request(spec);
                if !*force && shape(&next) == shape(&current) {
                    desired.pop();
                }
                desired.push(next);
            }
            Self::Rollback(..) => {
                let (task, ports, placement, uses) = shape(&desired[desired.len().saturating_sub(2)]);
                let spec = Arc::new(ServiceSpec { task, ports, placement, ..(*current.spec).clone() });
                desired.push(ExpectedRevision { spec, uses });
            }
            _ => {}
        }
        desired
    }
}
