//! A copy of the workspace for planted defects, with its own build directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use warren_testkit::tool;

/// Directories with generated files.
const GENERATED_DIRS: [&str; 3] = ["target", ".git", ".run"];
/// Timeout of tools that only read and write a few files.
const QUICK: Duration = Duration::from_secs(60);
/// Timeout of a full build on a busy machine.
const BUILD: Duration = Duration::from_secs(45 * 60);

/// The repository's root.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the crate is two directories below the root")
}

/// Every source file below a directory; paths are relative to it.
fn files(top: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut open) = (BTreeSet::new(), vec![top.to_path_buf()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).unwrap().map(Result::unwrap) {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            let made = directory == top && GENERATED_DIRS.iter().any(|name| entry.file_name() == *name);
            if kind.is_dir() && !made {
                open.push(path);
            } else if kind.is_file() {
                found.insert(path.strip_prefix(top).unwrap().to_path_buf());
            }
        }
    }
    found
}

/// Runs `git apply` in a directory, whatever repository contains it. Returns its error output.
pub fn git_apply(directory: &Path, patch: &Path, arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("git");
    command.arg("apply").args(arguments).arg(patch).current_dir(directory);
    // Inside a repository git takes a patch's paths from that repository's top, and skips files outside of
    // the directory.
    command.env("GIT_CEILING_DIRECTORIES", directory.parent().unwrap());
    tool::stdout(command, QUICK).map(|_| ()).map_err(|error| error.to_string())
}

/// The copy, whose build directory is kept for the next run.
pub struct WorkspaceCopy {
    sources: PathBuf,
    builds: PathBuf,
}

impl WorkspaceCopy {
    /// The copy below `target/`, synchronized with the workspace. An unchanged file keeps its time, so that
    /// its dependents are not rebuilt.
    pub fn current() -> Self {
        let home = root().join("target/broken-on-purpose");
        let copy = Self { sources: home.join("sources"), builds: home.join("builds") };
        fs::create_dir_all(&copy.sources).unwrap();
        let expected = files(&root());
        for foreign in files(&copy.sources).difference(&expected) {
            fs::remove_file(copy.sources.join(foreign)).unwrap();
        }
        for path in &expected {
            let (from, to) = (root().join(path), copy.sources.join(path));
            let bytes = fs::read(&from).unwrap();
            if fs::read(&to).ok().as_ref() != Some(&bytes) {
                fs::create_dir_all(to.parent().unwrap()).unwrap();
                fs::write(&to, bytes).unwrap();
            }
        }
        copy
    }

    /// Applies a patch.
    pub fn apply(&self, patch: &Path) {
        git_apply(&self.sources, patch, &[]).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Builds the copy's own simulator.
    pub fn build(&self) {
        tool::stdout(self.cargo(&["--no-run"], 0), BUILD).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Runs that many histories in the copy.
    pub fn histories(&self, count: u64) -> Output {
        let test = ["histories_keep_every_invariant", "--", "--nocapture"];
        tool::output(self.cargo(&test, count), BUILD).unwrap_or_else(|error| panic!("{error}"))
    }

    fn cargo(&self, arguments: &[&str], count: u64) -> Command {
        let mut command = Command::new(env!("CARGO"));
        command.args(["test", "--quiet", "--offline", "--package", "warren-test-sim", "--test", "sim"]);
        command.args(arguments).current_dir(&self.sources);
        command.env("CARGO_TARGET_DIR", &self.builds).env("WARREN_SIM_COUNT", count.to_string());
        command
    }
}
