//! Variables in the values of Compose files and of env files.

use std::collections::BTreeMap;

use crate::problem::{ComposeProblem, KeyPath};
use crate::yaml::{MergeMode, ScalarType, WorkBudget, YamlNode, YamlValue};

/// Values by name.
pub type Variables = BTreeMap<String, String>;

/// The most bytes of one text after its variables are replaced.
pub const MAX_EXPANDED_SIZE: usize = 16 << 20;
/// The deepest nesting of `${A:-${B:-...}}`.
const MAX_NESTING: usize = 16;

/// Replaces the variables in all values of a tree; keys are not changed. Variables without a value and a default are
/// empty, with a warning.
///
/// # Errors
/// The first malformed or required variable.
pub fn interpolate(
    node: &mut YamlNode,
    path: KeyPath<'_>,
    variables: &Variables,
    budget: &mut WorkBudget,
    warnings: &mut Vec<ComposeProblem>,
) -> Result<(), ComposeProblem> {
    if node.merge == MergeMode::Reset {
        return Ok(());
    }
    match &mut node.value {
        YamlValue::Scalar(text, kind) => {
            if !text.contains('$') {
                return Ok(());
            }
            let mut missing = Vec::new();
            let expanded = expand(text, variables, &mut missing)
                .map_err(|message| ComposeProblem::new(&node.at, path, message))?;
            budget.take(0, expanded.len(), &node.at)?;
            warnings.extend(missing.into_iter().map(|name| {
                let message = format!(
                    "the variable {name} is not set, so it is empty; set it, or give a default like ${{{name}:-x}}"
                );
                ComposeProblem::new(&node.at, path, message)
            }));
            (*text, *kind) = (expanded.into(), ScalarType::Text);
        }
        YamlValue::List(items) => {
            for (i, item) in items.iter_mut().enumerate() {
                interpolate(item, path.item(i), variables, budget, warnings)?;
            }
        }
        YamlValue::Map(map) => {
            for (key, entry) in map {
                interpolate(&mut entry.node, path.key(key), variables, budget, warnings)?;
            }
        }
    }
    Ok(())
}

/// Replaces the variables of one text. Names without a value are added to `missing`.
///
/// # Errors
/// What is malformed, or the message of a required variable.
pub fn expand(text: &str, variables: &Variables, missing: &mut Vec<String>) -> Result<String, String> {
    let mut expansion = Expansion { variables, missing };
    let mut result = String::with_capacity(text.len());
    expansion.append(text, 0, &mut result)?;
    Ok(result)
}

/// What follows the name in `${NAME...}`.
#[derive(Clone, Copy)]
enum Operator {
    Default,
    Required,
    Alternative,
}

struct Expansion<'a> {
    variables: &'a Variables,
    missing: &'a mut Vec<String>,
}

impl Expansion<'_> {
    fn append(&mut self, text: &str, depth: usize, result: &mut String) -> Result<(), String> {
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('$') {
            result.push_str(before);
            rest = if let Some(after) = after.strip_prefix('$') {
                result.push('$');
                after
            } else if let Some(inner) = after.strip_prefix('{') {
                let end = closing_brace(inner).ok_or_else(|| {
                    format!("{:?} has no closing brace; write $$ for a $", shortened(after))
                })?;
                self.braced(&inner[..end], depth, result)?;
                &inner[end + 1..]
            } else {
                let (name, after) = split_name(after);
                match name {
                    "" => result.push('$'),
                    name => self.plain(name, result),
                }
                after
            };
            if result.len() > MAX_EXPANDED_SIZE {
                return Err(format!("has more than {MAX_EXPANDED_SIZE} bytes with its variables"));
            }
        }
        result.push_str(rest);
        Ok(())
    }

    fn plain(&mut self, name: &str, result: &mut String) {
        match self.variables.get(name) {
            Some(value) => result.push_str(value),
            None if self.missing.iter().any(|known| known == name) => {}
            None => self.missing.push(name.to_owned()),
        }
    }

    fn braced(&mut self, inner: &str, depth: usize, result: &mut String) -> Result<(), String> {
        let malformed = || {
            let found = shortened(inner);
            format!("\"${{{found}}}\" is not a variable; write ${{NAME}}, ${{NAME:-DEFAULT}}, or $$ for a $")
        };
        let (name, rest) = split_name(inner);
        if name.is_empty() {
            return Err(malformed());
        }
        if rest.is_empty() {
            self.plain(name, result);
            return Ok(());
        }
        let (colon, rest) = rest.strip_prefix(':').map_or((false, rest), |rest| (true, rest));
        let operator = match rest.as_bytes().first() {
            Some(b'-') => Operator::Default,
            Some(b'?') => Operator::Required,
            Some(b'+') => Operator::Alternative,
            _ => return Err(malformed()),
        };
        if depth == MAX_NESTING {
            return Err(format!("variables are nested more than {MAX_NESTING} levels deep"));
        }
        let argument = &rest[1..];
        let value = self.variables.get(name).filter(|value| !(colon && value.is_empty()));
        match (operator, value) {
            (Operator::Default | Operator::Required, Some(value)) => result.push_str(value),
            (Operator::Default, None) | (Operator::Alternative, Some(_)) => {
                self.append(argument, depth + 1, result)?;
            }
            (Operator::Alternative, None) => {}
            (Operator::Required, None) => {
                let mut reason = String::new();
                self.append(argument, depth + 1, &mut reason)?;
                let state = if self.variables.contains_key(name) { "empty" } else { "not set" };
                let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                return Err(format!("the variable {name} is required but {state}{reason}"));
            }
        }
        Ok(())
    }
}

