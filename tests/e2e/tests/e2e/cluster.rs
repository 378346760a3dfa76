//! Several machines: a manager that runs no tasks, and workers that joined it, each on its own lab host with
//! its own containerd.

use std::collections::BTreeMap;

use warren_testkit::cli::WarrenCli;
use warren_testkit::image::PackedImage;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{SOON, box_archive};
use crate::e2e::task_document::{self, TaskDocument};

/// A manager and its workers `w1`, `w2` ...
pub struct WorkerCluster {
    // In this order: the workers end before their manager, all of them before the network.
    pub workers: Vec<LabNode>,
    pub manager: LabNode,
    pub lab: NetworkSwitch,
}

impl WorkerCluster {
    /// A cluster of `workers` workers with the busybox image.
    #[track_caller]
    pub fn new(workers: usize) -> WorkerCluster {
        WorkerCluster::with(workers, |_| NodeOptions::default())
    }

    /// As [`Cluster::new`]; `settings` are those of each worker, counted from 1.
    #[track_caller]
    pub fn with(workers: usize, settings: impl Fn(usize) -> NodeOptions) -> WorkerCluster {
        let lab = NetworkSwitch::new();
        let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
        let join = |number| LabNode::join(lab.add_host(), settings(number), &manager, &format!("w{number}"));
        let workers = (1..=workers).map(join).collect();
        let cluster = WorkerCluster { workers, manager, lab };
        cluster.import("box.tar", box_archive());
        cluster
    }

    /// Imports `archive` onto every node.
    #[track_caller]
    pub fn import(&self, name: &str, archive: &PackedImage) {
        let path = self.manager.scratch().join(name);
        archive.write(&path).unwrap();
        self.warren().run_ok(&["image", "import", path.to_str().unwrap()]);
    }

    /// The CLI with the cluster's admin context.
    #[track_caller]
    pub fn warren(&self) -> WarrenCli {
        self.manager.warren()
    }

    /// Runs a command line, which must succeed: arguments are separated by single blanks.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.warren().run_ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Waits until `count` tasks of `service` serve, and no others are live.
    #[track_caller]
    pub fn wait_serving(&self, service: &str, count: usize) -> Vec<TaskDocument> {
        let what = format!("{count} tasks of {service}");
        eventually(2 * SOON, &what, || task_document::serving(&self.manager, service, count))
    }

    /// Waits until the tasks of `service` serve as in `expected`: the number per node.
    #[track_caller]
    pub fn wait_spread(&self, service: &str, expected: &[(&str, usize)]) -> Vec<TaskDocument> {
        let expected: BTreeMap<String, usize> =
            expected.iter().map(|(node, count)| ((*node).to_owned(), *count)).collect();
        let count = expected.values().sum();
        eventually(2 * SOON, &format!("{service} on {expected:?}"), || {
            let tasks = task_document::serving(&self.manager, service, count)?;
            let mut found = BTreeMap::new();
            tasks.iter().for_each(|task| *found.entry(task.node_name.clone()).or_insert(0) += 1);
            if found == expected { Ok(tasks) } else { Err(format!("{found:?}")) }
        })
    }

    /// The process ids of all running containers of all workers, by container.
    #[track_caller]
    pub fn pids(&self) -> BTreeMap<String, i32> {
        self.workers.iter().flat_map(task_document::pids).collect()
    }
}
