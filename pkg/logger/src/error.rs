//! Errors of output files and program installation.

use std::io;
use std::path::PathBuf;

/// A failed read of output, or a failed installation of a program.
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
    /// A directory could not be removed.
    #[error("cannot remove {dir}: {source}")]
    Remove {
        /// The directory to remove.
        dir: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// A program could not be written.
    #[error(
        "cannot write the program {path}: {source}; the directory must exist and have 2 MiB of free space"
    )]
    Install {
        /// Path of the program.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// A program was written but cannot be executed.
    #[error(
        "cannot execute the program {path}: {reason}; its directory must be on a file system without the \
         mount option noexec"
    )]
    Execute {
        /// The program.
        path: PathBuf,
        /// Why the execution failed.
        reason: String,
    },
    /// The reader was used after an error or a panic.
    #[error("reading the output in {dir} ended early; open it again from the last line's time")]
    ReaderEnded {
        /// The directory.
        dir: PathBuf,
    },
}