/// The name at the start of a text, and what follows it.
fn split_name(text: &str) -> (&str, &str) {
    let is_name = |(i, b): (usize, u8)| b == b'_' || b.is_ascii_alphabetic() || (i > 0 && b.is_ascii_digit());
    let end = text.bytes().enumerate().take_while(|one| is_name(*one)).count();
    text.split_at(end)
}

/// The place of the brace that closes the one before the text.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut depth, mut after_dollar) = (0_usize, false);
    for (i, byte) in text.bytes().enumerate() {
        match byte {
            b'{' if after_dollar => depth += 1,
            b'}' if depth == 0 => return Some(i),
            b'}' => depth -= 1,
            _ => {}
        }
        after_dollar = byte == b'$' && !after_dollar;
    }
    None
}

fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let variables = [("A", "1"), ("E", ""), ("B_2", "b")];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let mut missing = Vec::new();
        let result = expand(text, &variables, &mut missing)?;
        let missing: String = missing.iter().map(|name| format!(" !{name}")).collect();
        Ok(result + &missing)
    }

    #[test]
    fn every_operator_is_known() {
        for (text, expected) in [
            ("", ""),
            ("x", "x"),
            ("$A-${A}-$B_2$A", "1-1-b1"),
            ("$$A $${A} $$$A", "$A ${A} $1"),
            ("$ $5 a$", "$ $5 a$"),
            ("${A:-d}${A-d}", "11"),
            ("${E:-d}|${E-d}", "d|"),
            ("${X:-d}|${X-d}", "d|d"),
            ("${A:?e}${A?e}", "11"),
            ("[${E?e}]", "[]"),
            ("${A:+r}|${A+r}", "r|r"),
            ("[${E:+r}|${E+r}]", "[|r]"),
            ("[${X:+r}|${X+r}]", "[|]"),
            ("${X:-${Y:-${A}}}", "1"),
            ("${X:-a}b}", "ab}"),
            ("${X:-{}}", "{}"),
            ("${X:-$$x}", "$x"),
            ("${X:-$${}", "${"),
            ("${A:-$UNUSED}", "1"),
            ("${X}$X-$Y", "- !X !Y"),
            ("\u{e4}$A\u{e4}", "\u{e4}1\u{e4}"),
        ] {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn repeated_long_variable_ends_with_an_error() {
        let variables = [("LONG".to_owned(), "x".repeat(1 << 20))].into();
        let error = expand(&"$LONG".repeat(1 << 20), &variables, &mut Vec::new()).unwrap_err();
        assert!(error.contains("has more than 16777216 bytes with its variables"), "{error}");
    }

    #[test]
    fn malformed_and_required_variables_are_errors() {
        let deep = format!("{}{}", "${X:-".repeat(20), "}".repeat(20));
        for (text, expected) in [
            ("${X:?set the port}", "the variable X is required but not set: set the port"),
            ("${E:?}", "the variable E is required but empty"),
            ("${X?$A}", "the variable X is required but not set: 1"),
            ("${A", "has no closing brace"),
            ("${}", "is not a variable"),
            ("${5}", "is not a variable"),
            ("${A/x/y}", "is not a variable; write ${NAME}"),
            ("${A:x}", "is not a variable"),
            (&deep, "nested more than 16 levels"),
        ] {
            let error = expanded(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
