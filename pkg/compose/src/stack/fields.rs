//! Reads the keys of a mapping, and reports what is wrong with their positions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use warren_types::Bytes;

use crate::problem::{ComposeProblem, SourcePosition, ValuePosition};
use crate::scalar::{parse_bool, parse_duration};
use crate::yaml::{YamlNode, parse_integer};

/// What was found wrong.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub problems: RefCell<Vec<ComposeProblem>>,
    pub warnings: RefCell<Vec<ComposeProblem>>,
}

/// A value of the canonical tree with its path.
#[derive(Clone)]
pub(super) struct Fields<'a> {
    pub node: &'a YamlNode,
    pub path: String,
    report: &'a Report,
}

impl<'a> Fields<'a> {
    pub fn new(node: &'a YamlNode, path: String, report: &'a Report) -> Self {
        Self { node, path, report }
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The value of a key.
    pub fn sub(&self, key: &str) -> Option<Fields<'a>> {
        Some(Fields { node: self.node.get(key)?, path: self.path_of(key), report: self.report })
    }

    /// The items of a list.
    pub fn items(&self, key: &str) -> Vec<Fields<'a>> {
        let path = self.path_of(key);
        let items = self.node.get(key).map(YamlNode::items).unwrap_or_default();
        let item = |(i, node)| Fields { node, path: format!("{path}[{i}]"), report: self.report };
        items.iter().enumerate().map(item).collect()
    }

    /// The entries of a mapping.
    pub fn entries(&self, key: &str) -> Vec<(&'a str, Fields<'a>)> {
        let path = self.path_of(key);
        let map = self.node.get(key).and_then(YamlNode::as_map).into_iter().flatten();
        map.map(|(name, entry)| {
            let inner = Fields { node: &entry.node, path: format!("{path}.{name}"), report: self.report };
            (&**name, inner)
        })
        .collect()
    }

    /// Where this value is.
    pub fn position(&self) -> ValuePosition {
        ValuePosition { at: self.node.at.clone(), path: self.path.clone() }
    }

    /// A problem of this value.
    pub fn fail(&self, message: impl Display) {
        self.add(&self.node.at, self.path.clone(), message);
    }

    /// A problem of the value of a key, or of this value if the key is missing.
    pub fn fail_at(&self, key: &str, message: impl Display) {
        match self.sub(key) {
            Some(inner) => inner.fail(message),
            None => self.add(&self.node.at, self.path_of(key), message),
        }
    }

    fn add(&self, at: &SourcePosition, path: String, message: impl Display) {
        self.report.problems.borrow_mut().push(ComposeProblem::new(at, path, message));
    }

    /// A warning about this value.
    pub fn warn(&self, message: impl Display) {
        self.report.warnings.borrow_mut().push(ComposeProblem::new(&self.node.at, &self.path, message));
    }

    pub fn text(&self, key: &str) -> Option<&'a str> {
        self.node.get(key).and_then(YamlNode::as_text)
    }

    /// The texts of a list.
    pub fn texts(&self, key: &str) -> Option<Vec<String>> {
        let items = self.node.get(key)?.items().iter();
        Some(items.filter_map(YamlNode::as_text).map(str::to_owned).collect())
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        self.text(key).and_then(parse_bool)
    }

    pub fn duration(&self, key: &str) -> Option<Duration> {
        self.text(key).and_then(parse_duration)
    }

    pub fn bytes(&self, key: &str) -> Option<Bytes> {
        self.text(key)?.parse().ok().map(Bytes)
    }

    /// A whole number within the range of its type.
    pub fn number<T: TryFrom<i64>>(&self, key: &str) -> Option<T> {
        let text = self.text(key)?;
        let number = parse_integer(text).and_then(|number| T::try_from(number).ok());
        if number.is_none() {
            self.fail_at(key, format!("{text} is out of range"));
        }
        number
    }

    /// The value of a key, as its type reads it.
    pub fn parse<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        self.sub(key)?.parse_self()
    }

    /// This value, as its type reads it.
    pub fn parse_self<T: FromStr<Err: Display>>(&self) -> Option<T> {
        self.parse_text(self.node.as_text().unwrap_or_default())
    }

    /// A text that this value stands for.
    pub fn parse_text<T: FromStr<Err: Display>>(&self, text: &str) -> Option<T> {
        text.parse().map_err(|why| self.fail(why)).ok()
    }

    /// A mapping of texts; null is an empty text.
    pub fn pairs(&self, key: &str) -> BTreeMap<String, String> {
        let map = self.node.get(key).and_then(YamlNode::as_map).into_iter().flatten();
        let text = |node: &YamlNode| node.as_text().unwrap_or_default().to_owned();
        map.map(|(name, entry)| (name.to_string(), text(&entry.node))).collect()
    }
}
