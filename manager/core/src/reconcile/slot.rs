//! What one slot needs: the one rule for creation, update, drain, loss, health and completion.
//!
//! A slot has no live task, one, or two of which the second is there to replace the first. The first stays until the
//! second runs: it is created to be prepared only, told to run when it is ready, and the first goes when it runs. The
//! rule looks only at what is, so it does not matter why there are two, nor what was planned before.
//!
//! Where both write to volumes, the first goes when the second is prepared, and the second is told to run when the
//! first has ended: two processes must not have the same data. Where the first is unhealthy, the second is there as
//! long as the first does not recover; a second that is unhealthy goes, and is tried again later.
//!
//! One that is lost stays in its slot until it is given up (`super::lost`): until then nothing is done in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use smallvec::SmallVec;
use warren_types::{
    Desired, Health, Mount, MountSource, NodeId, Revision, Service, Task, TaskId, TaskState, Timestamp,
};

use super::service::must_leave;
use super::{backoff, lost, rollout};
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
        slots.extend(self.state.unhealthy_of(&id).map(|task| task.slot));
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
        let numbers = outdated.flat_map(move |revision| state.index().of_revision(service, revision));
        numbers.filter_map(move |number| state.task(&TaskId { service, number })).map(AsRef::as_ref)
    }

    /// Where the first goes before the second runs, a slot is not seen to be updated any more while the second begins:
    /// it is still that slot's turn, for so long if that is known. `leaving` are tasks that are told to go anyway.
    #[expect(clippy::option_option, reason = "outside: is it so; inside: is it known for how long")]
    pub fn taking_over(&self, leaving: &[TaskId]) -> Option<Option<Duration>> {
        let revision = &self.service.revision;
        if !self.behind || self.stopped || !writes_to_volumes(revision) {
            return None;
        }
        let id = self.service.id;
        let index = self.state.index();
        let numbers = self.alike.iter().flat_map(|revision| index.of_revision(id, *revision));
        let tasks = numbers.filter_map(|number| self.state.task(&TaskId { service: id, number }));
        let begins = tasks.filter(|task| task.node.is_some() && !self.is_lost(task) && !is_unhealthy(task));
        let begins = begins.filter(|task| !leaving.contains(&task.id));
        let waits = begins.filter_map(|task| {
            let settling = SETTLED_AFTER.saturating_sub(self.now.since(task.observed.since));
            match task.desired == Desired::Running && task.observed.ready {
                true => (!settling.is_zero()).then_some(Some(settling)),
                false => Some(None),
            }
        });
        waits.reduce(|one, other| one.into_iter().chain(other).min())
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
        let in_slot = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        let in_slot = in_slot.chain(self.ended(slot).iter().copied());
        let given_up = in_slot.filter_map(|task| lost::given_up_at(self.service, task));
        let later = given_up.filter(|at| *at > self.now).min().map(|at| at.since(self.now));
        step.recheck_after = step.recheck_after.into_iter().chain(later).min();
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
        let waits = writes_to_volumes(&self.service.revision) && self.has_one_that_writes(place.slot);
        if place.claim == Claim::New && !finished && !waits {
            step.create = Some(self.new_task(place, None));
        }
    }

    /// One task is live.
    fn one(&self, step: &mut Step, place: Place, task: &Task) {
        let (misplaced, outdated) = (self.misplaced.contains(&task.id), self.is_outdated(task));
        let must_go = misplaced || is_unhealthy(task);
        let finished =
            |after| self.ended(place.slot).iter().any(|it| it.id.number > after && self.is_finished(it));
        let anew = |step: &mut Step| {
            step.remove.push(task.id);
            self.fill(step, place);
        };
        if self.is_given_up(task) {
            return anew(step);
        }
        if self.is_lost(task) {
            return;
        }
        if task.desired == Desired::Ready {
            // What it should have replaced is gone.
            let waits = writes_to_volumes(&task.revision) && self.has_one_that_writes(place.slot);
            match finished(0) || misplaced || outdated {
                true => anew(step),
                false => step.promote = (!waits).then_some(task.id),
            }
            return;
        }
        let may_stay = !outdated || self.stopped;
        if !must_go && may_stay {
            return;
        }
        if finished(task.id.number) {
            step.remove.push(task.id);
        } else if task.node.is_none() {
            anew(step);
        } else if place.claim == Claim::New && (must_go || place.turn) {
            step.create = Some(self.new_task(place, Some(task)));
            step.updating = !must_go;
        }
    }

    /// Two tasks are live.
    fn two(&self, step: &mut Step, place: Place, older: &Task, newer: &Task) {
        // Whatever becomes of the second, the slot is the one whose turn it is.
        let place = Place { turn: true, ..place };
        let outdated = self.is_outdated(older);
        let must_go = self.misplaced.contains(&older.id) || is_unhealthy(older);
        let runs = newer.desired == Desired::Running && newer.observed.ready;
        let settling = SETTLED_AFTER.saturating_sub(self.now.since(newer.observed.since));
        let may_stay = !outdated || self.stopped;
        let misfit = self.misplaced.contains(&newer.id) || is_unhealthy(newer);
        let unfit = self.is_given_up(newer) || misfit || self.is_outdated(newer);
        // Where the older one serves nobody, or the newer one will go as well, there is nothing to wait for.
        let has_taken_over = runs && (settling.is_zero() || !older.observed.ready || unfit);
        if self.is_given_up(older) || (has_taken_over && !self.is_lost(newer)) {
            step.remove.push(older.id);
            self.one(step, place, newer);
        } else if self.is_lost(newer) && !self.is_given_up(newer) {
            // Another beside it would be a third.
        } else if unfit {
            step.remove.push(newer.id);
            self.one(step, place, older);
        } else if !must_go && may_stay && !runs {
            step.remove.push(newer.id);
        } else {
            let prepared = newer.desired == Desired::Ready && newer.observed.state >= TaskState::Ready;
            if prepared && writes_to_volumes(&older.revision) && writes_to_volumes(&newer.revision) {
                step.remove.push(older.id);
            } else {
                step.promote = prepared.then_some(newer.id);
            }
            step.updating = outdated && !must_go;
            step.recheck_after = runs.then_some(settling);
        }
    }

    /// One that is there to take over from `replaced`, if there is such a task.
    fn new_task(&self, place: Place, replaced: Option<&Task>) -> NewTask {
        let Place { slot, node: bound_to, .. } = place;
        let alike = |task: &&Task| !self.is_outdated(task);
        let live = self.state.live_tasks(&self.service.id, slot).map(AsRef::as_ref);
        let live = live.filter(|task| !self.is_lost(task));
        let tasks = live.chain(self.ended(slot).iter().copied()).filter(alike);
        let not_before = backoff::not_before(tasks, self.now);
        let desired = if replaced.is_some() { Desired::Ready } else { Desired::Running };
        NewTask { slot, not_before, desired, replaces: replaced.map(|task| task.id.number), bound_to }
    }

    fn ended(&self, slot: u32) -> &[&'a Task] {
        self.ended.get(&slot).map_or(&[], |ended| ended)
    }

    /// A task of the slot that was told to go may still write to its volumes.
    fn has_one_that_writes(&self, slot: u32) -> bool {
        self.ended(slot).iter().any(|task| {
            let ends = task.observed.state.is_terminal() || task.observed.removed || task.node.is_none();
            !ends && !self.is_given_up(task) && writes_to_volumes(&task.revision)
        })
    }

    fn is_outdated(&self, task: &Task) -> bool {
        !self.alike.contains(&task.revision.number)
    }

    /// It cannot be reached.
    fn is_lost(&self, task: &Task) -> bool {
        lost::given_up_at(self.service, task).is_some()
    }

    /// It cannot be reached, and need not be waited for any more.
    fn is_given_up(&self, task: &Task) -> bool {
        lost::given_up_at(self.service, task).is_some_and(|at| at <= self.now)
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

/// Its tasks change data that outlives them.
fn writes_to_volumes(revision: &Revision) -> bool {
    let writes = |mount: &Mount| matches!(mount.source, MountSource::Volume { .. }) && !mount.read_only;
    revision.task.mounts.iter().any(writes)
}

/// As many of its checks failed in a row as its spec allows.
fn is_unhealthy(task: &Task) -> bool {
    task.observed.health == Health::Unhealthy
}
