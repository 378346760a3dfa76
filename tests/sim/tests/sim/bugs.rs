//! Bugs that were here once, kept as patches: the simulator must find each of them in a copy of the sources.

use std::fs;
use std::path::PathBuf;

use warren_testkit::soak;

use crate::workspace::{Copy, git_apply, root};

/// The line of a patch's comment that names what the simulator says of it.
const FOUND_AS: &str = "# Found as: ";
/// Within so many histories; most need few.
const HISTORIES: [u64; 3] = [50, 250, 1_000];

struct Bug {
    patch: PathBuf,
    /// The beginning of the violation.
    found_as: String,
}

fn bugs() -> Vec<Bug> {
    let directory = root().join("tests/sim/bugs");
    let mut patches: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    patches.sort();
    patches.into_iter().map(bug).collect()
}

fn bug(patch: PathBuf) -> Bug {
    let text = fs::read_to_string(&patch).unwrap();
    let comment: Vec<&str> = text.lines().take_while(|line| line.starts_with("# ")).collect();
    let found_as = comment.iter().find_map(|line| line.strip_prefix(FOUND_AS));
    let found_as = found_as.unwrap_or_else(|| panic!("{patch:?} does not say what it is found as"));
    assert!(comment.len() > 1, "{patch:?} does not say what it was");
    Bug { found_as: found_as.to_string(), patch }
}

/// A patch that no longer fits its sources would be found by nobody before the next long run.
#[test]
fn every_old_bug_still_applies() {
    let bugs = bugs();
    assert!(bugs.len() >= 5);
    for Bug { patch, .. } in bugs {
        git_apply(&root(), &patch, &["--check"]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn every_old_bug_is_found() {
    if !soak::is_on() {
        // Five builds take minutes; that the patches fit is seen above in any case.
        return;
    }
    let _alone = crate::all_cores();
    for Bug { patch, found_as } in bugs() {
        let name = patch.file_stem().unwrap().to_string_lossy().into_owned();
        let copy = Copy::current();
        copy.apply(&patch);
        copy.build();
        let mut said = String::new();
        let found = HISTORIES.into_iter().find(|histories| {
            let ended = copy.histories(*histories);
            said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
            // Each violation is shown as its seed and place, then what was violated.
            let is_it = |line: &str| line.starts_with("seed ") && line.contains(&format!(": {found_as}"));
            !ended.status.success() && said.lines().any(is_it)
        });
        let within = found.unwrap_or_else(|| panic!("{name} was not found as {found_as:?}:\n{said}"));
        println!("{name} was found as {found_as:?} within {within} histories");
    }
}
