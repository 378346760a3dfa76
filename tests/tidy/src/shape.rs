//! Rules for files: length, names, and place.

use crate::source::SourceFile;

/// Longer files are listed as candidates for a split.
const WARN_FILE_LINES: usize = 400;
/// Longer files are rejected.
const MAX_FILE_LINES: usize = 600;
/// Longer lines are rejected. rustfmt breaks code at 110, but neither comments nor strings, which may be
/// longer by a word.
const MAX_LINE: usize = 120;

/// Names that do not describe the contents.
const EMPTY_NAMES: [&str; 5] = ["utils", "util", "common", "helpers", "misc"];

/// Allowed top-level entries, besides files whose name starts with a dot.
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

/// Top-level entries that are not allowed.
#[must_use]
pub fn unexpected_top_level_entries(entries: &[String]) -> Vec<String> {
    let known =
        |name: &str| TOP.contains(&name) || matches!(name, "worker" | "target") || name.starts_with('.');
    let unknown_entries = entries.iter().filter(|name| !known(name));
    unknown_entries
        .map(|name| format!("{name} is not allowed at the top level: move it into docs/ or tests/"))
        .collect()
}

/// Files that should be split soon.
#[must_use]
pub fn long_files(sources: &[SourceFile]) -> Vec<String> {
    longer_than(WARN_FILE_LINES, sources)
}

/// Files that must be split.
#[must_use]
pub fn too_long_files(sources: &[SourceFile]) -> Vec<String> {
    longer_than(MAX_FILE_LINES, sources)
}

fn longer_than(limit: usize, sources: &[SourceFile]) -> Vec<String> {
    let counted = sources.iter().map(|source| (&source.path, source.text.lines().count()));
    let long = counted.filter(|(_, lines)| *lines > limit);
    long.map(|(path, lines)| format!("{path} has {lines} lines, more than {limit}: split it")).collect()
}

/// Lines that are too long; one with a URL cannot be broken.
#[must_use]
pub fn too_long_lines(sources: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        for (index, line) in source.text.lines().enumerate() {
            let width = line.chars().count();
            if width > MAX_LINE && !line.contains("://") {
                violations.push(format!(
                    "{}:{}: {width} characters, more than {MAX_LINE}",
                    source.path,
                    index + 1
                ));
            }
        }
    }
    violations
}

/// Files and directories whose names do not describe the contents, and `mod.rs`, which hides the module's
/// name.
#[must_use]
pub fn meaningless_names(sources: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        if source.path.ends_with("/mod.rs") {
            violations.push(format!(
                "{}: rename it to the directory's name and move it beside the directory",
                source.path
            ));
        }
        let parts = source.path.split('/').map(|part| part.strip_suffix(".rs").unwrap_or(part));
        let empty = parts.filter(|part| EMPTY_NAMES.contains(part));
        violations.extend(
            empty.map(|part| format!("{}: the name {part} does not describe the contents", source.path)),
        );
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
    fn file_names_are_meaningful() {
        assert_none(&meaningless_names(&files(&[".rs", ".proto", ".sh"])));
    }

    #[test]
    fn top_level_has_only_expected_entries() {
        let entries = std::fs::read_dir(root()).unwrap();
        let names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        assert_none(&unexpected_top_level_entries(&names));
    }

    #[test]
    fn long_files_and_lines_are_named() {
        let text = "x\n".repeat(MAX_FILE_LINES);
        let sources = [sample("a.rs", &text), sample("b.rs", &format!("{text}x\n"))];
        assert_eq!((long_files(&sources).len(), too_long_files(&sources).len()), (2, 1));
        let (fits, not) = ("é".repeat(MAX_LINE), "é".repeat(MAX_LINE + 1));
        let sources =
            [sample("a.rs", &fits), sample("b.rs", &not), sample("c.rs", &format!("{not} http://x"))];
        assert_eq!(too_long_lines(&sources).len(), 1);
    }

    #[test]
    fn bad_names_are_named() {
        let sources = ["a/src/mod.rs", "a/src/utils.rs", "a/src/common/b.rs", "a/src/model.rs"]
            .map(|path| sample(path, ""));
        assert_eq!(meaningless_names(&sources).len(), 3);
        let entries = ["cli", ".ci", "scripts"].map(str::to_owned);
        assert_eq!(unexpected_top_level_entries(&entries).len(), 1);
    }
}
