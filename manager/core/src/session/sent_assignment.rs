//! Which assignment version a session has sent to its node, and the next update.

use warren_types::{
    Assignment, AssignmentVersion, DesiredTaskState, NodeId, RetainedLog, ServiceId, Task, TaskAssignment,
    TaskId,
};

use super::is_pinned;
use crate::state::{State, retained_log};

/// The assignment that was last sent to a node.
#[derive(Debug, Clone, Default)]
pub struct SentAssignment {
    /// `None` until the first full assignment of this session.
    sent: Option<SentVersion>,
}

#[derive(Debug, Clone)]
struct SentVersion {
    version: AssignmentVersion,
    tasks: SentTasks,
}

/// What changes in a task's assignment. Everything else is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SentTaskState {
    /// Its desired state, and whether its image is pinned.
    Assigned(DesiredTaskState, bool),
    /// The node retains the log of the ended task.
    LogRetained,
}

/// What was sent of each task, ordered by task id. A manager stores it for all tasks of all nodes, so each
/// service id is stored once, and no collection has spare capacity.
#[derive(Debug, Clone)]
struct SentTasks {
    /// Each service with the end of its tasks in `tasks`.
    services: Box<[(ServiceId, usize)]>,
    /// Numbers within the service.
    tasks: Box<[(u64, SentTaskState)]>,
}

impl SentTasks {
    /// From tasks ordered by id.
    fn of(desired: &[(&Task, SentTaskState)]) -> Self {
        let (mut services, mut end) = (Vec::new(), 0);
        for part in desired.chunk_by(|(one, _), (next, _)| one.id.service == next.id.service) {
            end += part.len();
            services.push((part[0].0.id.service, end));
        }
        let tasks = desired.iter().map(|(task, changing)| (task.id.number, *changing)).collect();
        Self { services: services.into(), tasks }
    }

    fn iter(&self) -> impl Iterator<Item = (TaskId, SentTaskState)> {
        let mut begin = 0;
        self.services.iter().flat_map(move |&(service, end)| {
            let part = &self.tasks[std::mem::replace(&mut begin, end)..end];
            part.iter().map(move |&(number, changing)| (TaskId { service, number }, changing))
        })
    }
}

/// The next message to a node about its assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssignmentUpdate {
    /// The full assignment.
    Full(Assignment),
    /// The changes since the last update.
    Diff(AssignmentDiff),
    /// The assignment is current.
    Current,
}

/// The changes between two versions of an assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignmentDiff {
    /// The version that the node must have.
    pub base: AssignmentVersion,
    /// The version after the update.
    pub version: AssignmentVersion,
    /// Tasks that are new or changed.
    pub changed: Vec<TaskAssignment>,
    /// Tasks that are no longer assigned, and retained logs to remove.
    pub removed: Vec<TaskId>,
    /// Tasks that are no longer assigned, and whose logs are retained.
    pub retained: Vec<RetainedLog>,
}

/// The tasks of the node and those whose logs it retains, ordered by id.
fn desired_tasks<'a>(state: &'a State, node: &NodeId) -> Vec<(&'a Task, SentTaskState)> {
    let changing = |task: &Task| SentTaskState::Assigned(task.desired, is_pinned(state, task));
    let mut desired: Vec<_> = state.tasks_on(node).map(|task| (&**task, changing(task))).collect();
    desired.extend(state.logs_retained_on(node).map(|task| (&**task, SentTaskState::LogRetained)));
    desired.sort_unstable_by_key(|(task, _)| task.id);
    desired
}

impl SentAssignment {
    /// The first update of a session: the full assignment, unless the node has it already, from an earlier
    /// session. `None` if the node does not exist; the same holds for the functions below.
    pub fn first_update(
        &mut self,
        state: &State,
        node: &NodeId,
        has: AssignmentVersion,
    ) -> Option<AssignmentUpdate> {
        let full = self.full_update(state, node)?;
        Some(if self.is_at(has) { AssignmentUpdate::Current } else { full })
    }

    /// The response to a node that reports having `version`.
    pub fn next_update(
        &mut self,
        state: &State,
        node: &NodeId,
        version: AssignmentVersion,
    ) -> Option<AssignmentUpdate> {
        if !self.is_at(version) {
            return self.full_update(state, node);
        }
        Some(self.update_if_changed(state, node)?.unwrap_or(AssignmentUpdate::Current))
    }

    /// The changes since the last update; `Some(None)` if there are none.
    pub fn update_if_changed(&mut self, state: &State, node: &NodeId) -> Option<Option<AssignmentUpdate>> {
        let Some(sent) = &mut self.sent else { return self.full_update(state, node).map(Some) };
        let version = state.assignment_version(node)?;
        if version <= sent.version {
            return Some(None);
        }
        let desired = desired_tasks(state, node);
        let (mut changed, mut removed, mut retained) = (Vec::new(), Vec::new(), Vec::new());
        let mut had = sent.tasks.iter().peekable();
        for (task, now) in &desired {
            removed.extend(std::iter::from_fn(|| had.next_if(|(id, _)| *id < task.id)).map(|(id, _)| id));
            let before = had.next_if(|(id, _)| *id == task.id).map(|(_, before)| before);
            match now {
                now if before == Some(*now) => {}
                SentTaskState::Assigned(..) => changed.extend(state.task_assignment(task)),
                SentTaskState::LogRetained => retained.push(retained_log(task)),
            }
        }
        removed.extend(had.map(|(id, _)| id));
        let diff = AssignmentDiff { base: sent.version, version, changed, removed, retained };
        sent.tasks = SentTasks::of(&desired);
        sent.version = version;
        Some(Some(AssignmentUpdate::Diff(diff)))
    }

    fn full_update(&mut self, state: &State, node: &NodeId) -> Option<AssignmentUpdate> {
        let assignment = state.assignment(node)?;
        self.sent = Some(SentVersion {
            version: assignment.version,
            tasks: SentTasks::of(&desired_tasks(state, node)),
        });
        Some(AssignmentUpdate::Full(assignment))
    }

    fn is_at(&self, version: AssignmentVersion) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.version == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sent_task_is_small() {
        assert_eq!(size_of::<(ServiceId, usize)>(), 24);
        assert_eq!(size_of::<(u64, SentTaskState)>(), 16);
    }
}
