//! Results of checks.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use warren_types::Timestamp;

/// Limit of stored output of a check, in bytes.
pub const MAX_OUTPUT: usize = 512;

/// Result of a check, with a description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOutcome {
    /// Whether the check succeeded.
    pub succeeded: bool,
    /// Whether the task was probed. A failure of the node is no result for the task.
    pub is_conclusive: bool,
    /// What happened, in one short line that is stable for the same result: `HTTP 500 from :80/`.
    pub summary: String,
    /// The answer, such as the beginning of the body; may be empty.
    pub detail: String,
}

/// A completed check, as shown to users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResult {
    /// Start, by the node's clock.
    pub at: Timestamp,
    /// How long the check took.
    pub duration: Duration,
    /// Whether the check succeeded.
    pub succeeded: bool,
    /// Its output, at most [`MAX_OUTPUT`] bytes.
    pub output: String,
}

impl ProbeOutcome {
    pub(crate) fn success(summary: impl Into<String>) -> Self {
        Self { succeeded: true, is_conclusive: true, summary: summary.into(), detail: String::new() }
    }

    pub(crate) fn failure(summary: impl Into<String>) -> Self {
        Self { succeeded: false, is_conclusive: true, summary: summary.into(), detail: String::new() }
    }

    pub(crate) fn inconclusive(summary: impl Into<String>) -> Self {
        Self { succeeded: false, is_conclusive: false, summary: summary.into(), detail: String::new() }
    }

    pub(crate) fn with_detail(self, detail: &str) -> Self {
        Self { detail: detail.trim().to_owned(), ..self }
    }

    /// Summary and detail as one text of at most [`MAX_OUTPUT`] bytes without control characters but line
    /// feeds and tabs.
    pub fn output(&self) -> String {
        let joint = if self.detail.is_empty() { "" } else { ": " };
        let mut text = String::new();
        let all = self.summary.chars().chain(joint.chars()).chain(self.detail.chars());
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

/// Whether an error means that the node lacks a resource, which is no result for the task.
pub(crate) fn is_resource_exhausted(error: &io::Error) -> bool {
    let scarce = [Errno::EAGAIN, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|number| scarce.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_short_and_plain() {
        let outcome =
            ProbeOutcome::failure("HTTP 500 from :80/").with_detail("  no database\r\n\u{1b}[31m\n ");
        assert_eq!(outcome.output(), "HTTP 500 from :80/: no database\u{fffd}\n\u{fffd}[31m");
        assert_eq!(ProbeOutcome::success("HTTP 200 from :80/").output(), "HTTP 200 from :80/");
        let long = ProbeOutcome::failure("x").with_detail(&"ä".repeat(1000)).output();
        assert!(long.len() <= MAX_OUTPUT && long.len() > MAX_OUTPUT - 3, "{}", long.len());
    }
}
