//! The nodes of the volumes of pending tasks, and where this plan creates those that do not exist yet.

use std::collections::BTreeMap;

use warren_types::template::is_template;
use warren_types::{Node, NodeId, Task, VolumeName};

use crate::state::{State, VolumeFault, volume_templates};

/// Volumes that get their node in this plan.
pub(super) type PlannedVolumes = BTreeMap<VolumeName, NodeId>;

/// The volumes of a group's tasks.
#[derive(Default)]
pub(crate) struct GroupVolumes<'a> {
    /// The group's only task, if volume names differ between tasks.
    single_task: Option<&'a Task>,
    /// Volume names that do not depend on the node.
    known_names: Vec<VolumeName>,
    /// Some names differ between nodes.
    depends_on_node: bool,
    pub(super) planned: PlannedVolumes,
}

/// The task's slot, if it may have other volumes than the other tasks of its revision.
pub(super) fn volume_slot(task: &Task) -> Option<u32> {
    volume_templates(&task.revision).any(is_template).then_some(task.slot)
}

impl<'a> GroupVolumes<'a> {
    /// Those of the group that begins with this task.
    pub(super) fn of(state: &State, first: &'a Task) -> Self {
        let desired = volume_templates(&first.revision).count();
        if desired == 0 {
            return Self::default();
        }
        let known = state.volumes_of(first);
        let (only, by_node) = (volume_slot(first).map(|_| first), known.len() < desired);
        Self {
            single_task: only,
            known_names: known,
            depends_on_node: by_node,
            planned: PlannedVolumes::new(),
        }
    }

    /// Whether the task has the same volumes.
    pub(super) fn matches_task(&self, task: &Task) -> bool {
        self.single_task.is_none_or(|only| only.id == task.id)
    }

    /// The slot of the only task that has them; `None` if all tasks of the revision do.
    pub(super) fn slot(&self) -> Option<u32> {
        self.single_task.map(|task| task.slot)
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.known_names.is_empty() && !self.depends_on_node
    }

    /// What keeps the tasks from the node; `None` if they can go there.
    pub(super) fn find_fault(&self, state: &State, node: &Node) -> Option<VolumeFault> {
        if self.is_empty() {
            return None;
        }
        let fault = |name: &VolumeName| {
            let planned = self.planned.get(name).filter(|place| **place != node.id);
            let elsewhere = |place: &NodeId| VolumeFault::OnOtherNode { volume: name.clone(), node: *place };
            state.find_volume_fault(name, node.id).or_else(|| planned.map(elsewhere))
        };
        match self.single_task.filter(|_| self.depends_on_node) {
            None => self.known_names.iter().find_map(fault),
            Some(task) => match state.resolve_volumes(task, node) {
                Ok(names) => names.iter().find_map(fault),
                Err(fault) => Some(fault),
            },
        }
    }

    /// A task of the group goes to the node, and its volumes are bound to it from now on.
    pub(super) fn bind(&mut self, state: &State, node: &Node) {
        let there =
            self.single_task.filter(|_| self.depends_on_node).map(|task| state.resolve_volumes(task, node));
        let names = there.map_or_else(|| self.known_names.clone(), Result::unwrap_or_default);
        for name in names {
            self.planned.entry(name).or_insert(node.id);
        }
    }
}
