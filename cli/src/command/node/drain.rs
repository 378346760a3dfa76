//! Waits until a node has no tasks, and shows the remaining ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;

use crate::failure::{CommandError, ExitKind};
use crate::progress::ProgressOutput;
use crate::view::task::name;
use crate::wait::{is_transient, task_line};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Number of services whose replacements are shown; the tasks of the others are only counted.
const MAX_SERVICES_SHOWN: usize = 8;

/// The tasks that remain on the node, and the tasks that replace them.
#[derive(Default)]
struct RemainingTasks {
    tasks: Vec<v1::Task>,
    replacements: BTreeMap<(String, u32), v1::Task>,
}

pub async fn until_empty(client: &Client, node: &v1::Node, timeout: Duration) -> Result<(), CommandError> {
    let deadline = Instant::now() + timeout;
    let mut progress = ProgressOutput::new();
    let mut left = RemainingTasks::default();
    while Instant::now() < deadline {
        match timeout_at(deadline, fetch_remaining(client, &node.id)).await {
            Err(_) => break,
            Ok(Ok(seen)) if seen.tasks.is_empty() => {
                progress.end(&format!("node {}: no tasks remaining", node.name));
                return Ok(());
            }
            Ok(Ok(seen)) => {
                progress.show(&seen.summary(&node.name), &seen.lines());
                left = seen;
            }
            Ok(Err(error)) if is_transient(&error) => {}
            Ok(Err(error)) => return Err(crate::failure::from_client(description(node), error)),
        }
        sleep_until(deadline.min(Instant::now() + POLL_INTERVAL)).await;
    }
    let why: Vec<String> = left.lines().into_iter().map(|(task, line)| format!("{task}: {line}")).collect();
    let what = format!("{} after {}", description(node), crate::view::duration(timeout));
    let hint = "the cluster continues; use --timeout to wait longer; see `warren node ps`";
    Err(CommandError::new(ExitKind::TimedOut, what, why.join("\n"), hint))
}

fn description(node: &v1::Node) -> String {
    format!("node {} still has tasks", node.name)
}

async fn fetch_remaining(client: &Client, node: &str) -> Result<RemainingTasks, Error> {
    let filter = TaskFilter { node: node.to_owned(), ..TaskFilter::default() };
    let mut tasks = client.tasks().list(filter).await?;
    tasks.retain(|task| !task.removed);
    let services: BTreeSet<String> = tasks.iter().map(|task| task.service_id.clone()).collect();
    let mut others = Vec::new();
    for service in services.into_iter().take(MAX_SERVICES_SHOWN) {
        let filter = TaskFilter { service, current: true, ..TaskFilter::default() };
        match client.tasks().list(filter).await {
            Ok(tasks) => others.extend(tasks),
            // The service was removed.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    others.retain(|task| task.node_id != node);
    let replacements = others.into_iter().map(|task| ((task.service_id.clone(), task.slot), task));
    Ok(RemainingTasks { tasks, replacements: replacements.collect() })
}

impl RemainingTasks {
    fn summary(&self, node: &str) -> String {
        match self.tasks.len() {
            1 => format!("node {node}: 1 task remaining"),
            n => format!("node {node}: {n} tasks remaining"),
        }
    }

    /// Each remaining task with its replacement; as (name, line).
    fn lines(&self) -> Vec<(String, String)> {
        let line = |task: &v1::Task| match self.replacements.get(&(task.service_id.clone(), task.slot)) {
            Some(other) => format!("{}; replaced by {}", task_line(task), task_line(other)),
            None => task_line(task),
        };
        self.tasks.iter().map(|task| (name(task), line(task))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(number: u64, slot: u32, node: &str, state: v1::TaskState) -> v1::Task {
        v1::Task {
            id: format!("s-{number}"),
            service_id: "s".into(),
            service_name: "web".into(),
            slot,
            node_name: node.into(),
            state: state.into(),
            attempt: 1,
            ready: state == v1::TaskState::Running,
            ..Default::default()
        }
    }

    #[test]
    fn summary_names_remaining_tasks_and_replacements() {
        let pulling =
            v1::Task { reason: "pulls web:1".into(), ..task(3, 1, "node-2", v1::TaskState::Preparing) };
        let left = RemainingTasks {
            tasks: vec![
                task(1, 1, "node-1", v1::TaskState::Running),
                task(2, 2, "node-1", v1::TaskState::Running),
            ],
            replacements: [(("s".to_owned(), 1), pulling)].into(),
        };
        assert_eq!(left.summary("node-1"), "node node-1: 2 tasks remaining");
        let lines: Vec<String> =
            left.lines().into_iter().map(|(name, line)| format!("{name}: {line}")).collect();
        let expected = [
            "web.1: RUNNING on node-1; replaced by PREPARING on node-2: pulls web:1",
            "web.2: RUNNING on node-1",
        ];
        assert_eq!(lines, expected);
    }
}
