//! A worker and its manager.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use warren_testkit::cli::WarrenCli;
use warren_testkit::image::TestImage;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::tool;
use warren_testkit::wait::try_eventually;

use super::WorkerBenchScale;

/// The command of all containers but one.
pub const BOX: &str = "warren.local/bench:1";
/// For operations that take seconds at most on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);

/// One worker.
pub struct WorkerBench {
    // In this order: the worker ends before its manager, both before the network.
    pub worker: LabNode,
    /// `None` for a hybrid node.
    _manager: Option<LabNode>,
    _lab: NetworkSwitch,
}

impl WorkerBench {
    /// Starts everything; the worker has no image yet. Its agent logs when each action finished.
    pub fn start(scale: WorkerBenchScale) -> WorkerBench {
        let lab = NetworkSwitch::new();
        let settings = NodeOptions::default().environment("WARREN_LOG_LEVEL", "info,warren_worker=debug");
        if scale.is_hybrid {
            return WorkerBench {
                worker: LabNode::start(lab.add_host(), settings),
                _manager: None,
                _lab: lab,
            };
        }
        let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
        let worker = LabNode::join(lab.add_host(), settings.own_program(), &manager, "bench");
        WorkerBench { worker, _manager: Some(manager), _lab: lab }
    }

    /// The CLI of its cluster.
    pub fn warren(&self) -> WarrenCli {
        self.worker.warren()
    }

    /// The agent's process.
    pub fn agent(&mut self) -> i32 {
        self.worker.process().pid()
    }

    /// Imports `image` onto the worker.
    pub fn import(&self, image: &TestImage) -> anyhow::Result<()> {
        let path = self.worker.scratch().join("image.tar");
        image.oci_archive().write(&path)?;
        self.warren().run_ok(&["image", "import", path.to_str().context("a path in UTF-8")?]);
        Ok(())
    }

    /// The process of each running container, by the container's id, from `ctr`.
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

    /// Waits until the only task of `service` serves; returns it and its process.
    pub fn only_serving(&self, service: &str) -> anyhow::Result<(String, i32)> {
        Ok(try_eventually(SOON, "the one task that serves", || {
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

    /// The document of the task with this id.
    pub fn task(&self, service: &str, id: &str) -> Option<Value> {
        let tasks = self.warren().json(&["service", "ps", service]);
        tasks.as_array()?.iter().find(|task| task["id"] == id).cloned()
    }

    /// The directory of a task's files on the worker.
    pub fn directory(&self, task: &str) -> PathBuf {
        self.worker.data_dir().join("tasks").join(task)
    }
}

/// The image of [`BOX`].
pub fn image() -> TestImage {
    TestImage::busybox(BOX).arguments(["sleep", "100000"])
}
