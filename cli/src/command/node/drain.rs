//! Waits until a node has no tasks left, and says for what it waits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use warren_client::{Client, Error, TaskFilter};
use warren_proto::v1;

use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::view::task::name;
use crate::wait::{line, passes};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Of so many services the replacements are shown: the others' tasks are only counted.
const SERVICES_SHOWN: usize = 8;

/// What is still on the node, and what takes its place.
#[derive(Default)]
struct Left {
    tasks: Vec<v1::Task>,
    elsewhere: BTreeMap<(String, u32), v1::Task>,
}

pub async fn until_empty(client: &Client, node: &v1::Node, timeout: Duration) -> Result<(), Failure> {
    let deadline = Instant::now() + timeout;
    let mut progress = Progress::new();
    let mut left = Left::default();
    while Instant::now() < deadline {
        match timeout_at(deadline, look(client, &node.id)).await {
            Err(_) => break,
            Ok(Ok(seen)) if seen.tasks.is_empty() => {
                progress.end(&format!("node {}: no tasks left", node.name));
                return Ok(());
            }
            Ok(Ok(seen)) => {
                progress.show(&seen.summary(&node.name), &seen.lines());
                left = seen;
            }
            Ok(Err(error)) if passes(&error) => {}
            Ok(Err(error)) => return Err(crate::failure::of_client(what(node), error)),
        }
        sleep_until(deadline.min(Instant::now() + LOOK_EVERY)).await;
    }
    let why: Vec<String> = left.lines().into_iter().map(|(task, line)| format!("{task}: {line}")).collect();
    let what = format!("{} after {}", what(node), crate::view::duration(timeout));
    let hint = "it goes on by itself, --timeout waits longer; see `warren node ps`";
    Err(Failure::new(Exit::TimedOut, what, why.join("\n"), hint))
}

fn what(node: &v1::Node) -> String {
    format!("node {} still has tasks", node.name)
}

async fn look(client: &Client, node: &str) -> Result<Left, Error> {
    let filter = TaskFilter { node: node.to_owned(), ..TaskFilter::default() };
    let mut tasks = client.tasks().list(filter).await?;
    tasks.retain(|task| !task.removed);
    let services: BTreeSet<String> = tasks.iter().map(|task| task.service_id.clone()).collect();
    let mut others = Vec::new();
    for service in services.into_iter().take(SERVICES_SHOWN) {
        let filter = TaskFilter { service, current: true, ..TaskFilter::default() };
        match client.tasks().list(filter).await {
            Ok(tasks) => others.extend(tasks),
            // The service went with its tasks.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    others.retain(|task| task.node_id != node);
    let elsewhere = others.into_iter().map(|task| ((task.service_id.clone(), task.slot), task));
    Ok(Left { tasks, elsewhere: elsewhere.collect() })
}

impl Left {
    fn summary(&self, node: &str) -> String {
        match self.tasks.len() {
            1 => format!("node {node}: 1 task left"),
            n => format!("node {node}: {n} tasks left"),
        }
    }

    /// Each task that is left, with what takes its place.
    fn lines(&self) -> Vec<(String, String)> {
        let told = |task: &v1::Task| match self.elsewhere.get(&(task.service_id.clone(), task.slot)) {
            Some(other) => format!("{}; in its place {}", line(task), line(other)),
            None => line(task),
        };
        self.tasks.iter().map(|task| (name(task), told(task))).collect()
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
    fn what_is_left_is_told_with_what_takes_its_place() {
        let pulling =
            v1::Task { reason: "pulls web:1".into(), ..task(3, 1, "node-2", v1::TaskState::Preparing) };
        let left = Left {
            tasks: vec![
                task(1, 1, "node-1", v1::TaskState::Running),
                task(2, 2, "node-1", v1::TaskState::Running),
            ],
            elsewhere: [(("s".to_owned(), 1), pulling)].into(),
        };
        assert_eq!(left.summary("node-1"), "node node-1: 2 tasks left");
        let lines: Vec<String> =
            left.lines().into_iter().map(|(name, line)| format!("{name}: {line}")).collect();
        let wanted = [
            "web.1: RUNNING on node-1; in its place PREPARING on node-2: pulls web:1",
            "web.2: RUNNING on node-1",
        ];
        assert_eq!(lines, wanted);
    }
}
