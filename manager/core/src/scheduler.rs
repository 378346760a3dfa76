//! Which task goes to which node, and why the others cannot be placed.
//!
//! Tasks of one revision are equivalent, so they are placed as a group (those of a global service are bound
//! to a node or the value of a label, and are groups by themselves): the nodes are filtered once, kept in
//! heaps by score, and each placement is accounted on a working copy before the next is made. Addresses and
//! ports are allocated when the assignment is applied; what fits in the plan fits then too, unless
//! something else changed in between.
//!
//! To add a filter: one file in `filter/`, one line in `filter::FILTERS`.

mod bootstrap;
mod candidates;
mod filter;
mod refusals;
mod score;
mod view;
mod volumes;

use std::time::Duration;

use warren_types::{Node, NodeId, Revision, Service, Task, TaskId, Timestamp};

use crate::state::{Command, State, has_label_value};
use candidates::Candidates;
pub use refusals::UnschedulableReasons;
use score::Score;
use view::NodeSet;
use volumes::{GroupVolumes, PlannedVolumes};

/// How many tasks one plan places: large enough to be fast, small enough for one raft entry.
pub const MAX_PLACEMENTS: usize = 1000;

/// The scheduler's result.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SchedulePlan {
    /// Task and node of each assignment.
    pub assignments: Vec<(TaskId, NodeId)>,
    /// Why the others cannot be placed. Revisions that were not reached because of the limit are not
    /// included.
    pub refusals: UnschedulableReasons,
    /// When to schedule again if nothing changes: the end of a back-off, or immediately if the limit was
    /// reached.
    pub recheck_after: Option<Duration>,
}

impl SchedulePlan {
    /// The command that applies it; `None` if there is nothing to assign.
    pub fn command(&self, state: &State, now: Timestamp) -> Option<Command> {
        let (term, placements) = (state.applied().term, self.assignments.clone());
        (!placements.is_empty()).then_some(Command::AssignTasks { term, placements, at: now })
    }
}

/// Tasks to place that are equivalent, and their requirements.
pub(crate) struct TaskGroup<'a> {
    state: &'a State,
    service: &'a Service,
    revision: &'a Revision,
    /// The only node that the tasks may go to.
    bound_to: Option<NodeId>,
    /// Only nodes on which the label of the service has this value may have them.
    label_value: Option<&'a str>,
    /// The slot of the first one.
    slot: u32,
    /// The node of the task that this one replaces; set only if the number of tasks per node is limited.
    predecessor_node: Option<NodeId>,
    volumes: GroupVolumes<'a>,
    tasks: Vec<TaskId>,
}

/// Places pending tasks, at most [`MAX_PLACEMENTS`].
pub fn schedule(state: &State, now: Timestamp) -> SchedulePlan {
    schedule_with_limit(state, now, MAX_PLACEMENTS)
}

/// Places pending tasks, at most `bound`. Takes O(nodes) per revision that has any, and O(log nodes) per
/// task.
pub fn schedule_with_limit(state: &State, now: Timestamp, bound: usize) -> SchedulePlan {
    let mut placement = SchedulePlan::default();
    let mut waiting = PendingTasks::of(state, now);
    let (mut view, mut planned) = (None, PlannedVolumes::new());
    loop {
        let room = bound - placement.assignments.len();
        let Some(mut group) = waiting.next_group(room.saturating_add(1)) else { break };
        let desired = group.tasks.len().min(room);
        let view = view.get_or_insert_with(|| NodeSet::new(state));
        view.count_for(&group, now);
        group.volumes.planned = std::mem::take(&mut planned);
        let placed = place_group(view, &mut group, desired, &mut placement.assignments);
        if placed < desired {
            placement.refusals.add(&group, filter::explain(view, &group));
            waiting.skip_group(&group);
        } else if placed < group.tasks.len() {
            placement.recheck_after = Some(Duration::ZERO);
            return placement;
        }
        planned = group.volumes.planned;
    }
    placement.recheck_after = waiting.retry_after;
    placement
}

/// Iterates over the tasks without a node, in order of their ids, once.
struct PendingTasks<'a> {
    state: &'a State,
    now: Timestamp,
    tasks: imbl::ordset::Iter<'a, TaskId, imbl::shared_ptr::DefaultSharedPtr>,
    /// The next task that may be placed.
    next: Option<&'a Task>,
    /// How long until the first of the skipped tasks may be placed.
    retry_after: Option<Duration>,
}

