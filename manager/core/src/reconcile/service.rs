//! The tasks of a service: which slots to plan, and what one plan changes.
//!
//! A settled service is not scanned: the index has the tasks that ended, are lost, are standby, share their
//! slot, are on nodes that they must leave, or run an older revision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use warren_types::{
    DesiredTaskState, Node, NodeId, Revision, Service, ServiceId, ServiceMode, TaskId, Timestamp,
};

use super::slot::{SlotContext, SlotPlan, SlotPlanner, needs_removal};
use super::update::{self, NextStep};
use super::{Budget, MAX_REMOVALS, REMOVAL_PAUSE, ReconcilePlan, misplaced, room};
use crate::state::{ApplyOutcome, Command, NewTask, NodeEligibility, State, ValueSlot};

/// What is to be done about the tasks of a service, replicated or global.
///
/// - A slot without a live task gets one, later if its tasks keep failing, and none if its task is final, or
///   if many tasks of the service wait for a node (`super::room`).
/// - Slots that are not desired lose their tasks, the highest first; a service that is being removed loses
///   all.
/// - A task on a node that is down is replaced, and stopped if the node returns; that of a global service
///   waits for its node.
/// - A task that runs an older revision, is unhealthy, or must leave its node, gets a replacement next to it
///   (`super::slot`): for an update in as many slots at a time as the service's policy says, for failed checks
///   later if its slot keeps failing, otherwise immediately.
/// - A task that ended by itself is replaced, and what it holds on its node is removed.
pub fn reconcile_service(state: &State, id: &ServiceId, now: Timestamp) -> ReconcilePlan {
    let Some(service) = state.service(id) else { return ReconcilePlan::default() };
    let NextStep { step, recheck_after } = update::next_step(state, service, now);
    if let Some(step) = step {
        let (term, service, revision) = (state.applied().term, *id, service.revision.number);
        let command = Command::AdvanceRollout { term, service, revision, step, at: now };
        // Each step is recorded once, so a few lead to a state without one.
        let rest = state_after(state, std::slice::from_ref(&command));
        let rest = rest.map(|after| reconcile_service(&after, id, now)).unwrap_or_default();
        let commands = std::iter::once(command).chain(rest.commands).collect();
        return ReconcilePlan { commands, ..rest };
    }
    let held = held_service(state, service);
    let planned = held.as_ref().unwrap_or(service);
    let misplaced = misplaced::misplaced_tasks(state, planned);
    let mut plan = reconcile_tasks(state, planned, misplaced.clone(), held.is_some(), now);
    plan.recheck_after = earliest(plan.recheck_after, recheck_after);
    // The removal of the last task that is replaced, or the start of a prepared one, completes the rollout.
    let changes_tasks = plan.commands.iter().any(sets_desired_state);
    let may_complete = changes_tasks && !update::is_over(service);
    // A task that goes may make room on its node for one that had to leave it.
    let may_fit = changes_tasks && planned.revision.placement.max_per_node.is_some() && !misplaced.is_empty();
    let after = if may_complete || may_fit { state_after(state, &plan.commands) } else { None };
    let stays = |after: &State, task: &TaskId| after.task(task).is_some_and(|task| task.is_live());
    if let Some(after) = after
        && let Some(service) = after.service(id)
        && (may_complete && update::next_step(&after, service, now).step.is_some()
            || may_fit && {
                let still = misplaced::misplaced_tasks(&after, planned);
                misplaced.iter().any(|task| stays(&after, task) && !still.contains(task))
            })
    {
        let rest = reconcile_service(&after, id, now);
        plan.commands.extend(rest.commands);
        plan.recheck_after = earliest(plan.recheck_after, rest.recheck_after);
        plan.pause = plan.pause.or(rest.pause);
    }
    plan
}

/// The service with the revision of its new tasks, if that is not the current one. Placement is always the current one.
fn held_service(state: &State, service: &Service) -> Option<Service> {
    let revision = state.new_task_revision(service);
    (revision.number != service.revision.number).then(|| {
        let placement = service.revision.placement.clone();
        let revision = Arc::new(Revision { placement, ..(**revision).clone() });
        Service { revision, ..service.clone() }
    })
}

