//! Errors and warnings about Compose files: where, which key, what is wrong and what to do.

use std::fmt;
use std::sync::Arc;

/// A place in a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The file as it was named by the user or by another file.
    pub file: Arc<str>,
    /// From 1.
    pub line: u32,
    /// From 1, in characters.
    pub column: u32,
}

/// A value of a file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValuePosition {
    /// Where it is.
    pub at: SourcePosition,
    /// Its path, as in [`ComposeProblem`].
    pub path: String,
}

impl ValuePosition {
    /// A problem of this value.
    pub fn problem(&self, message: impl fmt::Display) -> ComposeProblem {
        ComposeProblem::new(&self.at, &self.path, message)
    }
}

/// One error or warning. Shown as `compose.yaml:12:5: services.web.ports[0]: "x" is not a port`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub struct ComposeProblem {
    /// Where the value or key is.
    pub at: SourcePosition,
    /// Dotted path of the key, with indexes of lists in brackets; empty for the whole file.
    pub path: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl ComposeProblem {
    /// A problem of the value with this path.
    pub fn new(at: &SourcePosition, path: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self { at: at.clone(), path: path.to_string(), message: message.to_string() }
    }
}

impl SourcePosition {
    /// The start of a file.
    pub fn start_of(file: &str) -> Self {
        Self { file: file.into(), line: 1, column: 1 }
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

impl fmt::Display for ComposeProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// The path of a key, on the stack of the function that walks the tree.
#[derive(Debug, Clone, Copy)]
pub enum KeyPath<'a> {
    /// The whole file.
    Root,
    /// A key of a mapping.
    Key(&'a KeyPath<'a>, &'a str),
    /// An item of a list.
    Item(&'a KeyPath<'a>, usize),
}

impl KeyPath<'_> {
    /// The path of a key below this one.
    pub fn key<'a>(&'a self, key: &'a str) -> KeyPath<'a> {
        KeyPath::Key(self, key)
    }

    /// The path of an item below this one.
    pub fn item(&self, index: usize) -> KeyPath<'_> {
        KeyPath::Item(self, index)
    }
}

impl fmt::Display for KeyPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(Self::Root, key) => f.write_str(key),
            Self::Key(parent, key) => write!(f, "{parent}.{key}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Suggestions are made for this many problems; searching for more would take long.
pub const MAX_SUGGESTIONS: usize = 50;

/// The one of `known` that `given` was probably meant to be: at most two letters differ, fewer in short words.
pub fn similar<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let limit = match given.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        _ => 2,
    };
    let near = known.map(|word| (distance(given, word, limit), word)).filter(|(far, _)| *far <= limit);
    near.min().map(|(_, word)| word)
}

/// Insertions, removals, replacements and exchanges of neighbours between two words; more than `limit` if they are not
/// similar.
fn distance(one: &str, other: &str, limit: usize) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > limit {
        return limit + 1;
    }
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, same) in other.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(letter != same);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *same {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_keys_are_found() {
        let known = ["image", "ports", "environment", "init", "dns", "expose"];
        let check = |given: &str| similar(given, known.into_iter());
        assert_eq!(check("enviroment"), Some("environment"));
        assert_eq!(check("prots"), Some("ports"));
        assert_eq!(check("imgae"), Some("image"));
        assert_eq!((check("dn"), check("restart"), check("")), (None, None, None));
    }

    #[test]
    fn problem_names_file_line_column_and_key() {
        let at = SourcePosition { file: "compose.yaml".into(), line: 12, column: 5 };
        let (root, services) = (KeyPath::Root, "services");
        let services = root.key(services);
        let (web, ports) = (services.key("web"), "ports");
        let ports = web.key(ports);
        let problem = ComposeProblem::new(&at, ports.item(0), "is wrong");
        assert_eq!(problem.to_string(), "compose.yaml:12:5: services.web.ports[0]: is wrong");
        assert_eq!(ComposeProblem::new(&at, root, "is wrong").to_string(), "compose.yaml:12:5: is wrong");
    }
}
