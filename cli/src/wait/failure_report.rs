//! What is shown of a failure beside its reason: the last lines of the failed tasks, and what a rollback takes back.

use std::time::Duration;

use tokio::time::timeout;
use warren_client::{Client, LogOptions, LogTarget};
use warren_proto::v1::log_entry::Entry;

use super::ServiceGoal;
use super::snapshot::ServiceSnapshot;
use crate::view::revision::describe_changes_between;

/// Tasks whose last lines are shown.
const MAX_TASKS: usize = 2;
/// Lines of a task that are shown.
const MAX_LINES: u64 = 10;
/// Characters of a line that are shown.
const MAX_LINE: usize = 200;
/// The time for each question.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// The lines after the reasons.
pub async fn lines(client: &Client, goal: &ServiceGoal, snapshot: &ServiceSnapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for task in snapshot.failed_tasks(goal).into_iter().take(MAX_TASKS) {
        let output = timeout(REPORT_TIMEOUT, last_lines(client, &task)).await.unwrap_or_default();
        if !output.is_empty() {
            lines.push(format!("last lines of task {task}:"));
            lines.extend(output.into_iter().map(|line| format!("  | {line}")));
        }
    }
    if let Some((failed, current)) = snapshot.rolled_back_revisions(goal)
        && let Ok(Ok(history)) = timeout(REPORT_TIMEOUT, client.services().history(&goal.id)).await
        && let Some(changes) = describe_changes_between(history, failed, current)
    {
        lines.push(format!("the rollback takes back: {}", changes.join(", ")));
    }
    lines
}

/// The end of the output of a task; empty if it is not available.
async fn last_lines(client: &Client, task: &str) -> Vec<String> {
    let options = LogOptions { tail: Some(MAX_LINES), ..LogOptions::default() };
    let Ok(mut stream) = client.logs().read(LogTarget::Task(task.to_owned()), options).await else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    while let Ok(Some(entry)) = stream.next().await {
        if let Some(Entry::Line(line)) = entry.entry {
            lines.push(printable(&line.text));
        }
    }
    lines
}

/// One line without control characters, which a terminal would interpret.
fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown = text.chars().map(|character| if character.is_control() { ' ' } else { character });
    shown.take(MAX_LINE).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_shortened_and_has_no_control_characters() {
        assert_eq!(printable(b"fatal: \x1b[31mno\tdata\r\n"), "fatal:  [31mno data");
        assert_eq!(printable(&[b'x'; 999]).len(), MAX_LINE);
        assert_eq!(printable(b"\xff"), "\u{fffd}");
    }
}
