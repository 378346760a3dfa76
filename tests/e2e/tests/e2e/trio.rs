//! Three machines that are managers and run tasks: the smallest cluster that survives the loss of any of them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use warren_testkit::netns::Lab;
use warren_testkit::node::{Node, Settings};
use warren_testkit::wait::eventually;

use crate::e2e::task;
use crate::e2e::world::{BOX, SOON, box_archive};

/// What runs on all three.
pub const SERVICE: &str = "steady";
/// How many tasks it has.
pub const REPLICAS: usize = 6;

/// Managers `n1`, `n2` and `n3`, which run tasks as well.
pub struct Trio {
    // In this order: the nodes end before their network.
    pub nodes: Vec<Node>,
    pub lab: Lab,
}

impl Trio {
    /// Three managers that vote, with the busybox image.
    #[track_caller]
    pub fn new() -> Trio {
        let lab = Lab::new();
        let named = Settings::default().argument("--node-name").argument("n1");
        let first = Node::start(lab.host(), named);
        let mut nodes = vec![first];
        for name in ["n2", "n3"] {
            let joined = Node::join_manager(lab.host(), Settings::default(), &nodes[0], name);
            nodes.push(joined);
        }
        let trio = Trio { nodes, lab };
        trio.all_vote();
        trio.import();
        trio
    }

    /// Imports the busybox image onto every node.
    #[track_caller]
    pub fn import(&self) {
        let archive = self.nodes[0].scratch().join("box.tar");
        box_archive().write(&archive).unwrap();
        self.nodes[0].warren().ok(&["image", "import", archive.to_str().unwrap()]);
    }

    /// Waits until all three vote and one of them leads, by the word of each; gives the leader's place.
    #[track_caller]
    pub fn all_vote(&self) -> usize {
        let mut leaders: Vec<String> = Vec::new();
        for node in &self.nodes {
            let leader = eventually(2 * SOON, "three voters and a leader", || {
                let ran = node.warren().run(&["manager", "ls", "-o", "json"]);
                let said: serde_json::Value =
                    serde_json::from_str(&ran.stdout).map_err(|_| ran.to_string())?;
                let managers = said.as_array().ok_or_else(|| ran.to_string())?;
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

    /// Where their APIs listen.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| SocketAddr::V4(node.api())).collect()
    }

    /// The process ids of all running containers of the nodes but for those of `except`, by container.
    #[track_caller]
    pub fn pids(&self, except: Option<usize>) -> BTreeMap<String, i32> {
        let kept = self.nodes.iter().enumerate().filter(|(place, _)| Some(*place) != except);
        kept.flat_map(|(_, node)| task::pids(node)).collect()
    }

    /// Waits until all tasks of the service serve, as `via` says.
    #[track_caller]
    pub fn serves(&self, via: usize) {
        eventually(2 * SOON, "all tasks", || task::serving(&self.nodes[via], SERVICE, REPLICAS));
    }

    /// Waits until all tasks of the service serve, as `via` says, and their containers run, and no others; gives those.
    #[track_caller]
    pub fn runs_what_serves(&self, via: usize) -> BTreeMap<String, i32> {
        eventually(2 * SOON, "the containers of all tasks", || {
            let tasks = task::serving(&self.nodes[via], SERVICE, REPLICAS)?;
            let (wanted, running): (BTreeSet<_>, _) =
                (tasks.iter().map(|task| &task.id).collect(), self.pids(None));
            if running.keys().eq(wanted) { Ok(running) } else { Err(format!("{running:?} for {tasks:#?}")) }
        })
    }

    /// Makes [`SERVICE`], with further flags, and waits until all its tasks serve.
    #[track_caller]
    pub fn create_service(&self, flags: &[&str]) {
        let replicas = REPLICAS.to_string();
        let words =
            ["service", "create", SERVICE, "--replicas", &replicas, "--image", BOX, "--stop-grace", "0s"];
        let command = ["--command", "sleep", "--arg", "100000"];
        self.nodes[1].warren().ok(&[&words[..], &command[..], flags].concat());
        self.serves(2);
    }
}
