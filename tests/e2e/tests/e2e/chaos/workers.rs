//! Agents and containerds of three workers are killed and paused at random times, while services are created
//! and removed: the acknowledged state is reached again, the end of an agent disturbs no container, and
//! nothing is left.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use warren_testkit::leaks::{self, Inventory};
use warren_testkit::soak;
use warren_testkit::wait::eventually;

use super::client::{self, ChaosClient};
use super::{SEED, assert_converges, seed};
use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON, containerd_of};
use crate::e2e::task_document;

/// The longest time between two faults, and the longest pause: an agent that is silent for eight seconds is
/// DOWN, and its tasks are replaced.
const LONGEST: Duration = Duration::from_millis(1500);
/// The most tasks at a time.
const TASKS: usize = 60;
/// A service that is never changed, and its tasks. They are not replaced, however long a busy machine takes to start an
/// agent.
const STEADY: (&str, usize) = ("steady", 6);

#[test]
fn agents_and_containerds_survive_kills() {
    let blows = soak::count(FAULTS.len(), 200);
    let seed = seed();
    println!("{SEED}={seed} repeats the changes and the moments of the blows");
    let mut dice = StdRng::seed_from_u64(seed);
    let mut cluster = WorkerCluster::new(3);
    client::create_secret(&cluster.warren(), cluster.manager.scratch());
    let before = at_rest(&cluster);
    let ((name, replicas), secret) = (STEADY, client::SECRET);
    let line = format!(
        "service create {name} --image {BOX} --replicas {replicas} --stop-grace 100ms --secret {secret} \
         --replace-after 5m --command sh"
    );
    let words = line.split(' ').chain(["--arg", "-c", "--arg", client::SCRIPT]).collect::<Vec<_>>();
    cluster.warren().run_ok(&words);
    cluster.wait_serving(name, replicas);
    let untouched = cluster.pids();
    assert_eq!(untouched.len(), replicas);

    let client = ChaosClient::start(cluster.warren(), dice.random(), TASKS - replicas);
    let mut faults = Vec::new();
    for blow in 1..=blows {
        // Not a wait: the moment of the fault is the tested case.
        std::thread::sleep(LONGEST.mul_f64(dice.random()));
        // All of them, in another order each time.
        if faults.is_empty() {
            faults.extend(FAULTS);
        }
        let fault = faults.swap_remove(dice.random_range(0..faults.len()));
        inject_fault(&mut cluster, &mut dice, fault);
        client.assert_acknowledged(&cluster.warren(), blow);
    }
    let expected = client.end(blows);
    let expected: BTreeMap<String, usize> =
        expected.into_iter().chain([(name.to_owned(), replicas)]).collect();
    let nodes: Vec<_> = cluster.workers.iter().collect();
    assert_converges(&nodes, &expected);
    let running = cluster.pids();
    assert!(untouched.iter().all(|(id, pid)| running.get(id) == Some(pid)), "{untouched:?} {running:?}");

    let names: Vec<&str> = expected.keys().map(String::as_str).collect();
    cluster.warren().run_ok(&[&["service", "rm"][..], &names].concat());
    eventually(4 * SOON, "the end of all services", || {
        let left = cluster.warren().json(&["service", "ls"]);
        let tasks = task_document::all(&cluster.manager);
        if left == json!([]) { Ok(()) } else { Err(format!("{left} {tasks:#?}")) }
    });
    // containerd removes the remains of a process that it was creating when it was killed at its next start.
    for worker in &cluster.workers {
        kill(containerd_of(worker), Signal::SIGKILL).unwrap();
    }
    run_something_everywhere(&cluster);
    for (worker, before) in cluster.workers.iter().zip(&before) {
        leaks::assert_returns_to(before, 2 * SOON, || worker.inventory());
    }
}

/// What is done to a worker.
#[derive(Debug, Clone, Copy)]
enum WorkerFault {
    AgentKilled,
    AgentPaused,
    ContainerdKilled,
    ContainerdPaused,
    BothKilled,
}

/// Each as often as it occurs among this many.
const FAULTS: [WorkerFault; 10] = [
    WorkerFault::AgentKilled,
    WorkerFault::AgentKilled,
    WorkerFault::AgentKilled,
    WorkerFault::AgentKilled,
    WorkerFault::AgentPaused,
    WorkerFault::AgentPaused,
    WorkerFault::ContainerdKilled,
    WorkerFault::ContainerdKilled,
    WorkerFault::ContainerdPaused,
    WorkerFault::BothKilled,
];

/// One fault of one worker.
fn inject_fault(cluster: &mut WorkerCluster, dice: &mut StdRng, fault: WorkerFault) {
    let worker = dice.random_range(0..cluster.workers.len());
    let worker = &mut cluster.workers[worker];
    let pause = LONGEST.mul_f64(dice.random());
    match fault {
        WorkerFault::AgentKilled => {
            worker.kill();
            worker.run_again();
        }
        WorkerFault::AgentPaused => {
            worker.process().pause();
            // Not a wait: the duration of the pause.
            std::thread::sleep(pause);
            worker.process().resume();
        }
        WorkerFault::ContainerdKilled => {
            kill(containerd_of(worker), Signal::SIGKILL).unwrap();
        }
        WorkerFault::ContainerdPaused => {
            let containerd = containerd_of(worker);
            kill(containerd, Signal::SIGSTOP).unwrap();
            // Not a wait: the duration of the pause.
            std::thread::sleep(pause);
            kill(containerd, Signal::SIGCONT).unwrap();
        }
        WorkerFault::BothKilled => {
            kill(containerd_of(worker), Signal::SIGKILL).unwrap();
            worker.kill();
            worker.run_again();
        }
    }
}

/// The resources of each worker without tasks.
fn at_rest(cluster: &WorkerCluster) -> Vec<Inventory> {
    run_something_everywhere(cluster);
    cluster.workers.iter().map(crate::e2e::fixture::still_inventory).collect()
}

/// After that each containerd has collected what was removed before.
fn run_something_everywhere(cluster: &WorkerCluster) {
    let line = format!(
        "service create something --mode global --image {BOX} --command tail --arg -f --arg /dev/null"
    );
    cluster.ok(&(line + " --stop-grace 100ms --secret " + client::SECRET));
    cluster.ok("service rm something");
}
