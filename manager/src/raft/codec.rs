//! Commands and objects as bytes on disk: protobuf, additive, with golden files of every level beside the
//! tests.
//!
//! What this version does not know all of stops the manager. That is more than protobuf does, which skips
//! fields that it has no name for: a member that did so would apply less than the others, and differ from
//! then on without a word. So whatever is read is written again, from what it was taken for, and must give the same
//! bytes.

mod backup;
mod object;
mod read;
mod write;

use prost::Message;
use warren_core::{Command, LEVEL};
use warren_proto::v1;
use warren_types::Violations;

pub use backup::{Manifest, read_backup, write_backup};
pub use object::{read_snapshot, write_snapshot};

/// Bytes that this version cannot read. Skipping them would make members differ, so the manager stops.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Not protobuf.
    #[error("{what} is damaged: {source}")]
    Damaged {
        /// What was read.
        what: &'static str,
        /// Where it broke.
        source: prost::DecodeError,
    },
    /// Protobuf, but of a kind or with a field that this version does not know.
    #[error(
        "{0} holds what this version of Warren does not know, so a newer one wrote it; install that version and \
         start again"
    )]
    Unknown(&'static str),
    /// The cluster was raised to a level that came after this version.
    #[error(
        "{what} is of level {found} and this version of Warren supports levels up to {LEVEL}; install a newer \
         version and start again"
    )]
    Level {
        /// What was read.
        what: &'static str,
        /// The level in it.
        found: u32,
    },
    /// Protobuf with a value that this version does not know, or that cannot be.
    #[error("{what} cannot be read: {violations}; install the newest version of Warren that ran here")]
    Field {
        /// What was read.
        what: &'static str,
        /// Which fields.
        violations: Violations,
    },
}

/// A command as it stands in the log.
pub fn encode(command: &Command) -> Vec<u8> {
    v1::Command { command: Some(write::command(command)) }.encode_to_vec()
}

/// The command that [`encode`] wrote.
///
/// # Errors
/// [`CodecError`], above all for a command that only a later version knows.
pub fn decode(bytes: &[u8]) -> Result<Command, CodecError> {
    const WHAT: &str = "a command in the log";
    let wire = v1::Command::decode(bytes).map_err(|source| CodecError::Damaged { what: WHAT, source })?;
    let command = wire.command.ok_or(CodecError::Unknown(WHAT))?;
    let command =
        read::command(command).map_err(|violations| CodecError::Field { what: WHAT, violations })?;
    if encode(&command) != bytes {
        return Err(CodecError::Unknown(WHAT));
    }
    if let Command::CreateCluster { level, .. } | Command::RaiseLevel { level, .. } = command {
        supported(WHAT, level)?;
    }
    Ok(command)
}

fn supported(what: &'static str, level: u32) -> Result<(), CodecError> {
    if level > LEVEL { Err(CodecError::Level { what, found: level }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
