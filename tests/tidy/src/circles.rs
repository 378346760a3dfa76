//! Modules that import each other, directly or through others: none of them can be read, tested or moved without the
//! rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::source::{LinePart, SourceFile, lines};

/// The names of a module and of those it lies in, from the crate's root; the root itself is empty.
type ModulePath = Vec<String>;

/// Re-exports of re-exports are followed this far.
const MAX_HOPS: usize = 8;

/// A word or a sign of a Rust file, and the line it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Token {
    text: String,
    line: usize,
}

/// A path that a file names, and the line it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Import {
    path: Vec<String>,
    /// What the path is called in this file; `None` for a path in an expression and for a glob.
    name: Option<String>,
    line: usize,
}

/// One file of a crate.
struct Module<'a> {
    source: &'a SourceFile,
    imports: Vec<Import>,
}

/// The files of one crate by their module.
type CrateModules<'a> = BTreeMap<ModulePath, Module<'a>>;

/// From one module to the other: the first import that shows it.
type ImportEdges = BTreeMap<(ModulePath, ModulePath), String>;

/// What counts as one module. A file and its own submodules may use each other in either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// A single file.
    File,
    /// A module with everything below it.
    Module,
}

/// Circles of two or more modules, of which each imports the next one. An import through a re-export counts as one of
/// the module that declares the name, so a parent that only re-exports its submodules is in no circle. Code of tests
/// does not count.
#[must_use]
pub fn circles(sources: &[SourceFile], granularity: Granularity) -> Vec<String> {
    let roots = crate_roots(sources);
    roots.iter().flat_map(|root| crate_circles(root, &modules(root, sources), granularity)).collect()
}

/// The directories of crates: those with a `lib.rs`, or with a `main.rs` alone.
fn crate_roots(sources: &[SourceFile]) -> BTreeSet<String> {
    let root = |source: &SourceFile| {
        let path = source.path.strip_suffix("lib.rs").or_else(|| source.path.strip_suffix("main.rs"))?;
        (path.ends_with("src/") && !path.starts_with("tests/")).then(|| path.to_owned())
    };
    sources.iter().filter_map(root).collect()
}

fn modules<'a>(root: &str, sources: &'a [SourceFile]) -> CrateModules<'a> {
    let has_library = sources.iter().any(|source| source.path == format!("{root}lib.rs"));
    let mut found = CrateModules::new();
    let mut tests: BTreeSet<ModulePath> = BTreeSet::new();
    for source in sources {
        let Some(path) = source.path.strip_prefix(root).and_then(|rest| rest.strip_suffix(".rs")) else {
            continue;
        };
        let module: ModulePath = match path {
            "main" if has_library => continue,
            "lib" | "main" => Vec::new(),
            path => path.split('/').map(str::to_owned).collect(),
        };
        for (_, part, line) in lines(source) {
            let declared = line.trim_start().trim_start_matches("pub ").strip_prefix("mod ");
            if let (LinePart::Test, Some(name)) = (part, declared.and_then(|rest| rest.strip_suffix(';'))) {
                tests.insert(child(&module, name));
            }
        }
        if lines(source).iter().any(|(_, part, _)| *part == LinePart::Production) {
            found.insert(module, Module { source, imports: imports(&tokens(source)) });
        }
    }
    found.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    found
}

fn child(module: &[String], name: &str) -> ModulePath {
    module.iter().cloned().chain([name.to_owned()]).collect()
}

