//! Tasks as `-o json` shows them, and containers as containerd's own tool shows them.

use std::collections::BTreeMap;

use serde::Deserialize;
use warren_testkit::containerd::ctr;
use warren_testkit::node::Node;
use warren_testkit::tool;
use warren_testkit::wait::{Look, eventually};

use crate::e2e::world::SOON;

/// What the tests look at of a task's document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
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

impl Task {
    /// Whether it is what a person wants of a task.
    pub fn serves(&self) -> bool {
        self.state == "RUNNING" && self.ready && self.desired == "RUNNING"
    }

    /// Whether it is the one that its slot has now.
    pub fn is_live(&self) -> bool {
        let is_over = ["COMPLETE", "SHUTDOWN", "FAILED", "REJECTED"].contains(&self.state.as_str());
        self.desired == "RUNNING" && !is_over
    }
}

/// The tasks of `service`, newest first within a slot. A service that is not there has none.
#[track_caller]
pub fn of_service(node: &Node, service: &str) -> Vec<Task> {
    read(node, &["service", "ps", service])
}

/// The tasks of all services.
#[track_caller]
pub fn all(node: &Node) -> Vec<Task> {
    read(node, &["task", "ls"])
}

#[track_caller]
fn read(node: &Node, words: &[&str]) -> Vec<Task> {
    serde_json::from_value(node.warren().json(words)).expect("tasks are shown as documented")
}

/// Looks whether `service` has exactly `count` tasks that serve and no others that are live; returns them.
pub fn serving(node: &Node, service: &str, count: usize) -> Look<Vec<Task>> {
    let tasks = of_service(node, service);
    let live: Vec<Task> = tasks.iter().filter(|task| task.is_live()).cloned().collect();
    let is_settled = live.len() == count && live.iter().all(Task::serves);
    if is_settled { Ok(live) } else { Err(format!("{tasks:#?}")) }
}

/// The process ids of the running containers by the containers' ids, from containerd; waits for one that is being
/// started.
#[track_caller]
pub fn pids(node: &Node) -> BTreeMap<String, i32> {
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

/// What the task's container wrote to its standard output and standard error so far.
#[track_caller]
pub fn output(node: &Node, task: &Task) -> String {
    let ran = node.warren().run(&["task", "logs", &task.id]);
    // What comes of both is told apart by the stream that it is printed to.
    ran.stdout + &ran.stderr
}
