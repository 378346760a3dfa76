//! `warren import-swarm`: the objects of a running Swarm as documents.

use std::path::Path;
use std::process::ExitCode;

use warren_daemon::printable;
use warren_docker_api::swarm_import::{SwarmObjects, SwarmReadError};

use crate::args::GlobalArgs;
use crate::failure::{CommandError, ExitKind};
use crate::view::document;

const WHAT: &str = "the Swarm was not read";

/// Prints documents, and on standard error what they cannot carry. The exit code says whether something was left out.
pub async fn run(global: &GlobalArgs, socket: &Path) -> Result<ExitCode, CommandError> {
    let SwarmObjects { documents, notes, left_out } = SwarmObjects::read(socket).await.map_err(failure)?;
    document::print(global.output, &documents)?;
    for note in notes {
        eprintln!("note: {}", printable(&note));
    }
    for object in &left_out {
        eprintln!("left out: {}", printable(object));
    }
    Ok(if left_out.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn failure(error: SwarmReadError) -> CommandError {
    let (kind, hint) = match &error {
        SwarmReadError::Connect { .. } => (
            ExitKind::Unreachable,
            "run it on a manager of the Swarm, as a user who may use Docker, or give --socket",
        ),
        SwarmReadError::Refused { .. } => {
            (ExitKind::Conflict, "run it on a manager of the Swarm: `docker node ls`")
        }
        SwarmReadError::Answer { .. } => (ExitKind::Failed, ""),
    };
    CommandError::new(kind, WHAT, error, hint)
}