fn crate_circles(root: &str, modules: &CrateModules<'_>, granularity: Granularity) -> Vec<String> {
    let mut edges = ImportEdges::new();
    for (module, Module { source, imports }) in modules {
        for import in imports {
            let Some(target) = resolve(modules, module, &import.path, MAX_HOPS) else { continue };
            let common = module.iter().zip(&target).take_while(|(one, other)| one == other).count();
            if common < module.len().min(target.len()) {
                let pair = match granularity {
                    Granularity::File => (module.clone(), target),
                    Granularity::Module => (module[..=common].to_vec(), target[..=common].to_vec()),
                };
                let shown = format!("{}:{} ({})", source.path, import.line, import.path.join("::"));
                edges.entry(pair).or_insert(shown);
            }
        }
    }
    // The shortest circle through each import; from any of its imports it is the same one.
    let mut found: BTreeSet<Vec<&ModulePath>> = BTreeSet::new();
    for (one, other) in edges.keys() {
        let Some(mut circle) = shortest_path(&edges, other, one) else { continue };
        let first = (0..circle.len()).min_by_key(|at| circle[*at]).unwrap_or_default();
        circle.rotate_left(first);
        found.insert(circle);
    }
    found.iter().map(|circle| describe(root, circle, &edges)).collect()
}

/// The modules from `from` to `to`, of which each imports the next one.
fn shortest_path<'a>(
    edges: &'a ImportEdges,
    from: &'a ModulePath,
    to: &ModulePath,
) -> Option<Vec<&'a ModulePath>> {
    let mut paths = VecDeque::from([vec![from]]);
    let mut reached = BTreeSet::from([from]);
    while let Some(path) = paths.pop_front() {
        let last = *path.last()?;
        if last == to {
            return Some(path);
        }
        let imports = edges.range((last.clone(), ModulePath::new())..).map(|((one, other), _)| (one, other));
        for (_, next) in imports.take_while(|(one, _)| *one == last) {
            if reached.insert(next) {
                paths.push_back(path.iter().copied().chain([next]).collect());
            }
        }
    }
    None
}

fn describe(root: &str, circle: &[&ModulePath], edges: &ImportEdges) -> String {
    let names: Vec<String> = circle.iter().map(|module| format!("{root}{}", module.join("/"))).collect();
    let next = circle.iter().cycle().skip(1);
    let imports =
        circle.iter().zip(next).map(|(one, other)| (ModulePath::clone(one), ModulePath::clone(other)));
    let shown: Vec<&str> = imports.filter_map(|pair| edges.get(&pair)).map(String::as_str).collect();
    let how = if circle.len() == 2 { "import each other" } else { "import each other in a circle" };
    format!("{} {how}: {}", names.join(" and "), shown.join(", "))
}

/// The module whose file declares what `path`, written in `module`, stands for; `None` for other crates.
fn resolve(
    modules: &CrateModules<'_>,
    module: &[String],
    path: &[String],
    hops: usize,
) -> Option<ModulePath> {
    let mut at = module.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {}
        first if modules.contains_key(&child(&at, first)) => {}
        _ => return None,
    }
    while let Some((first, later)) = rest.split_first() {
        if first == "super" {
            at.pop()?;
        } else if modules.contains_key(&child(&at, first)) {
            at.push(first.clone());
        } else {
            let file = modules.get(&at)?;
            let alias = file.imports.iter().find(|import| import.name.as_ref() == Some(first));
            let Some(alias) = alias.filter(|_| hops > 0) else { return Some(at) };
            let whole: Vec<String> = alias.path.iter().chain(later).cloned().collect();
            return resolve(modules, &at, &whole, hops - 1).filter(|_| alias.path != path);
        }
        rest = later;
    }
    modules.contains_key(&at).then_some(at)
}

/// What `use` declarations and paths in expressions name. Paths in expressions count if they begin with `crate`,
/// `self` or `super`, or with a module that the file declares.
fn imports(tokens: &[Token]) -> Vec<Import> {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text.as_str());
    let declared: BTreeSet<&str> = (0..tokens.len())
        .filter(|at| text(*at) == "mod" && text(at + 2) == ";")
        .map(|at| text(at + 1))
        .collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let word = text(at);
        let is_start = matches!(word, "crate" | "self" | "super") || declared.contains(word);
        if word == "use" {
            at = use_tree(tokens, at + 1, &[], &mut found);
        } else if is_start && text(at + 1) == "::" && (at == 0 || text(at - 1) != "::") {
            let line = tokens[at].line;
            let mut path = vec![word.to_owned()];
            while text(at + 1) == "::" && text(at + 2).starts_with(is_word) {
                path.push(text(at + 2).to_owned());
                at += 2;
            }
            found.push(Import { path, name: None, line });
        }
        at += 1;
    }
    found
}

