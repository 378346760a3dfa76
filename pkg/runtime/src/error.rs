//! Why a container operation failed, and whether trying again can help.

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

    pub(crate) fn invalid(field: &str, reason: impl Into<String>) -> Self {
        Self::InvalidSpec { field: field.to_owned(), reason: reason.into() }
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

    /// The error of a failed process creation: recognises what runc and crun say about a command they cannot
    /// run.
    pub(crate) fn of_create(id: &str, command: &str, status: &Status) -> Self {
        match Fault::of(status) {
            Fault::Other => {}
            _ => return Self::of(format!("create the process of container {id}"), status),
        }
        match unrunnable(status.message()) {
            Some(reason) => Self::CommandNotFound { command: command.to_owned(), reason },
            None => Self::of(format!("create the process of container {id}"), status),
        }
    }

    pub(crate) fn of_image(reference: &str, error: warren_image::Error) -> Self {
        use warren_image::Error as E;
        match error {
            E::Unavailable { action, reason } => Self::Unavailable { action, reason },
            E::Timeout { action, reason } => Self::Timeout { action, reason },
            E::Refused { action, reason } => Self::Failed { action, reason },
            other => Self::ImageUnusable { reference: reference.to_owned(), reason: other.to_string() },
        }
    }
}

/// The part of a runtime's message that says why a command cannot be run, if that is what it is about.
///
/// runc: `... unable to start container process: exec: "/x": stat /x: no such file or directory: unknown`.
/// crun: `... executable file `/x` not found: No such file or directory: unknown` or `... open executable:
/// ...`.
fn unrunnable(message: &str) -> Option<String> {
    let start = ["exec: \"", "executable file `", "open executable: "]
        .iter()
        .filter_map(|marker| message.find(marker))
        .min()?;
    let said = message[start..].trim_end_matches(": unknown");
    let said = match said.strip_prefix("exec: \"") {
        // What follows the quoted command.
        Some(rest) => rest.split_once("\": ").map_or(rest, |(_, reason)| reason),
        None => said,
    };
    const REASONS: [&str; 6] = [
        "not found",
        "no such file",
        "permission denied",
        "is a directory",
        "not a directory",
        "exec format error",
    ];
    let lower = said.to_lowercase();
    REASONS.iter().any(|reason| lower.contains(reason)).then(|| said.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unrunnable_command_is_told_from_other_failures() {
        const RUNC: &str = "failed to create shim task: OCI runtime create failed: runc create failed: \
                            unable to start container process: ";
        for (message, want) in [
            (
                format!("{RUNC}exec: \"/nope\": stat /nope: no such file or directory: unknown"),
                Some("stat /nope: no such file or directory"),
            ),
            (
                format!("{RUNC}exec: \"nope\": executable file not found in $PATH: unknown"),
                Some("executable file not found in $PATH"),
            ),
            (format!("{RUNC}exec: \"/etc\": is a directory: unknown"), Some("is a directory")),
            (format!("{RUNC}exec: \"/etc/passwd\": permission denied: unknown"), Some("permission denied")),
            (
                "OCI runtime create failed: executable file `/x` not found: No such file or directory"
                    .to_owned(),
                Some("executable file `/x` not found: No such file or directory"),
            ),
            (format!("{RUNC}error mounting \"/x\" to rootfs at \"/y\": no such file or directory"), None),
            ("failed to mount rootfs component: no such file or directory".to_owned(), None),
        ] {
            assert_eq!(unrunnable(&message).as_deref(), want, "{message}");
        }
    }

    #[test]
    fn only_faults_of_the_moment_are_transient() {
        let status = Status::unknown("transport error");
        assert!(Error::of("x", &status).is_transient());
        assert!(Error::of_create("a", "/x", &Status::unknown("device busy")).is_transient());
        let gone = Status::unknown("exec: \"/x\": stat /x: no such file or directory: unknown");
        assert!(!Error::of_create("a", "/x", &gone).is_transient());
        assert!(!Error::invalid("id", "x").is_transient());
        assert!(!Error::ImageMissing { reference: "x".into() }.is_transient());
    }
}
