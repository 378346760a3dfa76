//! Agents and containerds of three workers are killed and stopped at moments that nobody chose, while services come and
//! go: what was acknowledged is reached again, no agent's death touches a container, and nothing is left.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use warren_testkit::leaks::{self, Inventory};
use warren_testkit::soak;
use warren_testkit::wait::eventually;

use super::client::{self, Client};
use super::{SEED, assert_converges, seed};
use crate::e2e::cluster::Cluster;
use crate::e2e::task;
use crate::e2e::world::{BOX, SOON, containerd_of};

/// The longest time between two blows, and the longest for which something is stopped: an agent that is silent for
/// eight seconds is taken for lost, and its tasks are replaced.
const LONGEST: Duration = Duration::from_millis(1500);
/// How many tasks there are at most.
const TASKS: usize = 60;
/// A service that is never touched, and its tasks.
const STEADY: (&str, usize) = ("steady", 6);

#[test]
fn blows_to_agents_and_containerds_are_survived() {
    let blows = soak::count(15, 200);
    let seed = seed();
    println!("{SEED}={seed} repeats the changes and the moments of the blows");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut cluster = Cluster::new(3);
    client::create_secret(&cluster.warren(), cluster.manager.scratch());
    let before = at_rest(&cluster);
    let ((name, replicas), secret) = (STEADY, client::SECRET);
    let line = format!(
        "service create {name} --image {BOX} --replicas {replicas} --stop-grace 100ms --secret {secret} --command sh"
    );
    let words = line.split(' ').chain(["--arg", "-c", "--arg", client::SCRIPT]).collect::<Vec<_>>();
    cluster.warren().ok(&words);
    cluster.serving(name, replicas);
    let untouched = cluster.pids();
    assert_eq!(untouched.len(), replicas);

    let client = Client::start(cluster.warren(), dice.random(), TASKS - replicas);
    for blow in 1..=blows {
        // Not a wait: the moment of the blow is the case that is tried.
        std::thread::sleep(LONGEST.mul_f64(dice.random()));
        strike(&mut cluster, &mut dice);
        client.assert_kept(&cluster.warren(), blow);
    }
    let wanted = client.end(blows);
    let wanted: BTreeMap<String, usize> = wanted.into_iter().chain([(name.to_owned(), replicas)]).collect();
    let nodes: Vec<_> = cluster.workers.iter().collect();
    assert_converges(&nodes, &wanted);
    let running = cluster.pids();
    assert!(untouched.iter().all(|(id, pid)| running.get(id) == Some(pid)), "{untouched:?} {running:?}");

    let names: Vec<&str> = wanted.keys().map(String::as_str).collect();
    cluster.warren().ok(&[&["service", "rm"][..], &names].concat());
    eventually(4 * SOON, "the end of all services", || {
        let left = cluster.warren().json(&["service", "ls"]);
        let tasks = task::all(&cluster.manager);
        if left == json!([]) { Ok(()) } else { Err(format!("{left} {tasks:#?}")) }
    });
    // Of a process that it was making when it was killed containerd removes the rest when it is started again.
    for worker in &cluster.workers {
        kill(containerd_of(worker), Signal::SIGKILL).unwrap();
    }
    run_something_everywhere(&cluster);
    for (worker, before) in cluster.workers.iter().zip(&before) {
        leaks::assert_returns_to(before, 2 * SOON, || worker.inventory());
    }
}

/// One blow to one worker.
fn strike(cluster: &mut Cluster, dice: &mut StdRng) {
    let worker = dice.random_range(0..cluster.workers.len());
    let worker = &mut cluster.workers[worker];
    let pause = LONGEST.mul_f64(dice.random());
    match dice.random_range(0..10) {
        0..4 => {
            worker.kill();
            worker.run_again();
        }
        4..6 => {
            worker.process().pause();
            // Not a wait: so long it is as good as dead.
            std::thread::sleep(pause);
            worker.process().resume();
        }
        6..8 => {
            kill(containerd_of(worker), Signal::SIGKILL).unwrap();
        }
        8 => {
            let containerd = containerd_of(worker);
            kill(containerd, Signal::SIGSTOP).unwrap();
            // Not a wait: so long it is as good as dead.
            std::thread::sleep(pause);
            kill(containerd, Signal::SIGCONT).unwrap();
        }
        _ => {
            kill(containerd_of(worker), Signal::SIGKILL).unwrap();
            worker.kill();
            worker.run_again();
        }
    }
}

/// What each worker has while it runs nothing.
fn at_rest(cluster: &Cluster) -> Vec<Inventory> {
    run_something_everywhere(cluster);
    cluster.workers.iter().map(crate::e2e::world::still_inventory).collect()
}

/// After that each containerd has collected what was removed before.
fn run_something_everywhere(cluster: &Cluster) {
    let line = format!(
        "service create something --mode global --image {BOX} --command tail --arg -f --arg /dev/null"
    );
    cluster.ok(&(line + " --stop-grace 100ms --secret " + client::SECRET));
    cluster.ok("service rm something");
}
