//! Commands and objects as bytes on disk. Versioned protobuf, additive; what cannot be read stops the manager.

mod object;
mod read;
mod write;

use prost::Message;
use warren_core::Command;
use warren_proto::v1;
use warren_types::Violations;

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
    /// Protobuf, but of a kind that this version does not know.
    #[error("{0} is of a newer version of Warren; install that version and start again")]
    Unknown(&'static str),
    /// Protobuf with a field that cannot be.
    #[error("{what} is damaged: {violations}")]
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
    read::command(command).map_err(|violations| CodecError::Field { what: WHAT, violations })
}

#[cfg(test)]
mod tests;
