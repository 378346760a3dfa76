//! What a client can ask for, and what it is promised when that was done.

use std::collections::BTreeMap;
use std::sync::Arc;

use warren_core::{Answer, Command};
use warren_types::{
    Availability, ContentId, ContentKind, ContentName, Mode, NodeId, ServiceId, ServiceSpec, Timestamp,
    VolumeDriver, VolumeId, VolumeName,
};

use super::Wish;
use super::contents::{Uses, sealed};

/// One request. Those that are about a service are refused if it changed since the client's last request.
#[derive(Debug, Clone)]
pub(super) enum Request {
    Create(ServiceId, Arc<ServiceSpec>),
    Scale(ServiceId, u64, u32),
    Update(ServiceId, u64, Arc<ServiceSpec>, bool),
    Rollback(ServiceId, u64),
    Remove(ServiceId, u64),
    Availability(NodeId, Availability),
    /// The zone that a person says; `None` leaves it to the machine.
    Zone(NodeId, Option<&'static str>),
    /// Makes a secret of that byte.
    Keep(ContentId, ContentName, u8),
    /// Gives it another byte, if it has not changed.
    Renew(ContentId, u64, u8),
    Forget(ContentId),
    Volume(VolumeId, VolumeName, Option<NodeId>),
    /// Removes a volume; with its data, or without.
    Discard(VolumeId, bool),
    /// The data of a volume is gone.
    Purged(VolumeId),
}

impl Request {
    pub(super) fn service(&self) -> Option<ServiceId> {
        match self {
            Self::Create(id, _)
            | Self::Scale(id, ..)
            | Self::Update(id, ..)
            | Self::Rollback(id, _)
            | Self::Remove(id, _) => Some(*id),
            Self::Availability(..)
            | Self::Zone(..)
            | Self::Keep(..)
            | Self::Renew(..)
            | Self::Forget(_)
            | Self::Volume(..)
            | Self::Discard(..)
            | Self::Purged(_) => None,
        }
    }

    /// The secret that it is about.
    pub(super) fn content(&self) -> Option<ContentId> {
        match self {
            Self::Keep(id, ..) | Self::Renew(id, ..) | Self::Forget(id) => Some(*id),
            _ => None,
        }
    }

    pub(super) fn command(&self, at: Timestamp) -> Command {
        let node = |id, zone: Option<Option<&str>>, availability| {
            let label = "zone".to_string();
            let add = zone.flatten().map(|zone| (label.clone(), zone.to_string()));
            let label_rm = zone.filter(Option::is_none).map(|_| label.clone()).into_iter().collect();
            let label_add = add.into_iter().collect();
            Command::UpdateNode { id, version: None, label_add, label_rm, availability, at }
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
            Self::Remove(id, version) => Command::RemoveService { id, version: Some(version), at },
            Self::Availability(id, availability) => node(id, None, Some(availability)),
            Self::Zone(id, zone) => node(id, Some(zone), None),
            Self::Keep(id, name, byte) => {
                let (kind, labels, content) = (ContentKind::Secret, BTreeMap::new(), sealed(byte));
                Command::CreateContent { id, kind, name, labels, content, at }
            }
            Self::Renew(id, version, byte) => {
                Command::UpdateContent { id, version: Some(version), content: sealed(byte), at }
            }
            Self::Forget(id) => Command::RemoveContent { id, at },
            Self::Volume(id, name, node) => {
                let (driver, options, labels) = (VolumeDriver::Local, BTreeMap::new(), BTreeMap::new());
                Command::CreateVolume { id, name, driver, options, labels, node, at }
            }
            Self::Discard(id, purge) => Command::RemoveVolume { id, purge, at },
            Self::Purged(id) => Command::DeleteVolume { id, at },
        }
    }

    /// Whether the answer shows what was asked for, and not what came of it since.
    pub(super) fn is_shown_by(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Self::Create(id, spec) | Self::Update(id, _, spec, _), Answer::Service(found)) => {
                found.id == *id && found.spec == *spec && !found.removing
            }
            (Self::Scale(id, _, replicas), Answer::Service(found)) => {
                found.id == *id && found.spec.replicas() == Some(*replicas)
            }
            (Self::Rollback(id, version), Answer::Service(found)) => {
                found.id == *id && found.version >= *version && !found.removing
            }
            (Self::Remove(id, _), Answer::Service(found)) => found.id == *id && found.removing,
            (Self::Availability(id, wanted), Answer::Node(found)) => {
                found.id == *id && found.availability == *wanted
            }
            (Self::Zone(id, zone), Answer::Node(found)) => {
                found.id == *id && found.labels.get("zone").map(String::as_str) == *zone
            }
            (Self::Keep(id, _, byte) | Self::Renew(id, _, byte), Answer::Content(found)) => {
                let newest = found.versions.values().next_back();
                found.id == *id && newest.is_some_and(|newest| newest.fingerprint == [*byte; 32])
            }
            (Self::Forget(id), Answer::Content(found)) => found.id == *id,
            (Self::Volume(id, name, node), Answer::Volume(found)) => {
                (found.id, &found.name) == (*id, name) && node.is_none_or(|node| found.node == Some(node))
            }
            (Self::Discard(id, _), Answer::Volume(found)) => found.id == *id,
            (Self::Purged(_), _) => true,
            _ => false,
        }
    }

    /// What is promised of the service now, given what was.
    pub(super) fn fulfilled(&self, before: Vec<Wish>, uses: impl Fn(&ServiceSpec) -> Uses) -> Vec<Wish> {
        let mut wanted = before;
        let wish = |spec: &Arc<ServiceSpec>| Wish { uses: uses(spec), spec: spec.clone() };
        let Some(current) = wanted.last().cloned() else {
            return match self {
                Self::Create(_, spec) => vec![wish(spec)],
                _ => wanted,
            };
        };
        let shape = |Wish { spec, uses }: &Wish| {
            (spec.task.clone(), spec.ports.clone(), spec.placement.clone(), uses.clone())
        };
        match self {
            Self::Create(_, spec) => return vec![wish(spec)],
            Self::Remove(..) => wanted.clear(),
            Self::Scale(_, _, replicas) => {
                let mode = Mode::Replicated { replicas: *replicas };
                let spec = Arc::new(ServiceSpec { mode, ..(*current.spec).clone() });
                wanted.pop();
                wanted.push(Wish { spec, ..current });
            }
            Self::Update(_, _, spec, force) => {
                let next = wish(spec);
                if !*force && shape(&next) == shape(&current) {
                    wanted.pop();
                }
                wanted.push(next);
            }
            Self::Rollback(..) => {
                let (task, ports, placement, uses) = shape(&wanted[wanted.len().saturating_sub(2)]);
                let spec = Arc::new(ServiceSpec { task, ports, placement, ..(*current.spec).clone() });
                wanted.push(Wish { spec, uses });
            }
            _ => {}
        }
        wanted
    }
}
