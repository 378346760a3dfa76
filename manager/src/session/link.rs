//! What a session must tell its worker next, as frames.

use prost::Message;
use tonic::Status;
use warren_core::State;
use warren_core::session::{Diff, Told, Word};
use warren_proto::v1;
use warren_proto::v1::manager_frame::Frame;
use warren_types::{AssignmentVersion, NodeId, TaskId, Timestamp};

use crate::api::problem::node_removed;

/// The manager's side of one worker's assignment: what was sent last.
pub struct Link {
    node: NodeId,
    told: Told,
    /// What it was told of itself, as bytes, which is far less than what they mean. Empty until the welcome.
    settings: Box<[u8]>,
}

impl Link {
    /// Nothing sent yet.
    pub fn new(node: NodeId) -> Self {
        Self { node, told: Told::default(), settings: Box::default() }
    }

    /// What the worker must know that is not per task, if it does not know it yet.
    ///
    /// # Errors
    /// The node was removed; so for all that follow.
    pub fn settings(&mut self, state: &State) -> Result<Option<v1::NodeSettings>, Status> {
        let settings = state.node_settings(&self.node).ok_or_else(node_removed)?;
        let wire = v1::NodeSettings::from(&settings);
        let bytes = wire.encode_to_vec();
        if *self.settings == *bytes {
            return Ok(None);
        }
        self.settings = bytes.into();
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
        let word = self.told.open(state, &self.node, has).ok_or_else(node_removed)?;
        Ok(said(&word, now))
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
        let word = self.told.answer(state, &self.node, version).ok_or_else(node_removed)?;
        Ok(said(&word, now))
    }

    /// What changed since the last frame; `None` when nothing did.
    ///
    /// # Errors
    /// As [`Link::settings`].
    pub fn diff(&mut self, state: &State, now: Timestamp) -> Result<Option<v1::ManagerFrame>, Status> {
        let word = self.told.news(state, &self.node).ok_or_else(node_removed)?;
        Ok(word.map(|word| said(&word, now)))
    }
}

/// `now` is what the worker's clock is held against.
fn said(word: &Word, now: Timestamp) -> v1::ManagerFrame {
    frame(match word {
        Word::Full(assignment) => Frame::Assignment(assignment.into()),
        Word::Diff(Diff { base, version, changed, removed }) => Frame::Diff(v1::AssignmentDiff {
            base: Some((*base).into()),
            version: Some((*version).into()),
            changed: changed.iter().map(Into::into).collect(),
            removed: removed.iter().map(TaskId::to_string).collect(),
        }),
        Word::Current => Frame::Current(v1::SyncCurrent { at: now.0 }),
    })
}

/// Wraps what is said to a worker.
pub fn frame(frame: Frame) -> v1::ManagerFrame {
    v1::ManagerFrame { frame: Some(frame) }
}
