//! The tasks of a service: which slots to plan, and what one plan changes.
//!
//! A settled service is not scanned: the index has the tasks that ended, are lost, are standby, share their
//! slot, are on nodes that they must leave, or run an older revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_types::{DesiredTaskState, Node, NodeId, Service, ServiceId, ServiceMode, TaskId, Timestamp};

use super::slot::{SlotPlan, SlotPlanner, needs_removal};
use super::{Budget, ReconcilePlan, misplaced};
use crate::state::{Command, NewTask, NodeEligibility, State, eligibility};

/// What is to be done about the tasks of a service, replicated or global.
///
/// - A slot without a live task gets one, later if its tasks keep failing, and none if its task is final.
/// - Slots that are not desired lose their tasks, the highest first; a service that is being removed loses
///   all.
/// - A task on a node that is down is replaced, and stopped if the node returns; that of a global service
///   waits for its node.
/// - A task that runs an older revision, is unhealthy, or must leave its node, gets a replacement next to it
///   (`super::slot`): for an update one slot after the other, for failed checks later if its slot keeps
///   failing, otherwise immediately.
/// - A task that ended by itself is replaced, and what it holds on its node is removed.
pub fn reconcile_service(state: &State, id: &ServiceId, now: Timestamp) -> ReconcilePlan {
    let Some(service) = state.service(id) else { return ReconcilePlan::default() };
    let slots = DesiredSlots::of(state, service);
    let planner = SlotPlanner::new(state, service, misplaced::misplaced_tasks(state, service), now);
    let mut draft = PlanBuilder::default();
    draft.remove_surplus(state, &slots, *id);
    let settled = draft.reconcile_unsettled(&planner, &slots);
    draft.create_missing(&planner, &slots, &settled);
    match planner.takeover_wait(&draft.remove) {
        Some(wait) => draft.recheck_after = earliest(draft.recheck_after, wait),
        None if draft.is_updating => {}
        None => draft.start_next_update(&planner, &slots),
    }
    draft.build(state, service, now)
}

/// Which slots a service has, and which tasks each may have.
struct DesiredSlots {
    service: ServiceId,
    desired: SlotSet,
}

enum SlotSet {
    /// Slots 1 to this.
    Replicas(u32),
    /// A slot per node.
    Nodes(BTreeMap<u32, (NodeEligibility, NodeId)>),
}

impl DesiredSlots {
    fn of(state: &State, service: &Service) -> Self {
        let expected = match service.spec.mode {
            _ if service.removing => SlotSet::Replicas(0),
            ServiceMode::Replicated { replicas } => SlotSet::Replicas(replicas),
            ServiceMode::Global => {
                let slot = |node: &Node| Some((state.slot_of(node)?, (eligibility(service, node), node.id)));
                SlotSet::Nodes(state.nodes().filter_map(|node| slot(node)).collect())
            }
        };
        Self { service: service.id, desired: expected }
    }

    fn eligibility(&self, slot: u32) -> NodeEligibility {
        match &self.desired {
            SlotSet::Replicas(replicas) if (1..=*replicas).contains(&slot) => NodeEligibility::Eligible,
            SlotSet::Replicas(_) => NodeEligibility::Excluded,
            SlotSet::Nodes(nodes) => nodes.get(&slot).map_or(NodeEligibility::Excluded, |(claim, _)| *claim),
        }
    }

    /// The node that tasks of the slot are bound to.
    fn node(&self, slot: u32) -> Option<NodeId> {
        match &self.desired {
            SlotSet::Replicas(_) => None,
            SlotSet::Nodes(nodes) => nodes.get(&slot).map(|(_, node)| *node),
        }
    }

    /// Live tasks of slots that are not desired, highest slot first.
    fn surplus<'a>(&'a self, state: &'a State) -> impl Iterator<Item = TaskId> + use<'a> {
        let (service, first) = match self.desired {
            SlotSet::Replicas(replicas) => (self.service, replicas.saturating_add(1)),
            SlotSet::Nodes(_) => (self.service, 0),
        };
        let live = state.index().slot_tasks.from(service, first).rev();
        let unwanted = live.filter(|(slot, _)| self.eligibility(*slot) == NodeEligibility::Excluded);
        unwanted.map(move |(_, number)| TaskId { service, number })
    }

