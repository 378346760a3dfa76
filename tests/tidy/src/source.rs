//! The files of the repository and the parts of a Rust file.

use std::path::{Path, PathBuf};

/// A text file by its path from the repository's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// With `/` between its parts.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// Directories with generated files.
const GENERATED_DIRS: [&str; 3] = ["target", ".git", ".run"];

/// The repository's root.
#[must_use]
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the crate lies two directories below the root")
}

/// All text files of the repository whose name ends with one of `endings`, by path.
#[must_use]
pub fn files(endings: &[&str]) -> Vec<SourceFile> {
    let root = root();
    let mut found = Vec::new();
    let mut open = vec![root.clone()];
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).expect("directories of the repository can be read");
        for entry in entries {
            let entry = entry.expect("directories of the repository can be read");
            let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let kind = entry.file_type().expect("entries of a directory have a type");
            if kind.is_dir() && !GENERATED_DIRS.contains(&name.as_str()) {
                open.push(path);
            } else if kind.is_file() && endings.iter().any(|ending| name.ends_with(ending)) {
                // A temporary file of an editor or another test may be removed by now, or not be text.
                let Ok(text) = std::fs::read_to_string(&path) else { continue };
                let path = path.strip_prefix(&root).expect("the walk started there").to_string_lossy();
                found.push(SourceFile { path: path.into_owned(), text });
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

/// Where a line of a Rust file is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinePart {
    /// In normal builds.
    Production,
    /// Only in tests: the crates under `tests/`, files called `tests.rs` or below a `tests/` directory, and
    /// items after `#[cfg(test)]` at the start of a line.
    Test,
}

/// The lines of a Rust file with their numbers (from 1) and parts, without comments. Relies on rustfmt: an
/// item that starts in the first column ends with a line that starts with `}` or ends with `;`.
pub fn lines(source: &SourceFile) -> Vec<(usize, LinePart, &str)> {
    let is_test_file = source.path.starts_with("tests/")
        || source.path.contains("/tests/")
        || source.path.ends_with("/tests.rs");
    let mut found = Vec::new();
    let mut in_test_item = false;
    for (index, line) in source.text.lines().enumerate() {
        if line.starts_with("#[cfg(test)]") {
            in_test_item = true;
        }
        let part = if is_test_file || in_test_item { LinePart::Test } else { LinePart::Production };
        if !line.trim_start().starts_with("//") {
            found.push((index + 1, part, line));
        }
        let is_at_start = !line.starts_with([' ', '#', '/']) && !line.is_empty();
        if in_test_item && is_at_start && (line.starts_with('}') || line.ends_with([';', '}'])) {
            in_test_item = false;
        }
    }
    found
}

/// A Rust file for the tests of a rule.
#[cfg(test)]
pub(crate) fn sample(path: &str, text: &str) -> SourceFile {
    SourceFile { path: path.to_owned(), text: text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_by_ending() {
        let found = files(&[".rs"]);
        assert!(found.iter().any(|source| source.path == "tests/tidy/src/source.rs"));
        assert!(
            found.iter().all(|source| source.path.ends_with(".rs") && !source.path.starts_with("target/"))
        );
    }

    #[test]
    fn test_items_end_where_they_end() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n    // no\n    fn b() {}\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod other;\nfn d() {}\n";
        let parts: Vec<(usize, LinePart)> =
            lines(&sample("a/src/lib.rs", text)).iter().map(|(number, part, _)| (*number, *part)).collect();
        use LinePart::{Production as P, Test as T};
        let expected = [(1, P), (2, T), (3, T), (5, T), (6, T), (7, P), (8, T), (9, T), (10, P)];
        assert_eq!(parts, expected);
    }

    #[test]
    fn some_files_are_tests_as_a_whole() {
        for path in ["tests/e2e/src/lib.rs", "pkg/a/tests/b.rs", "pkg/a/src/b/tests.rs"] {
            assert_eq!(lines(&sample(path, "fn a() {}"))[0].1, LinePart::Test, "{path}");
        }
    }
}
