//! warren-logger: what containers write, kept on the node they run on, and read again.
//!
//! * `warren-logger` (`program/logger.rs`) is the small program that containerd's shim starts beside each
//!   container when its output is a URI such as
//!   `binary:///PROGRAM?dir=/DIRECTORY&max-size=1000000&max-files=3`. It needs neither the agent nor
//!   containerd to go on.
//! * `warren-init` (`program/init.rs`) is the first process of a container that asks for one.
//! * `warren-exec` (`program/exec.rs`) runs a program inside a running container; [`plan`] is what it is told.
//! * [`ensure_installed`] writes them, which are carried inside of this library, to where they can be
//!   executed.
//! * [`Reader`] reads the files, from the end, from a time, and while they are written. [`retained`] says how
//!   much they take, [`remove`] removes them.
//!
//! The files are text, a record a line, described in [`record`]; they are rotated by size and bounded by
//! count, and their names only rise ([`segment`]), so a reader finds the next one without being told. A file
//! of a newer version is refused. A line is kept once the logger has read it from the pipe and written it:
//! nothing is synced, so a power cut can take the last seconds, but what it leaves of a record is skipped and
//! never stands before another one.
//!
//! The programs must never depend on anything but the standard library, and this library must never write to
//! the files that it reads. Start reading at `program/logger.rs`, then `program/journal.rs`, and
//! `reader/cursor.rs` for the other side.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod install;
pub mod plan;
mod reader;
pub mod record;
pub mod segment;

// The parts of the logger that can be tested without being it.
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
pub use install::{Programs, ensure_installed};
pub use reader::{Entry, Line, Options, Reader};
pub use record::Stream;

/// How many bytes the files in `dir` take; 0 when there is no such directory.
///
/// # Errors
/// [`Error::Read`] when it cannot be looked at.
pub fn retained(dir: &Path) -> Result<u64, Error> {
    let failed = |source| Error::Read { path: dir.to_owned(), source };
    let numbers = match segment::numbers(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        found => found.map_err(failed)?,
    };
    let mut sum = 0;
    for number in numbers {
        match std::fs::metadata(segment::path(dir, number)) {
            Ok(metadata) => sum += metadata.len(),
            // Rotated away meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(sum)
}

/// Removes `dir` and all that is in it. Harmless when it is gone.
///
/// # Errors
/// [`Error::Remove`] when something stays.
pub fn remove(dir: &Path) -> Result<(), Error> {
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
    use warren_testkit::scratch::Scratch;

    #[test]
    fn what_is_kept_is_counted_and_removed() {
        let scratch = Scratch::new();
        let dir = scratch.path().join("output");
        assert_eq!(retained(&dir).unwrap(), 0);
        remove(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(segment::path(&dir, 1), "12345").unwrap();
        std::fs::write(segment::path(&dir, 7), "123").unwrap();
        std::fs::write(dir.join("other"), "1").unwrap();
        assert_eq!(retained(&dir).unwrap(), 8);
        remove(&dir).unwrap();
        remove(&dir).unwrap();
        assert!(!dir.exists());
    }
}
