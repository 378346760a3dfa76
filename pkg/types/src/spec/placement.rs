//! Placement rules: on which nodes the tasks of a service may run.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::taint::{MAX_TOLERATIONS, Taint, TaintSelector, validate_list};
use crate::Violations;
use crate::name::is_label_key;
use crate::text::{serde_as_text, shorten};

/// How many constraints a service may have.
pub const MAX_CONSTRAINTS: usize = 32;
/// How many placement preferences a service may have.
pub const MAX_PREFERENCES: usize = 8;
/// How many values one constraint may list.
const MAX_VALUES: usize = 64;

/// On which nodes the tasks of a service may run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Placement {
    /// A node must satisfy all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// Taints of nodes that do not keep the tasks away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<TaintSelector>,
    /// The most tasks of the service on one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_node: Option<u32>,
    /// Among the nodes that fit; each one applies within the choice of those before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferences: Vec<PlacementPreference>,
}

impl Placement {
    /// Whether a change of a node's properties or of its tasks can exclude it, beside a drain and taints.
    pub fn may_exclude_nodes(&self) -> bool {
        let Self { constraints, tolerations: _, max_per_node, preferences: _ } = self;
        !constraints.is_empty() || max_per_node.is_some()
    }
}

/// A preference among the nodes that fit: `spread=node.labels.zone`. Stored and sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PlacementPreference {
    /// As many tasks on the nodes with one value of this label as on those with another value, or without one.
    Spread(String),
    /// The same for a label that agents report: `spread=engine.labels.rack`.
    SpreadByEngine(String),
}

impl PlacementPreference {
    /// The value of a node by which tasks are spread, of its labels and of those that its agent reports; `None` without
    /// that label.
    pub fn value_of<'a>(
        &self,
        labels: &'a BTreeMap<String, String>,
        engine_labels: &'a BTreeMap<String, String>,
    ) -> Option<&'a str> {
        let value = match self {
            Self::Spread(key) => labels.get(key),
            Self::SpreadByEngine(key) => engine_labels.get(key),
        };
        value.map(String::as_str)
    }
}

/// A label of nodes: `node.labels.datacenter`. Stored and sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeLabel(String);

/// A text that is not a label of nodes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a label of nodes; give node.labels.KEY")]
pub struct ParseNodeLabelError {
    found: String,
}

impl NodeLabel {
    /// The value of the label, if the node has it.
    pub fn value_of<'a>(&self, labels: &'a BTreeMap<String, String>) -> Option<&'a str> {
        labels.get(&self.0).map(String::as_str)
    }
}

impl FromStr for NodeLabel {
    type Err = ParseNodeLabelError;

    fn from_str(text: &str) -> Result<Self, ParseNodeLabelError> {
        let key = text.trim().strip_prefix("node.labels.").filter(|key| is_label_key(key));
        let found = || ParseNodeLabelError { found: shorten(text) };
        key.map(|key| Self(key.to_owned())).ok_or_else(found)
    }
}

impl fmt::Display for NodeLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node.labels.{}", self.0)
    }
}

serde_as_text!(NodeLabel);

/// A text that is not a placement preference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a placement preference; give spread=node.labels.KEY or spread=engine.labels.KEY")]
pub struct ParsePreferenceError {
    found: String,
}

impl FromStr for PlacementPreference {
    type Err = ParsePreferenceError;

    fn from_str(text: &str) -> Result<Self, ParsePreferenceError> {
        let label = text.trim().strip_prefix("spread=").and_then(|label| parse_key(label).ok());
        match label {
            Some(ConstraintKey::Label(key)) => Ok(Self::Spread(key)),
            Some(ConstraintKey::EngineLabel(key)) => Ok(Self::SpreadByEngine(key)),
            _ => Err(ParsePreferenceError { found: shorten(text) }),
        }
    }
}

impl fmt::Display for PlacementPreference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spread(label) => write!(f, "spread=node.labels.{label}"),
            Self::SpreadByEngine(label) => write!(f, "spread=engine.labels.{label}"),
        }
    }
}

serde_as_text!(PlacementPreference);

/// A condition on a node: `node.labels.zone in (a,b)`. Stored and sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constraint {
    /// The compared value of the node.
    pub key: ConstraintKey,
    /// The comparison and its operands.
    pub operator: ConstraintOperator,
}

/// The value of a node that a [`Constraint`] compares.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConstraintKey {
    /// Its id.
    Id,
    /// Its name.
    Name,
    /// The address at which other hosts reach it.
    Ip,
    /// `manager` or `worker`.
    Role,
    /// Its architecture, with the names of OCI.
    Arch,
    /// Its operating system, with the names of OCI.
    Os,
    /// One of its labels, which users set.
    Label(String),
    /// One of the labels that its agent reports.
    EngineLabel(String),
}

