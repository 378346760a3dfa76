//! warren-logger: stores the output of containers on their node, and reads it back.
//!
//! * `warren-logger` (`program/logger.rs`) is the small program that containerd's shim starts for each
//!   container when its output is a URI such as
//!   `binary:///PROGRAM?dir=/DIRECTORY&max-size=1000000&max-files=3`. It runs independently of the
//!   agent and containerd.
//! * `warren-init` (`program/init.rs`) is the first process of a container that asks for one.
//! * `warren-exec` (`program/exec.rs`) runs a program inside a running container; [`plan`] is its input.
//! * [`ensure_installed`] writes these programs, embedded in this library, to an executable path.
//! * [`OutputReader`] reads the files, from the end, from a time, and while they are written.
//!   [`disk_usage`] returns their size, [`remove_dir`] removes them.
//!
//! The files are text with one record per line, described in [`record`]. They are rotated by size and
//! limited by count, and their numbers only increase ([`segment`]), so a reader finds the next one by
//! itself. Files of a newer version are rejected. A line is stored once the logger has read it from the
//! pipe and written it: nothing is synced, so a power cut can lose the last seconds; the rest of a partial
//! record is skipped and never precedes another record.
//!
//! The programs must depend only on the standard library, and this library must never write to the files
//! that it reads. Start reading at `program/logger.rs`, then `program/journal.rs`, and `reader/cursor.rs`
//! for the read side.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod install;
pub mod plan;
mod reader;
pub mod record;
pub mod segment;

// The modules of the logger that can be unit-tested here.
#[cfg(test)]
#[path = "program/arguments.rs"]
mod arguments;
#[cfg(test)]
#[path = "program/journal.rs"]
mod journal;
#[cfg(test)]
#[path = "program/splitter.rs"]
mod splitter;

use std::io::ErrorKind;
use std::path::Path;

pub use error::Error;
pub use install::{ContainerPrograms, ensure_installed};
pub use reader::{OutputEntry, OutputLine, OutputReader, ReadOptions};
pub use record::OutputStream;

/// Total bytes of the files in `dir`; 0 when the directory does not exist.
///
/// # Errors
/// [`Error::Read`] when it cannot be read.
pub fn disk_usage(dir: &Path) -> Result<u64, Error> {
    let failed = |source| Error::Read { path: dir.to_owned(), source };
    let numbers = match segment::list(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        found => found.map_err(failed)?,
    };
    let mut sum = 0;
    for number in numbers {
        match std::fs::metadata(segment::segment_path(dir, number)) {
            Ok(metadata) => sum += metadata.len(),
            // Removed by rotation in the meantime.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(sum)
}

/// Removes `dir` and its content. Idempotent.
///
/// # Errors
/// [`Error::Remove`] when something could not be removed.
pub fn remove_dir(dir: &Path) -> Result<(), Error> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(Error::Remove { dir: dir.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_testkit::scratch::ScratchDir;

    #[test]
    fn disk_usage_is_counted_and_dir_removed() {
        let scratch = ScratchDir::new();
        let dir = scratch.path().join("output");
        assert_eq!(disk_usage(&dir).unwrap(), 0);
        remove_dir(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(segment::segment_path(&dir, 1), "12345").unwrap();
        std::fs::write(segment::segment_path(&dir, 7), "123").unwrap();
        std::fs::write(dir.join("other"), "1").unwrap();
        assert_eq!(disk_usage(&dir).unwrap(), 8);
        remove_dir(&dir).unwrap();
        remove_dir(&dir).unwrap();
        assert!(!dir.exists());
    }
}
