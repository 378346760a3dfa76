//! Which program makes containers of what containerd's supervisor tells it: a setting of the node.

use std::fmt;
use std::path::{Path, PathBuf};

use prost::Message;
use prost_types::Any;

use crate::error::Error;
use crate::programs;

/// How containerd calls the message by which its supervisor of runc is set up, which serves every program with
/// runc's command line.
const OPTIONS: &str = "containerd.runc.v1.Options";

/// A program with the command line of runc. A container keeps the one that it was made with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OciRuntime {
    /// `runc`.
    #[default]
    Runc,
    /// `crun`.
    Crun,
    /// The program at this absolute path.
    Path(PathBuf),
}

impl OciRuntime {
    /// Reads `runc`, `crun` or an absolute path.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the field `runtime` for anything else.
    pub fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "runc" => Ok(Self::Runc),
            "crun" => Ok(Self::Crun),
            path if path.starts_with('/') => Ok(Self::Path(path.into())),
            other => {
                let reason = format!("{other:?} is neither runc, crun nor an absolute path");
                Err(Error::invalid("runtime", reason))
            }
        }
    }

    /// Where the program is now.
    ///
    /// # Errors
    /// [`Error::NoOciRuntime`] when it is not there or cannot be executed.
    pub fn find(&self) -> Result<PathBuf, Error> {
        let name = match self {
            Self::Runc => Path::new("runc"),
            Self::Crun => Path::new("crun"),
            Self::Path(path) => path,
        };
        let found = programs::find(name, &programs::search_path());
        // containerd is told the path in UTF-8.
        found
            .filter(|path| path.to_str().is_some())
            .ok_or_else(|| Error::NoOciRuntime { program: name.to_owned() })
    }
}

impl fmt::Display for OciRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runc => f.write_str("runc"),
            Self::Crun => f.write_str("crun"),
            Self::Path(path) => path.display().fmt(f),
        }
    }
}

/// The one field of that message that we set. Source: containerd's `runtime/v2/runc/options/oci.proto`, the same
/// in 1.6, 1.7 and 2.
#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(string, tag = "6")]
    binary_name: String,
}

/// Tells the supervisor to use this program.
pub(super) fn options(program: &Path) -> Any {
    let options = Options { binary_name: program.to_string_lossy().into_owned() };
    Any { type_url: OPTIONS.to_owned(), value: options.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_and_shown_alike() {
        for text in ["runc", "crun", "/opt/bin/youki"] {
            assert_eq!(OciRuntime::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "youki", "./runc"] {
            let error = OciRuntime::parse(text).unwrap_err();
            assert!(matches!(error, Error::InvalidSpec { ref field, .. } if field == "runtime"), "{text}");
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        OciRuntime::Path("/bin/sh".into()).find().unwrap();
        for path in ["/no/such/runc", "/etc/passwd", "/bin"] {
            let error = OciRuntime::Path(path.into()).find().unwrap_err();
            assert!(
                matches!(error, Error::NoOciRuntime { .. }) && error.to_string().contains(path),
                "{error}"
            );
            assert!(!error.is_transient());
        }
    }

    #[test]
    fn the_message_is_what_containerd_reads() {
        // Field 6, length 9.
        assert_eq!(options(Path::new("/bin/runc")).value, b"\x32\x09/bin/runc");
    }
}
