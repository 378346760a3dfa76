//! The volume names of a task, and on which nodes its volumes can be.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use warren_types::template::{ExpandError, TemplateNodeValues, is_template};
use warren_types::{
    Bytes, Id, Node, NodeId, Revision, ServiceId, ServiceName, Task, Template, TemplateValues, Timestamp,
    Volume, VolumeName,
};

use super::index::{fixed_volumes, volume_templates};
use super::{MAX_VOLUMES, Refusal, State};

/// Why a task's volumes keep it from a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeFault {
    /// Its data is on another node.
    OnOtherNode {
        /// The volume.
        volume: VolumeName,
        /// The node that has it.
        node: NodeId,
    },
    /// Its data is on a node that is not a member any more.
    Lost {
        /// The volume.
        volume: VolumeName,
    },
    /// Its data is being deleted.
    Removing {
        /// The volume.
        volume: VolumeName,
    },
    /// It was removed, and its data remains.
    Released {
        /// The volume.
        volume: VolumeName,
        /// The node that has the data.
        node: NodeId,
    },
    /// Its name cannot be expanded for this task and this node.
    InvalidName {
        /// The name in the spec.
        template: String,
        /// The reason.
        fault: String,
    },
}

/// How long after its release a volume is deleted at the earliest when its node does not report its data: the
/// report may be older than the release.
const MIN_RELEASED_AGE: Duration = Duration::from_secs(60);

/// What a node reported about the data of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeData {
    /// The node was not asked, or did not answer.
    Unknown,
    /// It has none.
    Absent,
    /// It has some, of that size if it could be measured.
    Present(Option<Bytes>),
}

impl VolumeData {
    /// The size, if it is known.
    pub fn size(self) -> Option<Bytes> {
        match self {
            Self::Unknown | Self::Absent => None,
            Self::Present(size) => size,
        }
    }
}

/// The volumes whose data a node has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldVolumes {
    /// Their names.
    pub names: BTreeSet<VolumeName>,
    /// The node has more than these.
    pub is_truncated: bool,
}

/// What a report of a node's volumes changes.
#[derive(Debug, Default)]
pub struct VolumeReportChanges {
    /// Names of data that no volume has.
    pub unrecorded: Vec<VolumeName>,
    /// Released volumes whose data is gone.
    pub gone: Vec<Arc<Volume>>,
}

impl VolumeReportChanges {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.unrecorded.is_empty() && self.gone.is_empty()
    }
}

/// A task's volume name, as far as that is known.
enum VolumeNameResolution {
    Known(VolumeName),
    /// It depends on the node.
    NeedsNode,
    Invalid(String),
}

impl State {
    /// The volumes of the task's mounts on the node, in the order of the mounts.
    ///
    /// # Errors
    /// The first volume that keeps the task from there.
    pub(crate) fn resolve_volumes(&self, task: &Task, node: &Node) -> Result<Vec<VolumeName>, VolumeFault> {
        let names = volume_templates(&task.revision).map(|text| {
            let name = match self.expand(text, task, Some(node)) {
                VolumeNameResolution::Known(name) => name,
                VolumeNameResolution::NeedsNode => return Err(invalid_name(text, "its node is not known")),
                VolumeNameResolution::Invalid(fault) => return Err(invalid_name(text, fault)),
            };
            self.find_volume_fault(&name, node.id).map_or(Ok(name), Err)
        });
        names.collect()
    }

    /// Why a task cannot have the volume on the node; `None` if it can, which creates it there if needed.
    pub(crate) fn find_volume_fault(&self, name: &VolumeName, node: NodeId) -> Option<VolumeFault> {
        let Volume { removing, released, node: place, .. } = **self.volume_by_name(name)?;
        if let Some(place) = place.filter(|_| released.is_some()) {
            return Some(VolumeFault::Released { volume: name.clone(), node: place });
        }
        match place.filter(|place| *place != node) {
            _ if removing => Some(VolumeFault::Removing { volume: name.clone() }),
            None => None,
            Some(place) if self.nodes.contains_key(&place) => {
                Some(VolumeFault::OnOtherNode { volume: name.clone(), node: place })
            }
            Some(_) => Some(VolumeFault::Lost { volume: name.clone() }),
        }
    }

