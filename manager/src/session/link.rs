//! What a session has told its worker, and what it must tell next.

use std::collections::BTreeMap;

use tonic::Status;
use warren_core::State;
use warren_proto::v1;
use warren_types::{AssignmentVersion, Desired, NodeId, NodeSettings, Task, TaskId, Timestamp};

use super::replicate::is_pinned;
use crate::api::problem::node_removed;

/// The manager's side of one worker's assignment: what was sent last.
pub struct Link {
    node: NodeId,
    /// `None` until the first full assignment of this session.
    sent: Option<Sent>,
    /// `None` until the welcome.
    settings: Option<NodeSettings>,
}

struct Sent {
    version: AssignmentVersion,
    tasks: BTreeMap<TaskId, Changing>,
}

/// What of a task's assignment changes: what is desired, and that its image becomes known. All else never does.
type Changing = (Desired, bool);

fn changing(state: &State, task: &Task) -> Changing {
    (task.desired, is_pinned(state, task))
}

impl Link {
    /// Nothing sent yet.
    pub fn new(node: NodeId) -> Self {
        Self { node, sent: None, settings: None }
    }

    /// What the worker must know that is not per task, if it does not know it yet.
    ///
    /// # Errors
    /// The node was removed; so for all that follow.
    pub fn settings(&mut self, state: &State) -> Result<Option<v1::NodeSettings>, Status> {
        let settings = state.node_settings(&self.node).ok_or_else(node_removed)?;
        if self.settings.as_ref() == Some(&settings) {
            return Ok(None);
        }
        let wire = (&settings).into();
        self.settings = Some(settings);
        Ok(Some(wire))
    }

    /// The first word of a session: everything, unless the worker has it already, from an earlier session.
    ///
    /// # Errors
    /// As [`Link::settings`].
    pub fn open(
        &mut self,
        state: &State,
        has: AssignmentVersion,
        now: Timestamp,
    ) -> Result<v1::ManagerFrame, Status> {
        let full = self.full(state)?;
        let current = self.sent.as_ref().is_some_and(|sent| sent.version == has);
        Ok(if current { is_current(now) } else { full })
    }

    /// Everything, whatever the worker has.
    ///
    /// # Errors
    /// As [`Link::settings`].
    pub fn full(&mut self, state: &State) -> Result<v1::ManagerFrame, Status> {
        let assignment = state.assignment(&self.node).ok_or_else(node_removed)?;
        let tasks = state.tasks_on(&self.node).map(|task| (task.id, changing(state, task))).collect();
        self.sent = Some(Sent { version: assignment.version, tasks });
        Ok(frame(v1::manager_frame::Frame::Assignment((&assignment).into())))
    }

    /// Answers a worker that says it has `version`.
    ///
    /// # Errors
    /// As [`Link::settings`].
    pub fn answer(
        &mut self,
        state: &State,
        version: AssignmentVersion,
        now: Timestamp,
    ) -> Result<v1::ManagerFrame, Status> {
        let has_all = self.sent.as_ref().is_some_and(|sent| sent.version == version);
        if !has_all {
            return self.full(state);
        }
        let diff = self.diff(state)?;
        Ok(diff.unwrap_or_else(|| is_current(now)))
    }

    /// What changed since the last frame; `None` when nothing did.
    pub fn diff(&mut self, state: &State) -> Result<Option<v1::ManagerFrame>, Status> {
        let Some(sent) = &mut self.sent else { return self.full(state).map(Some) };
        let version = state.assignment_version(&self.node).ok_or_else(node_removed)?;
        if version <= sent.version {
            return Ok(None);
        }
        let wanted: BTreeMap<_, _> = state.tasks_on(&self.node).map(|task| (task.id, task)).collect();
        let changed: Vec<v1::TaskAssignment> = wanted
            .values()
            .filter(|task| sent.tasks.get(&task.id) != Some(&changing(state, task)))
            .filter_map(|task| state.task_assignment(task))
            .map(|task| v1::TaskAssignment::from(&task))
            .collect();
        let gone = sent.tasks.keys().filter(|id| !wanted.contains_key(id)).map(TaskId::to_string);
        let diff = v1::AssignmentDiff {
            base: Some(sent.version.into()),
            version: Some(version.into()),
            changed,
            removed: gone.collect(),
        };
        sent.tasks = wanted.values().map(|task| (task.id, changing(state, task))).collect();
        sent.version = version;
        Ok(Some(frame(v1::manager_frame::Frame::Diff(diff))))
    }
}

/// The worker has all there is; `now` is what its clock is held against.
fn is_current(now: Timestamp) -> v1::ManagerFrame {
    frame(v1::manager_frame::Frame::Current(v1::SyncCurrent { at: now.0 }))
}

/// Wraps what is said to a worker.
pub fn frame(frame: v1::manager_frame::Frame) -> v1::ManagerFrame {
    v1::ManagerFrame { frame: Some(frame) }
}
