//! Failures of actions, and whether a retry can help.

use warren_runtime::Error as RuntimeError;
use warren_task::FailureKind;

use crate::handlers::files::TaskDirError;
use crate::handlers::images::TaskImageError;
use crate::handlers::ports::HostPortError;
use crate::handlers::secret_objects::SecretObjectsError;
use crate::handlers::user_namespaces::UserNamespaceError;
use crate::handlers::volumes::MountSourceError;
use crate::tasks::container::spec_path;

/// A failed action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ActionFailure {
    pub kind: FailureKind,
    /// Human readable: what failed and what to do.
    pub reason: String,
}

impl ActionFailure {
    /// Something was unreachable, timed out, or failed for an unknown cause.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Transient, reason: reason.into() }
    }

    /// A retry cannot help as long as neither the spec nor the node changes.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self { kind: FailureKind::Permanent, reason: reason.into() }
    }
}

impl From<RuntimeError> for ActionFailure {
    fn from(error: RuntimeError) -> Self {
        match error {
            // These only mean that the container changed since it was observed.
            RuntimeError::Conflict { .. } | RuntimeError::NotFound { .. } => {
                Self::transient(error.to_string())
            }
            // The image was removed meanwhile; it is pulled again.
            RuntimeError::ImageMissing { .. } => Self::transient(error.to_string()),
            RuntimeError::InvalidSpec { field: name, reason } => match spec_path::spec_path(&name) {
                Some(path) => Self::permanent(format!("{path}: {reason}")),
                // Resources that the node adds are re-created.
                None => Self::transient(format!("invalid {name}: {reason}")),
            },
            error if error.is_transient() => Self::transient(error.to_string()),
            error => Self::permanent(error.to_string()),
        }
    }
}

impl From<TaskImageError> for ActionFailure {
    fn from(error: TaskImageError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}

impl From<warren_network::Error> for ActionFailure {
    fn from(error: warren_network::Error) -> Self {
        use warren_network::Error as E;
        match error {
            E::PortTaken { .. }
            | E::HostIpMissing { .. }
            | E::LinkNameTaken { .. }
            | E::InvalidTaskKey { .. } => Self::permanent(error.to_string()),
            // A further subnet comes with the first task that has an address of it, and the node network follows later.
            error => Self::transient(error.to_string()),
        }
    }
}

impl From<HostPortError> for ActionFailure {
    fn from(error: HostPortError) -> Self {
        match error {
            HostPortError::Network(error) => error.into(),
            HostPortError::OwnedByOtherService { .. } => Self::transient(error.to_string()),
            HostPortError::Zero => Self::permanent(error.to_string()),
        }
    }
}

impl From<TaskDirError> for ActionFailure {
    fn from(error: TaskDirError) -> Self {
        Self::transient(error.to_string())
    }
}

impl From<MountSourceError> for ActionFailure {
    fn from(error: MountSourceError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}

impl From<SecretObjectsError> for ActionFailure {
    fn from(error: SecretObjectsError) -> Self {
        match error {
            SecretObjectsError::Runtime(error) => error.into(),
            SecretObjectsError::Users(error) => error.into(),
            error if error.is_transient() => Self::transient(error.to_string()),
            error => Self::permanent(error.to_string()),
        }
    }
}

impl From<UserNamespaceError> for ActionFailure {
    fn from(error: UserNamespaceError) -> Self {
        match error {
            UserNamespaceError::Runtime(error) => error.into(),
            // Ids are free when another task has ended.
            UserNamespaceError::Exhausted(_) | UserNamespaceError::Record { .. } => {
                Self::transient(error.to_string())
            }
        }
    }
}
