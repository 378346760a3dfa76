//! The output of ended tasks: it stays on the node, and says why a task failed.

use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};

const CAUSE: &str = "FATAL: data directory has wrong ownership";
/// A database that cannot start.
const DATABASE: &str = "echo starting; echo 'FATAL: data directory has wrong ownership' >&2; exit 1";
/// Arguments of a shell that says one line and stays.
const HELLO: [&str; 2] = ["--arg", "echo hello; trap exit TERM; sleep 1000 & wait"];
/// Given up after its second attempt.
const QUICK: [&str; 4] = ["--restart-max", "1", "--restart-delay", "100ms"];

/// The oldest task of `service`, once it has failed and its container was removed.
#[track_caller]
fn failed(world: &NodeFixture, service: &str) -> TaskDocument {
    eventually(SOON, &format!("a failed task of {service}"), || {
        let tasks = task_document::of_service(&world.node, service);
        let oldest = tasks.last().filter(|task| task.state == "FAILED" && task.removed);
        oldest.cloned().ok_or_else(|| format!("{tasks:#?}"))
    })
}

/// Every command that can say why the task failed says it.
#[track_caller]
fn assert_cause_is_readable(world: &NodeFixture, task: &TaskDocument) {
    let of_service = world.warren().run(&["service", "logs", "db"]);
    let line = |text: &str| format!("db.1@{} | {text}\n", task.node_name);
    assert_eq!(of_service.code, 0, "{of_service}");
    assert!(of_service.stderr.starts_with(&line(CAUSE)), "{of_service}");
    assert!(of_service.stdout.starts_with(&line("starting")), "{of_service}");
    for words in [&["task", "logs", &task.id][..], &["service", "logs", "db", "--task", &task.id]] {
        let ran = world.warren().run(words);
        assert!(ran.code == 0 && ran.stdout.contains("starting") && ran.stderr.contains(CAUSE), "{ran}");
    }
    let listed = world.ok("service ps db --all");
    let hint = format!("try: warren task logs {}", task.id);
    for text in ["FAILED", "exited with code 1", CAUSE, &hint] {
        assert!(listed.contains(text), "{text}: {listed}");
    }
}

/// `why` explains a program that ends and a task that no node can have, and `events` have told it.
#[track_caller]
fn assert_why_names_causes(world: &NodeFixture) {
    let explained = |object: &str, texts: &[&str]| {
        eventually(SOON, &format!("the causes of {object}"), || {
            let ran = world.warren().run(&["why", object]);
            let is_complete = ran.code == 1 && texts.iter().all(|text| ran.stdout.contains(text));
            if is_complete { Ok(()) } else { Err(ran.to_string()) }
        });
    };
    explained("service/db", &["db has 0 of 1 task ready", "exit code 1", CAUSE, "warren service logs db"]);
    let create = ["service", "create", "big", "--detach", "--image", BOX, "--reserve-memory", "900GiB"];
    world.warren().run_ok(&create);
    explained("big", &["no node is suitable for big.1", "lacks memory (need 900GiB", "--reserve-memory"]);
    let events = world.ok("events service/db -o json");
    let is_failure = |line: &&str| line.contains("\"to\":\"FAILED\"") && line.contains("\"exitCode\":1");
    assert!(events.lines().any(|line| is_failure(&line)), "{events}");
    world.ok("service rm big");
}

#[test]
fn failed_task_keeps_its_output_until_its_service_is_removed() {
    let mut world = NodeFixture::new();
    let rest = world.inventory_at_rest();
    world.create_script("db", &QUICK, DATABASE);
    let task = failed(&world, "db");
    assert_cause_is_readable(&world, &task);
    let previous = world.warren().run(&["service", "logs", "db", "--previous"]);
    assert!(previous.stderr.contains(CAUSE), "{previous}");
    assert_why_names_causes(&world);

    world.node.kill();
    world.node.run_again();
    world.node.wait_ready();
    assert_cause_is_readable(&world, &task);

    let update = ["service", "update", "db", "--detach", "--command", "sh", "--arg", "-c", "--arg"];
    world.warren().run_ok(&[&update[..], &["echo repaired; sleep 1000"]].concat());
    world.wait_serving("db", 1);
    let of_service = eventually(SOON, "the line of the new task", || {
        let ran = world.warren().run(&["service", "logs", "db"]);
        if ran.stdout.contains("repaired") { Ok(ran) } else { Err(ran.to_string()) }
    });
    assert!(of_service.stdout.ends_with("| repaired\n"), "the last line: {of_service}");
    assert_cause_is_readable(&world, &task);

    world.ok("service scale db=0");
    assert_cause_is_readable(&world, &task);
    assert!(!world.ok("service ps db").contains("FAILED"), "its slot was removed");

    world.ok("service rm db");
    world.warren().run_refused(&["task", "logs", &task.id], 3);
    world.assert_at_rest(&rest);
}

#[test]
fn node_that_is_down_is_named_instead_of_its_logs_and_beside_those_of_others() {
    let mut cluster = WorkerCluster::new(2);
    let create = ["service", "create", "db", "--detach", "--image", BOX, "--constraint", "node.name==w1"];
    let command = ["--command", "sh", "--arg", "-c", "--arg", DATABASE];
    cluster.warren().run_ok(&[&create[..], &QUICK, &command].concat());
    eventually(2 * SOON, "the cause of the failure", || {
        let ran = cluster.warren().run(&["service", "logs", "db"]);
        if ran.stderr.contains(CAUSE) { Ok(()) } else { Err(ran.to_string()) }
    });
    let create = ["service", "create", "both", "--mode", "global", "--image", BOX];
    cluster.warren().run_ok(&[&create[..], &["--command", "sh", "--arg", "-c"], &HELLO].concat());
    cluster.workers[0].kill();
    eventually(2 * SOON, "the node to be named", || {
        let ran = cluster.warren().run(&["service", "logs", "db"]);
        if ran.code == 1 && ran.stderr.contains("is down") { Ok(()) } else { Err(ran.to_string()) }
    });
    let ran = cluster.warren().run(&["service", "logs", "both"]);
    assert!(ran.code == 0 && ran.stdout.ends_with("@w2 | hello\n"), "{ran}");
    assert_eq!((ran.stdout.lines().count(), ran.stderr.lines().count()), (1, 1), "{ran}");
    let line = "@w1: node w1 is down: its logs can be read when it is back\n";
    assert!(ran.stderr.starts_with("warning: both.") && ran.stderr.ends_with(line), "{ran}");
}