    /// Vacant slots that may have a new task. If as many are occupied as the highest slot number, none below
    /// it is vacant, so a replicated service that is settled or only grows is not scanned.
    fn vacant_slots<'a>(&'a self, state: &'a State) -> Box<dyn Iterator<Item = u32> + 'a> {
        let service = self.service;
        let occupied = move |first| state.index().slot_tasks.from(service, first).map(|(slot, _)| slot);
        match &self.desired {
            SlotSet::Replicas(replicas) => {
                let highest = occupied(1).next_back().unwrap_or(0);
                let full = state.index().count_occupied_slots(&service) == highest;
                let first = if full { highest.saturating_add(1) } else { 1 };
                let mut occupied = occupied(first).peekable();
                Box::new((first..=*replicas).filter(move |slot| {
                    let mut taken = false;
                    while occupied.next_if_eq(slot).is_some() {
                        taken = true;
                    }
                    !taken
                }))
            }
            SlotSet::Nodes(nodes) => {
                let open = nodes
                    .iter()
                    .filter(|(_, (claim, _))| *claim == NodeEligibility::Eligible)
                    .map(|(slot, _)| *slot);
                Box::new(open.filter(move |slot| state.index().slot_tasks(service, *slot).next().is_none()))
            }
        }
    }
}

/// A plan that is being made.
#[derive(Default)]
struct PlanBuilder {
    budget: Budget,
    remove: Vec<TaskId>,
    promote: Vec<TaskId>,
    create: Vec<NewTask>,
    /// A slot is being updated.
    is_updating: bool,
    /// A new task has not run for long enough yet.
    recheck_after: Option<Duration>,
    /// Slots whose live tasks this plan changes, or that have two.
    occupied_slots: BTreeSet<u32>,
}

impl PlanBuilder {
    /// Removes the tasks of slots that are not desired.
    fn remove_surplus(&mut self, state: &State, slots: &DesiredSlots, id: ServiceId) {
        self.remove = self.budget.collect(slots.surplus(state));
        let left = state.unsettled_tasks_of(&id).filter(|task| {
            slots.eligibility(task.slot) == NodeEligibility::Excluded
                && !task.is_live()
                && needs_removal(task)
        });
        let left = self.budget.collect(left.map(|task| task.id));
        self.remove.extend(left);
    }

    /// Plans the slots in which something happened. Returns their numbers.
    fn reconcile_unsettled(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots) -> BTreeSet<u32> {
        let desired: BTreeSet<u32> = planner
            .unsettled_slots()
            .into_iter()
            .filter(|slot| slots.eligibility(*slot) != NodeEligibility::Excluded)
            .collect();
        for slot in desired.iter().copied() {
            let step = planner.plan(slot, slots.eligibility(slot), slots.node(slot), false);
            if !step.is_unchanged {
                self.occupied_slots.insert(slot);
            }
            if !self.try_add(step) {
                break;
            }
        }
        desired
    }

    /// Creates tasks for vacant slots.
    fn create_missing(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots, settled: &BTreeSet<u32>) {
        for slot in slots.vacant_slots(planner.state).filter(|slot| !settled.contains(slot)) {
            let step = planner.plan(slot, slots.eligibility(slot), slots.node(slot), false);
            if !self.try_add(step) {
                break;
            }
        }
    }

    /// Starts the update of the next slot that runs an older revision.
    fn start_next_update(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots) {
        for slot in planner.outdated_tasks().map(|task| task.slot) {
            if slots.eligibility(slot) == NodeEligibility::Excluded || self.occupied_slots.contains(&slot) {
                continue;
            }
            let mut step = planner.plan(slot, slots.eligibility(slot), slots.node(slot), true);
            // A terminal task there may already be marked for removal.
            step.remove.retain(|task| !self.remove.contains(task));
            if !self.try_add(step) || self.is_updating {
                break;
            }
        }
    }

    /// Adds the slot's plan; false if it does not fit any more.
    fn try_add(&mut self, step: SlotPlan) -> bool {
        let others = usize::from(step.promote.is_some()) + usize::from(step.create.is_some());
        if !self.budget.take(step.remove.len() + others) {
            return false;
        }
        self.remove.extend(step.remove);
        self.promote.extend(step.promote);
        self.create.extend(step.create);
        self.is_updating |= step.is_updating;
        self.recheck_after = earliest(self.recheck_after, step.recheck_after);
        true
    }

    fn build(self, state: &State, service: &Service, now: Timestamp) -> ReconcilePlan {
        let (term, at) = (state.applied().term, now);
        let mut commands = Vec::new();
        if !self.remove.is_empty() {
            commands.push(Command::SetDesiredTaskState {
                term,
                tasks: self.remove,
                desired: DesiredTaskState::Remove,
                at,
            });
        }
        if !self.promote.is_empty() {
            commands.push(Command::SetDesiredTaskState {
                term,
                tasks: self.promote,
                desired: DesiredTaskState::Running,
                at,
            });
        }
        if !self.create.is_empty() {
            let (service, revision) = (service.id, service.revision.number);
            commands.push(Command::CreateTasks { term, service, revision, slots: self.create, at });
        }
        ReconcilePlan { commands, recheck_after: earliest(self.budget.recheck_after(), self.recheck_after) }
    }
}

/// The earlier of two times, each if there is one.
fn earliest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}
