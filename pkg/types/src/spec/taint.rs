//! Taints of nodes, and the selectors with which services tolerate them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::check::check_count;
use crate::Violations;
use crate::name::is_label_key;
use crate::text::{serde_as_text, shorten};

/// Key of the taint of a node that is not verified.
pub const UNVERIFIED_TAINT: &str = "warren.io/unverified";
/// How many taints a node may have.
pub const MAX_TAINTS: usize = 64;
/// How many tolerations a service may have.
pub(super) const MAX_TOLERATIONS: usize = 64;

/// A reason to keep tasks away from a node: `dedicated=gpu:NoSchedule`. A node has one per key and effect. Stored and
/// sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Taint {
    /// With the format of a label's key.
    pub key: String,
    /// What it does to tasks that do not tolerate it.
    pub effect: TaintEffect,
    /// May be empty.
    pub value: String,
}

/// What a [`Taint`] does to tasks that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaintEffect {
    /// No new tasks.
    NoSchedule,
    /// New tasks only if no other node is suitable.
    PreferNoSchedule,
    /// No tasks: those on the node are replaced elsewhere.
    NoExecute,
}

/// Selects taints: those that a service tolerates, or those to remove from a node. `*`, or `KEY[=VALUE][:EFFECT]`, of
/// which an omitted part selects all. Stored and sent as text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaintSelector {
    /// `None` for every key.
    key: Option<String>,
    value: Option<String>,
    effect: Option<TaintEffect>,
}

impl Taint {
    /// Whether a node cannot have both.
    pub fn excludes(&self, other: &Self) -> bool {
        (&self.key, self.effect) == (&other.key, other.effect)
    }
}

impl TaintSelector {
    /// Whether it selects the taint.
    pub fn matches(&self, taint: &Taint) -> bool {
        self.key.as_ref().is_none_or(|key| *key == taint.key)
            && self.value.as_ref().is_none_or(|value| *value == taint.value)
            && self.effect.is_none_or(|effect| effect == taint.effect)
    }
}

impl TaintEffect {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NoSchedule, Self::PreferNoSchedule, Self::NoExecute];

    /// Its name, as in Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A text that is not a taint or does not select taints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} {problem}: {reason}")]
pub struct ParseTaintError {
    found: String,
    problem: &'static str,
    reason: String,
}

impl ParseTaintError {
    fn new(found: &str, problem: &'static str, reason: String) -> Self {
        Self { found: shorten(found), problem, reason }
    }
}

fn parse_effect(text: &str) -> Result<TaintEffect, String> {
    let known = TaintEffect::ALL.into_iter().find(|effect| effect.as_str() == text);
    known.ok_or_else(|| format!("{text:?} is not an effect; use NoSchedule, PreferNoSchedule or NoExecute"))
}

fn parse_key(text: &str) -> Result<String, String> {
    match is_label_key(text) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a key: 1 to 128 letters, digits, '.', '_', '-' or '/'")),
    }
}

fn parse_value(text: &str) -> Result<String, String> {
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, ',' | ':' | '=');
    match text.len() <= 1024 && text.chars().all(plain) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a value: one word of at most 1024 bytes without , : =")),
    }
}

fn parse_selector(text: &str) -> Result<TaintSelector, String> {
    if text == "*" {
        return Ok(TaintSelector { key: None, value: None, effect: None });
    }
    let (rest, effect) = match text.split_once(':') {
        Some((rest, effect)) => (rest, Some(parse_effect(effect)?)),
        None => (text, None),
    };
    let (key, value) = match rest.split_once('=') {
        Some((key, value)) => (key, Some(parse_value(value)?)),
        None => (rest, None),
    };
    Ok(TaintSelector { key: Some(parse_key(key)?), value, effect })
}

impl FromStr for TaintSelector {
    type Err = ParseTaintError;

    fn from_str(text: &str) -> Result<Self, ParseTaintError> {
        parse_selector(text).map_err(|reason| ParseTaintError::new(text, "does not select taints", reason))
    }
}

impl FromStr for Taint {
    type Err = ParseTaintError;

    fn from_str(text: &str) -> Result<Self, ParseTaintError> {
        let refuse = |reason| ParseTaintError::new(text, "is not a taint", reason);
        match parse_selector(text).map_err(refuse)? {
            TaintSelector { key: Some(key), value, effect: Some(effect) } => {
                Ok(Self { key, value: value.unwrap_or_default(), effect })
            }
            _ => Err(refuse("expected KEY[=VALUE]:EFFECT".to_owned())),
        }
    }
}

impl fmt::Display for TaintEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Taint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, effect, value } = self;
        match value.as_str() {
            "" => write!(f, "{key}:{effect}"),
            value => write!(f, "{key}={value}:{effect}"),
        }
    }
}

