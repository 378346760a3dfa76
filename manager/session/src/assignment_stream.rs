//! Computes the next frames that a session sends to its worker.

use prost::Message;
use tonic::Status;
use warren_core::State;
use warren_core::session::{AssignmentDiff, AssignmentUpdate, SentAssignment, SentNetwork};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_store::problem::node_removed;
use warren_types::{AssignmentVersion, DesiredTaskState, NodeId, TaskAssignment, TaskId, Timestamp};

use super::frames::manager_frame;

/// The manager's side of one worker's assignment: what was sent last.
pub struct AssignmentStream {
    node: NodeId,
    sent: SentAssignment,
    /// The node settings sent last, encoded, which is much smaller than decoded. Empty before the welcome.
    sent_settings: Box<[u8]>,
    /// What was sent about the cluster's network.
    pub network: SentNetwork,
}

/// A frame with an assignment.
pub struct AssignmentFrame {
    /// What is sent.
    pub frame: v1::ManagerFrame,
    /// The index of the assignment, and the tasks that the node stops by it.
    pub stopping: Option<(u64, Vec<TaskId>)>,
}

impl AssignmentStream {
    /// A stream without sent frames.
    pub fn new(node: NodeId) -> Self {
        let network = SentNetwork::default();
        Self { node, sent: SentAssignment::default(), sent_settings: Box::default(), network }
    }

    /// The node settings, if they differ from those sent last.
    ///
    /// # Errors
    /// The node was removed; the same for all methods below.
    pub fn settings_update(&mut self, state: &State) -> Result<Option<v1::NodeSettings>, Status> {
        let settings = state.node_settings(&self.node).ok_or_else(node_removed)?;
        let wire = v1::NodeSettings::from(&settings);
        let bytes = wire.encode_to_vec();
        if *self.sent_settings == *bytes {
            return Ok(None);
        }
        self.sent_settings = bytes.into();
        Ok(Some(wire))
    }

    /// The first assignment of a session: the full one, unless the worker has it from an earlier session.
    ///
    /// # Errors
    /// As [`AssignmentStream::settings_update`].
    pub fn first_frame(
        &mut self,
        state: &State,
        has: AssignmentVersion,
        now: Timestamp,
    ) -> Result<AssignmentFrame, Status> {
        let update = self.sent.first_update(state, &self.node, has).ok_or_else(node_removed)?;
        Ok(assignment_frame(&update, now))
    }

    /// The update for a worker that has `version`.
    ///
    /// # Errors
    /// As [`AssignmentStream::settings_update`].
    pub fn answer_version(
        &mut self,
        state: &State,
        version: AssignmentVersion,
        now: Timestamp,
    ) -> Result<AssignmentFrame, Status> {
        let update = self.sent.next_update(state, &self.node, version).ok_or_else(node_removed)?;
        Ok(assignment_frame(&update, now))
    }

    /// Changes since the last frame; `None` without changes.
    ///
    /// # Errors
    /// As [`AssignmentStream::settings_update`].
    pub fn next_frame(&mut self, state: &State, now: Timestamp) -> Result<Option<AssignmentFrame>, Status> {
        let update = self.sent.update_if_changed(state, &self.node).ok_or_else(node_removed)?;
        Ok(update.map(|update| assignment_frame(&update, now)))
    }
}

/// The worker compares its clock with `now`.
fn assignment_frame(update: &AssignmentUpdate, now: Timestamp) -> AssignmentFrame {
    let frame = manager_frame(match update {
        AssignmentUpdate::Full(assignment) => Frame::Assignment(assignment.into()),
        AssignmentUpdate::Diff(AssignmentDiff { base, version, changed, removed, retained }) => {
            Frame::Diff(v1::AssignmentDiff {
                base: Some((*base).into()),
                version: Some((*version).into()),
                changed: changed.iter().map(Into::into).collect(),
                removed: removed.iter().map(TaskId::to_string).collect(),
                retained: retained.iter().map(Into::into).collect(),
            })
        }
        AssignmentUpdate::Current => Frame::Current(v1::AssignmentCurrent { sent_at: now.0 }),
    });
    AssignmentFrame { frame, stopping: stopping_tasks(update) }
}

fn stopping_tasks(update: &AssignmentUpdate) -> Option<(u64, Vec<TaskId>)> {
    let (version, tasks) = match update {
        AssignmentUpdate::Full(assignment) => (assignment.version, &assignment.tasks),
        AssignmentUpdate::Diff(diff) => (diff.version, &diff.changed),
        AssignmentUpdate::Current => return None,
    };
    let stops = |task: &&TaskAssignment| task.desired > DesiredTaskState::Running;
    let stopping: Vec<TaskId> = tasks.iter().filter(stops).map(|task| task.id).collect();
    (!stopping.is_empty()).then_some((version.index, stopping))
}
