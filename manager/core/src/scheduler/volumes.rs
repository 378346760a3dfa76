//! Where the volumes of waiting tasks are, and where this plan puts those that have no place yet.

use std::collections::BTreeMap;

use warren_types::template::is_template;
use warren_types::{Node, NodeId, Task, VolumeName};

use crate::state::{State, VolumeFault, volume_texts};

/// Volumes that get their place with this plan.
pub(super) type Planned = BTreeMap<VolumeName, NodeId>;

/// The volumes of a group's tasks.
#[derive(Default)]
pub(crate) struct Volumes<'a> {
    /// The group's only task, where volumes are called differently from task to task.
    only: Option<&'a Task>,
    /// What they are called, where that does not depend on the node.
    known: Vec<VolumeName>,
    /// Some are called differently from node to node.
    by_node: bool,
    pub(super) planned: Planned,
}

/// The task's slot, where it may have other volumes than the other tasks of its revision.
pub(super) fn own_slot(task: &Task) -> Option<u32> {
    volume_texts(&task.revision).any(is_template).then_some(task.slot)
}

impl<'a> Volumes<'a> {
    /// Those of the group that begins with this task.
    pub(super) fn of(state: &State, first: &'a Task) -> Self {
        let wanted = volume_texts(&first.revision).count();
        if wanted == 0 {
            return Self::default();
        }
        let known = state.volumes_of(first);
        let (only, by_node) = (own_slot(first).map(|_| first), known.len() < wanted);
        Self { only, known, by_node, planned: Planned::new() }
    }

    /// The task has the same ones.
    pub(super) fn are_those_of(&self, task: &Task) -> bool {
        self.only.is_none_or(|only| only.id == task.id)
    }

    /// The slot of the only task that has them; `None` where all tasks of the revision do.
    pub(super) fn slot(&self) -> Option<u32> {
        self.only.map(|task| task.slot)
    }

    /// There are none.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && !self.by_node
    }

    /// What keeps the tasks from the node; `None` when nothing does.
    pub(super) fn fault(&self, state: &State, node: &Node) -> Option<VolumeFault> {
        if self.is_empty() {
            return None;
        }
        let fault = |name: &VolumeName| {
            let planned = self.planned.get(name).filter(|place| **place != node.id);
            let elsewhere = |place: &NodeId| VolumeFault::Elsewhere { volume: name.clone(), node: *place };
            state.volume_fault(name, node.id).or_else(|| planned.map(elsewhere))
        };
        match self.only.filter(|_| self.by_node) {
            None => self.known.iter().find_map(fault),
            Some(task) => match state.volumes_at(task, node) {
                Ok(names) => names.iter().find_map(fault),
                Err(fault) => Some(fault),
            },
        }
    }

    /// A task of the group goes to the node, and its volumes are there from now on.
    pub(super) fn settle(&mut self, state: &State, node: &Node) {
        let there = self.only.filter(|_| self.by_node).map(|task| state.volumes_at(task, node));
        let names = there.map_or_else(|| self.known.clone(), Result::unwrap_or_default);
        for name in names {
            self.planned.entry(name).or_insert(node.id);
        }
    }
}
