//! The on-disk encoding of commands and objects: protobuf, additive, with golden files of every level in the
//! tests.
//!
//! Data with a field unknown to this version stops the manager. Protobuf skips unknown fields: a member that
//! did so would apply less than the others, and silently diverge. So every decoded value is encoded again and
//! must produce the same bytes.

mod backup;
mod command;
mod object;

use prost::Message;
use warren_core::{Command, FEATURE_LEVEL};
use warren_proto::v1;
use warren_types::Violations;

pub use backup::{BackupManifest, read_backup, write_backup};
pub use object::{read_snapshot, write_snapshot};

/// Bytes that this version cannot decode. Skipping them would make members diverge, so the manager stops.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Invalid protobuf.
    #[error("{what} is damaged: {source}")]
    Malformed {
        /// The kind of data.
        what: &'static str,
        /// The decoding error.
        source: prost::DecodeError,
    },
    /// Valid protobuf with a kind or field unknown to this version.
    #[error(
        "{0} was written by a newer version of Warren and has unknown fields; install that version and \
         start again"
    )]
    UnknownRecord(&'static str),
    /// The feature level is newer than this version.
    #[error(
        "{what} is of level {found} and this version of Warren supports feature levels up to \
         {FEATURE_LEVEL}; install a newer version and start again"
    )]
    UnsupportedLevel {
        /// The kind of data.
        what: &'static str,
        /// Its level.
        found: u32,
    },
    /// Valid protobuf with an unknown or invalid value.
    #[error("{what} is invalid: {violations}; install the newest version of Warren that ran here")]
    InvalidField {
        /// The kind of data.
        what: &'static str,
        /// The invalid fields.
        violations: Violations,
    },
}

/// Encodes a command for the log.
pub fn encode(command: &Command) -> Vec<u8> {
    v1::Command { command: Some(command::to_wire(command)) }.encode_to_vec()
}

/// Decodes the output of [`encode`].
///
/// # Errors
/// [`CodecError`], in particular for a command of a later version.
pub fn decode(bytes: &[u8]) -> Result<Command, CodecError> {
    const COMMAND_IN_LOG: &str = "a command in the log";
    let wire = v1::Command::decode(bytes)
        .map_err(|source| CodecError::Malformed { what: COMMAND_IN_LOG, source })?;
    let command = wire.command.ok_or(CodecError::UnknownRecord(COMMAND_IN_LOG))?;
    let command = self::command::from_wire(command)
        .map_err(|violations| CodecError::InvalidField { what: COMMAND_IN_LOG, violations })?;
    if encode(&command) != bytes {
        return Err(CodecError::UnknownRecord(COMMAND_IN_LOG));
    }
    if let Command::CreateCluster { feature_level: level, .. } | Command::RaiseFeatureLevel { level, .. } =
        command
    {
        check_level(COMMAND_IN_LOG, level)?;
    }
    Ok(command)
}

fn check_level(what: &'static str, level: u32) -> Result<(), CodecError> {
    if level > FEATURE_LEVEL { Err(CodecError::UnsupportedLevel { what, found: level }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