    /// The names of the task's volumes: all of them once it has a node, before that those that do not depend
    /// on it.
    pub fn volumes_of(&self, task: &Task) -> Vec<VolumeName> {
        if task.node.is_some() {
            return task.volumes().to_vec();
        }
        let bound = task.bound_to().and_then(|node| self.node(&node));
        let names =
            volume_templates(&task.revision).map(|text| self.expand(text, task, bound.map(AsRef::as_ref)));
        let known = |name| match name {
            VolumeNameResolution::Known(name) => Some(name),
            VolumeNameResolution::NeedsNode | VolumeNameResolution::Invalid(_) => None,
        };
        names.filter_map(known).collect()
    }

    /// None of the volumes that the revision names was removed or is being removed.
    pub(super) fn check_volumes_usable(&self, revision: &Revision) -> Result<(), Refusal> {
        fixed_volumes(revision).try_for_each(|name| self.check_volume_usable(&name))
    }

    /// The volume does not exist, or was neither removed nor is being removed.
    pub(super) fn check_volume_usable(&self, name: &VolumeName) -> Result<(), Refusal> {
        let Some(volume) = self.volume_by_name(name) else { return Ok(()) };
        if volume.removing {
            return Err(Refusal::VolumeRemoving { name: name.clone() });
        }
        let Some(released) = volume.released else { return Ok(()) };
        let node = volume.node.and_then(|node| self.nodes.get(&node));
        let node = node.map_or_else(|| "a removed node".to_owned(), |node| node.name.to_string());
        Err(Refusal::VolumeReleased { name: name.clone(), node, size: released.size })
    }

    /// Whether a service names the volume, the same for all its tasks.
    pub(super) fn is_named_volume(&self, name: &VolumeName) -> bool {
        let first = (name.clone(), ServiceId(Id(0)));
        self.index.volume_users.range(first..).next().is_some_and(|((volume, _), _)| volume == name)
    }

    /// The released volumes whose data is on the node, by name.
    pub fn released_volumes(&self, node: NodeId) -> impl Iterator<Item = &Arc<Volume>> {
        let least: VolumeName = "0".parse().expect("a digit is a name, and the least one");
        let of_node = self.index.released_volumes.range((node, least)..);
        let of_node = of_node.take_while(move |((place, _), _)| *place == node);
        of_node.filter_map(|(_, id)| self.volumes.get(id))
    }

    /// What a report of the node's volumes changes at `now`.
    pub fn volume_report_changes(
        &self,
        node: NodeId,
        held: &HeldVolumes,
        now: Timestamp,
    ) -> VolumeReportChanges {
        let room = MAX_VOLUMES.saturating_sub(self.volumes.len());
        let unrecorded = held.names.iter().filter(|name| self.volume_by_name(name).is_none());
        let is_gone = |volume: &&Arc<Volume>| {
            let is_old = volume.released.is_some_and(|released| released.at + MIN_RELEASED_AGE <= now);
            !held.is_truncated && is_old && !held.names.contains(&volume.name)
        };
        VolumeReportChanges {
            unrecorded: unrecorded.take(room).cloned().collect(),
            gone: self.released_volumes(node).filter(is_gone).cloned().collect(),
        }
    }

    fn expand(&self, text: &str, task: &Task, node: Option<&Node>) -> VolumeNameResolution {
        if !is_template(text) {
            return parse_volume_name(text);
        }
        let template: Template = match text.parse() {
            Ok(template) => template,
            Err(error) => return VolumeNameResolution::Invalid(format!("{error}")),
        };
        let service = self.services.get(&task.id.service).map(|service| &service.spec.name);
        let values = TemplateValues {
            service_id: task.id.service.to_string(),
            service_name: service.map_or("", ServiceName::as_str),
            service_labels: &task.revision.labels,
            task_id: task.id.to_string(),
            slot: task.slot,
            node: node.map(|node| TemplateNodeValues {
                id: node.id.to_string(),
                hostname: node.name.as_str(),
                labels: &node.labels,
            }),
        };
        match template.expand(&values) {
            Ok(name) => parse_volume_name(&name),
            Err(ExpandError::NoNode(_)) => VolumeNameResolution::NeedsNode,
            Err(error) => VolumeNameResolution::Invalid(error.to_string()),
        }
    }
}

fn parse_volume_name(text: &str) -> VolumeNameResolution {
    text.parse().map_or_else(
        |error: warren_types::name::ParseNameError| VolumeNameResolution::Invalid(error.to_string()),
        VolumeNameResolution::Known,
    )
}

fn invalid_name(template: &str, fault: impl fmt::Display) -> VolumeFault {
    VolumeFault::InvalidName { template: template.into(), fault: fault.to_string() }
}
