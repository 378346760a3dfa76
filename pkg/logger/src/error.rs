//! What can go wrong with programs and files.

use std::io;
use std::path::PathBuf;

/// Why output cannot be read, or a program not be installed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no directory.
    #[error("there is no output in {dir}: nothing was started with it, or it was removed since")]
    NotFound {
        /// The directory asked for.
        dir: PathBuf,
    },
    /// Another version of this program wrote the files.
    #[error(
        "{file} has format version {found}, and this program reads up to {known}: use the version that \
         wrote it"
    )]
    Version {
        /// The file that says so.
        file: PathBuf,
        /// Its version.
        found: u32,
        /// The newest that can be read.
        known: u32,
    },
    /// A file or directory could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory could not be removed.
    #[error("cannot remove {dir}: {source}")]
    Remove {
        /// What was to be removed.
        dir: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program could not be written.
    #[error("cannot write the program {path}: {source}; the directory must exist and have room for 2 MiB")]
    Install {
        /// What was to be written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A program was written and cannot be executed.
    #[error(
        "the program {path} cannot be executed: {reason}; its directory must be on a file system without the \
         mount option noexec"
    )]
    Execute {
        /// The program.
        path: PathBuf,
        /// What came of trying.
        reason: String,
    },
    /// The reader was used on after an error or a panic in it.
    #[error("reading the output in {dir} ended early; open it again from the last line's time")]
    Ended {
        /// The directory.
        dir: PathBuf,
    },
}
