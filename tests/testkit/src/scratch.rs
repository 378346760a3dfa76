//! A directory of one test, removed with everything that runs or is mounted in it.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::{leftovers, tool};

/// Set to keep the directories of tests (not their processes), to look at logs afterwards.
pub const KEEP: &str = "WARREN_TEST_KEEP";

/// A fresh directory with a short path (a unix socket's path has at most 107 bytes). Dropping it ends every
/// process that belongs to it, see [`crate::leftovers`], unmounts what is mounted in it and removes it.
#[derive(Debug)]
pub struct Scratch {
    directory: Option<TempDir>,
}

impl Scratch {
    /// Makes a directory under the system's temporary directory.
    #[must_use]
    #[track_caller]
    pub fn new() -> Scratch {
        let directory = tempfile::Builder::new()
            .prefix("warren-")
            .tempdir()
            .unwrap_or_else(|error| panic!("cannot make a temporary directory: {error}"));
        Scratch { directory: Some(directory) }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("the directory is taken only by drop").path()
    }
}

/// Writes a program to `path`. Another process does the last step: what this one has open for writing, a child that
/// another test starts at that moment has too, and then the program is too busy to be run.
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

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        for problem in leftovers::remove(directory.path()) {
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
    fn it_goes_with_its_content() {
        let scratch = Scratch::new();
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        crate::tool::run("mount", ["-t", "tmpfs", "none", path.join("a").to_str().unwrap()]);
        std::fs::write(path.join("a/file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
