//! The directory of one test, removed with everything that runs or is mounted in it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::{cleanup, tool};

/// Set this variable to keep the directories of tests (not their processes), to read logs afterwards.
pub const KEEP: &str = "WARREN_TEST_KEEP";

/// A new directory with a short path (a unix socket's path has at most 107 bytes). Dropping it ends every
/// process that belongs to it, see [`crate::cleanup`], unmounts its mounts and removes it.
#[derive(Debug)]
pub struct ScratchDir {
    directory: Option<TempDir>,
}

impl ScratchDir {
    /// Creates a directory under the system's temporary directory. All users can pass through it, as through that of a
    /// node: those of containers do.
    #[must_use]
    #[track_caller]
    pub fn new() -> ScratchDir {
        let directory = tempfile::Builder::new()
            .prefix("warren-")
            .permissions(Permissions::from_mode(0o711))
            .tempdir()
            .unwrap_or_else(|error| panic!("cannot make a temporary directory: {error}"));
        ScratchDir { directory: Some(directory) }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("the directory is taken only by drop").path()
    }
}

/// Writes a program to `path`. Another process does the last step: a file that this process has open for
/// writing is also open in a child that another test starts at that moment, and then the program cannot be
/// executed (ETXTBSY).
///
/// # Panics
/// If it cannot be written.
#[track_caller]
pub fn install(path: &Path, content: &[u8]) {
    let raw = path.with_extension("raw");
    std::fs::write(&raw, content).unwrap_or_else(|error| panic!("cannot write {}: {error}", raw.display()));
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(&raw).arg(path);
    tool::stdout(install, tool::DEADLINE).unwrap_or_else(|error| panic!("{error}"));
}

impl Default for ScratchDir {
    fn default() -> ScratchDir {
        ScratchDir::new()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        for problem in cleanup::remove(directory.path()) {
            eprintln!("{problem}");
        }
        if std::env::var_os(KEEP).is_some() {
            eprintln!("kept {}", directory.keep().display());
        } else if let Err(error) = directory.close() {
            eprintln!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_removed_with_content() {
        let scratch = ScratchDir::new();
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        crate::tool::run("mount", ["-t", "tmpfs", "none", path.join("a").to_str().unwrap()]);
        std::fs::write(path.join("a/file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