/// The comparison of a [`Constraint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConstraintOperator {
    /// The value equals this one.
    Equals(String),
    /// The value is a different one or missing.
    NotEquals(String),
    /// The value is one of these.
    In(Vec<String>),
    /// The value is none of these or missing.
    NotIn(Vec<String>),
    /// The node has a value.
    Exists,
}

impl ConstraintOperator {
    /// Whether a node with this value satisfies it; `None` is a missing value.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match self {
            Self::Equals(desired) => value == Some(desired),
            Self::NotEquals(unwanted) => value != Some(unwanted),
            Self::In(expected) => value.is_some_and(|value| expected.iter().any(|one| one == value)),
            Self::NotIn(unwanted) => value.is_none_or(|value| unwanted.iter().all(|one| one != value)),
            Self::Exists => value.is_some(),
        }
    }
}

/// A text that is not a constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a constraint: {reason}")]
pub struct ParseConstraintError {
    found: String,
    reason: String,
}

fn parse_key(text: &str) -> Result<ConstraintKey, String> {
    Ok(match text {
        "node.id" => ConstraintKey::Id,
        "node.name" => ConstraintKey::Name,
        "node.ip" => ConstraintKey::Ip,
        "node.role" => ConstraintKey::Role,
        "node.arch" => ConstraintKey::Arch,
        "node.os" => ConstraintKey::Os,
        _ => {
            let label =
                |prefix| text.strip_prefix(prefix).filter(|label| is_label_key(label)).map(str::to_owned);
            let key = label("node.labels.").map(ConstraintKey::Label);
            let key = key.or_else(|| label("engine.labels.").map(ConstraintKey::EngineLabel));
            let known = "node.id, node.name, node.ip, node.role, node.arch, node.os, node.labels.KEY and \
                         engine.labels.KEY";
            return key.ok_or_else(|| format!("{text:?} cannot be compared; use {known}"));
        }
    })
}

fn parse_value(text: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '(' | ')' | ',' | '=' | '!');
    match !text.is_empty() && text.len() <= 1024 && text.chars().all(plain) {
        true => Ok(text.to_string()),
        false => Err(format!("{text:?} is not a value: one word without ( ) , = !")),
    }
}

fn parse_list(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.ok_or("in and notin need a list in brackets: in (a,b)")?;
    let values: Vec<String> = inner.split(',').map(parse_value).collect::<Result<_, _>>()?;
    match values.len() <= MAX_VALUES {
        true => Ok(values),
        false => Err(format!("{} values are more than {MAX_VALUES}", values.len())),
    }
}

fn parse(text: &str) -> Result<Constraint, String> {
    let text = text.trim();
    let with = |key: &str, test| Ok(Constraint { key: parse_key(key.trim())?, operator: test });
    if let Some((key, value)) = text.split_once("==") {
        return with(key, ConstraintOperator::Equals(parse_value(value)?));
    }
    if let Some((key, value)) = text.split_once("!=") {
        return with(key, ConstraintOperator::NotEquals(parse_value(value)?));
    }
    let end = text.find([' ', '\t', '(']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let word = rest.find([' ', '\t', '(']).unwrap_or(rest.len());
    match rest.split_at(word) {
        ("in", list) => with(key, ConstraintOperator::In(parse_list(list)?)),
        ("notin", list) => with(key, ConstraintOperator::NotIn(parse_list(list)?)),
        ("exists", "") => with(key, ConstraintOperator::Exists),
        _ => {
            Err("expected KEY == VALUE, KEY != VALUE, KEY in (A,B), KEY notin (A,B) or KEY exists"
                .to_string())
        }
    }
}

impl FromStr for Constraint {
    type Err = ParseConstraintError;

    fn from_str(text: &str) -> Result<Self, ParseConstraintError> {
        let found = || shorten(text);
        parse(text).map_err(|why| ParseConstraintError { found: found(), reason: why })
    }
}

impl fmt::Display for ConstraintKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id => f.write_str("node.id"),
            Self::Name => f.write_str("node.name"),
            Self::Ip => f.write_str("node.ip"),
            Self::Role => f.write_str("node.role"),
            Self::Arch => f.write_str("node.arch"),
            Self::Os => f.write_str("node.os"),
            Self::Label(label) => write!(f, "node.labels.{label}"),
            Self::EngineLabel(label) => write!(f, "engine.labels.{label}"),
        }
    }
}

impl fmt::Display for Constraint {
    /// The canonical spelling.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, operator: test } = self;
        match test {
            ConstraintOperator::Equals(value) => write!(f, "{key} == {value}"),
            ConstraintOperator::NotEquals(value) => write!(f, "{key} != {value}"),
            ConstraintOperator::In(values) => write!(f, "{key} in ({})", values.join(",")),
            ConstraintOperator::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            ConstraintOperator::Exists => write!(f, "{key} exists"),
        }
    }
}

