//! Earlier bugs, kept as patches: the simulator must find each of them in a copy of the sources.

use std::fs;
use std::path::PathBuf;

use warren_testkit::soak;

use crate::workspace::{WorkspaceCopy, git_apply, root};

/// The line of a patch's comment that names the violated invariant.
const FOUND_AS: &str = "# Found as: ";
/// The bug must be found within one of these numbers of histories; most need few.
const HISTORY_COUNTS: [u64; 3] = [50, 250, 1_000];

struct RegressionPatch {
    patch: PathBuf,
    /// The beginning of the violation.
    found_as: String,
}

fn bugs() -> Vec<RegressionPatch> {
    let directory = root().join("tests/sim/bugs");
    let mut patches: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    patches.sort();
    patches.into_iter().map(bug).collect()
}

fn bug(patch: PathBuf) -> RegressionPatch {
    let text = fs::read_to_string(&patch).unwrap();
    let comment: Vec<&str> = text.lines().take_while(|line| line.starts_with("# ")).collect();
    let found_as = comment.iter().find_map(|line| line.strip_prefix(FOUND_AS));
    let found_as = found_as.unwrap_or_else(|| panic!("{patch:?} has no `# Found as:` line"));
    assert!(comment.len() > 1, "{patch:?} does not describe the bug");
    RegressionPatch { found_as: found_as.to_string(), patch }
}

/// Reports a patch that no longer applies before the next soak run.
#[test]
fn patch_of_every_earlier_bug_applies() {
    let bugs = bugs();
    assert!(bugs.len() >= 5);
    for RegressionPatch { patch, .. } in bugs {
        git_apply(&root(), &patch, &["--check"]).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn every_earlier_bug_is_found() {
    if !soak::is_on() {
        // The builds take minutes; that the patches apply is checked above in any case.
        return;
    }
    let _alone = crate::all_cores();
    for RegressionPatch { patch, found_as } in bugs() {
        let name = patch.file_stem().unwrap().to_string_lossy().into_owned();
        let copy = WorkspaceCopy::current();
        copy.apply(&patch);
        copy.build();
        let mut output = String::new();
        let found = HISTORY_COUNTS.into_iter().find(|histories| {
            let ended = copy.histories(*histories);
            output = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
            // Each violation is shown as its seed and time, then the invariant.
            let is_it = |line: &str| line.starts_with("seed ") && line.contains(&format!(": {found_as}"));
            !ended.status.success() && output.lines().any(is_it)
        });
        let within = found.unwrap_or_else(|| panic!("{name} was not found as {found_as:?}:\n{output}"));
        println!("{name} was found as {found_as:?} within {within} histories");
    }
}