fn sets_desired_state(command: &Command) -> bool {
    matches!(command, Command::SetDesiredTaskState { .. })
}

/// The state after the commands; `None` if they change nothing.
fn state_after(state: &State, commands: &[Command]) -> Option<State> {
    let (mut after, applied) = (state.clone(), state.applied());
    let mut has_changed = false;
    for (index, command) in (applied.index.saturating_add(1)..).zip(commands) {
        has_changed |= matches!(after.apply(applied.term, index, command), ApplyOutcome::Applied { .. });
    }
    has_changed.then_some(after)
}

/// The tasks of a service whose rollout needs no step now.
fn reconcile_tasks(
    state: &State,
    service: &Service,
    misplaced: BTreeSet<TaskId>,
    is_rollout_held: bool,
    now: Timestamp,
) -> ReconcilePlan {
    let slots = DesiredSlots::of(state, service);
    let mut draft = PlanBuilder::new(state, service);
    draft.remove_surplus(&slots);
    if service.removing {
        return draft.build(now);
    }
    let planner = SlotPlanner::new(state, service, misplaced, is_rollout_held, now);
    draft.parallelism = service.rollout_policy().parallelism.slots(state.desired_tasks(service));
    let settled = draft.reconcile_unsettled(&planner, &slots);
    draft.create_missing(&planner, &slots, &settled);
    draft.stop_prepared(&planner);
    match update::delayed_until(service, now) {
        Some(until) if planner.outdated_tasks().next().is_some() => {
            draft.recheck_after = earliest(draft.recheck_after, Some(until.saturating_since(now)));
        }
        Some(_) => {}
        None => draft.start_next_updates(&planner, &slots),
    }
    draft.build(now)
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
    /// A slot per value of a label.
    Values(BTreeMap<u32, ValueSlot>),
}

impl DesiredSlots {
    fn of(state: &State, service: &Service) -> Self {
        let expected = match service.spec.mode {
            _ if service.removing => SlotSet::Replicas(0),
            ServiceMode::Replicated { replicas } => SlotSet::Replicas(replicas),
            ServiceMode::Global => match &service.spec.per {
                Some(label) => SlotSet::Values(state.value_slots(service, label)),
                None => {
                    let slot =
                        |node: &Node| (node.number.into(), (state.eligibility(service, node), node.id));
                    SlotSet::Nodes(state.nodes().map(|node| slot(node)).collect())
                }
            },
        };
        Self { service: service.id, desired: expected }
    }

    fn eligibility(&self, slot: u32) -> NodeEligibility {
        match &self.desired {
            SlotSet::Replicas(replicas) if (1..=*replicas).contains(&slot) => NodeEligibility::Eligible,
            SlotSet::Replicas(_) => NodeEligibility::Excluded,
            SlotSet::Nodes(nodes) => nodes.get(&slot).map_or(NodeEligibility::Excluded, |(claim, _)| *claim),
            SlotSet::Values(values) => {
                values.get(&slot).map_or(NodeEligibility::Excluded, |it| it.eligibility)
            }
        }
    }

