//! A client changes services while the node is killed again and again at moments that nobody chose: what was
//! acknowledged stays, what was not touched does not notice, and nothing is left when all is removed.

mod client;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use warren_testkit::leftovers;
use warren_testkit::node::Node;
use warren_testkit::soak;
use warren_testkit::wait::eventually;

use crate::e2e::task::{self, Task};
use crate::e2e::world::{BOX, SOON, World};
use client::Client;

/// Says which moments and changes to try again.
const SEED: &str = "WARREN_SEED";
/// The longest time between two kills.
const LONGEST: Duration = Duration::from_millis(1500);
/// A creation that meets the remains of one that was killed can hang until containerd's own deadline, a minute; then it
/// is tried again.
const CONVERGED: Duration = Duration::from_secs(120);
/// Services that are never touched, and their tasks.
const STEADY: [(&str, usize); 2] = [("steady", 3), ("published", 2)];

/// What is killed.
#[derive(PartialEq)]
enum Victim {
    Node,
    /// Sometimes the node alone.
    NodeAndContainerd,
}

#[test]
fn a_killed_node_loses_nothing_and_runs_nothing_twice() {
    survive(&Victim::Node, soak::count(10, 100));
}

#[test]
fn a_node_killed_with_its_containerd_loses_nothing_and_runs_nothing_twice() {
    survive(&Victim::NodeAndContainerd, soak::count(5, 100));
}

#[track_caller]
fn survive(victim: &Victim, kills: usize) {
    let seed = seed();
    println!("{SEED}={seed} repeats the changes and the moments of the kills");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut world = World::new();
    client::create_secret(&world.warren(), world.node.scratch());
    // The node's memory for secrets is there from the first one on.
    let first = format!("service create first --image {BOX} --secret {}", client::SECRET);
    world.ok(&(first + " --command tail --arg -f --arg /dev/null --stop-grace 0s"));
    world.ok("service rm first");
    let before = world.inventory_at_rest();
    for (name, replicas) in STEADY {
        let (replicas, port) = (replicas.to_string(), format!("{}:80", 8000 + name.len()));
        let flags: &[&str] = if name == "published" { &["--publish", &port] } else { &[] };
        let flags =
            [&["--replicas", &replicas, "--stop-grace", "100ms", "--secret", client::SECRET][..], flags]
                .concat();
        world.create_script(name, &flags, client::SCRIPT);
    }
    for (name, replicas) in STEADY {
        world.serving(name, replicas);
    }
    let untouched = task::pids(&world.node);
    assert_eq!(untouched.len(), 5);

    let client = Client::start(world.warren(), dice.random(), 12);
    for kill in 1..=kills {
        // Not a wait: the moment of the kill is the case that is tried.
        std::thread::sleep(LONGEST.mul_f64(dice.random()));
        if *victim == Victim::NodeAndContainerd && dice.random_ratio(2, 3) {
            world.kill_containerd();
        }
        world.node.kill();
        world.node.run_again();
        world.node.wait_ready();
        client.assert_kept(&world.warren(), kill);
    }
    let wanted = client.end(2 * kills);
    let wanted: BTreeMap<String, usize> =
        wanted.into_iter().chain(STEADY.map(|(name, count)| (name.to_owned(), count))).collect();
    assert_converges(&[&world.node], &wanted);
    let running = task::pids(&world.node);
    assert!(untouched.iter().all(|(id, pid)| running.get(id) == Some(pid)), "{untouched:?} {running:?}");

    let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
    world.warren().ok(&[&["service", "rm"][..], &names].concat());
    // Those that the client removed it did not wait for.
    eventually(2 * SOON, "the end of all services", || {
        let left = world.warren().json(&["service", "ls"]);
        let tasks = task::all(&world.node);
        if left == json!([]) { Ok(()) } else { Err(format!("{left} {tasks:#?}")) }
    });
    if *victim == Victim::NodeAndContainerd {
        // Of a process that it was making when it was killed containerd removes the rest when it is started again,
        // and of file systems when it removes the next one.
        world.restart_containerd();
        world.run_and_remove_something();
    }
    world.assert_at_rest(&before);
}

/// Waits until exactly the wanted tasks run on `nodes`, by what managers say, by containerd, and by the process table.
#[track_caller]
fn assert_converges(nodes: &[&Node], wanted: &BTreeMap<String, usize>) {
    eventually(CONVERGED, "exactly the wanted tasks", || {
        let tasks = task::all(nodes[0]);
        let live: Vec<&Task> = tasks.iter().filter(|task| task.is_live()).collect();
        let of_service = |name: &str| live.iter().filter(|task| task.service_name == name).count();
        let missing: Vec<_> = wanted.iter().filter(|(name, count)| of_service(name) != **count).collect();
        let slots: BTreeSet<(&str, u32)> =
            live.iter().map(|task| (task.service_name.as_str(), task.slot)).collect();
        let ids: BTreeSet<String> = live.iter().map(|task| task.id.clone()).collect();
        let containers: BTreeSet<String> =
            nodes.iter().flat_map(|node| task::pids(node).into_keys()).collect();
        let processes = nodes.iter().flat_map(|node| leftovers::processes(node.scratch()));
        let processes = processes.filter(|process| process.command == client::COMMAND).count();
        let total: usize = wanted.values().sum();
        let is_exact = missing.is_empty() && live.iter().all(|task| task.serves()) && ids == containers;
        if is_exact && slots.len() == total && processes == total {
            return Ok(());
        }
        Err(format!("{missing:?} of {wanted:?}, {processes} processes, {containers:?}, {tasks:#?}"))
    });
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    std::env::var(SEED).map_or_else(|_| now(), |text| text.parse().expect("a seed is a number"))
}
