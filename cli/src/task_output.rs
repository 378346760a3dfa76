//! The last lines of a task's log, shown beside how the task ended.

use std::time::Duration;

use tokio::time::timeout;
use warren_client::{Client, Error, LogOptions, LogTarget};
use warren_daemon::printable;
use warren_proto::v1::log_entry::Entry;

/// Characters of a line that are shown.
const MAX_LINE: usize = 200;

/// A line of the end of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LastLine {
    Output(String),
    /// Why lines are missing here.
    Missing(String),
}

/// What is missing stands in parentheses.
impl std::fmt::Display for LastLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Output(text) => f.write_str(text),
            Self::Missing(why) => write!(f, "({why})"),
        }
    }
}

/// The last lines of the task's log, as far as they arrive within `limit`.
pub async fn last_lines(client: &Client, task: &str, count: u64, limit: Duration) -> Vec<LastLine> {
    let mut lines = Vec::new();
    match timeout(limit, read(client, task, count, &mut lines)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => lines.push(LastLine::Missing(error.to_string())),
        Err(_) => lines.push(LastLine::Missing("the node did not send its log in time".to_owned())),
    }
    lines
}

async fn read(client: &Client, task: &str, count: u64, lines: &mut Vec<LastLine>) -> Result<(), Error> {
    let options = LogOptions { tail: Some(count), ..LogOptions::default() };
    let mut entries = client.logs().read(LogTarget::Task(task.to_owned()), options).await?;
    while let Some(entry) = entries.next().await? {
        lines.extend(entry.entry.map(|entry| match entry {
            Entry::Line(line) => LastLine::Output(String::from_utf8_lossy(&line.text).into_owned()),
            Entry::GapReason(why) => LastLine::Missing(why),
        }));
    }
    Ok(())
}

/// The line as it is printed: without control characters, and not longer than [`MAX_LINE`].
pub fn shortened(line: &str) -> String {
    let line = printable(line.trim_end());
    let mut rest = line.chars();
    let shown: String = rest.by_ref().take(MAX_LINE).collect();
    if rest.next().is_some() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_shortened_and_has_no_control_characters() {
        assert_eq!(shortened("fatal: \x1b[31mno\tdata\r\n"), "fatal: \\u{1b}[31mno\tdata");
        assert_eq!(shortened(&"x".repeat(MAX_LINE)), "x".repeat(MAX_LINE));
        assert_eq!(shortened(&"x".repeat(MAX_LINE + 1)), "x".repeat(MAX_LINE) + "…");
        // Each of these characters is shown as several.
        assert_eq!(shortened(&"\x1b".repeat(MAX_LINE)).chars().count(), MAX_LINE + 1);
    }
}
