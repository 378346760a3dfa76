//! What one slot needs: the one rule for creation, update, drain, loss and completion.
//!
//! A slot has no live task, one, or two of which the second is there to replace the first. The first stays until the
//! second runs: it is created to be prepared only, told to run when it is ready, and the first goes when it runs. The
//! rule looks only at what is, so it does not matter why there are two, nor what was planned before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::SmallVec;
use warren_types::{Desired, Mode, NodeId, Service, Task, TaskId, TaskState, Timestamp};

use super::service::must_leave;
use super::{backoff, rollout};
use crate::state::{Claim, NewTask, State, claim, finishes, same_shape};

/// How long a task must have run before the one that it replaces goes: a program that ends at once has not taken over.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// What is to be done in one slot.
#[derive(Default)]
pub(super) struct Step {
    /// They are to leave their nodes.
    pub remove: SmallVec<[TaskId; 2]>,
    /// It is to run.
    pub promote: Option<TaskId>,
    pub create: Option<NewTask>,
    /// An older revision's task is being replaced here.
    pub updating: bool,
    /// When to look again, though nothing changed.
    pub recheck_after: Option<Duration>,
    /// There is one live task, and it is left as it is.
    pub quiet: bool,
}

/// Judges the slots of one service, as of one state.
pub(super) struct Judge<'a> {
    pub state: &'a State,
    service: &'a Service,
    now: Timestamp,
    /// The numbers of the revisions whose tasks are as good as those of the current one.
    alike: BTreeSet<u64>,
    /// Live tasks that must leave their nodes.
    misplaced: BTreeSet<TaskId>,
    /// The slots' tasks that are not live, oldest first.
    ended: BTreeMap<u32, SmallVec<[&'a Task; 4]>>,
    /// A task of the current revision failed, so that no further one replaces one of an older revision.
    stopped: bool,
    /// There are tasks of older revisions.
    behind: bool,
}

/// The slot that is decided.
#[derive(Clone, Copy)]
struct Place {
    slot: u32,
    claim: Claim,
    node: Option<NodeId>,
    /// A task of an older revision may be replaced because of that.
    turn: bool,
}

impl<'a> Judge<'a> {
    pub fn new(state: &'a State, service: &'a Service, misplaced: BTreeSet<TaskId>, now: Timestamp) -> Self {
        let current = &service.revision;
        let known = service.history.iter().chain([current]);
        let alike = known.filter(|known| same_shape(known, current)).map(|known| known.number).collect();
        let mut ended: BTreeMap<u32, SmallVec<[&Task; 4]>> = BTreeMap::new();
        for task in state.unsettled_of(&service.id).filter(|task| !task.is_live()) {
            ended.entry(task.slot).or_default().push(task);
        }
        let behind = rollout::outdated_revisions(state, service).next().is_some();
        let stopped = behind && rollout::failure(state, service).is_some();
        Self { state, service, now, alike, misplaced, ended, stopped, behind }
    }

    /// Slots in which something may have to be done, other than those without a live task and those that an update
    /// has not come to.
    pub fn slots_to_look_at(&self) -> BTreeSet<u32> {
        let id = self.service.id;
        let happened = self.state.unsettled_of(&id).filter(|task| task.is_live() || must_leave(task));
        let mut slots: BTreeSet<u32> = happened.map(|task| task.slot).collect();
        slots.extend(self.state.index().paired.range((id, 0)..=(id, u32::MAX)).map(|(_, slot)| *slot));
        slots.extend(self.misplaced.iter().filter_map(|id| self.state.task(id)).map(|task| task.slot));
        if self.behind {
            let waiting = self.state.index().waiting.range(crate::state::numbers(id));
            let waiting = waiting.filter_map(|id| self.state.task(id));
            slots.extend(waiting.filter(|task| self.is_outdated(task)).map(|task| task.slot));
        }
        slots
    }

