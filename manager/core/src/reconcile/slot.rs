//! What one slot needs: the single rule for creation, update, drain, loss, health and completion.
//!
//! A slot has no live task, one, or two of which the second replaces the first. The first stays until the
//! second runs: the second is created to be prepared only, is set to run when it is ready, and the first is
//! removed when it runs. The rule depends only on the current state, not on why there are two, nor on earlier
//! plans.
//!
//! If both write to volumes, or the service is updated with the order `stop-first`, the first is removed when
//! the second is prepared, and the second is set to run when the first is terminal: two processes must not
//! have the same data. If the first is unhealthy, the
//! second exists as long as the first does not recover; a second that is unhealthy is removed, and created
//! again later.
//!
//! A lost task stays in its slot until it is considered lost for good (`super::lost`): until then it is not
//! replaced.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use warren_types::{
    DesiredTaskState, Health, NodeId, Service, Task, TaskId, TaskState, Timestamp, UpdateOrder,
};

use super::{backoff, lost, update};
use crate::settling::settling_time;
use crate::state::{NewTask, NodeEligibility, State, is_equivalent, is_final};

/// With the order `stop-first`: how long the second may have no node before the first is removed all the same,
/// because it may have what the second needs.
pub(super) const STOP_FIRST_WAIT: Duration = Duration::from_secs(2);

/// What is to be done in one slot.
#[derive(Default)]
pub(super) struct SlotPlan {
    /// Tasks to remove from their nodes.
    pub remove: SmallVec<[TaskId; 2]>,
    /// A task that serves, and that the update stops before its replacement starts.
    pub stop_first: Option<TaskId>,
    /// The task to run.
    pub promote: Option<TaskId>,
    pub create: Option<NewTask>,
    /// An older revision's task is being replaced here.
    pub is_updating: bool,
    /// When to plan again if nothing changes.
    pub recheck_after: Option<Duration>,
    /// There is one live task, and it stays as it is.
    pub is_unchanged: bool,
}

/// Plans the slots of one service, as of one state.
pub(super) struct SlotPlanner<'a> {
    pub state: &'a State,
    service: &'a Service,
    now: Timestamp,
    /// The numbers of the revisions whose tasks are equivalent to those of the current one.
    equivalent_revisions: BTreeSet<u64>,
    /// Live tasks that must leave their nodes.
    misplaced: BTreeSet<TaskId>,
    /// The slots' tasks that are not live, oldest first.
    ended: BTreeMap<u32, SmallVec<[&'a Task; 4]>>,
    /// The rollout is paused, or waits for its image, so that no further task of an older revision is replaced.
    is_rollout_stopped: bool,
    /// Slots whose new task failed, as the policy of the rollout tolerates. The rollout does not wait for them.
    tolerated_slots: BTreeSet<u32>,
    /// There are tasks of older revisions.
    has_outdated_tasks: bool,
}

/// The slot that is planned.
#[derive(Clone, Copy)]
pub(super) struct SlotContext<'s> {
    pub slot: u32,
    pub eligibility: NodeEligibility,
    /// The node that its tasks are bound to.
    pub node: Option<NodeId>,
    /// The value of a label that its tasks are for.
    pub label_value: Option<&'s Arc<str>>,
    /// A task of an older revision may be replaced by the update.
    pub may_update: bool,
}

impl<'a> SlotPlanner<'a> {
    /// `is_rollout_held`: the revision of `service` is an earlier one, since the image of the current one is not known.
    pub fn new(
        state: &'a State,
        service: &'a Service,
        misplaced: BTreeSet<TaskId>,
        is_rollout_held: bool,
        now: Timestamp,
    ) -> Self {
        let current = &service.revision;
        let known = service.history.iter().chain([current]);
        let alike = known.filter(|known| is_equivalent(known, current)).map(|known| known.number).collect();
        let mut ended: BTreeMap<u32, SmallVec<[&Task; 4]>> = BTreeMap::new();
        for task in state.unsettled_tasks_of(&service.id).filter(|task| !task.is_live()) {
            ended.entry(task.slot).or_default().push(task);
        }
        let behind = update::outdated_revisions(state, service).next().is_some();
        let stopped = is_rollout_held || behind && service.rollout_failure().is_some();
        let tolerated = match behind && !stopped {
            true => update::failed_slots(state, service).into_keys().collect(),
            false => BTreeSet::new(),
        };
        Self {
            state,
            service,
            now,
            equivalent_revisions: alike,
            misplaced,
            ended,
            is_rollout_stopped: stopped,
            tolerated_slots: tolerated,
            has_outdated_tasks: behind,
        }
    }

