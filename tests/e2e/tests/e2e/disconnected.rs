//! A machine without contact with any manager: its tasks follow `--on-disconnect`, in real containers.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use warren_testkit::machine_load;
use warren_testkit::node::LabNode;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON};
use crate::e2e::task_document::{self, TaskDocument};
use crate::e2e::three_managers::ThreeManagers;

/// Its tasks are stopped by nodes that have had no manager for [`STOP_AFTER`].
const STOPS_SERVICE: &str = "minds";
/// Its tasks keep running.
const KEEPS_SERVICE: &str = "keeps";
/// Longer than managers need to mark a node DOWN and to replace its other tasks.
const STOP_AFTER: Duration = Duration::from_secs(20);
const POLICY: &str = "stop-after=20s";
const REASON: &str = "stopped by the node after 20s without a manager (--on-disconnect)";
/// How long a node may take to stop a task after its disconnect timeout.
const LATE: Duration = Duration::from_secs(5);
/// The longest time between two messages of a manager to a node that it can reach, twice the usual one.
const WORDS: Duration = Duration::from_secs(10);
/// How long after a disconnection a message may count: an isolated manager still sends messages to nodes, and a loaded
/// machine reads the last one late. That tasks are not stopped early is checked exactly, from that message on.
const UNAWARE: Duration = Duration::from_secs(4);
/// Ends at once on its stop signal.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A task with a running process on a machine.
#[derive(Debug)]
struct RunningTask {
    id: String,
    pid: i32,
}

impl RunningTask {
    /// Whether its process exists.
    fn is_alive(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Creates both services, with a task on each of `nodes`; returns those of the last node: the one with a
/// disconnect timeout, and the one without.
#[track_caller]
fn run_on_each(via: &LabNode, nodes: &[LabNode]) -> (RunningTask, RunningTask) {
    let replicas = nodes.len().to_string();
    for (name, policy) in [(STOPS_SERVICE, POLICY), (KEEPS_SERVICE, "keep")] {
        let words = ["service", "create", name, "--replicas", &replicas, "--on-disconnect", policy];
        let command = ["--image", BOX, "--command", "sh", "--arg", "-c", "--arg", SCRIPT];
        via.warren().run_ok(&[&words[..], &command[..]].concat());
    }
    let last = nodes.last().expect("there are nodes");
    let running = |service: &str| {
        let tasks = eventually(2 * SOON, "a task on each node", || {
            let tasks = task_document::serving(via, service, nodes.len())?;
            let places: BTreeSet<&str> = tasks.iter().map(|task| task.node_name.as_str()).collect();
            if places.len() == nodes.len() { Ok(tasks) } else { Err(format!("{tasks:#?}")) }
        });
        let own = tasks.into_iter().find(|task| task.node_name == last.name()).expect("each node has one");
        RunningTask { pid: task_document::pids(last)[&own.id], id: own.id }
    };
    (running(STOPS_SERVICE), running(KEEPS_SERVICE))
}

/// What the kernel cuts off from the time since the boot.
const UPTIME_STEP: Duration = Duration::from_millis(10);

/// Time since the boot of the machine, as the agent measures it, rounded down to [`UPTIME_STEP`].
#[track_caller]
fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
}

/// The last contact of the agent of `node` with a manager, from its own file.
#[track_caller]
fn last_contact(node: &LabNode) -> Duration {
    eventually(SOON, "the agent's note of a manager", || {
        let path = node.run_dir().join("connectivity");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let millis = text.split_whitespace().nth(2).and_then(|keyword| keyword.parse().ok());
        millis.map(Duration::from_millis).ok_or(text)
    })
}

/// The containers of a service that run on `nodes`.
#[track_caller]
fn containers(nodes: &[LabNode], of: &BTreeSet<String>) -> BTreeSet<String> {
    nodes.iter().flat_map(|node| task_document::pids(node).into_keys()).filter(|id| of.contains(id)).collect()
}

fn ids<'a>(tasks: impl IntoIterator<Item = &'a TaskDocument>) -> BTreeSet<String> {
    tasks.into_iter().map(|task| task.id.clone()).collect()
}

