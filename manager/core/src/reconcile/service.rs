//! The tasks of a service: which slots to look at, and what one plan does about them.
//!
//! A service that is settled is not scanned: the index says which of its tasks ended, are lost, stand by, share their
//! slot, are on nodes that they must leave, or run an older revision.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use warren_types::{Desired, Mode, Node, NodeId, Service, ServiceId, Task, TaskId, Timestamp};

use super::slot::{Judge, Step};
use super::{Budget, Plan, misplaced};
use crate::state::{Claim, Command, NewTask, State, claim};

/// What is to be done about the tasks of a service, replicated or global.
///
/// - A slot without a live task gets one, later if its tasks keep failing, and none if its task finished for good.
/// - Slots that are not wanted lose their tasks, the highest first; a service that is being removed loses all.
/// - A task on a node that is down is replaced, and stopped should the node come back; that of a global service
///   waits for its node.
/// - A task that runs an older revision, is unhealthy, or must leave its node, is replaced beside it (`super::slot`):
///   because of an update one slot after the other, because of its checks later if its slot keeps failing, otherwise at
///   once.
/// - A task that ended by itself is replaced, and what it holds on its node is cleaned up.
pub fn reconcile_service(state: &State, id: &ServiceId, now: Timestamp) -> Plan {
    let Some(service) = state.service(id) else { return Plan::default() };
    let slots = Slots::of(state, service);
    let judge = Judge::new(state, service, misplaced::of(state, service), now);
    let mut draft = Draft::default();
    draft.vacate(state, &slots, *id);
    let settled = draft.settle(&judge, &slots);
    draft.fill(&judge, &slots, &settled);
    match judge.taking_over(&draft.remove) {
        Some(wait) => draft.recheck_after = sooner(draft.recheck_after, wait),
        None if draft.updating => {}
        None => draft.update_one(&judge, &slots),
    }
    draft.plan(state, service, now)
}

/// Which slots a service has, and what each may have.
struct Slots {
    service: ServiceId,
    wanted: Wanted,
}

enum Wanted {
    /// Slots 1 to this.
    Replicas(u32),
    /// A slot per node.
    Nodes(BTreeMap<u32, (Claim, NodeId)>),
}

impl Slots {
    fn of(state: &State, service: &Service) -> Self {
        let wanted = match service.spec.mode {
            _ if service.removing => Wanted::Replicas(0),
            Mode::Replicated { replicas } => Wanted::Replicas(replicas),
            Mode::Global => {
                let slot = |node: &Node| Some((state.slot_of(node)?, (claim(service, node), node.id)));
                Wanted::Nodes(state.nodes().filter_map(|node| slot(node)).collect())
            }
        };
        Self { service: service.id, wanted }
    }

    fn claim(&self, slot: u32) -> Claim {
        match &self.wanted {
            Wanted::Replicas(replicas) if (1..=*replicas).contains(&slot) => Claim::New,
            Wanted::Replicas(_) => Claim::Nothing,
            Wanted::Nodes(nodes) => nodes.get(&slot).map_or(Claim::Nothing, |(claim, _)| *claim),
        }
    }

    /// The node that tasks of the slot are bound to.
    fn node(&self, slot: u32) -> Option<NodeId> {
        match &self.wanted {
            Wanted::Replicas(_) => None,
            Wanted::Nodes(nodes) => nodes.get(&slot).map(|(_, node)| *node),
        }
    }

    /// Live tasks of slots that are not wanted, highest slot first.
    fn surplus<'a>(&'a self, state: &'a State) -> impl Iterator<Item = TaskId> + use<'a> {
        let (service, first) = match self.wanted {
            Wanted::Replicas(replicas) => (self.service, replicas.saturating_add(1)),
            Wanted::Nodes(_) => (self.service, 0),
        };
        let live = state.index().live.from(service, first).rev();
        let unwanted = live.filter(|(slot, _)| self.claim(*slot) == Claim::Nothing);
        unwanted.map(move |(_, number)| TaskId { service, number })
    }

