//! Env files: `NAME=VALUE` lines, as `.env` and `env_file` have them.

use crate::interpolation::{MAX_EXPANDED_SIZE, Variables, expand};
use crate::problem::{ComposeProblem, SourcePosition};

/// The variables of a file in order; a name alone has no value.
pub type EnvLines = Vec<(String, Option<String>)>;

/// Parses a file with quotes, comments and variables. `known` has precedence over earlier lines of the file.
/// Variables without a value are empty, with a warning.
///
/// # Errors
/// The first malformed line.
pub fn parse_env_file(
    file: &str,
    text: &str,
    known: &Variables,
    warnings: &mut Vec<ComposeProblem>,
) -> Result<EnvLines, ComposeProblem> {
    let (mut found, mut scope) = (EnvLines::new(), known.clone());
    let mut size = 0;
    let mut reader = LineReader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1 };
    while let Some((line, number)) = reader.next_line() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = SourcePosition { line: number, ..SourcePosition::start_of(file) };
        let fail = |message: String| ComposeProblem::new(&at, "", message);
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let end = line.find(['=', ':']).unwrap_or(line.len());
        let (name, value) = (line[..end].trim_end(), line.get(end + 1..).map(str::trim_start));
        check_name(name).map_err(fail)?;
        let Some(value) = value else {
            found.push((name.to_owned(), None));
            continue;
        };
        let value = match value.chars().next() {
            Some(quote @ ('"' | '\'')) => {
                let quoted = reader.quoted(&value[1..], quote);
                let inner = quoted.ok_or_else(|| fail(format!("the {quote} of {name} is not closed")))?;
                if quote == '\'' { Value::Literal(inner) } else { Value::Variable(inner) }
            }
            _ => Value::Variable(without_comment(value).to_owned()),
        };
        let value = match value {
            Value::Literal(value) => value,
            Value::Variable(value) => {
                let mut missing = Vec::new();
                let value = expand(&value, &scope, &mut missing).map_err(fail)?;
                let message = |name: String| fail(format!("the variable {name} is not set, so it is empty"));
                warnings.extend(missing.into_iter().map(message));
                value
            }
        };
        size += value.len();
        if size > MAX_EXPANDED_SIZE {
            return Err(fail(format!(
                "the values have more than {MAX_EXPANDED_SIZE} bytes with their variables"
            )));
        }
        scope.entry(name.to_owned()).or_insert_with(|| value.clone());
        found.push((name.to_owned(), Some(value)));
    }
    Ok(found)
}

/// Parses a file without quotes and variables: all after the `=` is the value.
///
/// # Errors
/// The first malformed line.
pub fn parse_raw_env_file(file: &str, text: &str) -> Result<EnvLines, ComposeProblem> {
    let mut found = EnvLines::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim().is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').map_or((line, None), |(name, value)| (name, Some(value)));
        let at = SourcePosition { line: number, ..SourcePosition::start_of(file) };
        check_name(name.trim()).map_err(|message| ComposeProblem::new(&at, "", message))?;
        found.push((name.trim().to_owned(), value.map(str::to_owned)));
    }
    Ok(found)
}

enum Value {
    Literal(String),
    /// Variables in it are replaced.
    Variable(String),
}

fn check_name(name: &str) -> Result<(), String> {
    let is_wrong = name.is_empty() || name.contains(|c: char| c.is_whitespace() || "\"'$".contains(c));
    if is_wrong { Err(format!("{name:?} is not a variable's name; write NAME=VALUE")) } else { Ok(()) }
}

/// An unquoted value ends before a `#` that follows a blank.
fn without_comment(value: &str) -> &str {
    let comment = value.match_indices('#').find(|(i, _)| *i == 0 || value[..*i].ends_with([' ', '\t']));
    comment.map_or(value, |(i, _)| &value[..i]).trim_end()
}

