//! Where the tasks of a service may run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Violations;
use crate::text::serde_as_text;

/// How many constraints a service may have.
pub const MAX_CONSTRAINTS: usize = 32;
/// How many values one constraint may list.
const MAX_VALUES: usize = 64;

/// Where the tasks of a service may run.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Placement {
    /// A node must fulfil all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// At most so many tasks of the service on one node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_per_node: Option<u32>,
}

/// What a node must be: `node.labels.zone in (a,b)`. Written and sent as its text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Constraint {
    /// Of which the node's value is compared.
    pub key: ConstraintKey,
    /// With what.
    pub test: ConstraintTest,
}

/// Which value of a node a [`Constraint`] looks at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConstraintKey {
    /// Its id.
    Id,
    /// Its name.
    Name,
    /// The address where other machines reach it.
    Ip,
    /// `manager` or `worker`.
    Role,
    /// Its architecture, in OCI's words.
    Arch,
    /// Its operating system, in OCI's words.
    Os,
    /// One of its labels.
    Label(String),
}

/// What a [`Constraint`] wants of the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConstraintTest {
    /// It is this.
    Is(String),
    /// It is another, or there is none.
    IsNot(String),
    /// It is one of these.
    In(Vec<String>),
    /// It is none of these, or there is none.
    NotIn(Vec<String>),
    /// There is one.
    Exists,
}

impl ConstraintTest {
    /// Whether a node with this value (`None`: it has none) fulfils it.
    pub fn admits(&self, value: Option<&str>) -> bool {
        match self {
            Self::Is(wanted) => value == Some(wanted),
            Self::IsNot(unwanted) => value != Some(unwanted),
            Self::In(wanted) => value.is_some_and(|value| wanted.iter().any(|one| one == value)),
            Self::NotIn(unwanted) => value.is_none_or(|value| unwanted.iter().all(|one| one != value)),
            Self::Exists => value.is_some(),
        }
    }
}

/// A text that is no constraint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is no constraint: {why}")]
pub struct ParseConstraintError {
    found: String,
    why: String,
}

fn parse_key(text: &str) -> Result<ConstraintKey, String> {
    Ok(match text {
        "node.id" => ConstraintKey::Id,
        "node.name" => ConstraintKey::Name,
        "node.ip" => ConstraintKey::Ip,
        "node.role" => ConstraintKey::Role,
        "node.arch" => ConstraintKey::Arch,
        "node.os" => ConstraintKey::Os,
        _ => match text.strip_prefix("node.labels.").filter(|label| super::is_label_key(label)) {
            Some(label) => ConstraintKey::Label(label.to_string()),
            None => {
                let known = "node.id, node.name, node.ip, node.role, node.arch, node.os and node.labels.KEY";
                return Err(format!("{text:?} cannot be compared; there are {known}"));
            }
        },
    })
}

fn parse_value(text: &str) -> Result<String, String> {
    let text = text.trim();
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '(' | ')' | ',' | '=' | '!');
    match !text.is_empty() && text.len() <= 1024 && text.chars().all(plain) {
        true => Ok(text.to_string()),
        false => Err(format!("{text:?} is no value: one word without ( ) , = !")),
    }
}

fn parse_list(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inner = inner.ok_or("in and notin want a list in brackets: in (a,b)")?;
    let values: Vec<String> = inner.split(',').map(parse_value).collect::<Result<_, _>>()?;
    match values.len() <= MAX_VALUES {
        true => Ok(values),
        false => Err(format!("{} values are more than {MAX_VALUES}", values.len())),
    }
}

fn parse(text: &str) -> Result<Constraint, String> {
    let text = text.trim();
    let with = |key: &str, test| Ok(Constraint { key: parse_key(key.trim())?, test });
    if let Some((key, value)) = text.split_once("==") {
        return with(key, ConstraintTest::Is(parse_value(value)?));
    }
    if let Some((key, value)) = text.split_once("!=") {
        return with(key, ConstraintTest::IsNot(parse_value(value)?));
    }
    let end = text.find([' ', '\t', '(']).unwrap_or(text.len());
    let (key, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let word = rest.find([' ', '\t', '(']).unwrap_or(rest.len());
    match rest.split_at(word) {
        ("in", list) => with(key, ConstraintTest::In(parse_list(list)?)),
        ("notin", list) => with(key, ConstraintTest::NotIn(parse_list(list)?)),
        ("exists", "") => with(key, ConstraintTest::Exists),
        _ => Err("want KEY == VALUE, KEY != VALUE, KEY in (A,B), KEY notin (A,B) or KEY exists".to_string()),
    }
}

impl FromStr for Constraint {
    type Err = ParseConstraintError;

    fn from_str(text: &str) -> Result<Self, ParseConstraintError> {
        let found = || text.chars().take(64).collect();
        parse(text).map_err(|why| ParseConstraintError { found: found(), why })
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
        }
    }
}

impl fmt::Display for Constraint {
    /// The one spelling of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, test } = self;
        match test {
            ConstraintTest::Is(value) => write!(f, "{key} == {value}"),
            ConstraintTest::IsNot(value) => write!(f, "{key} != {value}"),
            ConstraintTest::In(values) => write!(f, "{key} in ({})", values.join(",")),
            ConstraintTest::NotIn(values) => write!(f, "{key} notin ({})", values.join(",")),
            ConstraintTest::Exists => write!(f, "{key} exists"),
        }
    }
}

serde_as_text!(Constraint);

impl Placement {
    /// Everything wrong with it; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        if self.constraints.len() > MAX_CONSTRAINTS {
            let message = format!("{} are more than {MAX_CONSTRAINTS}", self.constraints.len());
            wrong.add("constraints", message);
        }
        if self.max_per_node == Some(0) {
            wrong.add("maxPerNode", "0 admits no task anywhere; leave it out, or set replicas to 0");
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_spelling_and_back() {
        for (given, wanted) in [
            ("node.labels.zone==a", "node.labels.zone == a"),
            (" node.name != n-1 ", "node.name != n-1"),
            ("node.labels.zone in (a, b)", "node.labels.zone in (a,b)"),
            ("node.labels.zone in(a)", "node.labels.zone in (a)"),
            ("node.arch notin (arm64,riscv64)", "node.arch notin (arm64,riscv64)"),
            ("node.labels.ssd exists", "node.labels.ssd exists"),
            ("node.role == worker", "node.role == worker"),
        ] {
            let parsed: Constraint = given.parse().unwrap();
            assert_eq!(parsed.to_string(), wanted);
            assert_eq!(wanted.parse(), Ok(parsed));
        }
    }

    #[test]
    fn what_is_no_constraint_says_why() {
        for (given, part) in [
            ("", "want KEY == VALUE"),
            ("node.labels.zone", "want KEY == VALUE"),
            ("node.label.zone == a", "\"node.label.zone\" cannot be compared"),
            ("node.labels. == a", "cannot be compared"),
            ("node.name ==", "is no value"),
            ("node.name == a b", "is no value"),
            ("node.name = a", "want KEY == VALUE"),
            ("node.name in a", "in brackets"),
            ("node.name in ()", "is no value"),
            ("node.name exists now", "want KEY == VALUE"),
        ] {
            let error = given.parse::<Constraint>().unwrap_err().to_string();
            assert!(error.contains(part), "{given}: {error}");
        }
    }

    #[test]
    fn each_test_admits_what_it_says() {
        let check = |text: &str, value: Option<&str>, wanted: bool| {
            let constraint: Constraint = format!("node.labels.z {text}").parse().unwrap();
            assert_eq!(constraint.test.admits(value), wanted, "{text} of {value:?}");
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
