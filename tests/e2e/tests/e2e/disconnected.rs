//! A machine that reaches no manager: what its tasks were told to do then (`--on-disconnect`), in real containers.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use warren_testkit::load;
use warren_testkit::node::Node;
use warren_testkit::wait::eventually;

use crate::e2e::cluster::Cluster;
use crate::e2e::task::{self, Task};
use crate::e2e::trio::Trio;
use crate::e2e::world::{BOX, SOON};

/// Its tasks are stopped by nodes that have had no manager for [`PATIENCE`].
const MINDS: &str = "minds";
/// Its tasks run on.
const KEEPS: &str = "keeps";
/// Longer than managers need to miss a node and to replace its other tasks.
const PATIENCE: Duration = Duration::from_secs(20);
const POLICY: &str = "stop-after=20s";
const REASON: &str = "stopped by its node, which had no manager for 20s (--on-disconnect)";
/// What a node gets to stop a task whose time is over.
const LATE: Duration = Duration::from_secs(5);
/// The longest time between two words of a manager to a node that it can reach.
const WORDS: Duration = Duration::from_secs(6);
/// For how long a manager without the others still speaks to nodes.
const UNAWARE: Duration = Duration::from_secs(4);
/// Ends when it is asked to, and at once.
const SCRIPT: &str = "trap 'exit 0' TERM; sleep 100000 & wait";

/// A task that runs on a machine.
#[derive(Debug)]
struct Running {
    id: String,
    pid: i32,
}

