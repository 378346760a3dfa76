//! Errors of container operations, and whether a retry can help.

use std::path::PathBuf;

use tonic::Status;
use warren_image::CallError;

/// A failed operation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image is not on this node.
    #[error("image {reference} is not on this node; import it or allow pulls")]
    ImageMissing {
        /// Normalized name of the image.
        reference: String,
    },
    /// The image is on this node but cannot be used.
    #[error("image {reference} cannot be used: {reason}")]
    ImageUnusable {
        /// Normalized name of the image.
        reference: String,
        /// The cause.
        reason: String,
    },
    /// The command does not exist in the image, or its user may not execute it.
    #[error(
        "the command {command:?} cannot be run: {reason}; check the image's entrypoint, command and args"
    )]
    CommandNotFound {
        /// First word of the command.
        command: String,
        /// The message of the runtime.
        reason: String,
    },
    /// A field of the container's spec is invalid.
    #[error("invalid {field}: {reason}")]
    InvalidSpec {
        /// Path of the field.
        field: String,
        /// The cause.
        reason: String,
    },
    /// The OCI runtime is not installed on this node.
    #[error("{} is not a program on this node; install it, or name another runtime", program.display())]
    OciRuntimeMissing {
        /// Name or path.
        program: PathBuf,
    },
    /// The configured program does not respond like an OCI runtime.
    #[error(
        "{} is not an OCI runtime: expected name, version and spec or commit from `--version`, as of runc, crun \
         and youki, but {output}; name another runtime", program.display()
    )]
    OciRuntimeInvalid {
        /// Path of the program.
        program: PathBuf,
        /// Its output.
        output: String,
    },
    /// The container does not exist, or has no process.
    #[error("container {id} has no {what}")]
    NotFound {
        /// The container.
        id: String,
        /// The missing part: `record` or `process`.
        what: &'static str,
    },
    /// The operation is not possible in the state of the container.
    #[error("cannot {action} container {id}: {found}")]
    Conflict {
        /// The failed operation.
        action: &'static str,
        /// The container.
        id: String,
        /// The actual state, and what to do about it.
        found: String,
    },
    /// The runtime is not available, or the connection was lost: the operation may have taken effect.
    #[error("the container runtime is not available to {action}: {reason}")]
    Unavailable {
        /// The failed operation.
        action: String,
        /// The error of the connection.
        reason: String,
    },
    /// No answer in time: the operation may have taken effect.
    #[error("the container runtime did not answer in time to {action}: {reason}")]
    Timeout {
        /// The failed operation.
        action: String,
        /// The deadline that passed.
        reason: String,
    },
    /// The runtime failed for a cause that this crate does not classify.
    #[error("the container runtime failed to {action}: {reason}")]
    Failed {
        /// The failed operation.
        action: String,
        /// The message of the runtime.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed later with the same input.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Timeout { .. } | Self::Failed { .. })
    }

    /// Whether the command exists and cannot be executed; shells call this 126, a missing command 127.
    pub fn is_not_executable(&self) -> bool {
        const REASONS: [&str; 3] = ["permission denied", "is a directory", "exec format error"];
        match self {
            Self::CommandNotFound { reason, .. } => {
                REASONS.iter().any(|known| reason.to_lowercase().contains(known))
            }
            _ => false,
        }
    }

    pub(crate) fn invalid_field(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidSpec { field: field.into(), reason: reason.into() }
    }

    /// The error of a call; the caller handles `NotFound` and `AlreadyExists`.
    pub(crate) fn from_status(action: impl Into<String>, status: &Status) -> Self {
        let (action, reason) = (action.into(), status.message().to_owned());
        match CallError::from_status(status) {
            CallError::Unavailable => Self::Unavailable { action, reason },
            CallError::Timeout => Self::Timeout { action, reason },
            CallError::NotFound | CallError::AlreadyExists | CallError::Other => {
                Self::Failed { action, reason }
            }
        }
    }

    pub(crate) fn from_image(reference: &str, error: warren_image::Error) -> Self {
        use warren_image::Error as E;
        match error {
            E::Unavailable { action, reason } => Self::Unavailable { action, reason },
            E::Timeout { action, reason } => Self::Timeout { action, reason },
            E::Refused { action, reason } => Self::Failed { action, reason },
            // Above all a full disk: the message says what to do, and a retry can succeed.
            passing if passing.is_transient() => {
                Self::Failed { action: format!("use image {reference}"), reason: passing.to_string() }
            }
            other => Self::ImageUnusable { reference: reference.to_owned(), reason: other.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_temporary_errors_are_transient() {
        let status = Status::unknown("transport error");
        assert!(Error::from_status("x", &status).is_transient());
        assert!(!Error::OciRuntimeMissing { program: "crun".into() }.is_transient());
        assert!(!Error::invalid_field("id", "x").is_transient());
        assert!(!Error::ImageMissing { reference: "x".into() }.is_transient());
    }

    #[test]
    fn full_disk_does_not_make_image_unusable() {
        use warren_image::Error as E;
        let (action, reason) = ("unpack a layer".to_owned(), "no space left on device".to_owned());
        let full = Error::from_image("demo:1", E::DiskFull { action, reason });
        assert!(full.is_transient(), "{full:?}");
        let message = full.to_string();
        assert!(message.contains("demo:1") && message.contains("no space left on device"), "{message}");
        let foreign = E::NoMatchingPlatform { what: "demo:1".into(), found: "linux/s390x".into() };
        let foreign = Error::from_image("demo:1", foreign);
        assert!(matches!(&foreign, Error::ImageUnusable { .. }) && !foreign.is_transient(), "{foreign:?}");
    }
}
