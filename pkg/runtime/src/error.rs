//! Why a container operation failed, and whether trying again can help.

mod create;

use std::path::PathBuf;

use tonic::Status;
use warren_image::Fault;

/// A failed operation. Each message says what was wanted, what was found and, where it is not plain, what to
/// do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The image is not on this node.
    #[error("image {reference} is not on this node; import it first")]
    ImageMissing {
        /// The image's normalised name.
        reference: String,
    },
    /// The image is here but cannot be used.
    #[error("image {reference} cannot be used: {reason}")]
    ImageUnusable {
        /// The image's normalised name.
        reference: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The command is not in the image, or not a program its user may run.
    #[error(
        "the command {command:?} cannot be run: {reason}; check the image's entrypoint, command and args"
    )]
    CommandNotFound {
        /// The first word of the command.
        command: String,
        /// What the runtime said.
        reason: String,
    },
    /// A field of the container's spec is not acceptable.
    #[error("{field} is refused: {reason}")]
    InvalidSpec {
        /// The field's path.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The program that makes containers is not on this node.
    #[error("{} is not a program on this node; install it, or name another runtime", program.display())]
    NoOciRuntime {
        /// Its name or path.
        program: PathBuf,
    },
    /// The program that is to make containers does not answer like one that does.
    #[error(
        "{} is no runtime that makes containers: wanted its name, version and spec or commit from `--version`, \
         like runc, crun and youki say them, and {said}; name another runtime", program.display()
    )]
    NotOciRuntime {
        /// Its path.
        program: PathBuf,
        /// What it did instead.
        said: String,
    },
    /// There is no such container, or it has no process.
    #[error("container {id} has no {what}")]
    NotFound {
        /// The container.
        id: String,
        /// The part that is missing: `record` or `process`.
        what: &'static str,
    },
    /// The container is in a state in which this cannot be done.
    #[error("cannot {action} container {id}: {found}")]
    Conflict {
        /// What was wanted.
        action: &'static str,
        /// The container.
        id: String,
        /// The state found, and what to do about it.
        found: String,
    },
    /// The runtime is away, or the connection broke: the operation may or may not have taken effect.
    #[error("the container runtime is not available to {action}: {reason}")]
    Unavailable {
        /// What was being done.
        action: String,
        /// What the connection said.
        reason: String,
    },
    /// No answer in time: the operation may or may not have taken effect.
    #[error("the container runtime did not answer in time to {action}: {reason}")]
    Timeout {
        /// What was being done.
        action: String,
        /// Which deadline passed.
        reason: String,
    },
    /// The runtime tried and failed, for a reason this crate does not know.
    #[error("the container runtime failed to {action}: {reason}")]
    Failed {
        /// What was being done.
        action: String,
        /// The runtime's words.
        reason: String,
    },
}

impl Error {
    /// Whether the same call may succeed later without anybody changing its input.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Timeout { .. } | Self::Failed { .. })
    }

    pub(crate) fn invalid(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidSpec { field: field.into(), reason: reason.into() }
    }

    /// The error of a call whose `NotFound` and `AlreadyExists` the caller has dealt with.
    pub(crate) fn of(action: impl Into<String>, status: &Status) -> Self {
        let (action, reason) = (action.into(), status.message().to_owned());
        match Fault::of(status) {
            Fault::Unavailable => Self::Unavailable { action, reason },
            Fault::Timeout => Self::Timeout { action, reason },
            Fault::NotFound | Fault::AlreadyExists | Fault::Other => Self::Failed { action, reason },
        }
    }

    pub(crate) fn of_image(reference: &str, error: warren_image::Error) -> Self {
        use warren_image::Error as E;
        match error {
            E::Unavailable { action, reason } => Self::Unavailable { action, reason },
            E::Timeout { action, reason } => Self::Timeout { action, reason },
            E::Refused { action, reason } => Self::Failed { action, reason },
            // A full disk, above all: it says what to do, and passes when that was done.
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
    fn only_faults_of_the_moment_are_transient() {
        let status = Status::unknown("transport error");
        assert!(Error::of("x", &status).is_transient());
        assert!(!Error::NoOciRuntime { program: "crun".into() }.is_transient());
        assert!(!Error::invalid("id", "x").is_transient());
        assert!(!Error::ImageMissing { reference: "x".into() }.is_transient());
    }

    #[test]
    fn an_image_that_has_no_room_now_is_not_unusable() {
        use warren_image::Error as E;
        let (action, reason) = ("unpack a layer".to_owned(), "no space left on device".to_owned());
        let full = Error::of_image("demo:1", E::DiskFull { action, reason });
        assert!(full.is_transient(), "{full:?}");
        let said = full.to_string();
        assert!(said.contains("demo:1") && said.contains("there is no room on the disk"), "{said}");
        let foreign = E::Platform { what: "demo:1".into(), found: "linux/s390x".into() };
        let foreign = Error::of_image("demo:1", foreign);
        assert!(matches!(&foreign, Error::ImageUnusable { .. }) && !foreign.is_transient(), "{foreign:?}");
    }
}
