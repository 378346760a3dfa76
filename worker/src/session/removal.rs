//! How a node learns that it is none of its cluster any more, and what it writes down of that.
//!
//! A node that believes it stops everything it runs, so nothing but a manager that knows for sure may say it:
//!
//! * The word is a typed reason, not a code or a text, in the answer to a session. What a broken connection, a proxy
//!   or a manager that cannot be reached leaves behind has no reason, and means nothing here.
//! * A session is only asked for over a connection whose other end showed a certificate of a manager, issued by the
//!   authority of this node's own cluster. A manager of another cluster, or one that lost its data directory and made
//!   a cluster anew, has another authority: no connection comes about.
//! * The manager says it after an entry for this session was committed and applied, so it is neither an old leader
//!   nor one that is still reading its log. Answers that are read from a copy which may be old, like that to the
//!   renewal of a certificate, are not believed.
//! * It says it only if its state remembers the removal, and what the node says that it has seen lies before that. A
//!   manager that was restored from before the node joined remembers nothing of the kind, and says [`NODE_UNKNOWN`]:
//!   the node keeps what it runs and asks again, seldom.
//! * A node that heard that it is unknown takes the other word for the same, until a manager welcomes it or the agent
//!   starts again: managers that contradict each other are not believed.
//! * A manager's own node is removed by no manager's word, and takes that for "unknown". It gets a [`RemovalNote`] from
//!   its own process, once the manager in it has heard that it was removed itself.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tonic::Status;
use warren_proto::status::{NODE_REMOVED, NODE_UNKNOWN, Problem};
use warren_security::files::{FileError, ensure_private_dir, read_private_bytes, write_private};
use warren_types::{ClusterId, NodeId};

/// Of the file's content; another number is not read.
const FORMAT: u32 = 1;

/// What a manager of its own cluster says of a node that gets no session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcast {
    /// The cluster removed it: nothing is wanted of it any more.
    Removed {
        /// Why, for people.
        reason: String,
        /// It was removed before this agent started: no manager ever welcomed this one.
        before: bool,
    },
    /// The manager does not know it, and nothing follows from that.
    Unknown {
        /// The manager's words.
        reason: String,
        /// No manager ever welcomed this agent.
        before: bool,
    },
}

impl Outcast {
    /// Reads a manager's refusal of a session; `None` when it is about something else. `can_be_removed` is not said
    /// of a manager's own node.
    pub fn read(status: &Status, before: bool, can_be_removed: bool) -> Option<Self> {
        let Problem { reason: word, message: reason, .. } = Problem::from(status);
        match word.as_str() {
            NODE_REMOVED if can_be_removed => Some(Self::Removed { reason, before }),
            NODE_REMOVED | NODE_UNKNOWN => Some(Self::Unknown { reason, before }),
            _ => None,
        }
    }
}

/// That the node was removed, and how far it is with what follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Removal {
    /// Why, for people.
    pub reason: String,
    /// How many containers it had to stop and remove.
    pub containers: usize,
    /// Nothing of what it ran is left.
    pub cleared: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    format: u32,
    cluster: ClusterId,
    node: NodeId,
    #[serde(flatten)]
    removal: Removal,
}

/// The file that remembers a removal, so that an agent that is killed before everything is cleared goes on with it
/// when it starts again, also if no manager can be reached by then.
#[derive(Debug, Clone)]
pub(crate) struct RemovalNote {
    path: PathBuf,
    cluster: ClusterId,
    node: NodeId,
}

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoteError {
    #[error("the note of the removal cannot be encoded")]
    Encode(#[from] serde_json::Error),
    #[error("the note of the removal cannot be written; free some disk space")]
    Write(#[from] FileError),
}

/// The note's place in the data directory.
pub(crate) fn removal_file(data_dir: &Path) -> PathBuf {
    data_dir.join("worker").join("removed.json")
}

impl RemovalNote {
    /// The note of this node of this cluster.
    pub fn new(data_dir: &Path, cluster: ClusterId, node: NodeId) -> Self {
        Self { path: removal_file(data_dir), cluster, node }
    }

    /// What was written down; nothing when there is no note, or none about this node of this cluster. What cannot be
    /// read is not believed either: the managers will say it again.
    pub fn load(&self) -> Option<Removal> {
        let bytes = match read_private_bytes(&self.path) {
            Ok(bytes) => bytes,
            Err(FileError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read whether this node was removed, asking the managers");
                return None;
            }
        };
        match serde_json::from_slice::<Stored>(&bytes) {
            Ok(stored)
                if stored.format == FORMAT && (stored.cluster, stored.node) == (self.cluster, self.node) =>
            {
                Some(stored.removal)
            }
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "the note of a removal is of no use");
                None
            }
        }
    }

    /// Writes it down, durably.
    pub fn store(&self, removal: &Removal) -> Result<(), NoteError> {
        let (cluster, node, removal) = (self.cluster, self.node, removal.clone());
        let bytes = serde_json::to_vec(&Stored { format: FORMAT, cluster, node, removal })?;
        self.path.parent().map_or(Ok(()), ensure_private_dir)?;
        Ok(write_private(&self.path, &bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;
    use warren_types::Id;

    use super::*;
    use crate::samples::settings;

    #[test]
    fn only_the_typed_word_of_a_manager_removes_a_node_and_never_a_managers_own() {
        let said = |word| Problem::new(Code::FailedPrecondition, word, "words").into();
        let reason = || "words".to_owned();
        let removed = Some(Outcast::Removed { reason: reason(), before: true });
        let unknown = Some(Outcast::Unknown { reason: reason(), before: true });
        let table: [(Status, bool, &Option<Outcast>); 8] = [
            (said(NODE_REMOVED), true, &removed),
            (said(NODE_REMOVED), false, &unknown),
            (said(NODE_UNKNOWN), true, &unknown),
            (said("NODE_IN_USE"), true, &None),
            (said(""), true, &None),
            (Status::failed_precondition("this node was removed from the cluster"), true, &None),
            (Status::not_found(NODE_REMOVED), true, &None),
            (Status::unavailable("connection refused"), true, &None),
        ];
        for (status, can_be_removed, wanted) in table {
            assert_eq!(&Outcast::read(&status, true, can_be_removed), wanted, "{status:?}");
        }
    }

    #[test]
    fn a_note_is_read_by_the_node_that_it_is_about_and_by_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, node) = (settings().cluster, settings().node);
        let note = RemovalNote::new(dir.path(), cluster, node);
        assert_eq!(note.load(), None);
        let removal = Removal { reason: "words".into(), containers: 2, cleared: false };
        for _ in 0..2 {
            note.store(&removal).unwrap();
            assert_eq!(note.load(), Some(removal.clone()));
        }
        assert_eq!(RemovalNote::new(dir.path(), cluster, NodeId(Id(99))).load(), None);
        assert_eq!(RemovalNote::new(dir.path(), ClusterId(Id(99)), node).load(), None);
        let text = std::fs::read_to_string(&note.path).unwrap();
        for spoilt in [text.replacen("\"format\":1", "\"format\":2", 1), "{".to_owned()] {
            std::fs::write(&note.path, spoilt).unwrap();
            assert_eq!(note.load(), None);
        }
    }
}
