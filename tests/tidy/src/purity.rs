//! What pure crates may not use of the standard library, and the clippy bans for the same.

use toml::Table;

use crate::source::{LinePart, SourceFile, lines};

/// The directories of the pure crates.
const DIRECTORIES: [&str; 7] = [
    "pkg/types/src/",
    "manager/core/src/",
    "manager/consensus/src/",
    "manager/replica/src/",
    "worker/core/src/",
    "pkg/compose/src/",
    "pkg/documents/src/",
];

/// Parts of the standard library that access the machine, the clock or randomness.
const IMPURE: [&str; 14] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "Instant::now",
    "SystemTime",
    "RandomState",
    "println!",
    "thread_rng",
];

/// The bans that clippy must have for `manager/core`, where every member must compute the same result.
const BANNED_TYPES: [&str; 6] = [
    "std::collections::HashMap",
    "std::collections::HashSet",
    "std::time::Instant",
    "std::time::SystemTime",
    "f32",
    "f64",
];

/// Uses of the machine, the clock or randomness in non-test code of the pure crates.
#[must_use]
pub fn impure_uses(sources: &[SourceFile]) -> Vec<String> {
    let pure = sources.iter().filter(|source| DIRECTORIES.iter().any(|start| source.path.starts_with(start)));
    let mut violations = Vec::new();
    for source in pure {
        for (number, part, line) in lines(source) {
            for impure in
                IMPURE.iter().filter(|impure| part == LinePart::Production && line.contains(**impure))
            {
                violations.push(format!("{}:{number}: a pure crate must not use {impure}", source.path));
            }
        }
    }
    violations
}

/// Bans that a clippy.toml lacks.
#[must_use]
pub fn missing_bans(clippy: &str) -> Vec<String> {
    let table: Table = clippy.parse().expect("clippy.toml is TOML");
    let entries =
        table.get("disallowed-types").and_then(|value| value.as_array()).cloned().unwrap_or_default();
    let banned: Vec<&str> = entries
        .iter()
        .filter_map(|entry| entry.as_str().or_else(|| entry.get("path").and_then(|path| path.as_str())))
        .collect();
    let missing = BANNED_TYPES.iter().filter(|expected| !banned.contains(*expected));
    missing.map(|desired| format!("manager/core/clippy.toml does not ban {desired}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, root, sample};

    #[test]
    fn pure_crates_use_no_io() {
        let sources = files(&[".rs"]);
        for start in DIRECTORIES {
            assert!(sources.iter().any(|source| source.path.starts_with(start)), "no file in {start}");
        }
        assert_none(&impure_uses(&sources));
    }

    #[test]
    fn clippy_settings_of_core_ban_io() {
        assert_none(&missing_bans(
            &std::fs::read_to_string(root().join("manager/core/clippy.toml")).unwrap(),
        ));
    }

    #[test]
    fn an_impure_use_is_named_but_not_in_tests() {
        let text = "use std::fs;\n// std::fs\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        let found = impure_uses(&[sample("manager/core/src/a.rs", text), sample("manager/src/a.rs", text)]);
        assert_eq!(found, ["manager/core/src/a.rs:1: a pure crate must not use std::fs"]);
    }

    #[test]
    fn a_missing_ban_is_named() {
        assert_eq!(missing_bans("disallowed-types = [\"f32\"]").len(), BANNED_TYPES.len() - 1);
        assert_eq!(missing_bans("").len(), BANNED_TYPES.len());
    }
}
