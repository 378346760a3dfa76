//! Standard input of a container.

use std::path::PathBuf;

use super::OutputTarget;
use super::storage::is_normalized;
use crate::error::Error;

/// Standard input that stays open until its end is asked for. It comes from a named pipe, whose writing end the
/// container's supervisor holds, so it outlives agent and containerd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandardInput {
    /// Absolute path of the pipe on the host. It is created if it is missing; its directory must exist.
    pub pipe: PathBuf,
    /// A program as [`init`](super::ContainerSpec::init). Without a terminal it runs as process 1, called with
    /// `--input` and the path of the pipe in the container, and passes the pipe on to the command.
    pub program: PathBuf,
}

impl StandardInput {
    pub(super) fn check(&self, log: &OutputTarget) -> Result<(), Error> {
        for (field, path) in [("stdin.pipe", &self.pipe), ("stdin.program", &self.program)] {
            if !is_normalized(path) {
                return Err(Error::invalid_field(
                    field,
                    format!("{path:?} is not an absolute path in UTF-8"),
                ));
            }
        }
        match log {
            // The supervisor would read the pipe itself.
            OutputTarget::Discard => {
                Err(Error::invalid_field("stdin", "an input needs a logger, and none is set"))
            }
            OutputTarget::Binary { .. } => Ok(()),
        }
    }
}
