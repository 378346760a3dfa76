//! How a node learns that it was removed from its cluster, and the record of it.
//!
//! A node that accepts a removal stops all its containers, so only a manager with certain knowledge may send
//! it:
//!
//! - The removal is a typed reason, not a code or a text, in the answer to a session request. Errors of a
//!   broken connection, a proxy or an unreachable manager have no such reason and do not count.
//! - A session is only requested over a connection whose peer has a manager certificate, issued by the CA of
//!   this node's own cluster. A manager of another cluster, or one that lost its data directory and created a
//!   new cluster, has another CA: no connection is established.
//! - The manager sends it after an entry for this session was committed and applied, so it is neither an old
//!   leader nor one that still replays its log. Answers from a possibly stale copy, as to the renewal of a
//!   certificate, are not accepted.
//! - A node whose certificate is refused in the handshake asks without it, which opens no session: that answer is from
//!   a linearizable read, and follows the same rules.
//! - It sends it only if its state has the removal, and the state that the node has seen is older. A manager
//!   restored from a backup of before the node joined has no such record, and answers [`NODE_UNKNOWN`]: the
//!   node keeps its containers and retries at long intervals.
//! - A node that was unknown treats a later removal as "unknown" too, until a manager accepts it or the agent
//!   restarts: contradicting managers are not trusted.
//! - No manager removes a manager's own node, which treats a removal as "unknown". It gets a
//!   [`RemovalRecord`] from its own process, after the manager in it has learned of its own removal.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tonic::Status;
use warren_proto::status::{NODE_REMOVED, NODE_UNKNOWN, Problem};
use warren_security::files::{FileError, ensure_private_dir, read_private_bytes, write_private};
use warren_types::{ClusterId, NodeId};

/// Format version of the file; other versions are ignored.
const FORMAT: u32 = 1;

/// Rejection of a session by a manager of the node's own cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionRejection {
    /// The node was removed from the cluster.
    Removed {
        /// Human readable reason.
        reason: String,
        /// It was removed before this agent started: no manager ever accepted this agent.
        never_connected: bool,
    },
    /// The manager does not know the node; this has no consequence.
    Unknown {
        /// The manager's message.
        reason: String,
        /// No manager ever accepted this agent.
        before: bool,
    },
}

impl SessionRejection {
    /// Parses a manager's rejection of a session; `None` for other errors. `can_be_removed` is false on a
    /// manager's own node.
    pub fn from_status(status: &Status, before: bool, can_be_removed: bool) -> Option<Self> {
        let Problem { reason: word, message: reason, .. } = Problem::from(status);
        match word.as_str() {
            NODE_REMOVED if can_be_removed => Some(Self::Removed { reason, never_connected: before }),
            NODE_REMOVED | NODE_UNKNOWN => Some(Self::Unknown { reason, before }),
            _ => None,
        }
    }
}

/// The removal of the node, and the progress of the clean-up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Removal {
    /// Human readable reason.
    pub reason: String,
    /// Number of containers to stop and remove.
    pub containers: usize,
    /// The clean-up is complete.
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

/// File that records a removal, so that a restarted agent continues the clean-up, even without a manager.
#[derive(Debug, Clone)]
pub(crate) struct RemovalRecord {
    path: PathBuf,
    cluster: ClusterId,
    node: NodeId,
}

/// The record could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemovalRecordError {
    #[error("cannot encode the removal record")]
    Encode(#[from] serde_json::Error),
    #[error("cannot write the removal record; free some disk space")]
    Write(#[from] FileError),
}

/// Path of the record in the data directory.
pub(crate) fn removal_file(data_dir: &Path) -> PathBuf {
    data_dir.join("worker").join("removed.json")
}

impl RemovalRecord {
    /// The record of this node of this cluster.
    pub fn new(data_dir: &Path, cluster: ClusterId, node: NodeId) -> Self {
        Self { path: removal_file(data_dir), cluster, node }
    }

    /// Loads the record; `None` if there is none for this node of this cluster. An unreadable record is
    /// ignored: the managers will answer again.
    pub fn load(&self) -> Option<Removal> {
        let bytes = match read_private_bytes(&self.path) {
            Ok(bytes) => bytes,
            Err(FileError::Read { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return None;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot read the removal record; asking the managers");
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
                tracing::warn!(path = %self.path.display(), %error, "removal record is not usable");
                None
            }
        }
    }

    /// Writes the record durably.
    pub fn store(&self, removal: &Removal) -> Result<(), RemovalRecordError> {
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
    use crate::fixtures::settings;

    #[test]
    fn only_removal_detail_removes_node_and_never_manager_node() {
        let output = |word| Problem::new(Code::FailedPrecondition, word, "words").into();
        let reason = || "words".to_owned();
        let removed = Some(SessionRejection::Removed { reason: reason(), never_connected: true });
        let unknown = Some(SessionRejection::Unknown { reason: reason(), before: true });
        let table: [(Status, bool, &Option<SessionRejection>); 8] = [
            (output(NODE_REMOVED), true, &removed),
            (output(NODE_REMOVED), false, &unknown),
            (output(NODE_UNKNOWN), true, &unknown),
            (output("NODE_IN_USE"), true, &None),
            (output(""), true, &None),
            (Status::failed_precondition("this node was removed from the cluster"), true, &None),
            (Status::not_found(NODE_REMOVED), true, &None),
            (Status::unavailable("connection refused"), true, &None),
        ];
        for (status, can_be_removed, expected) in table {
            assert_eq!(&SessionRejection::from_status(&status, true, can_be_removed), expected, "{status:?}");
        }
    }

    #[test]
    fn removal_record_of_other_node_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let (cluster, node) = (settings().cluster, settings().node);
        let note = RemovalRecord::new(dir.path(), cluster, node);
        assert_eq!(note.load(), None);
        let removal = Removal { reason: "words".into(), containers: 2, cleared: false };
        for _ in 0..2 {
            note.store(&removal).unwrap();
            assert_eq!(note.load(), Some(removal.clone()));
        }
        assert_eq!(RemovalRecord::new(dir.path(), cluster, NodeId(Id(99))).load(), None);
        assert_eq!(RemovalRecord::new(dir.path(), ClusterId(Id(99)), node).load(), None);
        let text = std::fs::read_to_string(&note.path).unwrap();
        for spoilt in [text.replacen("\"format\":1", "\"format\":2", 1), "{".to_owned()] {
            std::fs::write(&note.path, spoilt).unwrap();
            assert_eq!(note.load(), None);
        }
    }

    /// The golden file is never changed: a later format gets one of its own.
    #[test]
    fn record_of_version_1_is_readable() {
        let dir = tempfile::tempdir().unwrap();
        let record = RemovalRecord::new(dir.path(), settings().cluster, settings().node);
        ensure_private_dir(record.path.parent().unwrap()).unwrap();
        write_private(&record.path, include_bytes!("../golden/removed.1.json")).unwrap();
        let reason = "the node was removed from the cluster".to_owned();
        assert_eq!(record.load(), Some(Removal { reason, containers: 2, cleared: false }));
    }
}