    /// Live tasks of older revisions, oldest first.
    pub fn outdated_tasks(&self) -> impl Iterator<Item = &'a Task> {
        let (state, service) = (self.state, self.service.id);
        let outdated = rollout::outdated_revisions(state, self.service).filter(|_| !self.stopped);
        let tasks = outdated.flat_map(move |revision| {
            state.index().by_revision.range((service, revision, 0)..=(service, revision, u64::MAX))
        });
        tasks
            .filter_map(move |(_, _, number)| state.task(&TaskId { service, number: *number }))
            .map(AsRef::as_ref)
    }

    /// What is to be done in the slot. `turn`: it may begin to be updated.
    pub fn decide(&self, slot: u32, claim: Claim, node: Option<NodeId>, turn: bool) -> Step {
        let place = Place { slot, claim, node, turn };
        let mut step = Step::default();
        let mut live = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        match (live.next(), live.next()) {
            (None, _) => self.fill(&mut step, place),
            (Some(task), None) => self.one(&mut step, place, task),
            (Some(older), Some(newer)) => self.two(&mut step, place, older, newer),
        }
        step.quiet = self.state.live_tasks(&self.service.id, slot).count() == 1
            && step.remove.is_empty()
            && step.promote.is_none()
            && step.create.is_none();
        let over = self.ended(slot).iter().filter(|task| must_leave(task) && !self.is_kept(task));
        step.remove.extend(over.map(|task| task.id));
        step
    }

    /// No task is live.
    fn fill(&self, step: &mut Step, place: Place) {
        let finished = self.ended(place.slot).iter().any(|task| self.is_finished(task));
        if place.claim == Claim::New && !finished {
            step.create = Some(self.new_task(place, Desired::Running, None));
        }
    }

    /// One task is live.
    fn one(&self, step: &mut Step, place: Place, task: &Task) {
        let (misplaced, outdated) = (self.misplaced.contains(&task.id), self.is_outdated(task));
        let finished =
            |after| self.ended(place.slot).iter().any(|it| it.id.number > after && self.is_finished(it));
        let anew = |step: &mut Step| {
            step.remove.push(task.id);
            self.fill(step, place);
        };
        if self.is_lost(task) {
            return anew(step);
        }
        if task.desired == Desired::Ready {
            // What it should have replaced is gone.
            match finished(0) || misplaced || outdated {
                true => anew(step),
                false => step.promote = Some(task.id),
            }
            return;
        }
        let may_stay = !outdated || self.stopped;
        if !misplaced && may_stay {
            return;
        }
        if finished(task.id.number) {
            step.remove.push(task.id);
        } else if task.node.is_none() {
            anew(step);
        } else if place.claim == Claim::New && (misplaced || place.turn) {
            step.create = Some(self.new_task(place, Desired::Ready, Some(task.id.number)));
            step.updating = !misplaced;
        }
    }

    /// Two tasks are live.
    fn two(&self, step: &mut Step, place: Place, older: &Task, newer: &Task) {
        // Whatever becomes of the second, the slot is the one whose turn it is.
        let place = Place { turn: true, ..place };
        let (misplaced, outdated) = (self.misplaced.contains(&older.id), self.is_outdated(older));
        let runs = newer.desired == Desired::Running && newer.observed.ready;
        let settling = SETTLED_AFTER.saturating_sub(self.now.since(newer.observed.since));
        let may_stay = !outdated || self.stopped;
        let unfit = self.is_lost(newer) || self.misplaced.contains(&newer.id) || self.is_outdated(newer);
        // Where the older one serves nobody, or the newer one will go as well, there is nothing to wait for.
        let has_taken_over = runs && (settling.is_zero() || !older.observed.ready || unfit);
        if self.is_lost(older) || (has_taken_over && !self.is_lost(newer)) {
            step.remove.push(older.id);
            self.one(step, place, newer);
        } else if unfit {
            step.remove.push(newer.id);
            self.one(step, place, older);
        } else if !misplaced && may_stay && !runs {
            step.remove.push(newer.id);
        } else {
            let prepared = newer.desired == Desired::Ready && newer.observed.state >= TaskState::Ready;
            step.promote = prepared.then_some(newer.id);
            step.updating = outdated && !misplaced;
            step.recheck_after = runs.then_some(settling);
        }
    }

    fn new_task(&self, place: Place, desired: Desired, replaces: Option<u64>) -> NewTask {
        let Place { slot, node: bound_to, .. } = place;
        let alike = self.ended(slot).iter().copied().filter(|task| !self.is_outdated(task));
        NewTask { slot, not_before: backoff::not_before(alike, self.now), desired, replaces, bound_to }
    }

    fn ended(&self, slot: u32) -> &[&'a Task] {
        self.ended.get(&slot).map_or(&[], |ended| ended)
    }

    fn is_outdated(&self, task: &Task) -> bool {
        !self.alike.contains(&task.revision.number)
    }

    /// It cannot be reached, and need not be waited for.
    fn is_lost(&self, task: &Task) -> bool {
        task.lost_since.is_some() && self.service.spec.mode != Mode::Global
    }

    /// After it the slot wants no further task.
    fn is_finished(&self, task: &Task) -> bool {
        finishes(task) && !self.is_outdated(task)
    }

    /// What finished stays on its node, with its output, until the slot gets another task or the node must be left.
    fn is_kept(&self, task: &Task) -> bool {
        let node = task.node.and_then(|id| self.state.node(&id));
        let may_stay = node.is_some_and(|node| claim(self.service, node) != Claim::Nothing);
        let followed = || {
            let mut live = self.state.live_tasks(&self.service.id, task.slot);
            live.any(|other| other.id > task.id && other.desired == Desired::Running)
        };
        may_stay && self.is_finished(task) && !followed()
    }
}
