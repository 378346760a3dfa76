//! Which task goes to which node, and why the rest goes nowhere.
//!
//! Tasks of one revision are alike, so they are placed as a group (that of a global service goes to its node or
//! nowhere, and is one by itself): the nodes are filtered once, kept in a heap by score, and each placement is
//! accounted on a working copy before the next is made. Addresses and ports are given out when the placement is
//! applied; what the plan found to fit fits then too, if nothing else came between.
//!
//! To add a filter: one file in `filter/`, one line in `filter::FILTERS`.

mod filter;
mod refusals;
mod score;
mod view;
mod volumes;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use warren_types::{NodeId, Revision, Service, Task, TaskId, Timestamp};

use crate::state::{Command, State};
pub use refusals::Refusals;
use score::Score;
use view::View;
use volumes::{Planned, Volumes};

/// How many tasks one plan places: large enough to be fast, small enough for one raft entry.
pub const MAX_PLACEMENTS: usize = 1000;

/// What the scheduler decided.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Which task goes where.
    pub assignments: Vec<(TaskId, NodeId)>,
    /// Why the rest goes nowhere. Revisions that the bound kept from being looked at are not among them.
    pub refusals: Refusals,
    /// When to look again if nothing changes: the end of a back-off, or at once when the bound was reached.
    pub recheck_after: Option<Duration>,
}

impl Placement {
    /// The command that carries it out; `None` when there is nothing to place.
    pub fn command(&self, state: &State, now: Timestamp) -> Option<Command> {
        let (term, placements) = (state.applied().term, self.assignments.clone());
        (!placements.is_empty()).then_some(Command::AssignTasks { term, placements, at: now })
    }
}

/// Tasks to place that are alike, and what they want.
pub(crate) struct Group<'a> {
    state: &'a State,
    service: &'a Service,
    revision: &'a Revision,
    /// The only node that the tasks may go to.
    bound_to: Option<NodeId>,
    /// Where the task is that this one replaces; asked only where there may be so many tasks on one node.
    replaces_on: Option<NodeId>,
    volumes: Volumes<'a>,
    tasks: Vec<TaskId>,
}

/// Places waiting tasks, at most [`MAX_PLACEMENTS`].
pub fn schedule(state: &State, now: Timestamp) -> Placement {
    schedule_up_to(state, now, MAX_PLACEMENTS)
}

/// Places waiting tasks, at most `bound`. Takes O(nodes) per revision that has any, and O(log nodes) per
/// task.
pub fn schedule_up_to(state: &State, now: Timestamp, bound: usize) -> Placement {
    let mut placement = Placement::default();
    let mut waiting = Waiting::of(state, now);
    let (mut view, mut planned) = (None, Planned::new());
    loop {
        let room = bound - placement.assignments.len();
        let Some(mut group) = waiting.group(room.saturating_add(1)) else { break };
        let wanted = group.tasks.len().min(room);
        let view = view.get_or_insert_with(|| View::new(state));
        view.begin(&group, now);
        group.volumes.planned = std::mem::take(&mut planned);
        let placed = place(view, &mut group, wanted, &mut placement.assignments);
        if placed < wanted {
            placement.refusals.add(&group, filter::explain(view, &group));
            waiting.skip(&group);
        } else if placed < group.tasks.len() {
            placement.recheck_after = Some(Duration::ZERO);
            return placement;
        }
        planned = group.volumes.planned;
    }
    placement.recheck_after = waiting.held_back;
    placement
}

/// Goes through the tasks without a node, in order of their ids, once.
struct Waiting<'a> {
    state: &'a State,
    now: Timestamp,
    tasks: imbl::ordset::Iter<'a, TaskId, imbl::shared_ptr::DefaultSharedPtr>,
    /// The next task that may be placed.
    next: Option<&'a Task>,
    /// How long until the first of those that were passed over may be placed.
    held_back: Option<Duration>,
}

impl<'a> Waiting<'a> {
    fn of(state: &'a State, now: Timestamp) -> Self {
        let tasks = state.index().waiting.iter();
        let mut waiting = Self { state, now, tasks, next: None, held_back: None };
        waiting.advance();
        waiting
    }

