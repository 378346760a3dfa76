//! What documents name exists: paths in the repository, symbols in its sources, the targets of links.

use std::collections::BTreeSet;
use std::path::Path;

use crate::source::{LinePart, SourceFile, lines};

/// The page that a reader can hold at once.
const MAX_ARCHITECTURE_LINES: usize = 250;

/// Where the documents are whose paths and links must exist.
const DOCUMENTS: [&str; 4] = ["ARCHITECTURE.md", "docs/SUMMARY.md", "docs/glossary.md", "docs/decisions/"];

/// Words before the name of what they declare.
const DECLARING: [&str; 11] =
    ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "message", "service", "rpc"];

/// Names that documents use and that others declare.
const FOREIGN: [&str; 3] = ["ip_forward", "fsync", "batch_append"];

/// Whether the path of a document is one that these rules are about.
#[must_use]
pub fn is_checked(path: &str) -> bool {
    DOCUMENTS.iter().any(|start| path.starts_with(start)) && path.ends_with(".md")
}

/// The document if it is longer than a page may be.
#[must_use]
pub fn too_long(document: &SourceFile) -> Vec<String> {
    let lines = document.text.lines().count();
    let long = (lines > MAX_ARCHITECTURE_LINES)
        .then(|| format!("{} has {lines} lines, more than {MAX_ARCHITECTURE_LINES}", document.path));
    long.into_iter().collect()
}

/// Paths in backticks and targets of links that do not exist. A path is relative to the repository's root; one that
/// begins with `/` is of a node, and what follows `<` in one stands for any name.
#[must_use]
pub fn missing_paths(documents: &[SourceFile], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut violations = Vec::new();
    for document in documents {
        let directory = Path::new(&document.path).parent().unwrap_or(Path::new(""));
        for (number, line) in document.text.lines().enumerate() {
            let named = spans(line).filter(|span| is_path(span));
            let named = named.map(|path| path.split_once('<').map_or(path, |(start, _)| start).to_owned());
            let linked = links(line).map(|target| {
                let target = target.split_once('#').map_or(target, |(path, _)| path);
                directory.join(target).to_string_lossy().into_owned()
            });
            let missing = named.chain(linked).filter(|path| !exists(path));
            violations
                .extend(missing.map(|path| format!("{}:{}: there is no {path}", document.path, number + 1)));
        }
    }
    violations
}

/// Symbols in backticks that nothing in `declared` is called. A symbol is `CamelCase`, `snake_case` or `IN_CAPITALS`,
/// or has `::` or `()`; a member that follows its type (`Type::member`, `Type.member`) must be one of that type.
#[must_use]
pub fn unknown_symbols(document: &SourceFile, declared: &BTreeSet<String>) -> Vec<String> {
    let mut violations = Vec::new();
    for (number, line) in document.text.lines().enumerate() {
        for span in spans(line).filter(|span| !is_path(span)) {
            if let Some(unknown) = unknown_part(span, declared) {
                let at = format!("{}:{}", document.path, number + 1);
                violations.push(format!("{at}: `{span}`: nothing is called {unknown}"));
            }
        }
    }
    violations
}

fn unknown_part(span: &str, declared: &BTreeSet<String>) -> Option<String> {
    let called = span.strip_suffix("()");
    let path = called.unwrap_or(span).replace("::", ".");
    let parts: Vec<&str> = path.split('.').collect();
    let is_name = |part: &&str| {
        !part.is_empty()
            && !part.starts_with(|letter: char| letter.is_ascii_digit())
            && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    };
    // `apply` alone may be a word of the language, a command or a file.
    let is_symbol = called.is_some()
        || span.contains("::")
        || span.contains('_')
        || span.chars().filter(char::is_ascii_alphabetic).any(|letter| letter.is_ascii_uppercase());
    if !is_symbol || !parts.iter().all(is_name) || parts.iter().any(|part| FOREIGN.contains(part)) {
        return None;
    }
    let of_type = parts.windows(2).filter(|pair| pair[0].starts_with(|letter: char| letter.is_uppercase()));
    let members = of_type.map(|pair| pair.join("."));
    parts.iter().map(|part| (*part).to_owned()).chain(members).find(|name| !declared.contains(name))
}

/// Everything that `.rs` and `.proto` files declare, members of types also as `Type.member`, and the names that they
/// have in strings (states, reasons, metrics). Relies on rustfmt: an item ends with a line that starts with `}` in
/// the column of its first line.
#[must_use]
pub fn declared(sources: &[SourceFile]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources {
        found.extend(source.path.split('/').map(|part| part.trim_end_matches(".rs").to_owned()));
        let mut owner: Option<(usize, String)> = None;
        for (_, part, line) in lines(source) {
            let text = line.trim_start();
            let column = line.len() - text.len();
            if part == LinePart::Production {
                found.extend(quoted(text).map(str::to_owned));
            }
            if owner.as_ref().is_some_and(|(start, _)| column <= *start && text.starts_with('}')) {
                owner = None;
            }
            let name = declaration(text);
            if let Some((start, of)) = &owner {
                let is_member = column == start + indent(source);
                let member = name.clone().or_else(|| leading(text).filter(|_| is_member).map(str::to_owned));
                found.extend(member.iter().map(|member| format!("{of}.{member}")));
                found.extend(member);
            }
            found.extend(name);
            if let (None, Some(of), true) = (&owner, owning(text), text.ends_with('{')) {
                owner = Some((column, of.to_owned()));
            }
        }
    }
    found
}

/// The columns between an item and its members.
fn indent(source: &SourceFile) -> usize {
    if source.path.ends_with(".proto") { 2 } else { 4 }
}

