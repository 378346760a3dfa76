//! Errors of the installation.

use std::io;
use std::path::PathBuf;

/// A failed installation of a program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
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
}