    /// The slot, with what its tasks are bound to.
    fn context(&self, slot: u32, may_update: bool) -> SlotContext<'_> {
        let (node, label_value) = match &self.desired {
            SlotSet::Replicas(_) => (None, None),
            SlotSet::Nodes(nodes) => (nodes.get(&slot).map(|(_, node)| *node), None),
            SlotSet::Values(values) => (None, values.get(&slot).map(|it| &it.value)),
        };
        SlotContext { slot, eligibility: self.eligibility(slot), node, label_value, may_update }
    }

    /// All slots of a global service.
    fn numbers(&self) -> Box<dyn Iterator<Item = u32> + '_> {
        match &self.desired {
            SlotSet::Replicas(replicas) => Box::new(1..=*replicas),
            SlotSet::Nodes(nodes) => Box::new(nodes.keys().copied()),
            SlotSet::Values(values) => Box::new(values.keys().copied()),
        }
    }

    /// Live tasks of slots that are not desired, highest slot first.
    fn surplus<'a>(&'a self, state: &'a State) -> impl Iterator<Item = TaskId> + use<'a> {
        let (service, first) = match self.desired {
            SlotSet::Replicas(replicas) => (self.service, replicas.saturating_add(1)),
            SlotSet::Nodes(_) | SlotSet::Values(_) => (self.service, 0),
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
            SlotSet::Nodes(_) | SlotSet::Values(_) => {
                let open = self.numbers().filter(|slot| self.eligibility(*slot) == NodeEligibility::Eligible);
                Box::new(open.filter(move |slot| state.index().slot_tasks(service, *slot).next().is_none()))
            }
        }
    }
}

/// A plan that is being made.
struct PlanBuilder<'a> {
    state: &'a State,
    service: &'a Service,
    budget: Budget,
    /// How many tasks may be created for vacant slots; `None`: not counted yet.
    spare: Option<u64>,
    remove: Vec<TaskId>,
    /// Not all tasks of slots that are not desired are in `remove`.
    has_more_surplus: bool,
    promote: Vec<TaskId>,
    create: Vec<NewTask>,
    /// How many slots may be updated at a time.
    parallelism: u32,
    /// Slots that are being updated, and for which the next ones wait.
    updating: BTreeSet<u32>,
    /// Tasks that serve, and whose prepared replacements wait for their end, with their slots.
    stop_first: Vec<(u32, TaskId)>,
    /// A new task has not run for long enough yet.
    recheck_after: Option<Duration>,
    /// Slots whose live tasks this plan changes, or that have two.
    occupied_slots: BTreeSet<u32>,
}

impl<'a> PlanBuilder<'a> {
    fn new(state: &'a State, service: &'a Service) -> Self {
        Self {
            state,
            service,
            budget: Budget::default(),
            spare: None,
            remove: Vec::new(),
            has_more_surplus: false,
            promote: Vec::new(),
            create: Vec::new(),
            parallelism: 0,
            updating: BTreeSet::new(),
            stop_first: Vec::new(),
            recheck_after: None,
            occupied_slots: BTreeSet::new(),
        }
    }

    /// Removes the tasks of slots that are not desired.
    fn remove_surplus(&mut self, slots: &DesiredSlots) {
        let state = self.state;
        let mut removals = Budget::new(MAX_REMOVALS);
        self.remove = removals.collect(slots.surplus(state));
        let left = state.unsettled_tasks_of(&self.service.id).filter(|task| {
            slots.eligibility(task.slot) == NodeEligibility::Excluded
                && !task.is_live()
                && needs_removal(task)
        });
        let left = removals.collect(left.map(|task| task.id));
        self.remove.extend(left);
        self.budget.take(self.remove.len());
        self.has_more_surplus = removals.is_exceeded;
    }

    /// Plans the slots in which something happened. Returns their numbers.
    fn reconcile_unsettled(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots) -> BTreeSet<u32> {
        let desired: BTreeSet<u32> = planner
            .unsettled_slots()
            .into_iter()
            .filter(|slot| slots.eligibility(*slot) != NodeEligibility::Excluded)
            .collect();
        for slot in desired.iter().copied() {
            let step = planner.plan(slots.context(slot, false));
            if !step.is_unchanged {
                self.occupied_slots.insert(slot);
            }
            if !self.try_add(planner, slot, step) {
                break;
            }
        }
        desired
    }

    /// Creates tasks for vacant slots.
    fn create_missing(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots, settled: &BTreeSet<u32>) {
        for slot in slots.vacant_slots(planner.state).filter(|slot| !settled.contains(slot)) {
            let step = planner.plan(slots.context(slot, false));
            if (step.create.is_some() && !self.has_spare()) || !self.try_add(planner, slot, step) {
                break;
            }
        }
    }