struct LineReader<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> LineReader<'a> {
    fn next_line(&mut self) -> Option<(&'a str, u32)> {
        if self.rest.is_empty() {
            return None;
        }
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        let number = self.line;
        (self.rest, self.line) = (rest, number.saturating_add(1));
        Some((line, number))
    }

    /// The text up to the closing quote, also in later lines; escapes are replaced. `None` without one.
    fn quoted(&mut self, start: &'a str, quote: char) -> Option<String> {
        let (mut value, mut line) = (String::new(), start);
        loop {
            let mut letters = line.chars();
            while let Some(letter) = letters.next() {
                match letter {
                    '\\' => match (letters.next(), quote) {
                        (Some(escaped), quote) if escaped == quote => value.push(escaped),
                        (Some('n'), '"') => value.push('\n'),
                        (Some('r'), '"') => value.push('\r'),
                        (Some('t'), '"') => value.push('\t'),
                        (Some('\\'), '"') => value.push('\\'),
                        (Some('$'), '"') => value.push_str("$$"),
                        (other, _) => {
                            value.push('\\');
                            value.extend(other);
                        }
                    },
                    letter if letter == quote => return Some(value),
                    letter => value.push(letter),
                }
            }
            value.push('\n');
            line = self.next_line()?.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        let known = [("OTHER".to_owned(), "o".to_owned())].into();
        let mut warnings = Vec::new();
        let lines =
            parse_env_file("a.env", text, &known, &mut warnings).map_err(|problem| problem.to_string())?;
        let shown = |(name, value): &(String, Option<String>)| match value {
            Some(value) => format!("{name}={value:?}"),
            None => name.clone(),
        };
        let warned = warnings.iter().map(|warning| format!("!{warning}"));
        Ok(lines.iter().map(shown).chain(warned).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn values_have_quotes_comments_and_variables() {
        for (text, expected) in [
            ("A=VAL", r#"A="VAL""#),
            ("A=\"VAL\"\r\nB='VAL'", r#"A="VAL" B="VAL""#),
            ("# x\n\n  # y\nexport A = 1", r#"A="1""#),
            ("A=VAL # comment\nB=VAL# no", r##"A="VAL" B="VAL# no""##),
            ("A=\"VAL # no\" # comment", r##"A="VAL # no""##),
            ("A='$OTHER ${OTHER}'\nB=$OTHER\nC=\"${OTHER}\"", r#"A="$OTHER ${OTHER}" B="o" C="o""#),
            (r"A='Let\'s go!'", r#"A="Let's go!""#),
            (r#"A="{\"hello\": \"json\"}""#, r#"A="{\"hello\": \"json\"}""#),
            (r#"A="some\tvalue""#, r#"A="some\tvalue""#),
            (r"A='some\tvalue'", r#"A="some\\tvalue""#),
            (r"A=some\tvalue", r#"A="some\\tvalue""#),
            (r#"A="\$OTHER""#, r#"A="$OTHER""#),
            ("A=\nB", r#"A="" B"#),
            ("A=1\nB=${A}2", r#"A="1" B="12""#),
            ("A: 1", r#"A="1""#),
            ("A=\"x\ny\"\nB=1", r#"A="x\ny" B="1""#),
            ("A=$NONE", r#"A="" !a.env:1:1: the variable NONE is not set, so it is empty"#),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_line_is_named() {
        for (text, expected) in [
            ("A=1\n=2", "a.env:2:1: \"\" is not a variable's name; write NAME=VALUE"),
            ("A B=2", "a.env:1:1: \"A B\" is not a variable's name"),
            ("A=1\nB=\"x\nC=1\n", "a.env:2:1: the \" of B is not closed"),
            ("A=${B", "a.env:1:1: \"{B\" has no closing brace"),
            ("A=${B:?give it}", "a.env:1:1: the variable B is required but not set: give it"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn values_that_double_with_each_line_end_with_an_error() {
        let lines: String = (1..60).map(|i| format!("A{i}=$A{0}$A{0}\n", i - 1)).collect();
        let error = parsed(&format!("A0=0123456789\n{lines}")).unwrap_err();
        assert!(error.starts_with("a.env:21:1: the values have more than 16777216 bytes"), "{error}");
    }

    #[test]
    fn raw_file_is_taken_as_it_is() {
        let lines = parse_raw_env_file("a.env", "# x\nA=\"$B\" # y\nC\n").unwrap();
        let expected = [("A".to_owned(), Some("\"$B\" # y".to_owned())), ("C".to_owned(), None)];
        assert_eq!(lines, expected);
        assert!(parse_raw_env_file("a.env", "\n=x").unwrap_err().to_string().starts_with("a.env:2:1"));
    }
}
