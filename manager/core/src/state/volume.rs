//! What the volumes of a task are called, and on which nodes they can be.

use std::fmt;

use warren_types::template::{ExpandError, NodeValues, is_template};
use warren_types::{Node, NodeId, Revision, ServiceName, Task, Template, TemplateValues, Volume, VolumeName};

use super::index::{fixed_volumes, volume_texts};
use super::{Refusal, State};

/// How many there may be before people can make no more; tasks still do.
pub const MAX_VOLUMES: usize = 100_000;

/// Why a task's volumes keep it from a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeFault {
    /// Its data is on another node.
    Elsewhere {
        /// The volume.
        volume: VolumeName,
        /// Where it is.
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
    /// What it is called cannot be said for this task and this node.
    Unnamed {
        /// As the spec calls it.
        template: String,
        /// What is wrong with it.
        fault: String,
    },
}

/// What a volume is called for a task, as far as that is known.
enum Name {
    Known(VolumeName),
    /// Only its node says.
    NeedsNode,
    Wrong(String),
}

impl State {
    /// What the mounts of volumes of the task stand for on the node, in their order.
    ///
    /// # Errors
    /// The first volume that keeps the task from there.
    pub(crate) fn volumes_at(&self, task: &Task, node: &Node) -> Result<Vec<VolumeName>, VolumeFault> {
        let names = volume_texts(&task.revision).map(|text| {
            let name = match self.expand(text, task, Some(node)) {
                Name::Known(name) => name,
                Name::NeedsNode => return Err(unnamed(text, "its node is not known")),
                Name::Wrong(fault) => return Err(unnamed(text, fault)),
            };
            self.volume_fault(&name, node.id).map_or(Ok(name), Err)
        });
        names.collect()
    }

    /// Why a task cannot have the volume on the node; `None` when it can, which makes it there if need be.
    pub(crate) fn volume_fault(&self, name: &VolumeName, node: NodeId) -> Option<VolumeFault> {
        let Volume { removing, node: place, .. } = **self.volume_named(name)?;
        match place.filter(|place| *place != node) {
            _ if removing => Some(VolumeFault::Removing { volume: name.clone() }),
            None => None,
            Some(place) if self.nodes.contains_key(&place) => {
                Some(VolumeFault::Elsewhere { volume: name.clone(), node: place })
            }
            Some(_) => Some(VolumeFault::Lost { volume: name.clone() }),
        }
    }

    /// What the volumes of the task are called: all of them once it has a node, before that those whose names do not
    /// depend on it.
    pub fn volumes_of(&self, task: &Task) -> Vec<VolumeName> {
        if task.node.is_some() {
            return task.volumes().to_vec();
        }
        let bound = task.bound_to().and_then(|node| self.node(&node));
        let names =
            volume_texts(&task.revision).map(|text| self.expand(text, task, bound.map(AsRef::as_ref)));
        let known = |name| match name {
            Name::Known(name) => Some(name),
            Name::NeedsNode | Name::Wrong(_) => None,
        };
        names.filter_map(known).collect()
    }

    /// None of the volumes that the revision names is being removed.
    pub(super) fn volumes_stay(&self, revision: &Revision) -> Result<(), Refusal> {
        let removing = |name: &VolumeName| self.volume_named(name).is_some_and(|volume| volume.removing);
        let gone = fixed_volumes(revision).find(removing);
        gone.map_or(Ok(()), |name| Err(Refusal::VolumeRemoving { name }))
    }

    fn expand(&self, text: &str, task: &Task, node: Option<&Node>) -> Name {
        if !is_template(text) {
            return named(text);
        }
        let template: Template = match text.parse() {
            Ok(template) => template,
            Err(error) => return Name::Wrong(format!("{error}")),
        };
        let service = self.services.get(&task.id.service).map(|service| &service.spec.name);
        let labels = node.map(Node::all_labels).unwrap_or_default();
        let values = TemplateValues {
            service_id: task.id.service.to_string(),
            service_name: service.map_or("", ServiceName::as_str),
            service_labels: &task.revision.labels,
            task_id: task.id.to_string(),
            slot: task.slot,
            node: node.map(|node| NodeValues {
                id: node.id.to_string(),
                hostname: node.name.as_str(),
                labels: &labels,
            }),
        };
        match template.expand(&values) {
            Ok(name) => named(&name),
            Err(ExpandError::NoNode(_)) => Name::NeedsNode,
            Err(error) => Name::Wrong(error.to_string()),
        }
    }
}

fn named(text: &str) -> Name {
    text.parse()
        .map_or_else(|error: warren_types::name::ParseNameError| Name::Wrong(error.to_string()), Name::Known)
}

fn unnamed(template: &str, fault: impl fmt::Display) -> VolumeFault {
    VolumeFault::Unnamed { template: template.into(), fault: fault.to_string() }
}
