//! Tasks as in `-o json`, and containers as in the output of `ctr`.

use std::collections::BTreeMap;

use serde::Deserialize;
use warren_testkit::containerd::ctr;
use warren_testkit::node::LabNode;
use warren_testkit::tool;
use warren_testkit::wait::{WaitResult, eventually};

use crate::e2e::fixture::SOON;

/// The fields of a task's document that the tests use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskDocument {
    /// Also the id of its container.
    pub id: String,
    /// `web.1`.
    pub name: String,
    pub service_name: String,
    pub slot: u32,
    pub desired: String,
    pub state: String,
    pub state_since: String,
    pub attempt: u32,
    pub ready: bool,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub node_name: String,
    #[serde(default)]
    pub address: String,
    pub not_before: Option<String>,
    pub next_attempt: Option<String>,
    pub removed: bool,
}

impl TaskDocument {
    /// Whether the task serves.
    pub fn is_serving(&self) -> bool {
        self.state == "RUNNING" && self.ready && self.desired == "RUNNING"
    }

    /// Whether it is the current task of its slot.
    pub fn is_live(&self) -> bool {
        let is_over = ["COMPLETE", "SHUTDOWN", "FAILED", "REJECTED"].contains(&self.state.as_str());
        self.desired == "RUNNING" && !is_over
    }
}

/// The tasks of `service`, newest first within a slot. Waits while there is no leader.
#[track_caller]
pub fn of_service(node: &LabNode, service: &str) -> Vec<TaskDocument> {
    eventually(SOON, &format!("a list of the tasks of {service}"), || read(node, &["service", "ps", service]))
}

/// The tasks of all services. Waits while there is no leader.
#[track_caller]
pub fn all(node: &LabNode) -> Vec<TaskDocument> {
    eventually(SOON, "a list of all tasks", || read(node, &["task", "ls"]))
}

/// The tasks that a command lists. It fails if there is no leader for a few seconds.
#[track_caller]
fn read(node: &LabNode, words: &[&str]) -> WaitResult<Vec<TaskDocument>> {
    let ran = node.warren().run(&[words, &["-o", "json"]].concat());
    if ran.code != 0 {
        return Err(ran.to_string());
    }
    Ok(serde_json::from_str(&ran.stdout).expect("tasks are shown as documented"))
}

/// Returns the tasks if `service` has exactly `count` serving tasks and no other live ones.
pub fn serving(node: &LabNode, service: &str, count: usize) -> WaitResult<Vec<TaskDocument>> {
    let tasks = read(node, &["service", "ps", service])?;
    let live: Vec<TaskDocument> = tasks.iter().filter(|task| task.is_live()).cloned().collect();
    let is_settled = live.len() == count && live.iter().all(TaskDocument::is_serving);
    if is_settled { Ok(live) } else { Err(format!("{tasks:#?}")) }
}

/// The process ids of the running containers by container id, from containerd; waits for a container that is
/// being started.
#[track_caller]
pub fn pids(node: &LabNode) -> BTreeMap<String, i32> {
    let listed = eventually(SOON, "containerd's list", || {
        let command = ctr(&node.containerd_socket(), ["--namespace", "warren", "tasks", "list"]);
        tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
    });
    let fields = listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2) == Some(&"RUNNING"))
        .map(|fields| (fields[0].to_owned(), fields[1].parse().expect("a process id is a number")))
        .collect()
}

/// The output of the task's container so far, standard output and standard error.
#[track_caller]
pub fn output(node: &LabNode, task: &TaskDocument) -> String {
    let ran = node.warren().run(&["task", "logs", &task.id]);
    // The two streams are printed to different outputs.
    ran.stdout + &ran.stderr
}
