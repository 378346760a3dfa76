//! Names of exported types: each is declared once in the workspace, so that it has one meaning.

use std::collections::BTreeMap;

use crate::source::{LinePart, SourceFile, lines};

/// Names that each crate may declare for its own errors.
const CONVENTIONAL: [&str; 2] = ["Error", "Result"];

/// What the declaration of an exported type starts with.
const DECLARATIONS: [&str; 6] =
    ["pub struct ", "pub enum ", "pub trait ", "pub unsafe trait ", "pub type ", "pub union "];

/// Names of exported types that are declared more than once, with the places. Code of tests does not count.
#[must_use]
pub fn repeated_type_names(sources: &[SourceFile]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources {
        for (number, part, line) in lines(source) {
            if let (LinePart::Production, Some(name)) = (part, exported_type(line)) {
                places.entry(name).or_default().push(format!("{}:{number}", source.path));
            }
        }
    }
    let repeated = places.iter().filter(|(name, places)| places.len() > 1 && !CONVENTIONAL.contains(*name));
    repeated
        .map(|(name, places)| {
            let places = places.join(" and ");
            format!("the exported type {name} is declared in {places}: rename or remove all but one")
        })
        .collect()
}

/// The name of the type that a line declares; `None` also if a macro chooses it.
fn exported_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = DECLARATIONS.iter().find_map(|start| line.strip_prefix(*start))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, sample};

    #[test]
    fn exported_types_have_unique_names() {
        assert_none(&repeated_type_names(&files(&[".rs"])));
    }

    #[test]
    fn repeated_name_is_named_with_its_places() {
        let first = sample("a/src/lib.rs", "//! A.\n\npub struct Peer<'a>(&'a str);\n");
        for second in [
            "pub struct Peer;\n",
            "pub enum Peer {\n    A,\n}\n",
            "pub trait Peer {}\n",
            "pub unsafe trait Peer {}\n",
            "pub type Peer<T> = Vec<T>;\n",
            "pub union Peer {\n    a: u8,\n}\n",
        ] {
            let expected = "the exported type Peer is declared in a/src/lib.rs:3 and b/src/c.rs:1: rename or remove \
                            all but one";
            assert_eq!(
                repeated_type_names(&[first.clone(), sample("b/src/c.rs", second)]),
                [expected],
                "{second}"
            );
        }
        let inner = "pub struct Peer;\npub mod inner {\n    pub struct Peer;\n}\n";
        let expected = "the exported type Peer is declared in a/src/lib.rs:3 and b/src/c.rs:1 and b/src/c.rs:3: rename \
                        or remove all but one";
        assert_eq!(repeated_type_names(&[first, sample("b/src/c.rs", inner)]), [expected]);
    }

    #[test]
    fn other_declarations_do_not_count() {
        let first = sample("a/src/lib.rs", "pub struct Peer;\npub enum Error {}\npub type Result = ();\n");
        for (path, text) in [
            ("b/src/lib.rs", "pub struct PeerId;\npub struct peer;\npub fn Peer() {}\n"),
            ("b/src/lib.rs", "struct Peer;\npub(crate) struct Peer;\npub(super) enum Peer {}\n"),
            ("b/src/lib.rs", "impl A for B {\n    type Peer = u8;\n}\n"),
            ("b/src/lib.rs", "// pub struct Peer;\npub use a::Peer;\n"),
            ("b/src/lib.rs", "pub struct $name;\npub struct $name;\n"),
            ("b/src/lib.rs", "pub struct Error;\npub type Result<T> = std::result::Result<T, Error>;\n"),
            ("b/src/lib.rs", "#[cfg(test)]\nmod tests {\n    pub struct Peer;\n}\n"),
            ("b/src/a/tests.rs", "pub struct Peer;\n"),
            ("b/tests/b/main.rs", "pub struct Peer;\n"),
            ("tests/b/src/lib.rs", "pub struct Peer;\n"),
        ] {
            assert_none(&repeated_type_names(&[first.clone(), sample(path, text)]));
        }
    }
}
