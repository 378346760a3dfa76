//! The shape of files: how long, called what, lying where.

use crate::source::Source;

/// Longer files are listed, so that somebody splits them before they have to.
const LONG_FILE: usize = 400;
/// Longer files are refused.
const TOO_LONG_FILE: usize = 600;
/// Longer lines are refused. rustfmt breaks code at 110, but neither comments nor strings, which may run over
/// by a word.
const TOO_LONG_LINE: usize = 120;

/// Names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

/// All that may lie at the top besides files whose name starts with a dot.
const TOP: [&str; 16] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "Makefile",
    "README.md",
    "cli",
    "clippy.toml",
    "deny.toml",
    "docs",
    "manager",
    "pkg",
    "proto",
    "rustfmt.toml",
    "tests",
];

/// The top-level entries that have no place there; `worker` and what is built are the rest.
#[must_use]
pub fn strangers_at_the_top(entries: &[String]) -> Vec<String> {
    let known =
        |name: &str| TOP.contains(&name) || matches!(name, "worker" | "target") || name.starts_with('.');
    let strangers = entries.iter().filter(|name| !known(name));
    strangers.map(|name| format!("{name} has no place at the top: put it into docs/ or tests/")).collect()
}

/// Files that should be split soon.
#[must_use]
pub fn long_files(sources: &[Source]) -> Vec<String> {
    longer_than(LONG_FILE, sources)
}

/// Files that must be split now.
#[must_use]
pub fn too_long_files(sources: &[Source]) -> Vec<String> {
    longer_than(TOO_LONG_FILE, sources)
}

fn longer_than(limit: usize, sources: &[Source]) -> Vec<String> {
    let counted = sources.iter().map(|source| (&source.path, source.text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > limit);
    long.map(|(path, lines)| format!("{path} has {lines} lines, more than {limit}: split it")).collect()
}

/// Lines that do not fit; one with an address in it cannot be broken.
#[must_use]
pub fn too_long_lines(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            if width > TOO_LONG_LINE && !line.contains("://") {
                violations.push(format!(
                    "{}:{}: {width} characters, more than {TOO_LONG_LINE}",
                    source.path,
                    index + 1
                ));
            }
        }
    }
    violations
}

/// Files and directories whose names say nothing, and `mod.rs`, which hides the name of what it is.
#[must_use]
pub fn bad_names(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        if source.path.ends_with("/mod.rs") {
            violations.push(format!("{}: call it after its directory, beside it", source.path));
        }
        let parts = source.path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
        let empty = parts.filter(|part| EMPTY_NAMES.contains(part));
        violations
            .extend(empty.map(|part| format!("{}: {part} says nothing about what is inside", source.path)));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, root, sample};

    #[test]
    fn files_are_short() {
        let sources = files(&[".rs"]);
        for long in long_files(&sources) {
            println!("warning: {long}");
        }
        assert_none(&too_long_files(&sources));
    }

    #[test]
    fn lines_fit() {
        assert_none(&too_long_lines(&files(&[".rs"])));
    }

    #[test]
    fn names_say_something() {
        assert_none(&bad_names(&files(&[".rs", ".proto", ".sh"])));
    }

    #[test]
    fn the_top_is_tidy() {
        let entries = std::fs::read_dir(root()).unwrap();
        let names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        assert_none(&strangers_at_the_top(&names));
    }

    #[test]
    fn long_files_and_lines_are_named() {
        let text = "x\n".repeat(TOO_LONG_FILE);
        let sources = [sample("a.rs", &text), sample("b.rs", &format!("{text}x\n"))];
        assert_eq!((long_files(&sources).len(), too_long_files(&sources).len()), (2, 1));
        let (fits, not) = ("é".repeat(TOO_LONG_LINE), "é".repeat(TOO_LONG_LINE + 1));
        let sources =
            [sample("a.rs", &fits), sample("b.rs", &not), sample("c.rs", &format!("{not} http://x"))];
        assert_eq!(too_long_lines(&sources).len(), 1);
    }

    #[test]
    fn bad_names_are_named() {
        let sources = ["a/src/mod.rs", "a/src/utils.rs", "a/src/common/b.rs", "a/src/model.rs"]
            .map(|path| sample(path, ""));
        assert_eq!(bad_names(&sources).len(), 3);
        let entries = ["cli", ".ci", "scripts"].map(str::to_owned);
        assert_eq!(strangers_at_the_top(&entries).len(), 1);
    }
}
