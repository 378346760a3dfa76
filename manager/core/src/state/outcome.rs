//! The answer to a command, and what it altered.

use std::sync::Arc;

use warren_types::{
    Content, ContentId, Member, MemberId, Node, NodeId, Service, ServiceId, TaskId, Token, TokenId, Volume,
    VolumeId,
};

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
        /// The object as it is.
        answer: Answer,
    },
    /// Nothing was changed, and why.
    Rejected(Refusal),
}

/// What a caller learns from a command that was applied: the object as the command's own entry left it or found it, or
/// as it was before, if the entry deleted it. Later entries do not show in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// There is nothing to say.
    Done,
    /// Of commands on a service.
    Service(Arc<Service>),
    /// Of commands on a node.
    Node(Arc<Node>),
    /// Of commands on a join token.
    Token(Arc<Token>),
    /// Of commands on a content.
    Content(Arc<Content>),
    /// Of commands on a volume.
    Volume(Arc<Volume>),
    /// Of commands on a manager.
    Member(Arc<Member>),
    /// Of a new session.
    Session {
        /// Higher than any before it on this node.
        number: u64,
    },
}

macro_rules! object_of_answer {
    ($($object:ident),*) => {$(
        impl TryFrom<Answer> for Arc<$object> {
            /// The answer, which has no such object.
            type Error = Answer;

            fn try_from(answer: Answer) -> Result<Self, Answer> {
                match answer {
                    Answer::$object(object) => Ok(object),
                    other => Err(other),
                }
            }
        }
    )*};
}

object_of_answer!(Service, Node, Token, Content, Volume, Member);

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
