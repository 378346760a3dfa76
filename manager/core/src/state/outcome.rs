//! The outcome of a command, and what it changed.

use std::sync::Arc;

use warren_types::{
    Member, MemberId, Network, NetworkId, Node, NodeId, SecretObject, SecretObjectId, Service, ServiceId,
    TaskId, Token, TokenId, User, UserId, Volume, VolumeId,
};

use super::{Cluster, Refusal};

/// The outcome of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// Something changed.
    Applied {
        /// For the caller.
        response: CommandResponse,
        /// Keys of what changed, for watchers; a key may occur more than once, and its object may have been
        /// deleted.
        changes: Vec<StateChange>,
    },
    /// It was already set.
    Unchanged {
        /// The object as it is.
        answer: CommandResponse,
    },
    /// Nothing was changed, and why.
    Rejected(Refusal),
}

/// The response to an applied command: the object as the command's own entry left it or found it, or as it
/// was before, if the entry deleted it. Later entries are not visible in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandResponse {
    /// No object.
    Done,
    /// Response to a change of the cluster's settings.
    Cluster(Arc<Cluster>),
    /// Response to commands on a service.
    Service(Arc<Service>),
    /// Response to commands on a node.
    Node(Arc<Node>),
    /// Response to commands on a join token.
    Token(Arc<Token>),
    /// Response to commands on a user.
    User(Arc<User>),
    /// Response to commands on a secret object.
    SecretObject(Arc<SecretObject>),
    /// Response to commands on a volume.
    Volume(Arc<Volume>),
    /// Response to commands on a network.
    Network(Arc<Network>),
    /// Response to commands on a manager.
    Member(Arc<Member>),
    /// Response to a new session.
    Session {
        /// Higher than that of any earlier session of this node.
        number: u64,
    },
}

macro_rules! object_of_response {
    ($($object:ident),*) => {$(
        impl TryFrom<CommandResponse> for Arc<$object> {
            /// The response, which has no such object.
            type Error = CommandResponse;

            fn try_from(answer: CommandResponse) -> Result<Self, CommandResponse> {
                match answer {
                    CommandResponse::$object(object) => Ok(object),
                    other => Err(other),
                }
            }
        }
    )*};
}

object_of_response!(Cluster, Service, Node, Token, User, SecretObject, Volume, Network, Member);

/// The key of something that changed. Look it up in the state: if it does not exist, it was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StateChange {
    /// The cluster's settings, or its feature level.
    Cluster,
    /// A service.
    Service(ServiceId),
    /// A task.
    Task(TaskId),
    /// A node's own fields.
    Node(NodeId),
    /// The assignment of a node.
    Assignment(NodeId),
    /// A join token.
    Token(TokenId),
    /// A user.
    User(UserId),
    /// A secret, a config or a credential.
    SecretObject(SecretObjectId),
    /// A volume.
    Volume(VolumeId),
    /// A network.
    Network(NetworkId),
    /// Which addresses can be assigned again.
    Addresses,
    /// What imports gave names of images.
    ImportedImages,
    /// Who has a certificate of the new authority.
    CaRenewals,
    /// Who has replaced its keys, or what is sealed with the new one.
    KeyRotation,
    /// A manager.
    Member(MemberId),
}
