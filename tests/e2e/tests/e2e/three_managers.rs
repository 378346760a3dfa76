//! Three machines that are managers and run tasks: the smallest cluster that survives the loss of any one of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, SOON, box_archive};
use crate::e2e::task_document;

/// The service on all three.
pub const SERVICE: &str = "steady";
/// The number of its tasks.
pub const REPLICAS: usize = 6;

/// Managers `n1`, `n2` and `n3`, which run tasks as well.
pub struct ThreeManagers {
    // In this order: the nodes end before their network.
    pub nodes: Vec<LabNode>,
    pub lab: NetworkSwitch,
}

impl ThreeManagers {
    /// Three voters with the busybox image.
    #[track_caller]
    pub fn new() -> ThreeManagers {
        ThreeManagers::with(|_| NodeOptions::default())
    }

    /// Three voters with these options by name, and with the busybox image.
    #[track_caller]
    pub fn with(options: impl Fn(&str) -> NodeOptions) -> ThreeManagers {
        let lab = NetworkSwitch::new();
        let named = options("n1").argument("--node-name").argument("n1");
        let first = LabNode::start(lab.add_host(), named);
        let mut nodes = vec![first];
        for name in ["n2", "n3"] {
            let joined = LabNode::join_manager(lab.add_host(), options(name), &nodes[0], name);
            nodes.push(joined);
        }
        let trio = ThreeManagers { nodes, lab };
        trio.wait_all_voters();
        trio.import();
        trio
    }

    /// Imports the busybox image onto every node.
    #[track_caller]
    pub fn import(&self) {
        let archive = self.nodes[0].scratch().join("box.tar");
        box_archive().write(&archive).unwrap();
        self.nodes[0].warren().run_ok(&["image", "import", archive.to_str().unwrap()]);
    }

    /// Waits until all three vote and agree on a leader; returns the leader's index.
    #[track_caller]
    pub fn wait_all_voters(&self) -> usize {
        let mut leaders: Vec<String> = Vec::new();
        for node in &self.nodes {
            let leader = eventually(2 * SOON, "three voters and a leader", || {
                let ran = node.warren().run(&["manager", "ls", "-o", "json"]);
                let output: serde_json::Value =
                    serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
                let managers = output.as_array().ok_or_else(|| ran.to_string())?;
                let votes = managers.iter().filter(|it| it["suffrage"] == "voter" && it["status"] == "READY");
                let leaders: Vec<_> = managers.iter().filter(|it| it["leader"] == true).collect();
                match (managers.len(), votes.count(), leaders.as_slice()) {
                    (3, 3, [leader]) => Ok(leader["name"].as_str().unwrap_or_default().to_owned()),
                    _ => Err(ran.to_string()),
                }
            });
            leaders.push(leader);
        }
        let place = self.nodes.iter().position(|node| node.name() == leaders[2]);
        place.unwrap_or_else(|| panic!("{leaders:?} is none of us"))
    }

    /// Their API addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| SocketAddr::V4(node.api())).collect()
    }

    /// The process ids of all running containers of the nodes except those of `except`, by container.
    #[track_caller]
    pub fn pids(&self, except: Option<usize>) -> BTreeMap<String, i32> {
        let kept = self.nodes.iter().enumerate().filter(|(place, _)| Some(*place) != except);
        kept.flat_map(|(_, node)| task_document::pids(node)).collect()
    }

    /// Waits until all tasks of the service serve, according to `via`.
    #[track_caller]
    pub fn wait_serving(&self, via: usize) {
        eventually(2 * SOON, "all tasks", || task_document::serving(&self.nodes[via], SERVICE, REPLICAS));
    }

    /// Waits until all tasks of the service serve, according to `via`, and exactly their containers run;
    /// returns the containers.
    #[track_caller]
    pub fn runs_what_serves(&self, via: usize) -> BTreeMap<String, i32> {
        eventually(2 * SOON, "the containers of all tasks", || {
            let tasks = task_document::serving(&self.nodes[via], SERVICE, REPLICAS)?;
            let (expected, running): (BTreeSet<_>, _) =
                (tasks.iter().map(|task| &task.id).collect(), self.pids(None));
            if running.keys().eq(expected) { Ok(running) } else { Err(format!("{running:?} for {tasks:#?}")) }
        })
    }

    /// Creates [`SERVICE`], with further flags, and waits until all its tasks serve.
    #[track_caller]
    pub fn create_service(&self, flags: &[&str]) {
        let replicas = REPLICAS.to_string();
        let words =
            ["service", "create", SERVICE, "--replicas", &replicas, "--image", BOX, "--stop-grace", "0s"];
        let command = ["--command", "sleep", "--arg", "100000"];
        self.nodes[1].warren().run_ok(&[&words[..], &command[..], flags].concat());
        self.wait_serving(2);
    }
}