    /// Whether a task may be created for a vacant slot. Those of a global service are as many as its nodes.
    fn has_spare(&mut self) -> bool {
        let is_bounded = self.service.spec.replicas().is_some();
        !is_bounded || *self.counted_spare() > 0
    }

    /// Tasks without a node that this plan removes make room for others.
    fn counted_spare(&mut self) -> &mut u64 {
        let (state, service) = (self.state, self.service);
        let removed = count_unplaced(state, &self.remove);
        self.spare.get_or_insert_with(|| room::spare_tasks(state, service).saturating_add(removed))
    }

    /// Stops tasks whose replacements are prepared, as far as not too many slots are without a task that serves.
    fn stop_prepared(&mut self, planner: &SlotPlanner<'_>) {
        let (mut between, next) = planner.slots_in_between(&self.remove);
        self.recheck_after = earliest(self.recheck_after, next);
        // A slot that gets a second task counts as such.
        between.retain(|slot| self.create.iter().all(|new| new.slot != *slot));
        self.updating.extend(&between);
        for (slot, task) in std::mem::take(&mut self.stop_first) {
            if self.is_full(&between) || !self.budget.take(1) {
                break;
            }
            self.remove.push(task);
            between.insert(slot);
        }
    }

    /// Starts the update of the next slots that run an older revision.
    fn start_next_updates(&mut self, planner: &SlotPlanner<'_>, slots: &DesiredSlots) {
        for slot in planner.outdated_tasks().map(|task| task.slot) {
            if self.is_full(&self.updating) {
                break;
            }
            if slots.eligibility(slot) == NodeEligibility::Excluded || self.occupied_slots.contains(&slot) {
                continue;
            }
            let mut step = planner.plan(slots.context(slot, true));
            // A terminal task there may already be marked for removal.
            step.remove.retain(|task| !self.remove.contains(task));
            if !self.try_add(planner, slot, step) {
                break;
            }
        }
    }

    /// Adds the slot's plan; false if it does not fit any more.
    fn try_add(&mut self, planner: &SlotPlanner<'_>, slot: u32, mut step: SlotPlan) -> bool {
        let fills_vacant_slot = step.create.as_ref().is_some_and(|new| new.replaces.is_none());
        if fills_vacant_slot {
            let freed = count_unplaced(self.state, &step.remove);
            *self.counted_spare() += freed;
            if self.has_spare() {
                *self.counted_spare() = self.counted_spare().saturating_sub(1);
            } else {
                step.create = None;
            }
        }
        let others = usize::from(step.promote.is_some()) + usize::from(step.create.is_some());
        if !self.budget.take(step.remove.len() + others) {
            return false;
        }
        self.remove.extend(step.remove);
        self.stop_first.extend(step.stop_first.map(|task| (slot, task)));
        self.promote.extend(step.promote);
        self.create.extend(step.create);
        if step.is_updating && !planner.is_tolerated(slot) {
            self.updating.insert(slot);
        }
        self.recheck_after = earliest(self.recheck_after, step.recheck_after);
        true
    }

    /// No further slot may be one of these.
    fn is_full(&self, slots: &BTreeSet<u32>) -> bool {
        slots.len() >= usize::try_from(self.parallelism).unwrap_or(usize::MAX)
    }

    fn build(self, now: Timestamp) -> ReconcilePlan {
        let (term, at) = (self.state.applied().term, now);
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
            let (service, revision) = (self.service.id, self.service.revision.number);
            commands.push(Command::CreateTasks { term, service, revision, slots: self.create, at });
        }
        ReconcilePlan {
            commands,
            recheck_after: earliest(self.budget.recheck_after(), self.recheck_after),
            pause: self.has_more_surplus.then_some(REMOVAL_PAUSE),
        }
    }
}

/// How many of the tasks have no node.
fn count_unplaced(state: &State, tasks: &[TaskId]) -> u64 {
    tasks.iter().filter_map(|id| state.task(id)).filter(|task| task.is_live() && task.node.is_none()).count()
        as u64
}

/// The earlier of two times, each if there is one.
fn earliest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}
