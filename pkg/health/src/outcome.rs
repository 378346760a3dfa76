//! How a check went.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use warren_types::Timestamp;

/// The most bytes of what a check was answered that are kept.
pub const MAX_OUTPUT: usize = 512;

/// How a check went, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// It succeeded.
    pub good: bool,
    /// The task was asked. What the node could not do says nothing of the task.
    pub asked: bool,
    /// What happened, in one short line that is the same as long as the same happens: `HTTP 500 from :80/`.
    pub said: String,
    /// What was answered, such as the beginning of the body; empty when nothing was.
    pub detail: String,
}

/// A check that is over, as people are shown it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// When it began, by the node's clock.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// It succeeded.
    pub good: bool,
    /// What it said, at most [`MAX_OUTPUT`] bytes.
    pub output: String,
}

impl Outcome {
    pub(crate) fn good(said: impl Into<String>) -> Self {
        Self { good: true, asked: true, said: said.into(), detail: String::new() }
    }

    pub(crate) fn bad(said: impl Into<String>) -> Self {
        Self { good: false, asked: true, said: said.into(), detail: String::new() }
    }

    pub(crate) fn unasked(said: impl Into<String>) -> Self {
        Self { good: false, asked: false, said: said.into(), detail: String::new() }
    }

    pub(crate) fn with_detail(self, detail: &str) -> Self {
        Self { detail: detail.trim().to_owned(), ..self }
    }

    /// Both parts as one text of at most [`MAX_OUTPUT`] bytes without control characters but line feeds and tabs.
    pub fn output(&self) -> String {
        let joint = if self.detail.is_empty() { "" } else { ": " };
        let mut text = String::new();
        let all = self.said.chars().chain(joint.chars()).chain(self.detail.chars());
        for letter in all {
            let shown = match letter {
                '\n' | '\t' => letter,
                control if control.is_control() => '\u{fffd}',
                other => other,
            };
            if text.len() + shown.len_utf8() > MAX_OUTPUT {
                break;
            }
            text.push(shown);
        }
        text
    }
}

/// Whether an error means that the node has no room for one more of something, which says nothing of the task.
pub(crate) fn is_scarcity(error: &io::Error) -> bool {
    let scarce = [Errno::EAGAIN, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|number| scarce.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_short_and_plain() {
        let outcome = Outcome::bad("HTTP 500 from :80/").with_detail("  no database\r\n\u{1b}[31m\n ");
        assert_eq!(outcome.output(), "HTTP 500 from :80/: no database\u{fffd}\n\u{fffd}[31m");
        assert_eq!(Outcome::good("HTTP 200 from :80/").output(), "HTTP 200 from :80/");
        let long = Outcome::bad("x").with_detail(&"ä".repeat(1000)).output();
        assert!(long.len() <= MAX_OUTPUT && long.len() > MAX_OUTPUT - 3, "{}", long.len());
    }
}