impl Running {
    /// Its process is there.
    fn lives(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Makes both services, with a task on each of `nodes`; gives those of the last one: who minds, and who does not.
#[track_caller]
fn run_on_each(via: &Node, nodes: &[Node]) -> (Running, Running) {
    let replicas = nodes.len().to_string();
    for (name, policy) in [(MINDS, POLICY), (KEEPS, "keep")] {
        let words = ["service", "create", name, "--replicas", &replicas, "--on-disconnect", policy];
        let command = ["--image", BOX, "--command", "sh", "--arg", "-c", "--arg", SCRIPT];
        via.warren().ok(&[&words[..], &command[..]].concat());
    }
    let last = nodes.last().expect("there are nodes");
    let running = |service: &str| {
        let tasks = eventually(2 * SOON, "a task on each node", || {
            let tasks = task::serving(via, service, nodes.len())?;
            let places: BTreeSet<&str> = tasks.iter().map(|task| task.node_name.as_str()).collect();
            if places.len() == nodes.len() { Ok(tasks) } else { Err(format!("{tasks:#?}")) }
        });
        let own = tasks.into_iter().find(|task| task.node_name == last.name()).expect("each node has one");
        Running { pid: task::pids(last)[&own.id], id: own.id }
    };
    (running(MINDS), running(KEEPS))
}

/// Since the machine was started, as the agent counts it.
#[track_caller]
fn uptime() -> Duration {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    Duration::from_secs_f64(text.split(' ').next().unwrap().parse().unwrap())
}

/// When the agent of `node` last heard of a manager, by its own note.
#[track_caller]
fn last_word(node: &Node) -> Duration {
    eventually(SOON, "the agent's note of a manager", || {
        let path = node.run_dir().join("contact");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let millis = text.split_whitespace().nth(2).and_then(|word| word.parse().ok());
        millis.map(Duration::from_millis).ok_or(text)
    })
}

/// The containers of a service that run on `nodes`.
#[track_caller]
fn containers(nodes: &[Node], of: &BTreeSet<String>) -> BTreeSet<String> {
    nodes.iter().flat_map(|node| task::pids(node).into_keys()).filter(|id| of.contains(id)).collect()
}

fn ids<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> BTreeSet<String> {
    tasks.into_iter().map(|task| task.id.clone()).collect()
}

/// Sees what managers do about the tasks of `away`, whose cable is out: the one that minds has its slot for itself,
/// the other is replaced.
#[track_caller]
fn assert_only_the_other_is_replaced(via: &Node, away: &str, slots: usize) {
    eventually(2 * SOON, "another task in the place of the one that runs on", || {
        let tasks = task::serving(via, KEEPS, slots)?;
        let elsewhere = tasks.iter().all(|task| task.node_name != away);
        if elsewhere { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    let tasks = task::of_service(via, MINDS);
    let live: Vec<&Task> = tasks.iter().filter(|task| task.is_live()).collect();
    assert_eq!(live.len(), slots, "{tasks:#?}");
    let waits = live.iter().find(|task| task.node_name == away).map(|task| task.reason.as_str());
    let why = "when this one has stopped by itself for sure (--on-disconnect)";
    assert!(waits.is_some_and(|reason| reason.contains(why)), "{tasks:#?}");
}

/// Waits until the task that minds is stopped, which is at its time and not before; `unplugged` is when the cable was
/// pulled, and `words` how long before that and after that a manager's last word may have been.
#[track_caller]
fn assert_stops_in_time(
    away: &Node,
    minds: &Running,
    unplugged: Duration,
    (before, after): (Duration, Duration),
) {
    let stopped = eventually(2 * PATIENCE + SOON, "the end of the task that minds", || {
        let now = uptime();
        if minds.lives() { Err(format!("it lives {:?} after the cut", now - unplugged)) } else { Ok(now) }
    });
    let heard = last_word(away);
    println!(
        "the last word {:.2} s after the cable was pulled, the task's end {:.2} s after that word",
        heard.as_secs_f64() - unplugged.as_secs_f64(),
        (stopped - heard).as_secs_f64()
    );
    let slack = if load::is_heavy() { 4 } else { 1 };
    assert!(heard + before >= unplugged && heard <= unplugged + slack * after, "{heard:?} {unplugged:?}");
    assert!(stopped >= heard + PATIENCE, "it was stopped {:?} after the last word", stopped - heard);
    assert!(
        stopped < heard + PATIENCE + slack * LATE,
        "it was stopped {:?} after the last word",
        stopped - heard
    );
}

/// Waits until both services have what they want, and nothing else runs; and until the truth is told of the task that
/// was stopped.
#[track_caller]
fn assert_settles(via: &Node, nodes: &[Node], stopped: &Running) {
    eventually(2 * SOON, "the tasks that are wanted, and no others", || {
        let wanted = [MINDS, KEEPS].map(|service| task::serving(via, service, nodes.len()));
        let [minds, keeps] = wanted;
        let wanted = ids(minds?.iter().chain(&keeps?));
        let running: BTreeSet<String> = nodes.iter().flat_map(|node| task::pids(node).into_keys()).collect();
        if running == wanted { Ok(()) } else { Err(format!("{running:?} instead of {wanted:?}")) }
    });
    let tasks = task::of_service(via, MINDS);
    let told = tasks
        .iter()
        .find(|task| task.id == stopped.id)
        .map(|task| (task.state.as_str(), task.reason.as_str()));
    assert_eq!(told, Some(("SHUTDOWN", REASON)), "{tasks:#?}");
}

#[test]
fn a_worker_without_managers_stops_what_minds_at_its_time_and_tells_it_when_it_is_back() {
    let cluster = Cluster::new(2);
    let (minds, keeps) = run_on_each(&cluster.manager, &cluster.workers);
    let away = &cluster.workers[1];
    last_word(away);
    let others = ids(&task::of_service(&cluster.manager, MINDS));
    let unplugged = uptime();
    away.host().disconnect();
    assert_only_the_other_is_replaced(&cluster.manager, away.name(), 2);
    assert_stops_in_time(away, &minds, unplugged, (WORDS, Duration::from_secs(1)));
    assert!(keeps.lives(), "nobody asked for its end");
    let tasks = task::of_service(&cluster.manager, MINDS);
    assert_eq!(ids(&tasks), others, "none takes its place before it has ended: {tasks:#?}");
    away.host().connect();
    assert_settles(&cluster.manager, &cluster.workers, &minds);
    assert!(!keeps.lives(), "it was replaced");
}

#[test]
fn a_cut_off_manager_stops_what_minds_on_its_own_machine_also_if_it_was_killed_meanwhile() {
    let mut trio = Trio::new();
    let leader = trio.all_vote();
    // The last one leads, so that the agent's own manager has to notice as well.
    trio.nodes.swap(leader, 2);
    let (minds, keeps) = run_on_each(&trio.nodes[0], &trio.nodes);
    last_word(&trio.nodes[2]);
    let unplugged = uptime();
    trio.nodes[2].host().disconnect();
    assert_only_the_other_is_replaced(&trio.nodes[0], trio.nodes[2].name(), 3);
    // The time for which nobody counts it counts as well.
    trio.nodes[2].kill();
    trio.nodes[2].run_again();
    assert_stops_in_time(&trio.nodes[2], &minds, unplugged, (WORDS, UNAWARE));
    assert!(keeps.lives(), "nobody asked for its end");
    // Nobody knows that it has ended: its place is given away when it has for sure.
    let (rest, away) = (&trio.nodes[..2], trio.nodes[2].name());
    let running = containers(rest, &ids(&task::of_service(&trio.nodes[0], MINDS)));
    assert_eq!(running.len(), 2, "none takes its place before it has ended: {running:?}");
    eventually(PATIENCE + 2 * SOON, "another task in its place", || {
        let tasks = task::serving(&trio.nodes[0], MINDS, 3)?;
        let elsewhere = tasks.iter().all(|task| task.node_name != away);
        if elsewhere { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    assert!(keeps.lives(), "nobody asked for its end");
    trio.nodes[2].host().connect();
    assert_settles(&trio.nodes[0], &trio.nodes, &minds);
    assert!(!keeps.lives(), "it was replaced");
}
