//! The table of keys is complete, and docs/compose.md is made from it.

use std::collections::BTreeSet;
use std::path::Path;

use warren_compose::schema::{SchemaNode, ValueForm, schema, schema_keys, support_table};

/// The keys of the Compose Specification of July 2026: its schema, and `pre_start` of its text.
const KEYS: &str = include_str!("keys.txt");
/// The lines around the table in docs/compose.md.
const MARKS: [&str; 2] = ["<!-- keys: begin -->\n", "<!-- keys: end -->\n"];

/// Whether the table has the key, or leaves all below one that contains it unchecked.
fn is_known(path: &str) -> bool {
    let parts = path.replace("[]", ".[]");
    let mut node: &SchemaNode = schema();
    for part in parts.split('.') {
        let next = match part {
            "*" => node.values.as_deref(),
            "[]" => node.items.as_deref(),
            name => node.keys.get(name),
        };
        let Some(next) = next else {
            let whole = [ValueForm::Unchecked, ValueForm::Pairs, ValueForm::Hosts];
            let list = [
                ValueForm::TextList,
                ValueForm::TextOrList,
                ValueForm::PathOrList,
                ValueForm::SecurityOptions,
            ];
            return whole.contains(&node.form()) || (part == "[]" && list.contains(&node.form()));
        };
        node = next;
    }
    node.key.is_some()
}

#[test]
fn every_key_of_the_specification_is_in_the_table() {
    let missing: Vec<&str> = KEYS.lines().filter(|path| !is_known(path)).collect();
    assert_eq!(missing, [""; 0]);
    assert!(KEYS.lines().count() > 350);
    assert!(!is_known("services.*.unknown") && !is_known("services.*.image[]"));
}

#[test]
fn every_key_of_the_table_is_in_the_specification_and_there_once() {
    let known: BTreeSet<&str> = KEYS.lines().collect();
    let mut seen = BTreeSet::new();
    for key in schema_keys() {
        assert!(known.contains(key.path), "{} is not in the specification", key.path);
        assert!(seen.insert(key.path), "{} is there twice", key.path);
    }
}

/// Run with `UPDATE_DOCS=1` to write the table.
#[test]
fn documentation_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compose.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(MARKS[0]).unwrap();
    let (_, after) = rest.split_once(MARKS[1]).unwrap();
    let expected = format!("{before}{}{}{}{after}", MARKS[0], support_table(), MARKS[1]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &expected).unwrap();
    }
    assert!(text == expected, "docs/compose.md is not up to date; run this test with UPDATE_DOCS=1");
}
