//! Failures of commands: an exit code, and a message with the cause and what to do.

use std::borrow::Cow;
use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

use warren_types::Violations;

/// Exit codes of the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitKind {
    /// The command failed.
    Failed = 1,
    /// The command line or the request is invalid.
    Usage = 2,
    /// An object does not exist.
    NotFound = 3,
    /// The request conflicts with an existing object.
    Conflict = 4,
    /// No manager answered.
    Unreachable = 5,
    /// Permission denied.
    Denied = 6,
    /// The deadline passed.
    TimedOut = 7,
    /// What was to be compared was not, where 1 means that it differs.
    NotCompared = 8,
    /// A command to run in a container cannot be executed.
    CommandNotExecutable = 126,
    /// A command to run in a container does not exist.
    CommandNotFound = 127,
}

/// A failed command, as it is printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandError {
    /// Exit code.
    pub kind: ExitKind,
    /// What failed.
    pub what: String,
    /// The cause; empty if `what` is sufficient.
    pub why: String,
    /// What to do about it; may be empty.
    pub hint: String,
    /// Invalid fields of the request.
    pub fields: Violations,
}

impl CommandError {
    /// A failure without invalid fields.
    pub fn new(
        exit: ExitKind,
        what: impl Into<String>,
        why: impl fmt::Display,
        hint: impl Into<String>,
    ) -> Self {
        let fields = Violations::default();
        Self { kind: exit, what: what.into(), why: why.to_string(), hint: hint.into(), fields }
    }

    /// A request with invalid fields.
    pub fn invalid_fields(what: impl Into<String>, fields: Violations) -> Self {
        let why = match fields.0.len() {
            1 => "a field is wrong".to_owned(),
            n => format!("{n} fields are wrong"),
        };
        let hint = "correct what is listed and try again";
        Self { fields, ..Self::new(ExitKind::Usage, what, why, hint) }
    }

    /// Prints the error to stderr, the only place that does, and returns the exit code.
    pub fn print(&self, colours: bool) -> ExitCode {
        let red = colours && std::io::stderr().is_terminal();
        let (start, end) = if red { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        eprintln!("{start}error:{end} {}", printable(&self.to_string()));
        ExitCode::from(self.kind as u8)
    }

    /// The answer of a manager cannot be parsed.
    pub fn unreadable_answer(what: impl Into<String>, why: impl fmt::Display) -> Self {
        let why = format!("this version cannot read the manager's answer: {why}");
        Self::new(ExitKind::Failed, what, why, "use the same version as the managers")
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.what)?;
        if !self.why.is_empty() {
            write!(f, "\n  why: {}", self.why.replace('\n', "\n       "))?;
        }
        for violation in &self.fields.0 {
            match violation.path.is_empty() {
                true => write!(f, "\n       {}", violation.message)?,
                false => write!(f, "\n       {violation}")?,
            }
        }
        if !self.hint.is_empty() {
            write!(f, "\n  try: {}", self.hint)?;
        }
        Ok(())
    }
}

impl std::error::Error for CommandError {}

/// The text with control characters escaped, except line feeds and tabs: text of files and programs must not change
/// the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && c != '\n' && c != '\t';
    match text.contains(is_control) {
        false => Cow::Borrowed(text),
        true => {
            let escaped = text.chars().map(|c| match is_control(c) {
                true => c.escape_default().to_string(),
                false => c.to_string(),
            });
            Cow::Owned(escaped.collect())
        }
    }
}

/// An error and its causes in one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Many errors repeat the text of their cause.
        if !text.contains(&inner_text) {
            text += &format!(": {inner_text}");
        }
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use warren_types::Violation;

    use super::*;

    #[test]
    fn error_prints_what_why_and_hint() {
        let failure = CommandError::new(
            ExitKind::Conflict,
            "web was not created",
            "there is one",
            "choose another name",
        );
        insta::assert_snapshot!(failure, @r"
        web was not created
          why: there is one
          try: choose another name
        ");
        assert_eq!(failure.kind as u8, 4);
    }

    #[test]
    fn fields_are_listed_with_their_paths() {
        let mut fields = Violations::default();
        fields.add("spec.task.limits.memory", "1MiB is below the runtime's minimum of 6MiB");
        fields.0.push(Violation::new("", "and 3 more"));
        insta::assert_snapshot!(CommandError::invalid_fields("web was not created", fields), @r"
        web was not created
          why: 2 fields are wrong
               spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB
               and 3 more
          try: correct what is listed and try again
        ");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\tb\nä"), "a\tb\nä");
        assert_eq!(printable("\x1b[2J\0\u{9b}\r"), "\\u{1b}[2J\\u{0}\\u{9b}\\r");
    }

    #[test]
    fn error_chain_has_no_repetition() {
        let inner = std::io::Error::other("no space");
        let outer = std::io::Error::other(format!("cannot write: {inner}"));
        assert_eq!(error_chain(&outer), "cannot write: no space");
    }
}
