//! What managers keep for this node, and hand out for as long as it is needed.

#[cfg(test)]
pub(crate) mod fake;

use std::fmt;

use warren_security::delivery::DeliveryError;
use warren_types::{ContentKind, ContentName, TaskId};
use zeroize::Zeroizing;

/// Gets contents from a manager.
#[tonic::async_trait]
pub(crate) trait Courier: Send + Sync {
    /// Everything that is needed: each content once. What no manager has is an error, but for a credential, of which
    /// there is none or one.
    async fn fetch(&self, need: Need) -> Result<Vec<Delivered>, FetchError>;
}

/// What contents are needed for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Need {
    /// The secrets and configs of a task of this node.
    Contents(TaskId),
    /// The credential of the registry of that task's image.
    Credential(TaskId),
    /// The same for the image that the manager asked for in this stream.
    StreamCredential(String),
}

/// One content.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Delivered {
    pub kind: ContentKind,
    pub name: ContentName,
    /// Which version of it.
    pub number: u64,
    pub bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Delivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delivered({} {} number {}, {} bytes)", self.kind, self.name, self.number, self.bytes.len())
    }
}

/// Why nothing came. Says nothing of what is in a content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    /// No manager can be asked now.
    #[error("{0}")]
    Away(String),
    /// A version is not kept any more; the manager's words.
    #[error("{0}")]
    Gone(String),
    /// The manager does not give it to this node; its words.
    #[error("the manager does not give it: {0}")]
    Refused(String),
    #[error(transparent)]
    Sealed(#[from] DeliveryError),
    /// The manager's answer is none.
    #[error("the manager's answer cannot be read: {0}")]
    Unreadable(String),
}
