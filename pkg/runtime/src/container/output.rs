//! Where a container's output goes.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use warren_types::Bytes;

use super::storage::is_plain;
use crate::error::Error;

/// Where standard output and standard error go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Log {
    /// Nowhere.
    #[default]
    Discard,
    /// To a program that the container's supervisor starts, which outlives agent and containerd. It gets
    /// standard output as descriptor 3, standard error as 4 (nothing comes there from a terminal), closes 5
    /// when it is ready, and its arguments are the pairs `dir`, `max-size`, `max-files` and `attempt` (the
    /// owner's) with their values, in any order. It reads to the end, which comes only when the process is
    /// deleted, and ignores SIGTERM until then. Deleting waits up to 12 s for it, but not for a terminal's.
    Binary {
        /// The program: an absolute path, there when the process is created.
        program: PathBuf,
        /// The directory for its files: an absolute path, there when the process is created.
        dir: PathBuf,
        /// Of one file.
        max_size: Bytes,
        /// How many of them, at least 1.
        max_files: u32,
    },
}

impl Log {
    pub(super) fn check(&self, tty: bool) -> Result<(), Error> {
        let absolute = |field: &str, path: &Path| match is_plain(path) {
            true => Ok(()),
            false => Err(Error::invalid(field, format!("{path:?} is not an absolute path in UTF-8"))),
        };
        match self {
            // The supervisor knows to pass a terminal's output on to a program, or to a pipe that somebody
            // reads.
            Self::Discard if tty => {
                Err(Error::invalid("tty", "the output of a terminal goes to a logger, and there is none"))
            }
            Self::Discard => Ok(()),
            Self::Binary { program, dir, max_size, max_files } => {
                absolute("log.program", program)?;
                absolute("log.dir", dir)?;
                match (max_size.0, *max_files) {
                    (0, _) => Err(Error::invalid("log.max_size", "a file of no size holds nothing")),
                    (_, 0) => Err(Error::invalid("log.max_files", "no file holds nothing; give at least 1")),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The address of the output as the supervisor reads it: a URL, so everything but plain characters is
    /// escaped.
    pub(crate) fn address(&self, attempt: u32) -> String {
        match self {
            Self::Discard => String::new(),
            Self::Binary { program, dir, max_size, max_files } => format!(
                "binary://{}?dir={}&max-size={}&max-files={max_files}&attempt={attempt}",
                escaped(program),
                escaped(dir),
                max_size.0
            ),
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
            // Writing to a String cannot fail.
            other => drop(write!(text, "%{other:02X}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_logs_are_escaped() {
        assert_eq!(Log::Discard.address(1), "");
        let logger = Log::Binary {
            program: "/opt/my logger".into(),
            dir: "/var/a&b=c+d/é".into(),
            max_size: Bytes(10),
            max_files: 2,
        };
        let want =
            "binary:///opt/my%20logger?dir=/var/a%26b%3Dc%2Bd/%C3%A9&max-size=10&max-files=2&attempt=4";
        assert_eq!(logger.address(4), want);
    }
}
