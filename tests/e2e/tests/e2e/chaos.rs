//! A client changes services while the node is killed again and again at random times: acknowledged changes
//! stay, unchanged services are not disturbed, and nothing is left when all is removed.

mod client;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use warren_testkit::cleanup;
use warren_testkit::node::LabNode;
use warren_testkit::soak;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};
use client::ChaosClient;

/// The seed of the times and changes, to repeat a run.
const SEED: &str = "WARREN_SEED";
/// The longest time between two kills.
const LONGEST: Duration = Duration::from_millis(1500);
/// A creation that meets the remains of a killed one can hang until containerd's own deadline, a minute; then
/// it is retried.
const CONVERGED: Duration = Duration::from_secs(120);
/// Services that are never changed, and their tasks. They are not replaced, however long a busy machine takes to start
/// the node.
const STEADY_SERVICES: [(&str, usize); 2] = [("steady", 3), ("published", 2)];

/// What is killed.
#[derive(PartialEq)]
enum KillTarget {
    Node,
    /// Sometimes only the node.
    NodeAndContainerd,
}

#[test]
fn killed_node_loses_nothing() {
    run_kills(&KillTarget::Node, soak::count(6, 100));
}

#[test]
fn killed_node_and_containerd_lose_nothing() {
    run_kills(&KillTarget::NodeAndContainerd, soak::count(5, 100));
}

#[track_caller]
fn run_kills(victim: &KillTarget, kills: usize) {
    let seed = seed();
    println!("{SEED}={seed} repeats the changes and the moments of the kills");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut world = NodeFixture::new();
    client::create_secret(&world.warren(), world.node.scratch());
    // The node's tmpfs for secrets exists from the first one on.
    let first = format!("service create first --image {BOX} --secret {}", client::SECRET);
    world.ok(&(first + " --command tail --arg -f --arg /dev/null --stop-grace 0s"));
    world.ok("service rm first");
    let before = world.inventory_at_rest();
    for (name, replicas) in STEADY_SERVICES {
        let (replicas, port) = (replicas.to_string(), format!("{}:80", 8000 + name.len()));
        let mut flags = vec!["--replicas", &replicas, "--stop-grace", "100ms", "--replace-after", "5m"];
        flags.extend(["--secret", client::SECRET]);
        if name == "published" {
            flags.extend(["--publish", &port]);
        }
        world.create_script(name, &flags, client::SCRIPT);
    }
    for (name, replicas) in STEADY_SERVICES {
        world.wait_serving(name, replicas);
    }
    let untouched = task_document::pids(&world.node);
    assert_eq!(untouched.len(), 5);

    let client = ChaosClient::start(world.warren(), dice.random(), 12);
    for kill in 1..=kills {
        // Not a wait: the moment of the kill is the tested case.
        std::thread::sleep(LONGEST.mul_f64(dice.random()));
        if *victim == KillTarget::NodeAndContainerd && dice.random_ratio(2, 3) {
            world.kill_containerd();
        }
        world.node.kill();
        world.node.run_again();
        world.node.wait_ready();
        client.assert_acknowledged(&world.warren(), kill);
    }
    let expected = client.end(2 * kills);
    let expected: BTreeMap<String, usize> =
        expected.into_iter().chain(STEADY_SERVICES.map(|(name, count)| (name.to_owned(), count))).collect();
    assert_converges(&[&world.node], &expected);
    let running = task_document::pids(&world.node);
    assert!(untouched.iter().all(|(id, pid)| running.get(id) == Some(pid)), "{untouched:?} {running:?}");

    let names: Vec<&str> = expected.keys().map(String::as_str).collect();
    world.warren().run_ok(&[&["service", "rm"][..], &names].concat());
    // The client did not wait for the services that it removed.
    eventually(2 * SOON, "the end of all services", || {
        let left = world.warren().json(&["service", "ls"]);
        let tasks = task_document::all(&world.node);
        if left == json!([]) { Ok(()) } else { Err(format!("{left} {tasks:#?}")) }
    });
    if *victim == KillTarget::NodeAndContainerd {
        // containerd removes the remains of a process that it was creating when it was killed at its next
        // start, and those of file systems when it removes the next one.
        world.restart_containerd();
        world.run_and_remove_something();
    }
    world.assert_at_rest(&before);
}

/// Waits until exactly the desired tasks run on `nodes`, according to managers, containerd, and the process
/// table.
#[track_caller]
fn assert_converges(nodes: &[&LabNode], expected: &BTreeMap<String, usize>) {
    eventually(CONVERGED, "exactly the wanted tasks", || {
        let tasks = task_document::all(nodes[0]);
        let live: Vec<&TaskDocument> = tasks.iter().filter(|task| task.is_live()).collect();
        let of_service = |name: &str| live.iter().filter(|task| task.service_name == name).count();
        let missing: Vec<_> = expected.iter().filter(|(name, count)| of_service(name) != **count).collect();
        let slots: BTreeSet<(&str, u32)> =
            live.iter().map(|task| (task.service_name.as_str(), task.slot)).collect();
        let ids: BTreeSet<String> = live.iter().map(|task| task.id.clone()).collect();
        let containers: BTreeSet<String> =
            nodes.iter().flat_map(|node| task_document::pids(node).into_keys()).collect();
        let processes = nodes.iter().flat_map(|node| cleanup::processes(node.scratch()));
        let processes = processes.filter(|process| process.command == client::COMMAND).count();
        let total: usize = expected.values().sum();
        let is_exact = missing.is_empty() && live.iter().all(|task| task.is_serving()) && ids == containers;
        if is_exact && slots.len() == total && processes == total {
            return Ok(());
        }
        Err(format!("{missing:?} of {expected:?}, {processes} processes, {containers:?}, {tasks:#?}"))
    });
}

fn seed() -> u64 {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos().into();
    std::env::var(SEED).map_or_else(|_| now(), |text| text.parse().expect("a seed is a number"))
}
