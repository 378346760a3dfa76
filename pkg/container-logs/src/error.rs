//! Errors of the reader.

use std::io;
use std::path::PathBuf;

/// A failed read of output.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The directory does not exist.
    #[error("no output in {dir}: no container wrote to it, or it was removed")]
    NotFound {
        /// Requested directory.
        dir: PathBuf,
    },
    /// The files have an unsupported format version.
    #[error(
        "{file} has format version {found}, and this program reads up to {known}: use the version that \
         wrote it"
    )]
    Version {
        /// The file with that version.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    /// A file or directory could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// What was read.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The reader was used after an error or a panic.
    #[error("reading the output in {dir} ended early; open it again from the last line's time")]
    ReaderEnded {
        /// The directory.
        dir: PathBuf,
    },
}
