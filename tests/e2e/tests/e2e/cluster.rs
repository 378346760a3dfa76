//! Several machines: a manager that runs no tasks, and workers that joined it, each on a lab host of its own with a
//! containerd of its own.

use std::collections::BTreeMap;

use warren_testkit::image::Archive;
use warren_testkit::netns::Lab;
use warren_testkit::node::{Node, Settings};
use warren_testkit::wait::eventually;
use warren_testkit::warren::Warren;

use crate::e2e::task::{self, Task};
use crate::e2e::world::{SOON, box_archive};

/// A manager and its workers `w1`, `w2` ...
pub struct Cluster {
    // In this order: the workers end before their manager, all of them before the network.
    pub workers: Vec<Node>,
    pub manager: Node,
    pub lab: Lab,
}

impl Cluster {
    /// A cluster of `workers` workers, which have the busybox image.
    #[track_caller]
    pub fn new(workers: usize) -> Cluster {
        Cluster::with(workers, |_| Settings::default())
    }

    /// As [`Cluster::new`]; `settings` are those of each worker, counted from 1.
    #[track_caller]
    pub fn with(workers: usize, settings: impl Fn(usize) -> Settings) -> Cluster {
        let lab = Lab::new();
        let manager = Node::start_manager(lab.host(), Settings::default());
        let join = |number| Node::join(lab.host(), settings(number), &manager, &format!("w{number}"));
        let workers = (1..=workers).map(join).collect();
        let cluster = Cluster { workers, manager, lab };
        cluster.import("box.tar", box_archive());
        cluster
    }

    /// Imports `archive` onto every node.
    #[track_caller]
    pub fn import(&self, name: &str, archive: &Archive) {
        let path = self.manager.scratch().join(name);
        archive.write(&path).unwrap();
        self.warren().ok(&["image", "import", path.to_str().unwrap()]);
    }

    /// The command line with the cluster's admin context.
    #[track_caller]
    pub fn warren(&self) -> Warren {
        self.manager.warren()
    }

    /// Runs a line of arguments, which must succeed: words are separated by single blanks.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.warren().ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Waits until `count` tasks of `service` serve, and no others are live.
    #[track_caller]
    pub fn serving(&self, service: &str, count: usize) -> Vec<Task> {
        let what = format!("{count} tasks of {service}");
        eventually(2 * SOON, &what, || task::serving(&self.manager, service, count))
    }

    /// Waits until the tasks of `service` serve as `wanted` says: how many on which node.
    #[track_caller]
    pub fn spread(&self, service: &str, wanted: &[(&str, usize)]) -> Vec<Task> {
        let wanted: BTreeMap<String, usize> =
            wanted.iter().map(|(node, count)| ((*node).to_owned(), *count)).collect();
        let count = wanted.values().sum();
        eventually(2 * SOON, &format!("{service} on {wanted:?}"), || {
            let tasks = task::serving(&self.manager, service, count)?;
            let mut found = BTreeMap::new();
            tasks.iter().for_each(|task| *found.entry(task.node_name.clone()).or_insert(0) += 1);
            if found == wanted { Ok(tasks) } else { Err(format!("{found:?}")) }
        })
    }

    /// The process ids of all running containers of all workers, by container.
    #[track_caller]
    pub fn pids(&self) -> BTreeMap<String, i32> {
        self.workers.iter().flat_map(task::pids).collect()
    }
}
