//! How a program ends when it does not end well: an exit code, and for people what, why, and what to do.

use std::fmt;
use std::io::IsTerminal;
use std::process::ExitCode;

use warren_types::Violations;

/// The program's exit codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// It failed.
    Failed = 1,
    /// It was asked for in a wrong way.
    Usage = 2,
    /// Something it needs does not exist.
    NotFound = 3,
    /// Something that exists is in the way.
    Conflict = 4,
    /// No manager answered.
    Unreachable = 5,
    /// It is not allowed.
    Denied = 6,
    /// It was still not done when the time was up.
    TimedOut = 7,
}

/// A command that did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// How the program exits.
    pub exit: Exit,
    /// What did not happen.
    pub what: String,
    /// Why; empty when `what` says it all.
    pub why: String,
    /// What to do about it.
    pub hint: String,
    /// Fields that are to blame.
    pub fields: Violations,
}

impl Failure {
    /// A failure that no field is to blame for.
    pub fn new(exit: Exit, what: impl Into<String>, why: impl fmt::Display, hint: impl Into<String>) -> Self {
        let fields = Violations::default();
        Self { exit, what: what.into(), why: why.to_string(), hint: hint.into(), fields }
    }

    /// Fields of a request are wrong.
    pub fn invalid(what: impl Into<String>, fields: Violations) -> Self {
        let why = match fields.0.len() {
            1 => "a field is wrong".to_owned(),
            n => format!("{n} fields are wrong"),
        };
        let hint = "correct what is listed and try again";
        Self { fields, ..Self::new(Exit::Usage, what, why, hint) }
    }

    /// The one place where failures are told.
    pub fn tell(&self, colours: bool) -> ExitCode {
        let red = colours && std::io::stderr().is_terminal();
        let (start, end) = if red { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        eprintln!("{start}error:{end} {self}");
        ExitCode::from(self.exit as u8)
    }

    /// What a manager sent cannot be read.
    pub fn not_understood(what: impl Into<String>, why: impl fmt::Display) -> Self {
        let why = format!("the manager's answer is not understood by this version: {why}");
        Self::new(Exit::Failed, what, why, "use the program's version that the managers have")
    }
}

impl fmt::Display for Failure {
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

impl std::error::Error for Failure {}

/// An error and what caused it, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        // Many errors repeat their cause in their own words.
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
    fn a_failure_says_what_why_and_what_to_do() {
        let failure =
            Failure::new(Exit::Conflict, "web was not created", "there is one", "choose another name");
        insta::assert_snapshot!(failure, @r"
        web was not created
          why: there is one
          try: choose another name
        ");
        assert_eq!(failure.exit as u8, 4);
    }

    #[test]
    fn fields_are_listed_with_their_paths() {
        let mut fields = Violations::default();
        fields.add("spec.task.limits.memory", "1MiB is below the runtime's minimum of 6MiB");
        fields.0.push(Violation::new("", "and 3 more"));
        insta::assert_snapshot!(Failure::invalid("web was not created", fields), @r"
        web was not created
          why: 2 fields are wrong
               spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB
               and 3 more
          try: correct what is listed and try again
        ");
    }

    #[test]
    fn a_chain_repeats_nothing() {
        let inner = std::io::Error::other("no space");
        let outer = std::io::Error::other(format!("cannot write: {inner}"));
        assert_eq!(chain(&outer), "cannot write: no space");
    }
}
