//! The answer to a command, and what it altered.

use warren_types::{ContentId, MemberId, NodeId, ServiceId, TaskId, TokenId, VolumeId};

use super::Refusal;

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Something changed.
    Applied {
        /// For the caller.
        answer: Answer,
        /// Keys of what changed, for watchers; a key may occur more than once, and what it named may be gone.
        changes: Vec<Change>,
    },
    /// It was already so.
    Unchanged {
        /// The same answer as when it was applied.
        answer: Answer,
    },
    /// Nothing was changed, and why.
    Rejected(Refusal),
}

/// What a caller learns from a command that was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// There is nothing to say.
    Done,
    /// Of commands on a service.
    Service {
        /// The service.
        id: ServiceId,
        /// Its version now.
        version: u64,
    },
    /// Of a registered node.
    Node {
        /// The node.
        id: NodeId,
        /// Its version now.
        version: u64,
    },
    /// Of a join token.
    Token {
        /// The token.
        id: TokenId,
        /// Its version now.
        version: u64,
    },
    /// Of a content.
    Content {
        /// The content.
        id: ContentId,
        /// Its version now.
        version: u64,
        /// Number of its current bytes.
        number: u64,
    },
    /// Of a volume.
    Volume {
        /// The volume.
        id: VolumeId,
        /// Its version now.
        version: u64,
    },
    /// Of a manager.
    Member {
        /// Its id in the raft group.
        member: MemberId,
        /// Its version now.
        version: u64,
    },
    /// Of a new session.
    Session {
        /// Higher than any before it on this node.
        number: u64,
    },
}

/// The key of something that changed. Look it up in the state: when it is not there, it was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// The cluster's settings, or its level.
    Cluster,
    /// A service.
    Service(ServiceId),
    /// A task.
    Task(TaskId),
    /// A node's own fields.
    Node(NodeId),
    /// What a node should have.
    Assignment(NodeId),
    /// A join token.
    Token(TokenId),
    /// A secret, a config or a credential.
    Content(ContentId),
    /// A volume.
    Volume(VolumeId),
    /// A manager.
    Member(MemberId),
}
