//! Finds the position of a violation's path in a document.

use warren_compose::yaml::YamlNode;
use warren_compose::{ComposeProblem, KeyPath};
use warren_types::Violations;

/// A step of a path: `.name`, `[3]` or `["key"]`.
enum PathStep {
    Key(String),
    Index(usize),
}

/// The violations as problems. `map_path` turns a path of the violations into one of the document at `root`.
pub fn problems(
    root: &YamlNode,
    violations: Violations,
    map_path: impl Fn(&str) -> String,
) -> Vec<ComposeProblem> {
    let located = violations.0.into_iter().map(|violation| {
        let path = map_path(&violation.path);
        let at = &deepest(root, &path).at;
        ComposeProblem::new(at, path, violation.message)
    });
    located.collect()
}

/// A problem of the value of this key of the document, at the value or else where the document starts.
pub fn problem(root: &YamlNode, path: &str, message: impl std::fmt::Display) -> ComposeProblem {
    ComposeProblem::new(&deepest(root, path).at, path, message)
}

/// The node of the path, or the innermost one that exists on the way.
fn deepest<'a>(root: &'a YamlNode, path: &str) -> &'a YamlNode {
    let mut node = root;
    for step in steps(path) {
        let next = match step {
            PathStep::Key(key) => {
                node.as_map().and_then(|map| map.get(key.as_str())).map(|entry| &entry.node)
            }
            PathStep::Index(index) => node.items().get(index),
        };
        match next {
            Some(next) => node = next,
            None => break,
        }
    }
    node
}

fn steps(path: &str) -> Vec<PathStep> {
    let (mut steps, mut rest) = (Vec::new(), path);
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = inner.find(']').unwrap_or(inner.len());
            let quoted = inner.strip_prefix('"').and_then(|inner| Some((inner, inner.find("\"]")?)));
            let (step, length) = match quoted {
                Some((inner, end)) => (PathStep::Key(inner[..end].to_owned()), end + 2),
                None => (
                    inner[..end]
                        .parse()
                        .map_or_else(|_| PathStep::Key(inner[..end].to_owned()), PathStep::Index),
                    end,
                ),
            };
            steps.push(step);
            rest = inner.get(length + 1..).unwrap_or_default();
        } else {
            let name = rest.trim_start_matches('.');
            let end = name.find(['.', '[']).unwrap_or(name.len());
            steps.push(PathStep::Key(name[..end].to_owned()));
            rest = &name[end..];
        }
    }
    steps
}

/// The path of the document itself.
pub const ROOT: KeyPath<'static> = KeyPath::Root;