    /// Slots that may have a new task and that no task occupies. When as many are occupied as the highest one says,
    /// all below it are, so a replicated service that is settled or only grows is not scanned.
    fn gaps<'a>(&'a self, state: &'a State) -> Box<dyn Iterator<Item = u32> + 'a> {
        let service = self.service;
        let occupied = move |first| state.index().live.from(service, first).map(|(slot, _)| slot);
        match &self.wanted {
            Wanted::Replicas(replicas) => {
                let highest = occupied(1).next_back().unwrap_or(0);
                let full = state.index().occupied(&service) == highest;
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
            Wanted::Nodes(nodes) => {
                let open = nodes.iter().filter(|(_, (claim, _))| *claim == Claim::New).map(|(slot, _)| *slot);
                Box::new(open.filter(move |slot| state.index().occupants(service, *slot).next().is_none()))
            }
        }
    }
}

/// A plan that is being made.
#[derive(Default)]
struct Draft {
    budget: Budget,
    remove: Vec<TaskId>,
    promote: Vec<TaskId>,
    create: Vec<NewTask>,
    /// A slot is being updated.
    updating: bool,
    /// A new task has not run for long enough yet.
    recheck_after: Option<Duration>,
    /// Slots whose live tasks this plan does something about, or that have two.
    busy: BTreeSet<u32>,
}

impl Draft {
    /// Slots that are not wanted lose what they have.
    fn vacate(&mut self, state: &State, slots: &Slots, id: ServiceId) {
        self.remove = self.budget.collect(slots.surplus(state));
        let left = state
            .unsettled_of(&id)
            .filter(|task| slots.claim(task.slot) == Claim::Nothing && !task.is_live() && must_leave(task));
        let left = self.budget.collect(left.map(|task| task.id));
        self.remove.extend(left);
    }

    /// Decides the slots in which something happened. Answers which these are.
    fn settle(&mut self, judge: &Judge<'_>, slots: &Slots) -> BTreeSet<u32> {
        let wanted: BTreeSet<u32> = judge
            .slots_to_look_at()
            .into_iter()
            .filter(|slot| slots.claim(*slot) != Claim::Nothing)
            .collect();
        for slot in wanted.iter().copied() {
            let step = judge.decide(slot, slots.claim(slot), slots.node(slot), false);
            if !step.quiet {
                self.busy.insert(slot);
            }
            if !self.add(step) {
                break;
            }
        }
        wanted
    }

    /// Slots without a task get one.
    fn fill(&mut self, judge: &Judge<'_>, slots: &Slots, settled: &BTreeSet<u32>) {
        for slot in slots.gaps(judge.state).filter(|slot| !settled.contains(slot)) {
            let step = judge.decide(slot, slots.claim(slot), slots.node(slot), false);
            if !self.add(step) {
                break;
            }
        }
    }

    /// Begins with the next slot that runs an older revision.
    fn update_one(&mut self, judge: &Judge<'_>, slots: &Slots) {
        for slot in judge.outdated_tasks().map(|task| task.slot) {
            if slots.claim(slot) == Claim::Nothing || self.busy.contains(&slot) {
                continue;
            }
            let mut step = judge.decide(slot, slots.claim(slot), slots.node(slot), true);
            // What ended there may already have been told to leave.
            step.remove.retain(|task| !self.remove.contains(task));
            if !self.add(step) || self.updating {
                break;
            }
        }
    }

    /// Takes the step into the plan; false if it does not fit any more.
    fn add(&mut self, step: Step) -> bool {
        let others = usize::from(step.promote.is_some()) + usize::from(step.create.is_some());
        if !self.budget.take(step.remove.len() + others) {
            return false;
        }
        self.remove.extend(step.remove);
        self.promote.extend(step.promote);
        self.create.extend(step.create);
        self.updating |= step.updating;
        self.recheck_after = sooner(self.recheck_after, step.recheck_after);
        true
    }

    fn plan(self, state: &State, service: &Service, now: Timestamp) -> Plan {
        let (term, at) = (state.applied().term, now);
        let mut commands = Vec::new();
        if !self.remove.is_empty() {
            commands.push(Command::SetDesired { term, tasks: self.remove, desired: Desired::Remove, at });
        }
        if !self.promote.is_empty() {
            commands.push(Command::SetDesired { term, tasks: self.promote, desired: Desired::Running, at });
        }
        if !self.create.is_empty() {
            let (service, revision) = (service.id, service.revision.number);
            commands.push(Command::CreateTasks { term, service, revision, slots: self.create, at });
        }
        Plan { commands, recheck_after: sooner(self.budget.recheck_after(), self.recheck_after) }
    }
}

/// The sooner of two times, each if there is one.
fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// It is over, and still holds something.
pub(super) fn must_leave(task: &Task) -> bool {
    task.holds_node() && task.desired < Desired::Remove
}