impl fmt::Display for TaintSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.key.as_deref().unwrap_or("*"))?;
        self.value.iter().try_for_each(|value| write!(f, "={value}"))?;
        self.effect.iter().try_for_each(|effect| write!(f, ":{effect}"))
    }
}

serde_as_text!(Taint, TaintSelector);

/// Adds what is wrong with the taints of a node, or with those that it gets, at `path`.
pub fn validate_taints<'a>(path: &str, taints: impl IntoIterator<Item = &'a Taint>, wrong: &mut Violations) {
    // Managers set it beside those of users.
    let of_users = taints.into_iter().filter(|taint| taint.key != UNVERIFIED_TAINT);
    let keys = of_users.map(|taint| (&taint.key, taint.effect));
    validate_list(path, keys, MAX_TAINTS, wrong);
}

/// Adds a violation if there are more than `most` items, and one per item that is equal to an earlier one.
pub(super) fn validate_list<T: Ord>(
    path: &str,
    items: impl Iterator<Item = T>,
    most: usize,
    wrong: &mut Violations,
) {
    let (mut seen, mut count) = (BTreeSet::new(), 0);
    for (index, item) in items.enumerate() {
        if !seen.insert(item) {
            wrong.add(format!("{path}[{index}]"), "is given twice");
        }
        count += 1;
    }
    check_count(path, count, most, wrong);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taint(text: &str) -> Taint {
        text.parse().unwrap()
    }

    #[test]
    fn taint_and_selector_round_trip() {
        for text in ["a:NoSchedule", "a.b/c=d-e:PreferNoSchedule", "a=\u{e4}:NoExecute"] {
            assert_eq!(taint(text).to_string(), text);
        }
        assert_eq!(taint("a=:NoExecute"), taint("a:NoExecute"));
        for text in ["*", "a", "a=", "a=b", "a:NoExecute", "a=b:NoSchedule", "a=:NoSchedule"] {
            assert_eq!(text.parse::<TaintSelector>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn selector_matches_expected_taints() {
        for (selector, expected) in [
            ("*", [true; 4]),
            ("a", [true, true, true, false]),
            ("a=x", [true, false, true, false]),
            ("a=", [false, true, false, false]),
            ("a:NoSchedule", [true, true, false, false]),
            ("a=x:NoExecute", [false, false, true, false]),
            ("A", [false; 4]),
        ] {
            let selector: TaintSelector = selector.parse().unwrap();
            let taints = ["a=x:NoSchedule", "a:NoSchedule", "a=x:NoExecute", "b=x:PreferNoSchedule"];
            assert_eq!(taints.map(|text| selector.matches(&taint(text))), expected, "{selector}");
        }
    }

    #[test]
    fn malformed_taint_is_refused_with_reason() {
        let long = format!("a={}:NoExecute", "x".repeat(1025));
        for (given, part) in [
            ("", "is not a key"),
            ("a", "expected KEY[=VALUE]:EFFECT"),
            ("a=b", "expected KEY[=VALUE]:EFFECT"),
            ("*", "expected KEY[=VALUE]:EFFECT"),
            ("*:NoSchedule", "\"*\" is not a key"),
            ("a:", "\"\" is not an effect; use NoSchedule, PreferNoSchedule or NoExecute"),
            ("a:noschedule", "\"noschedule\" is not an effect"),
            ("a:NoSchedule:NoExecute", "is not an effect"),
            ("a=b=c:NoSchedule", "is not a value"),
            ("a=b c:NoSchedule", "is not a value"),
            ("a b:NoSchedule", "is not a key"),
            (" a:NoSchedule", "is not a key"),
            (&long, "at most 1024 bytes"),
        ] {
            let error = given.parse::<Taint>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("is not a taint"), "{given}: {error}");
        }
        for (given, part) in [("", "is not a key"), ("*=a", "is not a key"), ("a:b", "is not an effect")] {
            let error = given.parse::<TaintSelector>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("does not select taints"), "{given}: {error}");
        }
    }

    #[test]
    fn taints_are_limited_and_have_distinct_keys() {
        let check = |taints: &[Taint], expected: &[&str]| {
            let mut wrong = Violations::default();
            validate_taints("taints", taints, &mut wrong);
            let found: Vec<String> = wrong.0.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        };
        let numbered = |number: usize| taint(&format!("k{number}:NoSchedule"));
        let most: Vec<Taint> = (0..MAX_TAINTS).map(numbered).collect();
        check(&most, &[]);
        check(&[most, vec![taint("a:NoExecute")]].concat(), &["taints: 65 are more than 64"]);
        check(&["a=1:NoSchedule", "a=1:NoExecute"].map(taint), &[]);
        check(
            &["a=1:NoSchedule", "b:NoExecute", "a=2:NoSchedule"].map(taint),
            &["taints[2]: is given twice"],
        );
    }
}
