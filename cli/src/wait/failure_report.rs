//! What is shown of a failure beside its reason: the last lines of the failed tasks, and what a rollback takes back.

use std::time::Duration;

use tokio::time::timeout;
use warren_client::Client;

use super::ServiceGoal;
use super::snapshot::ServiceSnapshot;
use crate::task_output::{LastLine, last_lines, shortened};
use crate::view::revision::describe_changes_between;

/// Tasks whose last lines are shown.
const MAX_TASKS: usize = 2;
/// Lines of a task that are shown.
const MAX_LINES: u64 = 10;
/// The time for each question.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// The lines after the reasons.
pub async fn lines(client: &Client, goal: &ServiceGoal, snapshot: &ServiceSnapshot) -> Vec<String> {
    let mut lines = Vec::new();
    for task in snapshot.failed_tasks(goal).into_iter().take(MAX_TASKS) {
        let mut output = last_lines(client, &task, MAX_LINES, REPORT_TIMEOUT).await;
        output.retain(|line| matches!(line, LastLine::Output(_)));
        if !output.is_empty() {
            lines.push(format!("last lines of task {task}:"));
            lines.extend(output.iter().map(|line| format!("  | {}", shortened(&line.to_string()))));
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
