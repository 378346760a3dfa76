//! The slots of a global service with a task per value of a label: each value has a number, which it keeps as long
//! as the service has a record of a task for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_types::{NodeLabel, Service, ServiceId};

use super::{NodeEligibility, State};

/// The slot of a value that nodes have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ValueSlot {
    pub value: Arc<str>,
    /// Which tasks the slot may have: those that the best of the nodes with the value may have.
    pub eligibility: NodeEligibility,
}

/// The slots of the values of which a service has tasks, records of terminal ones included.
#[derive(Debug, Default)]
pub(super) struct ValueNumbers {
    by_value: BTreeMap<Arc<str>, u32>,
    taken: BTreeSet<u32>,
}

impl ValueNumbers {
    pub fn of(state: &State, service: &ServiceId) -> Self {
        let mut numbers = Self::default();
        for task in state.tasks_of(service) {
            if let Some(value) = task.label_value() {
                numbers.insert(value, task.slot);
            }
        }
        numbers
    }

    /// Whether the value has the slot or can get it, which it then does.
    pub fn claim(&mut self, value: &Arc<str>, slot: u32) -> bool {
        match self.by_value.get(value) {
            Some(known) => *known == slot,
            None => slot > 0 && !self.taken.contains(&slot) && self.insert(value, slot),
        }
    }

    fn insert(&mut self, value: &Arc<str>, slot: u32) -> bool {
        self.by_value.insert(value.clone(), slot);
        self.taken.insert(slot)
    }
}

impl State {
    /// The slots that a service with tasks per value of `label` should have or may keep, by their numbers. A value
    /// without a slot gets the lowest free number once a node with it may have a task.
    pub(crate) fn value_slots(&self, service: &Service, label: &NodeLabel) -> BTreeMap<u32, ValueSlot> {
        let mut values: BTreeMap<&str, NodeEligibility> = BTreeMap::new();
        for node in self.nodes() {
            if let Some(value) = label.value_of(&node.labels) {
                let best = values.entry(value).or_insert(NodeEligibility::Excluded);
                *best = (*best).max(self.eligibility(service, node));
            }
        }
        let numbers = ValueNumbers::of(self, &service.id);
        let mut free = (1..).filter(|number| !numbers.taken.contains(number));
        let mut slots = BTreeMap::new();
        for (value, eligibility) in values {
            let known = numbers.by_value.get_key_value(value).map(|(value, slot)| (value.clone(), *slot));
            let (value, slot) = match (known, eligibility) {
                (Some(known), NodeEligibility::Eligible) => known,
                (Some((value, slot)), NodeEligibility::KeepOnly)
                    if !self.must_leave_all_nodes(service, slot) =>
                {
                    (value, slot)
                }
                (None, NodeEligibility::Eligible) => (value.into(), free.next().unwrap_or(u32::MAX)),
                _ => continue,
            };
            slots.insert(slot, ValueSlot { value, eligibility });
        }
        slots
    }

    /// Whether the live tasks of the slot that have a node are all on nodes that may not have them.
    fn must_leave_all_nodes(&self, service: &Service, slot: u32) -> bool {
        let live = self.live_tasks(&service.id, slot);
        let placed = live.filter_map(|task| Some((task, self.node(&task.node?)?)));
        let mut eligibilities =
            placed.map(|(task, node)| self.task_eligibility(service, task, node)).peekable();
        eligibilities.peek().is_some() && eligibilities.all(|it| it == NodeEligibility::Excluded)
    }
}