/// Reads one tree of a `use` declaration from `at` on, and returns where it ends: at `,`, `}` or `;`.
fn use_tree(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Import>) -> usize {
    let mut path = prefix.to_vec();
    let mut name = None;
    while let Some(Token { text, line }) = tokens.get(at) {
        match text.as_str() {
            "," | "}" | ";" => {
                let is_glob = path.last().is_some_and(|last| last == "*");
                path.retain(|part| part != "*");
                if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                    path.pop();
                }
                let name = name.or_else(|| path.last().cloned()).filter(|_| !is_glob);
                found.push(Import { path, name, line: *line });
                return at;
            }
            "{" => {
                while tokens.get(at).is_some_and(|token| token.text != "}") {
                    if matches!(tokens.get(at + 1), Some(next) if next.text == "}") {
                        at += 1;
                        break;
                    }
                    at = use_tree(tokens, at + 1, &path, found);
                }
                return at + 1;
            }
            "as" => {
                name = tokens.get(at + 1).map(|token| token.text.clone());
                at += 1;
            }
            "::" => {}
            word => path.push(word.to_owned()),
        }
        at += 1;
    }
    at
}

fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The words and signs of what ships of a file, without strings and comments.
fn tokens(source: &SourceFile) -> Vec<Token> {
    let mut found = Vec::new();
    let mut in_string = false;
    for (number, _, text) in lines(source).into_iter().filter(|(_, part, _)| *part == LinePart::Production) {
        let mut rest = text;
        while let Some(letter) = rest.chars().next() {
            if in_string || letter == '"' {
                let (taken, ended) = string_end(if in_string { rest } else { &rest[1..] });
                in_string = !ended;
                rest = taken;
            } else if rest.starts_with("//") {
                break;
            } else if letter == '\'' {
                rest = &rest[character_end(rest)..];
            } else if is_word(letter) {
                let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
                found.push(Token { text: rest[..end].to_owned(), line: number });
                rest = &rest[end..];
            } else {
                let end = if rest.starts_with("::") { 2 } else { letter.len_utf8() };
                if !letter.is_whitespace() {
                    found.push(Token { text: rest[..end].to_owned(), line: number });
                }
                rest = &rest[end..];
            }
        }
    }
    found
}

/// What follows a string that `text` is inside of, and whether it ends on this line.
fn string_end(text: &str) -> (&str, bool) {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return (&text[at + 1..], true),
            _ => {}
        }
    }
    ("", false)
}

