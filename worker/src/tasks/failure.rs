//! Why an action did not work, and whether trying again can help.

use warren_runtime::Error as RuntimeError;
use warren_task::Severity;

use crate::handlers::files::FilesError;
use crate::handlers::images::ImageError;
use crate::handlers::ports::PortsError;
use crate::handlers::volumes::VolumesError;
use crate::tasks::container::field;

/// Why an action did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub severity: Severity,
    /// What went wrong and what to do, in words.
    pub reason: String,
}

impl Failure {
    /// Something was not reachable, took too long, or failed without saying why.
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { severity: Severity::Transient, reason: reason.into() }
    }

    /// It will not work as long as neither the spec nor the node changes.
    pub fn permanent(reason: impl Into<String>) -> Self {
        Self { severity: Severity::Permanent, reason: reason.into() }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            // These only mean that the container is not as it was last seen.
            RuntimeError::Conflict { .. } | RuntimeError::NotFound { .. } => {
                Self::transient(error.to_string())
            }
            // It went since it was looked for, and is looked for again.
            RuntimeError::ImageMissing { .. } => Self::transient(error.to_string()),
            RuntimeError::InvalidSpec { field: name, reason } => match field::path(&name) {
                Some(path) => Self::permanent(format!("{path}: {reason}")),
                // What the node adds itself is made again.
                None => Self::transient(format!("{name} is refused: {reason}")),
            },
            error if error.is_transient() => Self::transient(error.to_string()),
            error => Self::permanent(error.to_string()),
        }
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}

impl From<warren_network::Error> for Failure {
    fn from(error: warren_network::Error) -> Self {
        use warren_network::Error as E;
        match error {
            E::PortTaken { .. }
            | E::HostIpMissing { .. }
            | E::AddressOutsideSubnet { .. }
            | E::LinkNameTaken { .. }
            | E::BadTaskKey { .. } => Self::permanent(error.to_string()),
            error => Self::transient(error.to_string()),
        }
    }
}

impl From<PortsError> for Failure {
    fn from(error: PortsError) -> Self {
        match error {
            PortsError::Network(error) => error.into(),
            PortsError::OfAnotherService { .. } => Self::transient(error.to_string()),
            PortsError::Zero => Self::permanent(error.to_string()),
        }
    }
}

impl From<FilesError> for Failure {
    fn from(error: FilesError) -> Self {
        Self::transient(error.to_string())
    }
}

impl From<VolumesError> for Failure {
    fn from(error: VolumesError) -> Self {
        match error.is_transient() {
            true => Self::transient(error.to_string()),
            false => Self::permanent(error.to_string()),
        }
    }
}
