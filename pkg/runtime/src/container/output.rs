//! Target of a container's output.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use warren_types::Bytes;

use super::storage::is_normalized;
use crate::error::Error;

/// How long the logger of a container with an input waits for the rest of a line: it may be a prompt.
const FLUSH_AFTER: Duration = Duration::from_millis(50);

/// Target of standard output and standard error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OutputTarget {
    /// Discards the output.
    #[default]
    Discard,
    /// A program that the container's supervisor starts and that outlives agent and containerd. It gets
    /// standard output as descriptor 3 and standard error as 4 (empty for a terminal), and closes 5 when it
    /// is ready. Its arguments are the pairs `dir`, `max-size`, `max-files`, `attempt` (of the owner), for a
    /// container with an input `flush-after` (milliseconds until the beginning of a line is written without its
    /// rest), and for one with a user namespace of its own `owner` (the id on the host of its root, to which the
    /// program gives the pipes), with their values, in any order. It reads until end of file, which comes when the
    /// process is deleted, and ignores SIGTERM until then. Deleting waits up to 12 s for it, except with a terminal.
    Binary {
        /// Absolute path of the program; must exist when the process is created.
        program: PathBuf,
        /// Absolute path of the directory for its files; must exist when the process is created.
        dir: PathBuf,
        /// Maximum size of one file.
        max_size: Bytes,
        /// Maximum number of files, at least 1.
        max_files: u32,
    },
}

impl OutputTarget {
    pub(super) fn check(&self, tty: bool) -> Result<(), Error> {
        let absolute = |field: &str, path: &Path| match is_normalized(path) {
            true => Ok(()),
            false => Err(Error::invalid_field(field, format!("{path:?} is not an absolute path in UTF-8"))),
        };
        match self {
            // The supervisor can forward a terminal's output only to a program, or to a pipe with a reader.
            Self::Discard if tty => {
                Err(Error::invalid_field("tty", "a terminal needs a logger, and none is set"))
            }
            Self::Discard => Ok(()),
            Self::Binary { program, dir, max_size, max_files } => {
                absolute("log.program", program)?;
                absolute("log.dir", dir)?;
                match (max_size.0, *max_files) {
                    (0, _) => Err(Error::invalid_field("log.max_size", "must be greater than 0")),
                    (_, 0) => Err(Error::invalid_field("log.max_files", "must be at least 1")),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The output target as a URL for the supervisor, with all special characters escaped. `owner` is the id on the
    /// host of the container's root, if it has a user namespace of its own.
    pub(crate) fn uri(&self, attempt: u32, has_input: bool, owner: Option<u32>) -> String {
        match self {
            Self::Discard => String::new(),
            Self::Binary { program, dir, max_size, max_files } => {
                let mut uri = format!(
                    "binary://{}?dir={}&max-size={}&max-files={max_files}&attempt={attempt}",
                    escaped(program),
                    escaped(dir),
                    max_size.0
                );
                if has_input {
                    // Writing to a `String` cannot fail.
                    let _ = write!(uri, "&flush-after={}", FLUSH_AFTER.as_millis());
                }
                if let Some(owner) = owner {
                    let _ = write!(uri, "&owner={owner}");
                }
                uri
            }
        }
    }
}

fn escaped(path: &Path) -> String {
    let mut text = String::new();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                text.push(char::from(*byte));
            }
            // Writing to a `String` cannot fail.
            other => drop(write!(text, "%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_paths_are_escaped_in_uri() {
        assert_eq!(OutputTarget::Discard.uri(1, true, None), "");
        let logger = OutputTarget::Binary {
            program: "/opt/my logger".into(),
            dir: "/var/a&b=c+d/é".into(),
            max_size: Bytes(10),
            max_files: 2,
        };
        let want =
            "binary:///opt/my%20logger?dir=/var/a%26b%3Dc%2Bd/%C3%A9&max-size=10&max-files=2&attempt=4";
        assert_eq!(logger.uri(4, false, None), want);
        assert_eq!(logger.uri(4, true, None), format!("{want}&flush-after=50"));
        assert_eq!(logger.uri(4, true, Some(9)), format!("{want}&flush-after=50&owner=9"));
    }
}