    /// Slots in which something may have to be done, other than those without a live task and those that an
    /// update has not reached.
    pub fn unsettled_slots(&self) -> BTreeSet<u32> {
        let id = self.service.id;
        let happened =
            self.state.unsettled_tasks_of(&id).filter(|task| task.is_live() || needs_removal(task));
        let mut slots: BTreeSet<u32> = happened.map(|task| task.slot).collect();
        slots.extend(self.state.index().paired_slots.range((id, 0)..=(id, u32::MAX)).map(|(_, slot)| *slot));
        slots.extend(self.misplaced.iter().filter_map(|id| self.state.task(id)).map(|task| task.slot));
        slots.extend(self.state.unhealthy_tasks_of(&id).map(|task| task.slot));
        if self.has_outdated_tasks {
            let waiting = self.state.index().pending.range(crate::state::task_id_range(id));
            let waiting = waiting.filter_map(|id| self.state.task(id));
            slots.extend(waiting.filter(|task| self.is_outdated(task)).map(|task| task.slot));
        }
        slots
    }

    /// Live tasks of older revisions, oldest first.
    pub fn outdated_tasks(&self) -> impl Iterator<Item = &'a Task> {
        let (state, service) = (self.state, self.service.id);
        let outdated = update::outdated_revisions(state, self.service).filter(|_| !self.is_rollout_stopped);
        let numbers =
            outdated.flat_map(move |revision| state.index().live_tasks_of_revision(service, revision));
        numbers.filter_map(move |number| state.task(&TaskId { service, number })).map(AsRef::as_ref)
    }

    /// The slots that an update has left without their first task before the second one is ready, and when
    /// the next of them may be. Slots with two tasks are not among them. `leaving` are tasks that are removed
    /// anyway.
    pub fn slots_in_between(&self, leaving: &[TaskId]) -> (BTreeSet<u32>, Option<Duration>) {
        let (mut slots, mut next) = (BTreeSet::new(), None);
        let revision = &self.service.revision;
        let stops_first = self.order() == Some(UpdateOrder::StopFirst) || revision.task.writes_to_volumes();
        if !self.has_outdated_tasks || self.is_rollout_stopped || !stops_first {
            return (slots, next);
        }
        let id = self.service.id;
        let index = self.state.index();
        let numbers =
            self.equivalent_revisions.iter().flat_map(|revision| index.live_tasks_of_revision(id, *revision));
        let tasks = numbers.filter_map(|number| self.state.task(&TaskId { service: id, number }));
        let begins = tasks.filter(|task| !self.is_lost(task) && !is_unhealthy(task));
        let begins = begins.filter(|task| !leaving.contains(&task.id));
        let begins = begins.filter(|task| !self.is_tolerated(task.slot) || self.follows_outdated(task));
        for task in begins {
            let replaced = || self.ended(task.slot).iter().any(|ended| self.is_outdated(ended));
            let settling = settling_time(self.service, task, self.now);
            if settling == Some(Duration::ZERO)
                || index.paired_slots.contains(&(id, task.slot))
                || (task.node.is_none() && !replaced())
            {
                continue;
            }
            slots.insert(task.slot);
            next = settling.into_iter().chain(next).min();
        }
        (slots, next)
    }

    /// Whether the rollout does not wait for the slot, because its new task failed.
    pub fn is_tolerated(&self, slot: u32) -> bool {
        self.tolerated_slots.contains(&slot)
    }

    /// It was prepared while a task of an older revision ran in its slot, so it did not fail since that one was
    /// stopped.
    fn follows_outdated(&self, task: &Task) -> bool {
        let overlaps =
            |ended: &&Task| !ended.observed.state.is_terminal() || ended.observed.since > task.created_at;
        self.ended(task.slot).iter().any(|ended| self.is_outdated(ended) && overlaps(ended))
    }

    fn order(&self) -> Option<UpdateOrder> {
        self.service.rollout_policy().order
    }

    /// Whether the first task of a slot is stopped before the second one starts.
    fn stops_first(&self, older: &Task, newer: &Task) -> bool {
        let both_write = older.revision.task.writes_to_volumes() && newer.revision.task.writes_to_volumes();
        both_write || (self.is_outdated(older) && self.order() == Some(UpdateOrder::StopFirst))
    }

    /// What is to be done in the slot.
    pub fn plan(&self, place: SlotContext<'_>) -> SlotPlan {
        let slot = place.slot;
        let mut step = SlotPlan::default();
        let mut live = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        match (live.next(), live.next()) {
            (None, _) => self.plan_vacant(&mut step, place),
            (Some(task), None) => self.plan_single(&mut step, place, task),
            (Some(older), Some(newer)) => self.plan_pair(&mut step, place, older, newer),
        }
        let in_slot = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        let in_slot = in_slot.chain(self.ended(slot).iter().copied());
        let given_up = in_slot.filter_map(|task| lost::replace_at(self.service, task));
        let later = given_up.filter(|at| *at > self.now).min().map(|at| at.saturating_since(self.now));
        step.recheck_after = step.recheck_after.into_iter().chain(later).min();
        step.is_unchanged = self.state.live_tasks(&self.service.id, slot).count() == 1
            && step.remove.is_empty()
            && step.promote.is_none()
            && step.create.is_none();
        let over = self.ended(slot).iter().filter(|task| needs_removal(task) && !self.is_retained(task));
        step.remove.extend(over.map(|task| task.id));
        step
    }

    /// No task is live.
    fn plan_vacant(&self, step: &mut SlotPlan, place: SlotContext<'_>) {
        let finished = self.ended(place.slot).iter().any(|task| self.is_finished(task));
        let waits = self.service.revision.task.writes_to_volumes() && self.has_volume_writer(place.slot);
        if place.eligibility == NodeEligibility::Eligible && !finished && !waits {
            step.create = Some(self.new_task(place, None));
        }
    }

    /// One task is live.
    fn plan_single(&self, step: &mut SlotPlan, place: SlotContext<'_>, task: &Task) {
        let (misplaced, outdated) = (self.misplaced.contains(&task.id), self.is_outdated(task));
        let must_go = misplaced || is_unhealthy(task);
        let finished =
            |after| self.ended(place.slot).iter().any(|it| it.id.number > after && self.is_finished(it));
        let replacement = |step: &mut SlotPlan| {
            step.remove.push(task.id);
            self.plan_vacant(step, place);
        };
        if self.is_given_up(place, task) {
            return replacement(step);
        }
        if self.is_lost(task) {
            return;
        }
        if task.desired == DesiredTaskState::Ready {
            // The task that it should have replaced is gone.
            let waits = self.running_tasks(place.slot).any(|older| self.stops_first(older, task));
            match finished(0) || misplaced || outdated {
                true => replacement(step),
                false => step.promote = (!waits).then_some(task.id),
            }
            return;
        }
        let may_stay = !outdated || self.is_rollout_stopped;
        if !must_go && may_stay {
            return;
        }
        if finished(task.id.number) {
            step.remove.push(task.id);
        } else if task.node.is_none() {
            replacement(step);
        } else if place.eligibility == NodeEligibility::Eligible && (must_go || place.may_update) {
            step.create = Some(self.new_task(place, Some(task)));
            step.is_updating = !must_go;
        }
    }

    /// Two tasks are live.
    fn plan_pair(&self, step: &mut SlotPlan, place: SlotContext<'_>, older: &Task, newer: &Task) {
        // Whatever the state of the second, this slot is the one being updated.
        let place = SlotContext { may_update: true, ..place };
        let outdated = self.is_outdated(older);
        let must_go = self.misplaced.contains(&older.id) || is_unhealthy(older);
        let runs = newer.desired == DesiredTaskState::Running && newer.observed.ready;
        let settling = settling_time(self.service, newer, self.now);
        let is_settled = settling == Some(Duration::ZERO);
        let may_stay = !outdated || self.is_rollout_stopped;
        let misfit = self.misplaced.contains(&newer.id) || is_unhealthy(newer);
        let unfit = self.is_given_up(place, newer) || misfit || self.is_outdated(newer);
        // If the older one receives no traffic, or both will be removed, there is nothing to wait for. After a
        // rollback the older one is the one that stays.
        let newer_leaves_alone = unfit && !outdated && !must_go;
        let has_taken_over =
            runs && (!older.observed.ready || ((is_settled || unfit) && !newer_leaves_alone));
        if self.is_given_up(place, older) || (has_taken_over && !self.is_lost(newer)) {
            step.remove.push(older.id);
            self.plan_single(step, place, newer);
        } else if self.is_lost(newer) && !self.is_given_up(place, newer) {
            // A further replacement would be a third.
        } else if unfit {
            step.remove.push(newer.id);
            self.plan_single(step, place, older);
        } else if !must_go && may_stay && !runs {
            step.remove.push(newer.id);
        } else {
            let prepared =
                newer.desired == DesiredTaskState::Ready && newer.observed.state >= TaskState::Ready;
            let stops_first = self.stops_first(older, newer);
            let placement_wait = self.placement_wait(newer).filter(|_| stops_first && outdated && !must_go);
            if (prepared && stops_first) || placement_wait == Some(Duration::ZERO) {
                match outdated && !must_go && older.observed.ready {
                    true => step.stop_first = Some(older.id),
                    false => step.remove.push(older.id),
                }
            } else {
                step.promote = prepared.then_some(newer.id);
            }
            step.is_updating = outdated && !must_go;
            step.recheck_after = settling.into_iter().chain(placement_wait).min();
        }
    }

    /// With the order `stop-first`: for how long the second task of a slot, which has no node, may still keep
    /// the first one.
    fn placement_wait(&self, newer: &Task) -> Option<Duration> {
        let since = newer.created_at.max(newer.not_before().unwrap_or_default());
        let waits = self.order() == Some(UpdateOrder::StopFirst) && newer.node.is_none();
        waits.then(|| (since + STOP_FIRST_WAIT).saturating_since(self.now))
    }

    /// A task that replaces `replaced`, if there is such a task.
    fn new_task(&self, place: SlotContext<'_>, replaced: Option<&Task>) -> NewTask {
        let SlotContext { slot, node: bound_to, label_value, .. } = place;
        let alike = |task: &&Task| !self.is_outdated(task) && !task.is_surplus();
        let live = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        let live = live.filter(|task| !self.is_lost(task));
        let tasks = live.chain(self.ended(slot).iter().copied()).filter(alike);
        let not_before = backoff::not_before(tasks, self.now);
        let desired = if replaced.is_some() { DesiredTaskState::Ready } else { DesiredTaskState::Running };
        let (replaces, label_value) = (replaced.map(|task| task.id.number), label_value.cloned());
        NewTask { slot, not_before, desired, replaces, bound_to, label_value }
    }

    fn ended(&self, slot: u32) -> &[&'a Task] {
        self.ended.get(&slot).map_or(&[], |ended| ended)
    }

    /// Tasks of the slot that are being stopped and may still run.
    fn running_tasks(&self, slot: u32) -> impl Iterator<Item = &'a Task> {
        self.ended(slot).iter().copied().filter(|task| {
            let ends = task.observed.state.is_terminal() || task.observed.removed || task.node.is_none();
            !ends && !self.is_replaceable(task)
        })
    }

    fn has_volume_writer(&self, slot: u32) -> bool {
        self.running_tasks(slot).any(|task| task.revision.task.writes_to_volumes())
    }

    fn is_outdated(&self, task: &Task) -> bool {
        !self.equivalent_revisions.contains(&task.revision.number)
    }

    /// Its node is down.
    fn is_lost(&self, task: &Task) -> bool {
        lost::replace_at(self.service, task).is_some()
    }

    /// Its node is down, and the wait for it is over.
    fn is_replaceable(&self, task: &Task) -> bool {
        lost::replace_at(self.service, task).is_some_and(|at| at <= self.now)
    }

    /// It is replaceable, and if it is for a value of a label, another node with the value may have its successor:
    /// otherwise it continues when its node returns.
    fn is_given_up(&self, place: SlotContext<'_>, task: &Task) -> bool {
        let may_move = place.label_value.is_none() || place.eligibility == NodeEligibility::Eligible;
        may_move && self.is_replaceable(task)
    }

    /// After it the slot needs no further task.
    fn is_finished(&self, task: &Task) -> bool {
        is_final(task) && !self.is_outdated(task) && !task.is_surplus()
    }

    /// A completed task stays on its node, with its output, until the slot gets another task or the node must
    /// be left.
    fn is_retained(&self, task: &Task) -> bool {
        let node = task.node.and_then(|id| self.state.node(&id));
        let eligibility = node.map(|node| self.state.task_eligibility(self.service, task, node));
        let may_stay = eligibility.is_some_and(|it| it != NodeEligibility::Excluded);
        let followed = || {
            let mut live = self.state.live_tasks(&self.service.id, task.slot);
            live.any(|other| other.id > task.id && other.desired == DesiredTaskState::Running)
        };
        may_stay && self.is_finished(task) && !followed()
    }
}

/// It is terminal, and still holds something.
pub(super) fn needs_removal(task: &Task) -> bool {
    task.holds_resources() && task.desired < DesiredTaskState::Remove
}

/// As many of its checks failed in a row as its spec allows.
fn is_unhealthy(task: &Task) -> bool {
    task.observed.health == Health::Unhealthy
}