/// Where a character literal ends; a lifetime is only its quote.
fn character_end(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => {
            let closing = letters.skip(1).find(|(_, letter)| *letter == '\'');
            closing.map_or(text.len(), |(at, _)| at + 1)
        }
        Some(_) => letters.next().filter(|(_, letter)| *letter == '\'').map_or(1, |(at, _)| at + 1),
        None => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assert_none;
    use crate::source::{files, sample};

    #[test]
    fn modules_do_not_import_each_other() {
        assert_none(&circles(&files(&[".rs"]), Granularity::Module));
    }

    /// A crate `x` of these files.
    fn sample_crate(parts: &[(&str, &str)]) -> Vec<SourceFile> {
        parts.iter().map(|(path, text)| sample(&format!("x/src/{path}.rs"), text)).collect()
    }

    fn check(parts: &[(&str, &str)], expected: &[&str]) {
        assert_eq!(circles(&sample_crate(parts), Granularity::Module), expected, "{parts:?}");
    }

    #[test]
    fn siblings_that_import_each_other_are_named() {
        let root = ("lib", "mod a;\nmod b;\n");
        let expected =
            "x/src/a and x/src/b import each other: x/src/a.rs:1 (crate::b::B), x/src/b.rs:1 (super::a::A)";
        check(
            &[root, ("a", "use crate::b::B;\npub struct A;\n"), ("b", "use super::a::A;\npub struct B;\n")],
            &[expected],
        );
        let one_way = ("b", "use std::a::A;\npub struct B;\n");
        check(&[root, ("a", "use crate::b::B;\npub struct A;\n"), one_way], &[]);
    }

    #[test]
    fn circle_of_three_is_found_once() {
        let root = ("lib", "mod a;\nmod b;\nmod c;\nmod d;\n");
        let a = ("a", "use crate::b::B;\npub struct A;\n");
        let b = ("b", "use crate::c::C;\npub struct B;\n");
        let c = ("c", "use crate::a::A;\nuse crate::d::D;\npub struct C;\n");
        let d = ("d", "pub struct D;\n");
        let expected = "x/src/a and x/src/b and x/src/c import each other in a circle: x/src/a.rs:1 (crate::b::B), \
                        x/src/b.rs:1 (crate::c::C), x/src/c.rs:1 (crate::a::A)";
        check(&[root, a, b, c, d], &[expected]);
        check(&[root, a, b, ("c", "use crate::d::D;\npub struct C;\n"), d], &[]);
    }

    #[test]
    fn paths_in_expressions_and_in_braces_count() {
        let root = ("lib", "mod a;\nmod b;\n");
        let a = ("a", "pub fn a() {\n    let x = 'b'; crate::b::b(\"// no\");\n}\n");
        let b = "use std::{\n    io,\n    fmt::{self, Display as D},\n};\nuse crate::{a::{self}};\npub fn b() {}\n";
        let b = ("b", b);
        let found = circles(&sample_crate(&[root, a, b]), Granularity::File);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("x/src/a.rs:2") && found[0].contains("x/src/b.rs:5"), "{found:?}");
    }

    #[test]
    fn file_and_its_submodules_may_use_each_other() {
        let a = ("a", "mod b;\npub use b::B;\npub fn a() { b::b() }\n");
        check(&[("lib", "mod a;\n"), a, ("a/b", "use super::a;\npub struct B;\npub fn b() {}\n")], &[]);
    }

    #[test]
    fn import_through_parent_counts_as_import_of_declaring_sibling() {
        let a = ("a", "mod b;\nmod c;\nuse b::B;\npub use self::c::{C as D};\n");
        let b = ("a/b", "use super::D;\npub struct B;\n");
        let c = ("a/c", "use super::B;\npub struct C;\n");
        let expected =
            "x/src/a/b and x/src/a/c import each other: x/src/a/b.rs:1 (super::D), x/src/a/c.rs:1 (super::B)";
        check(&[("lib", "mod a;\n"), a, b, c], &[expected]);
    }

    #[test]
    fn circle_through_submodules_counts_for_modules_only() {
        let parts = [
            ("lib", "mod a;\nmod b;\n"),
            ("a", "mod c;\n"),
            ("a/c", "use crate::b::B;\n"),
            ("b", "mod d;\npub struct B;\n"),
            ("b/d", "fn d(x: crate::a::A) {}\n"),
        ];
        assert_eq!(circles(&sample_crate(&parts), Granularity::Module).len(), 1);
        assert_none(&circles(&sample_crate(&parts), Granularity::File));
    }

    #[test]
    fn code_of_tests_does_not_count() {
        let a = "use crate::b::B;\n#[cfg(test)]\nmod fake;\n";
        let b = "pub struct B;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
        let root = ("lib", "mod a;\nmod b;\n");
        check(&[root, ("a", a), ("b", b), ("b/tests", "use crate::a::A;\n")], &[]);
        check(&[root, ("a", a), ("b", "use crate::c::C;\n"), ("a/fake", "use crate::b::B;\n")], &[]);
    }

    #[test]
    fn program_beside_library_is_not_part_of_it() {
        let roots = sample_crate(&[("lib", "fn a() {}\n"), ("main", "fn main() {}\n")]);
        assert_eq!(crate_roots(&roots).len(), 1);
        assert_eq!(modules("x/src/", &roots).len(), 1);
    }
}
