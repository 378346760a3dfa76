//! A worker and its manager, and what is asked of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use warren_testkit::image::Image;
use warren_testkit::netns::Lab;
use warren_testkit::node::{Node, Settings};
use warren_testkit::tool;
use warren_testkit::wait::reached;
use warren_testkit::warren::Warren;

use super::Scale;

/// What all containers but one run.
pub const BOX: &str = "warren.local/bench:1";
/// For what takes seconds at most on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);

/// One worker.
pub struct World {
    // In this order: the worker ends before its manager, both before the network.
    pub worker: Node,
    /// `None` of a hybrid node.
    _manager: Option<Node>,
    _lab: Lab,
}

impl World {
    /// Starts everything; the worker has no image yet. Its agent says when it finished which action.
    pub fn start(scale: Scale) -> World {
        let lab = Lab::new();
        let settings = Settings::default().environment("WARREN_LOG_LEVEL", "info,warren_worker=debug");
        if scale.is_hybrid {
            return World { worker: Node::start(lab.host(), settings), _manager: None, _lab: lab };
        }
        let manager = Node::start_manager(lab.host(), Settings::default());
        let worker = Node::join(lab.host(), settings.own_program(), &manager, "bench");
        World { worker, _manager: Some(manager), _lab: lab }
    }

    /// The command line of its cluster.
    pub fn warren(&self) -> Warren {
        self.worker.warren()
    }

    /// The agent's process.
    pub fn agent(&mut self) -> i32 {
        self.worker.process().pid()
    }

    /// Imports `image` onto the worker.
    pub fn import(&self, image: &Image) -> anyhow::Result<()> {
        let path = self.worker.scratch().join("image.tar");
        image.oci_archive().write(&path)?;
        self.warren().ok(&["image", "import", path.to_str().context("a path in UTF-8")?]);
        Ok(())
    }

    /// The process of each container that runs, by the container's id, as containerd's own tool tells.
    pub fn pids(&self) -> anyhow::Result<BTreeMap<String, i32>> {
        let listed = self.worker.ctr(["--namespace", "warren", "tasks", "list"]);
        let fields = listed.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        let running = fields.filter(|fields| fields.get(2) == Some(&"RUNNING"));
        running.map(|fields| Ok((fields[0].to_owned(), fields[1].parse()?))).collect()
    }

    /// The only task of `service`, and its process.
    pub fn only_task(&self, service: &str) -> anyhow::Result<(String, i32)> {
        let tasks = self.warren().json(&["service", "ps", service]);
        let tasks = tasks.as_array().map(Vec::as_slice).unwrap_or_default();
        ensure!(tasks.len() == 1, "one task of {service}, found {tasks:?}");
        let id = tasks[0]["id"].as_str().context("a task has an id")?.to_owned();
        let pid = *self.pids()?.get(&id).with_context(|| format!("{id} runs"))?;
        Ok((id, pid))
    }

    /// The only task of `service` that serves, and its process; waits for it.
    pub fn only_serving(&self, service: &str) -> anyhow::Result<(String, i32)> {
        Ok(reached(SOON, "the one task that serves", || {
            let tasks = self.warren().json(&["service", "ps", service]);
            let all = tasks.as_array().map(Vec::as_slice).unwrap_or_default();
            let serves = |task: &&Value| task["ready"] == true && task["desired"] == "RUNNING";
            let serving: Vec<&str> =
                all.iter().filter(serves).filter_map(|task| task["id"].as_str()).collect();
            let pids = self.pids().map_err(|error| error.to_string())?;
            match (serving.as_slice(), pids.len()) {
                ([id], 1) => Ok(((*id).to_owned(), pids[*id])),
                _ => Err(tasks.to_string()),
            }
        })?)
    }

    /// The sum of a figure's samples, from the worker's metrics.
    pub fn metric(&self, name: &str) -> anyhow::Result<f64> {
        let mut curl = self.worker.host().command("curl");
        curl.args(["--silent", "--show-error", "--fail", "http://127.0.0.1:9090/metrics"]);
        let text = tool::stdout(curl, tool::DEADLINE)?;
        let own = |line: &&str| line.split(['{', ' ']).next() == Some(name);
        let values: Vec<&str> = text.lines().filter(own).filter_map(|line| line.rsplit(' ').next()).collect();
        ensure!(!values.is_empty(), "there is no {name}");
        values.into_iter().try_fold(0.0, |sum, value| Ok(sum + value.parse::<f64>()?))
    }

    /// What the cluster says of the task with this id.
    pub fn task(&self, service: &str, id: &str) -> Option<Value> {
        let tasks = self.warren().json(&["service", "ps", service]);
        tasks.as_array()?.iter().find(|task| task["id"] == id).cloned()
    }

    /// Where the worker keeps the files of a task.
    pub fn directory(&self, task: &str) -> PathBuf {
        self.worker.data_dir().join("tasks").join(task)
    }
}

/// The image of [`BOX`].
pub fn image() -> Image {
    Image::busybox(BOX).arguments(["sleep", "100000"])
}