    fn advance(&mut self) {
        self.next = None;
        for task in self.tasks.by_ref().filter_map(|id| self.state.task(id)) {
            let Some(time) = task.not_before().filter(|time| *time > self.now) else {
                self.next = Some(task);
                return;
            };
            let wait = time.since(self.now);
            self.held_back = Some(self.held_back.map_or(wait, |least| least.min(wait)));
        }
    }

    /// The next group, of which at most `limit` tasks.
    fn group(&mut self, limit: usize) -> Option<Group<'a>> {
        let first = self.next?;
        let service = self.state.service(&first.id.service)?;
        let (state, revision) = (self.state, &*first.revision);
        let (bound_to, replaces_on) = (first.bound_to(), replaces_on(state, service, first));
        let volumes = Volumes::of(state, first);
        let mut group = Group { state, service, revision, bound_to, replaces_on, volumes, tasks: Vec::new() };
        while let Some(task) = self.next.filter(|task| group.takes(task) && group.tasks.len() < limit) {
            group.tasks.push(task.id);
            self.advance();
        }
        Some(group)
    }

    /// Passes over what is left of the group.
    fn skip(&mut self, group: &Group<'_>) {
        while self.next.is_some_and(|task| group.takes(task)) {
            self.advance();
        }
    }
}

impl Group<'_> {
    /// Where the tasks may run is the service's to say now, whatever their revision once said: a change of that
    /// alone makes no new tasks.
    fn placement(&self) -> &warren_types::Placement {
        &self.service.revision.placement
    }

    fn takes(&self, task: &Task) -> bool {
        self.service.id == task.id.service
            && self.revision.number == task.revision.number
            && self.bound_to == task.bound_to()
            && self.volumes.are_those_of(task)
            && self.replaces_on == replaces_on(self.state, self.service, task)
    }
}

/// The node of the task that this one replaces, where it matters how many of the service are there: such tasks are
/// not alike.
fn replaces_on(state: &State, service: &Service, task: &Task) -> Option<NodeId> {
    service.revision.placement.max_per_node?;
    state.predecessor(task)?.node
}

/// Places the group's first `wanted` tasks, best node first. Answers how many found one.
fn place(
    view: &mut View<'_>,
    group: &mut Group<'_>,
    wanted: usize,
    assignments: &mut Vec<(TaskId, NodeId)>,
) -> usize {
    if let Some(node) = group.bound_to {
        return place_there(view, group, node, wanted, assignments);
    }
    let mut fitting: BinaryHeap<Reverse<(Score, usize)>> = BinaryHeap::from_iter(
        view.candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| filter::admits(group, candidate))
            .map(|(place, candidate)| Reverse((Score::of(candidate), place))),
    );
    for placed in 0..wanted {
        let Some(mut best) = fitting.peek_mut() else { return placed };
        let Reverse((_, place)) = *best;
        let candidate = &mut view.candidates[place];
        candidate.take(group);
        assignments.push((group.tasks[placed], candidate.node.id));
        group.volumes.settle(group.state, candidate.node);
        if filter::admits(group, candidate) {
            *best = Reverse((Score::of(candidate), place));
            drop(best);
        } else {
            PeekMut::pop(best);
        }
        if placed == 0 && !group.volumes.is_empty() {
            // The first task may have given the volumes their place: the others can only follow it.
            fitting.retain(|Reverse((_, place))| filter::admits(group, &view.candidates[*place]));
        }
    }
    wanted
}

/// Places tasks that may go to one node only.
fn place_there(
    view: &mut View<'_>,
    group: &mut Group<'_>,
    node: NodeId,
    wanted: usize,
    assignments: &mut Vec<(TaskId, NodeId)>,
) -> usize {
    let Some(candidate) = view.candidate(node) else { return 0 };
    for placed in 0..wanted {
        if !filter::admits(group, candidate) {
            return placed;
        }
        candidate.take(group);
        group.volumes.settle(group.state, candidate.node);
        assignments.push((group.tasks[placed], node));
    }
    wanted
}