/// Checks the managers' handling of the tasks of `away`, which is disconnected: the task with the disconnect
/// timeout keeps its slot, the other is replaced.
#[track_caller]
fn assert_only_the_other_is_replaced(via: &LabNode, away: &str, slots: usize) {
    eventually(2 * SOON, "another task in the place of the one that runs on", || {
        let tasks = task_document::serving(via, KEEPS_SERVICE, slots)?;
        let elsewhere = tasks.iter().all(|task| task.node_name != away);
        if elsewhere { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    let tasks = task_document::of_service(via, STOPS_SERVICE);
    let live: Vec<&TaskDocument> = tasks.iter().filter(|task| task.is_live()).collect();
    assert_eq!(live.len(), slots, "{tasks:#?}");
    let waits = live.iter().find(|task| task.node_name == away).map(|task| task.reason.as_str());
    let why = "when it has certainly stopped by itself (--on-disconnect)";
    assert!(waits.is_some_and(|reason| reason.contains(why)), "{tasks:#?}");
}

/// Waits until the task with the disconnect timeout is stopped, at its time and not before. The host was disconnected
/// during `unplugged`; the last message of a manager may have come [`WORDS`] before that, and [`UNAWARE`] after it.
#[track_caller]
fn assert_stops_in_time(away: &LabNode, minds: &RunningTask, unplugged: &RangeInclusive<Duration>) {
    let stopped = eventually(2 * STOP_AFTER + SOON, "the stop of the task with a disconnect timeout", || {
        if minds.is_alive() {
            Err(format!("it runs {:?} after the disconnection", uptime() - *unplugged.end()))
        } else {
            Ok(uptime() + UPTIME_STEP)
        }
    });
    let contact = last_contact(away);
    println!(
        "the last word {:.2} s after the cable was pulled, the task's end {:.2} s after that word",
        contact.as_secs_f64() - unplugged.end().as_secs_f64(),
        (stopped - contact).as_secs_f64()
    );
    let slack = if machine_load::is_heavy() { 4 } else { 1 };
    assert!(
        contact + slack * WORDS >= *unplugged.start() && contact <= *unplugged.end() + slack * UNAWARE,
        "{contact:?} {unplugged:?}"
    );
    assert!(stopped >= contact + STOP_AFTER, "it was stopped {:?} after the last message", stopped - contact);
    assert!(
        stopped < contact + STOP_AFTER + slack * LATE,
        "it was stopped {:?} after the last word",
        stopped - contact
    );
}

/// Waits until both services have their desired tasks, and no other tasks run; and until the stopped task is
/// reported correctly.
#[track_caller]
fn assert_settles(via: &LabNode, nodes: &[LabNode], stopped: &RunningTask) {
    eventually(2 * SOON, "the tasks that are wanted, and no others", || {
        let expected =
            [STOPS_SERVICE, KEEPS_SERVICE].map(|service| task_document::serving(via, service, nodes.len()));
        let [minds, keeps] = expected;
        let expected = ids(minds?.iter().chain(&keeps?));
        let running: BTreeSet<String> =
            nodes.iter().flat_map(|node| task_document::pids(node).into_keys()).collect();
        if running == expected { Ok(()) } else { Err(format!("{running:?} expected {expected:?}")) }
    });
    eventually(SOON, "the report of the task that the node stopped", || {
        let tasks = task_document::of_service(via, STOPS_SERVICE);
        let is_stopped = |task: &TaskDocument| task.state == "SHUTDOWN" && task.reason == REASON;
        let is_reported = tasks.iter().any(|task| task.id == stopped.id && is_stopped(task));
        if is_reported { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}

#[test]
fn disconnected_worker_stops_tasks_by_policy_and_reports_later() {
    let cluster = WorkerCluster::new(2);
    let (minds, keeps) = run_on_each(&cluster.manager, &cluster.workers);
    let away = &cluster.workers[1];
    last_contact(away);
    let others = ids(&task_document::of_service(&cluster.manager, STOPS_SERVICE));
    let begun = uptime();
    away.host().disconnect();
    let unplugged = begun..=uptime();
    assert_only_the_other_is_replaced(&cluster.manager, away.name(), 2);
    assert_stops_in_time(away, &minds, &unplugged);
    assert!(keeps.is_alive(), "it must not be stopped");
    let tasks = task_document::of_service(&cluster.manager, STOPS_SERVICE);
    assert_eq!(ids(&tasks), others, "it is not replaced before it has ended: {tasks:#?}");
    away.host().connect();
    assert_settles(&cluster.manager, &cluster.workers, &minds);
    assert!(!keeps.is_alive(), "it was replaced");
}

#[test]
fn disconnected_manager_stops_local_tasks_by_policy_after_kill() {
    let mut trio = ThreeManagers::new();
    let leader = trio.wait_all_voters();
    // The last one leads, so that the agent's own manager has to notice the loss as well.
    trio.nodes.swap(leader, 2);
    let (minds, keeps) = run_on_each(&trio.nodes[0], &trio.nodes);
    last_contact(&trio.nodes[2]);
    let begun = uptime();
    trio.nodes[2].host().disconnect();
    let unplugged = begun..=uptime();
    assert_only_the_other_is_replaced(&trio.nodes[0], trio.nodes[2].name(), 3);
    // The time before the failure detection counts as well.
    trio.nodes[2].kill();
    trio.nodes[2].run_again();
    assert_stops_in_time(&trio.nodes[2], &minds, &unplugged);
    assert!(keeps.is_alive(), "it must not be stopped");
    // No manager knows that it has ended: it is replaced when it has ended for sure.
    let (rest, away) = (&trio.nodes[..2], trio.nodes[2].name());
    let running = containers(rest, &ids(&task_document::of_service(&trio.nodes[0], STOPS_SERVICE)));
    assert_eq!(running.len(), 2, "it is not replaced before it has ended: {running:?}");
    eventually(STOP_AFTER + 2 * SOON, "another task in its place", || {
        let tasks = task_document::serving(&trio.nodes[0], STOPS_SERVICE, 3)?;
        let elsewhere = tasks.iter().all(|task| task.node_name != away);
        if elsewhere { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    assert!(keeps.is_alive(), "it must not be stopped");
    trio.nodes[2].host().connect();
    assert_settles(&trio.nodes[0], &trio.nodes, &minds);
    assert!(!keeps.is_alive(), "it was replaced");
}
