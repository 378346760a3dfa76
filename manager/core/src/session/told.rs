//! What a session has told its node, and what it must tell next.

use warren_types::{Assignment, AssignmentVersion, Desired, NodeId, ServiceId, Task, TaskAssignment, TaskId};

use super::is_pinned;
use crate::state::State;

/// What was sent last of a node's assignment.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// `None` until the first full assignment of this session.
    sent: Option<Sent>,
}

#[derive(Debug, Clone)]
struct Sent {
    version: AssignmentVersion,
    tasks: Tasks,
}

/// What of a task's assignment changes: what is desired, and that its image becomes known. All else never does.
type Changing = (Desired, bool);

/// What of each task was sent, in the order of their keys. A manager keeps it of all tasks of all nodes, so a service's
/// key is there once, and nothing has room to grow.
#[derive(Debug, Clone)]
struct Tasks {
    /// Each with where its tasks end.
    services: Box<[(ServiceId, usize)]>,
    /// Numbers within the service.
    tasks: Box<[(u64, Changing)]>,
}

impl Tasks {
    /// Of tasks in the order of their keys.
    fn of(wanted: &[(&Task, Changing)]) -> Self {
        let (mut services, mut end) = (Vec::new(), 0);
        for part in wanted.chunk_by(|(one, _), (next, _)| one.id.service == next.id.service) {
            end += part.len();
            services.push((part[0].0.id.service, end));
        }
        let tasks = wanted.iter().map(|(task, changing)| (task.id.number, *changing)).collect();
        Self { services: services.into(), tasks }
    }

    fn iter(&self) -> impl Iterator<Item = (TaskId, Changing)> {
        let mut begin = 0;
        self.services.iter().flat_map(move |&(service, end)| {
            let part = &self.tasks[std::mem::replace(&mut begin, end)..end];
            part.iter().map(move |&(number, changing)| (TaskId { service, number }, changing))
        })
    }
}

/// What a node is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// Everything, whatever it has.
    Full(Assignment),
    /// What changed since what it was told last.
    Diff(Diff),
    /// It has all there is.
    Current,
}

/// What changed from one version of an assignment to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diff {
    /// What the node must have.
    pub base: AssignmentVersion,
    /// What it has with this.
    pub version: AssignmentVersion,
    /// Tasks that are new, or wanted otherwise.
    pub changed: Vec<TaskAssignment>,
    /// Tasks that it has and nobody wants.
    pub removed: Vec<TaskId>,
}

/// What the node must have, in the order of its keys.
fn wanted<'a>(state: &'a State, node: &NodeId) -> Vec<(&'a Task, Changing)> {
    let changing = |task: &Task| (task.desired, is_pinned(state, task));
    let mut wanted: Vec<_> = state.tasks_on(node).map(|task| (&**task, changing(task))).collect();
    wanted.sort_unstable_by_key(|(task, _)| task.id);
    wanted
}

impl Told {
    /// The first word of a session: everything, unless the node has it already, from an earlier session. `None` when
    /// the node is not there; so for all that follow.
    pub fn open(&mut self, state: &State, node: &NodeId, has: AssignmentVersion) -> Option<Word> {
        let full = self.full(state, node)?;
        Some(if self.is(has) { Word::Current } else { full })
    }

    /// Answers a node that says it has `version`.
    pub fn answer(&mut self, state: &State, node: &NodeId, version: AssignmentVersion) -> Option<Word> {
        if !self.is(version) {
            return self.full(state, node);
        }
        Some(self.news(state, node)?.unwrap_or(Word::Current))
    }

    /// What changed since the last word; `Some(None)` when nothing did.
    pub fn news(&mut self, state: &State, node: &NodeId) -> Option<Option<Word>> {
        let Some(sent) = &mut self.sent else { return self.full(state, node).map(Some) };
        let version = state.assignment_version(node)?;
        if version <= sent.version {
            return Some(None);
        }
        let wanted = wanted(state, node);
        let (mut changed, mut removed) = (Vec::new(), Vec::new());
        let mut had = sent.tasks.iter().peekable();
        for (task, now) in &wanted {
            removed.extend(std::iter::from_fn(|| had.next_if(|(id, _)| *id < task.id)).map(|(id, _)| id));
            let before = had.next_if(|(id, _)| *id == task.id).map(|(_, before)| before);
            if before != Some(*now) {
                changed.extend(state.task_assignment(task));
            }
        }
        removed.extend(had.map(|(id, _)| id));
        let diff = Diff { base: sent.version, version, changed, removed };
        sent.tasks = Tasks::of(&wanted);
        sent.version = version;
        Some(Some(Word::Diff(diff)))
    }

    fn full(&mut self, state: &State, node: &NodeId) -> Option<Word> {
        let assignment = state.assignment(node)?;
        self.sent = Some(Sent { version: assignment.version, tasks: Tasks::of(&wanted(state, node)) });
        Some(Word::Full(assignment))
    }

    fn is(&self, version: AssignmentVersion) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.version == version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_of_a_task_takes_few_bytes() {
        assert_eq!(size_of::<(ServiceId, usize)>(), 24);
        assert_eq!(size_of::<(u64, Changing)>(), 16);
    }
}