serde_as_text!(Constraint);

impl Placement {
    /// Whether tasks may run on a node in spite of the taint.
    pub fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerations.iter().any(|toleration| toleration.matches(taint))
    }

    /// All violations of the rules; paths are relative to them.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.constraints.len() > MAX_CONSTRAINTS {
            let message = format!("{} are more than {MAX_CONSTRAINTS}", self.constraints.len());
            wrong.add("constraints", message);
        }
        validate_list("tolerations", self.tolerations.iter(), MAX_TOLERATIONS, &mut wrong);
        validate_list("preferences", self.preferences.iter(), MAX_PREFERENCES, &mut wrong);
        if self.max_per_node == Some(0) {
            wrong.add("maxPerNode", "0 allows no task on any node; leave it out, or set replicas to 0");
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constraint_round_trip() {
        for (given, expected) in [
            ("node.labels.zone==a", "node.labels.zone == a"),
            ("engine.labels.zone==a", "engine.labels.zone == a"),
            (" node.name != n-1 ", "node.name != n-1"),
            ("node.labels.zone in (a, b)", "node.labels.zone in (a,b)"),
            ("node.labels.zone in(a)", "node.labels.zone in (a)"),
            ("node.arch notin (arm64,riscv64)", "node.arch notin (arm64,riscv64)"),
            ("node.labels.ssd exists", "node.labels.ssd exists"),
            ("node.role == worker", "node.role == worker"),
        ] {
            let parsed: Constraint = given.parse().unwrap();
            assert_eq!(parsed.to_string(), expected);
            assert_eq!(expected.parse(), Ok(parsed));
        }
    }

    #[test]
    fn preference_round_trip() {
        let parsed: PlacementPreference = " spread=node.labels.zone".parse().unwrap();
        assert_eq!(parsed, PlacementPreference::Spread("zone".into()));
        assert_eq!(parsed.to_string(), "spread=node.labels.zone");
        let reported: PlacementPreference = "spread=engine.labels.rack".parse().unwrap();
        assert_eq!(reported, PlacementPreference::SpreadByEngine("rack".into()));
        assert_eq!(reported.to_string(), "spread=engine.labels.rack");
        for wrong in [
            "",
            "spread",
            "spread=",
            "zone",
            "spread=zone",
            "binpack",
            "spread=node.labels.",
            "spread=engine.labels.",
            "spread=node.id",
        ] {
            let error = wrong.parse::<PlacementPreference>().unwrap_err().to_string();
            assert!(
                error.contains("is not a placement preference; give spread=node.labels.KEY or"),
                "{error}"
            );
        }
    }

    #[test]
    fn node_label_round_trip() {
        let parsed: NodeLabel = " node.labels.zone".parse().unwrap();
        assert_eq!((parsed.to_string().as_str(), parsed.0.as_str()), ("node.labels.zone", "zone"));
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        assert_eq!((parsed.value_of(&labels), parsed.value_of(&BTreeMap::new())), (Some("a"), None));
        for wrong in ["", "zone", "node.labels.", "node.id", "engine.labels.zone", "node.labels.a b"] {
            let error = wrong.parse::<NodeLabel>().unwrap_err().to_string();
            assert!(error.ends_with("is not a label of nodes; give node.labels.KEY"), "{error}");
        }
    }

    #[test]
    fn malformed_constraint_is_refused_with_reason() {
        for (given, part) in [
            ("", "expected KEY == VALUE"),
            ("node.labels.zone", "expected KEY == VALUE"),
            ("node.label.zone == a", "\"node.label.zone\" cannot be compared"),
            ("node.labels. == a", "cannot be compared"),
            ("node.name ==", "is not a value"),
            ("node.name == a b", "is not a value"),
            ("node.name = a", "expected KEY == VALUE"),
            ("node.name in a", "in brackets"),
            ("node.name in ()", "is not a value"),
            ("node.name exists now", "expected KEY == VALUE"),
        ] {
            let error = given.parse::<Constraint>().unwrap_err().to_string();
            assert!(error.contains(part), "{given}: {error}");
        }
    }

    #[test]
    fn operators_match_expected_values() {
        let check = |text: &str, value: Option<&str>, expected: bool| {
            let constraint: Constraint = format!("node.labels.z {text}").parse().unwrap();
            assert_eq!(constraint.operator.matches(value), expected, "{text} of {value:?}");
        };
        for (text, of_a, of_c, of_none) in [
            ("== a", true, false, false),
            ("!= a", false, true, true),
            ("in (a,b)", true, false, false),
            ("notin (a,b)", false, true, true),
            ("exists", true, true, false),
        ] {
            check(text, Some("a"), of_a);
            check(text, Some("c"), of_c);
            check(text, None, of_none);
        }
    }
}
