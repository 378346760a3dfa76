//! The volume names of a task, and on which nodes its volumes can be.

use std::fmt;

use warren_types::template::{ExpandError, TemplateNodeValues, is_template};
use warren_types::{Node, NodeId, Revision, ServiceName, Task, Template, TemplateValues, Volume, VolumeName};

use super::index::{fixed_volumes, volume_templates};
use super::{Refusal, State};

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
    /// Its name cannot be expanded for this task and this node.
    InvalidName {
        /// The name in the spec.
        template: String,
        /// The reason.
        fault: String,
    },
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
        let Volume { removing, node: place, .. } = **self.volume_by_name(name)?;
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

    /// None of the volumes that the revision names is being removed.
    pub(super) fn check_volumes_not_removing(&self, revision: &Revision) -> Result<(), Refusal> {
        let removing = |name: &VolumeName| self.volume_by_name(name).is_some_and(|volume| volume.removing);
        let gone = fixed_volumes(revision).find(removing);
        gone.map_or(Ok(()), |name| Err(Refusal::VolumeRemoving { name }))
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
        let labels = node.map(Node::all_labels).unwrap_or_default();
        let values = TemplateValues {
            service_id: task.id.service.to_string(),
            service_name: service.map_or("", ServiceName::as_str),
            service_labels: &task.revision.labels,
            task_id: task.id.to_string(),
            slot: task.slot,
            node: node.map(|node| TemplateNodeValues {
                id: node.id.to_string(),
                hostname: node.name.as_str(),
                labels: &labels,
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
