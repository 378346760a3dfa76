//! The OCI runtime that containerd's supervisor uses: a setting of the node.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use prost::Message;
use prost_types::Any;
use tokio::process::Command;
use tokio::time::timeout;

use crate::error::Error;
use crate::programs;

/// Type of the message that configures the supervisor of runc, which works with every program that has runc's
/// command line.
const OPTIONS: &str = "containerd.runc.v1.Options";

/// Deadline of the version query.
const VERSION_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum length of a quoted output, in characters.
const MAX_QUOTED_OUTPUT: usize = 80;

/// A program with the command line of runc. A container keeps the one that it was created with.
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
    /// Parses `runc`, `crun` or an absolute path.
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
                Err(Error::invalid_field("runtime", reason))
            }
        }
    }

    /// Path of the program.
    ///
    /// # Errors
    /// [`Error::OciRuntimeMissing`] if it does not exist or is not executable.
    pub fn find(&self) -> Result<PathBuf, Error> {
        let name = match self {
            Self::Runc => Path::new("runc"),
            Self::Crun => Path::new("crun"),
            Self::Path(path) => path,
        };
        let found = programs::find(name, &programs::search_path());
        // containerd takes the path in UTF-8.
        found
            .filter(|path| path.to_str().is_some())
            .ok_or_else(|| Error::OciRuntimeMissing { program: name.to_owned() })
    }

    /// Asks the program for its version, so that a wrong one is found before the first container, and returns
    /// it: `runc version 1.1.5`. Changes nothing.
    ///
    /// # Errors
    /// [`Error::OciRuntimeMissing`] if it does not exist; [`Error::OciRuntimeInvalid`] if its output is unexpected.
    pub async fn check(&self) -> Result<String, Error> {
        let program = self.find()?;
        let mut command = Command::new(&program);
        command.arg("--version").stdin(Stdio::null()).kill_on_drop(true);
        let printed = match timeout(VERSION_DEADLINE, command.output()).await {
            Err(_) => format!("no answer within {VERSION_DEADLINE:?}"),
            Ok(Err(error)) => format!("cannot execute it ({error})"),
            Ok(Ok(output)) if !output.status.success() => format!("exited with {}", output.status),
            Ok(Ok(output)) => {
                let text = String::from_utf8_lossy(&output.stdout);
                let first: String =
                    text.lines().next().unwrap_or_default().chars().take(MAX_QUOTED_OUTPUT).collect();
                if is_version_output(&text) {
                    return Ok(first);
                }
                format!("its output was {first:?}")
            }
        };
        Err(Error::OciRuntimeInvalid { program, output: printed })
    }
}

/// Whether the output is the version of an OCI runtime: `NAME version X`, and a line with the version of the
/// specification (runc, crun) or the commit (youki, which prints no specification).
fn is_version_output(text: &str) -> bool {
    let mut lines = text.lines();
    let named = lines.next().is_some_and(|first| first.split_whitespace().nth(1) == Some("version"));
    named && lines.any(|line| line.starts_with("spec:") || line.starts_with("commit:"))
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

/// The field of that message that is set here. Source: containerd's `runtime/v2/runc/options/oci.proto`, the
/// same in 1.6, 1.7 and 2.
#[derive(Clone, PartialEq, Message)]
struct Options {
    #[prost(string, tag = "6")]
    binary_name: String,
}

/// Options that select this program.
pub(super) fn options(program: &Path) -> Any {
    let options = Options { binary_name: program.to_string_lossy().into_owned() };
    Any { type_url: OPTIONS.to_owned(), value: options.encode_to_vec() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_and_display_round_trip() {
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
                matches!(error, Error::OciRuntimeMissing { .. }) && error.to_string().contains(path),
                "{error}"
            );
            assert!(!error.is_transient());
        }
    }

    #[test]
    fn oci_runtime_is_recognized_by_version_output() {
        for text in [
            "runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1\nspec: 1.0.2-dev\ngo: go1.19.8\n",
            "runc version 1.2.0\nspec: 1.2.0\n",
            "crun version 1.8.1\ncommit: f8a096be\nrundir: /run/user/0/crun\nspec: 1.0.0\n+SYSTEMD +SECCOMP\n",
            "youki version 0.3.3\ncommit: 0.3.3-0-4f3c8307\n",
        ] {
            assert!(is_version_output(text), "{text}");
        }
        for text in ["", "true (GNU coreutils) 9.1\n", "git version 2.39.5\n", "commit: 1\nspec: 1\n"] {
            assert!(!is_version_output(text), "{text}");
        }
    }

    #[tokio::test]
    async fn non_runtime_is_rejected_with_its_output() {
        assert!(OciRuntime::Runc.check().await.unwrap().starts_with("runc version "));
        for (path, output) in
            [("/bin/true", "true (GNU"), ("/bin/false", "exited with"), ("/no/such", "not a program")]
        {
            let error = OciRuntime::Path(path.into()).check().await.unwrap_err();
            let text = error.to_string();
            assert!(text.contains(path) && text.contains(output) && !error.is_transient(), "{text}");
        }
    }

    #[test]
    fn options_message_is_decodable_by_containerd() {
        // Field 6, length 9.
        assert_eq!(options(Path::new("/bin/runc")).value, b"\x32\x09/bin/runc");
    }
}
