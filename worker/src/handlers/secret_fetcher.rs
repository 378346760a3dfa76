//! Interface to the managers that have secret objects.

#[cfg(test)]
pub(crate) mod fake;

use std::fmt;

use warren_security::delivery::DeliveryError;
use warren_types::{SecretObjectId, SecretObjectKind, SecretObjectName, TaskId};
use zeroize::Zeroizing;

/// Fetches secret objects from a manager.
#[tonic::async_trait]
pub(crate) trait SecretFetcher: Send + Sync {
    /// Fetches everything for the purpose, each secret object once. A missing object is an error, except for
    /// access to a registry, of which there is none or one.
    async fn fetch(&self, need: FetchPurpose) -> Result<Vec<FetchedObject>, SecretFetchError>;
}

/// Purpose of a fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FetchPurpose {
    /// Secrets and configs of a task of this node.
    TaskSecretObjects(TaskId),
    /// Access to a registry.
    RegistryAccess {
        /// For its image.
        puller: ImagePuller,
        /// Whether earlier access has expired, or the registry refused it.
        is_renewal: bool,
    },
}

/// What an image is pulled for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ImagePuller {
    /// A task of this node.
    Task(TaskId),
    /// A stream in which a manager asked for it.
    Stream(String),
}

/// A fetched secret object.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct FetchedObject {
    pub kind: SecretObjectKind,
    pub name: SecretObjectName,
    pub id: SecretObjectId,
    /// Its version.
    pub version: u64,
    /// Its data; of a credential the access to the registry.
    pub bytes: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for FetchedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Delivered({} {} number {}, {} bytes)",
            self.kind,
            self.name,
            self.version,
            self.bytes.len()
        )
    }
}

/// Nothing was fetched. Reveals nothing of secret objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SecretFetchError {
    /// No manager is available.
    #[error("{0}")]
    NoManager(String),
    /// A version is not stored any more; the manager's message.
    #[error("{0}")]
    VersionGone(String),
    /// The manager refused; its message.
    #[error("manager refused the request: {0}")]
    Refused(String),
    /// The manager gives no access to the registry.
    #[error("{reason}")]
    NoRegistryAccess {
        /// Its message.
        reason: String,
        /// Whether it may give access later.
        is_transient: bool,
    },
    #[error(transparent)]
    UnsealFailed(#[from] DeliveryError),
    /// The manager's answer is invalid.
    #[error("invalid answer from the manager: {0}")]
    InvalidAnswer(String),
}
