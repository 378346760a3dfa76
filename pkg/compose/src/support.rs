//! Reports keys that Warren does not honour.

use crate::problem::{ComposeProblem, KeyPath};
use crate::schema::{KeySupport, SchemaNode, schema};
use crate::yaml::{YamlNode, YamlValue};

/// Adds a problem for each key that is refused, and a warning for each that has no effect.
pub fn check_support(
    root: &YamlNode,
    problems: &mut Vec<ComposeProblem>,
    warnings: &mut Vec<ComposeProblem>,
) {
    Report { problems, warnings }.check(root, schema(), KeyPath::Root);
}

struct Report<'a> {
    problems: &'a mut Vec<ComposeProblem>,
    warnings: &'a mut Vec<ComposeProblem>,
}

impl Report<'_> {
    fn check(&mut self, node: &YamlNode, schema: &SchemaNode, path: KeyPath<'_>) {
        match &node.value {
            YamlValue::Map(map) => {
                for (key, entry) in map {
                    let Some(inner) = schema.child(key) else { continue };
                    let path = path.key(key);
                    match inner.key.map(|key| key.support) {
                        Some(KeySupport::Refused(why)) => {
                            let message = format!("is not supported by this version: {why}");
                            self.problems.push(ComposeProblem::new(&entry.key_at, path, message));
                        }
                        Some(KeySupport::Warned(why)) => {
                            let message = format!("has no effect: {why}");
                            self.warnings.push(ComposeProblem::new(&entry.key_at, path, message));
                        }
                        _ => self.check(&entry.node, inner, path),
                    }
                }
            }
            YamlValue::List(items) => {
                let Some(inner) = schema.items.as_deref() else { return };
                for (i, item) in items.iter().enumerate() {
                    self.check(item, inner, path.item(i));
                }
            }
            YamlValue::Scalar(..) => {}
        }
    }
}