/// The name that a line declares with a keyword.
fn declaration(line: &str) -> Option<String> {
    let is_modifier = |word: &&str| matches!(*word, "async" | "unsafe") || word.starts_with("pub");
    let line = line.replacen("const fn", "fn", 1);
    let mut words = line.split_whitespace().skip_while(is_modifier);
    words.next().filter(|word| DECLARING.contains(word))?;
    words.next().and_then(leading).map(str::to_owned)
}

/// The type that the members after a line belong to.
fn owning(line: &str) -> Option<&str> {
    let line = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub(super) ")).unwrap_or(line);
    let line = line.strip_prefix("pub ").unwrap_or(line);
    let (word, rest) = line.split_once([' ', '<'])?;
    match word {
        "struct" | "enum" | "trait" | "message" | "service" => leading(rest),
        "impl" => {
            let of = rest.rsplit_once(" for ").map_or(rest, |(_, of)| of);
            let of = of.split_once("> ").filter(|_| line.starts_with("impl<")).map_or(of, |(_, of)| of);
            let of = of.split(['<', ' ']).next()?;
            leading(of.rsplit("::").next()?)
        }
        _ => None,
    }
}

/// The name that a text begins with, as a field or a variant does.
fn leading(text: &str) -> Option<&str> {
    let text = text.strip_prefix("pub ").or_else(|| text.strip_prefix("pub(crate) ")).unwrap_or(text);
    let text = text.strip_prefix("pub(super) ").unwrap_or(text);
    let end =
        text.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

/// The names in capitals or with underscores that strings of a line begin with.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    let is_code = |name: &&str| name.contains('_') || !name.contains(|letter: char| letter.is_lowercase());
    line.split('"').skip(1).step_by(2).filter_map(leading).filter(is_code)
}

/// What a line has between backticks.
fn spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// The targets of a line's links within the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    targets.filter(|target| !target.contains("://") && !target.starts_with('#'))
}

fn is_path(span: &str) -> bool {
    let is_file = [".rs", ".md", ".proto", ".toml", ".sh"].iter().any(|ending| span.ends_with(ending));
    let letters = |letter: char| letter.is_ascii_alphanumeric() || "/._-<>".contains(letter);
    (is_file || span.contains('/')) && !span.starts_with('/') && span.chars().all(letters)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, root, sample};
    use crate::vocabulary::GLOSSARY;

    fn documents() -> Vec<SourceFile> {
        files(&[".md"]).into_iter().filter(|source| is_checked(&source.path)).collect()
    }

    #[test]
    fn architecture_fits_a_page() {
        let documents = documents();
        let page = documents.iter().find(|document| document.path == "ARCHITECTURE.md").unwrap();
        assert_none(&too_long(page));
    }

    #[test]
    fn paths_in_documents_exist() {
        let documents = documents();
        assert!(documents.len() > 10);
        assert_none(&missing_paths(&documents, |path| root().join(path).exists()));
    }

    #[test]
    fn symbols_in_documents_are_declared() {
        let declared = declared(&files(&[".rs", ".proto"]));
        // The glossary also has the names that are refused.
        for document in documents().iter().filter(|document| document.path != GLOSSARY) {
            assert_none(&unknown_symbols(document, &declared));
        }
    }

    #[test]
    fn long_page_is_named() {
        let text = "x\n".repeat(MAX_ARCHITECTURE_LINES);
        assert_none(&too_long(&sample("a.md", &text)));
        assert_eq!(too_long(&sample("a.md", &format!("{text}x\n"))), ["a.md has 251 lines, more than 250"]);
    }

    #[test]
    fn missing_path_is_named() {
        let exists = |path: &str| ["a/b.rs", "a/", "docs/c.md"].contains(&path);
        let text = "`a/b.rs`, `a/<name>.rs`, `/etc/passwd`, `web.3`, `warren ls`\n[c](c.md#d) [e](https://e.org/f)\n";
        assert_none(&missing_paths(&[sample("docs/x.md", text)], exists));
        let text = "`a/c.rs` and `b.rs`\n[c](../c.md)\n";
        let expected = [
            "docs/x.md:1: there is no a/c.rs",
            "docs/x.md:1: there is no b.rs",
            "docs/x.md:2: there is no docs/../c.md",
        ];
        assert_eq!(missing_paths(&[sample("docs/x.md", text)], exists), expected);
    }

    #[test]
    fn unknown_symbol_is_named() {
        let rust = "pub struct State {\n    pub level: u32,\n}\nimpl<T: Clone> Bound<T> for State {\n    \
                    /// Never `gone()`.\n    pub(crate) async fn apply(&self) -> X {\n\
                            let inner = \"READY\";\n    \
                    }\n}\npub enum Kind {\n    Small(u8),\n}\n\
                    const FILTERS: u8 = 1;\npub const fn plan() {}\n";
        let proto = "service Services {\n  rpc Create(A) returns (B);\n}\n";
        let declared = declared(&[sample("x/src/scheduler.rs", rust), sample("a.proto", proto)]);
        let check = |text: &str, count: usize| {
            let found = unknown_symbols(&sample("a.md", text), &declared);
            assert_eq!(found.len(), count, "{text}: {found:?}");
        };
        check("`State`, `State::apply()`, `State.level`, `Kind::Small`, `FILTERS`, `scheduler::plan`", 0);
        check(
            "`READY`, `Services.Create`, `apply`, `web.3`, `ip_forward`, `a/b.rs`, `warren ls`, `--force`",
            0,
        );
        for unknown in
            ["Gizmo", "gone()", "State::level_up", "Kind::Large", "State.gone", "a_word", "CAPS", "x::y"]
        {
            check(&format!("`{unknown}`"), 1);
        }
        // Declared, but not as a member of that type.
        check("`Kind::apply`, `State.Small`", 2);
    }
}