impl<'a> PendingTasks<'a> {
    fn of(state: &'a State, now: Timestamp) -> Self {
        let tasks = state.index().pending.iter();
        let mut waiting = Self { state, now, tasks, next: None, retry_after: None };
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
            let wait = time.saturating_since(self.now);
            self.retry_after = Some(self.retry_after.map_or(wait, |least| least.min(wait)));
        }
    }

    /// The next group, with at most `limit` tasks.
    fn next_group(&mut self, limit: usize) -> Option<TaskGroup<'a>> {
        let first = self.next?;
        let service = self.state.service(&first.id.service)?;
        let (state, revision) = (self.state, &*first.revision);
        let (bound_to, replaces_on) = (first.bound_to(), predecessor_node(state, service, first));
        let volumes = GroupVolumes::of(state, first);
        let mut group = TaskGroup {
            state,
            service,
            revision,
            bound_to,
            label_value: first.label_value().map(AsRef::as_ref),
            slot: first.slot,
            predecessor_node: replaces_on,
            volumes,
            tasks: Vec::new(),
        };
        while let Some(task) = self.next.filter(|task| group.contains(task) && group.tasks.len() < limit) {
            group.tasks.push(task.id);
            self.advance();
        }
        Some(group)
    }

    /// Skips the rest of the group.
    fn skip_group(&mut self, group: &TaskGroup<'_>) {
        while self.next.is_some_and(|task| group.contains(task)) {
            self.advance();
        }
    }
}

impl TaskGroup<'_> {
    /// The service's current placement applies, whatever that of the revision: a change of it alone makes no
    /// new tasks.
    fn placement(&self) -> &warren_types::Placement {
        &self.service.revision.placement
    }

    /// Whether the tasks are for this node, as far as the service distributes them by node or by label.
    fn is_for(&self, node: &Node) -> bool {
        self.bound_to.is_none_or(|bound| bound == node.id)
            && has_label_value(self.service, self.label_value, node)
    }

    fn contains(&self, task: &Task) -> bool {
        self.service.id == task.id.service
            && self.revision.number == task.revision.number
            && self.bound_to == task.bound_to()
            && self.label_value == task.label_value().map(AsRef::as_ref)
            && self.volumes.matches_task(task)
            && self.predecessor_node == predecessor_node(self.state, self.service, task)
    }
}

/// The node of the task that this one replaces, if the number of the service's tasks per node matters: such
/// tasks are not equivalent.
fn predecessor_node(state: &State, service: &Service, task: &Task) -> Option<NodeId> {
    service.revision.placement.max_per_node?;
    state.predecessor(task)?.node
}

/// Places the group's first `desired` tasks, best node first. Returns how many were placed.
fn place_group(
    view: &mut NodeSet<'_>,
    group: &mut TaskGroup<'_>,
    desired: usize,
    assignments: &mut Vec<(TaskId, NodeId)>,
) -> usize {
    if let Some(node) = group.bound_to {
        return place_on_node(view, group, node, desired, assignments);
    }
    let mut candidates = Candidates::new(group, &view.nodes);
    for placed in 0..desired {
        let is_placed = candidates.place(&mut |place| {
            let candidate = &mut view.nodes[place];
            candidate.reserve(group);
            assignments.push((group.tasks[placed], candidate.node.id));
            group.volumes.bind(group.state, candidate.node);
            filter::admits(group, candidate).then(|| Score::of(group.placement(), candidate))
        });
        if !is_placed {
            return placed;
        }
        if placed == 0 && !group.volumes.is_empty() {
            // The first task may have bound the volumes to a node: the others can only follow it.
            candidates = Candidates::new(group, &view.nodes);
        }
    }
    desired
}

/// Places tasks that may go to one node only.
fn place_on_node(
    view: &mut NodeSet<'_>,
    group: &mut TaskGroup<'_>,
    node: NodeId,
    desired: usize,
    assignments: &mut Vec<(TaskId, NodeId)>,
) -> usize {
    let Some(candidate) = view.node(node) else { return 0 };
    for placed in 0..desired {
        if !filter::admits(group, candidate) {
            return placed;
        }
        candidate.reserve(group);
        group.volumes.bind(group.state, candidate.node);
        assignments.push((group.tasks[placed], node));
    }
    desired
}
