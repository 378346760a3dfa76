//! Tests wait for conditions instead of sleeping, and no test is ignored.

use crate::source::{LinePart, SourceFile, lines};

/// Calls that sleep. Written in parts, so that this file passes.
const SLEEPS: [&str; 4] = [
    concat!("thread", "::sleep"),
    concat!("time", "::sleep"),
    concat!("sleep", "(Duration"),
    concat!("park", "_timeout("),
];

/// The comment above a sleep that chooses a moment (for example of a kill) instead of waiting for a
/// condition, and above the one between two checks of a condition with a deadline.
const ALLOW_MARKS: [&str; 2] = [concat!("// Not", " a wait"), concat!("// Between", " two checks")];

/// Attributes that disable a test.
const IGNORE: &str = concat!("#[", "ignore");

/// Exempt files: the one place that polls, and measurements of an idle cluster.
const MAY_SLEEP: [&str; 2] = ["tests/testkit/src/wait.rs", "tests/bench/"];

/// Sleeps in tests. In virtual time (`start_paused`) a sleep is an event like any other.
#[must_use]
pub fn sleeping_tests(sources: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let may = MAY_SLEEP.iter().any(|start| source.path.starts_with(start));
        if may || source.text.contains("start_paused") {
            continue;
        }
        let above: Vec<&str> = std::iter::once("").chain(source.text.lines()).collect();
        for (number, part, line) in lines(source) {
            let is_chosen = ALLOW_MARKS.iter().any(|words| above[number - 1].trim_start().starts_with(words));
            if part == LinePart::Test && !is_chosen && SLEEPS.iter().any(|sleep| line.contains(sleep)) {
                violations.push(format!(
                    "{}:{number}: a test must wait for a condition (warren_testkit::wait), not for time to \
                     pass; when it chooses a moment instead, say so above: {} ...",
                    source.path, ALLOW_MARKS[0]
                ));
            }
        }
    }
    violations
}

/// Tests that never run.
#[must_use]
pub fn ignored_tests(sources: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        for (number, _, line) in lines(source) {
            if line.contains(IGNORE) {
                violations.push(format!("{}:{number}: an ignored test; run it or remove it", source.path));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, sample};

    #[test]
    fn no_test_sleeps() {
        assert_none(&sleeping_tests(&files(&[".rs"])));
    }

    #[test]
    fn every_test_runs() {
        assert_none(&ignored_tests(&files(&[".rs"])));
    }

    #[test]
    fn a_sleep_in_a_test_is_named() {
        let nap = format!("std::{}(nap);\n", SLEEPS[0]);
        let test = format!("{nap}#[cfg(test)]\nmod tests {{\n    {nap}}}\n");
        let chosen = format!("#[cfg(test)]\nmod tests {{\n    {}: a moment.\n    {nap}}}\n", ALLOW_MARKS[0]);
        let virtual_time = format!("{test}// start_paused\n");
        let sources = [
            sample("a/src/lib.rs", &test),
            sample("b/src/lib.rs", &virtual_time),
            sample("c/src/lib.rs", &chosen),
            sample("tests/bench/src/main.rs", &nap),
            sample("tests/e2e/src/lib.rs", &nap),
        ];
        let found = sleeping_tests(&sources);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("a/src/lib.rs:4:") && found[1].starts_with("tests/e2e/"), "{found:?}");
    }

    #[test]
    fn an_ignored_test_is_named() {
        assert_eq!(
            ignored_tests(&[sample("a.rs", &format!("{IGNORE} = \"slow\"]\nfn a() {{}}\n"))]).len(),
            1
        );
    }
}
