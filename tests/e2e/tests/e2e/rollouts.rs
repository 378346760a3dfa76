//! Ready means that it stayed up; a failed update goes back, and the command says why.

use serde_json::Value;

use crate::e2e::fixture::{BOX, NodeFixture};
use crate::e2e::task_document;

const FAILED: i32 = 1;

fn inspect(world: &NodeFixture, name: &str) -> Value {
    world.warren().json(&["service", "inspect", name])
}

#[test]
fn crashing_service_is_never_ready() {
    let world = NodeFixture::with_box();
    let warren = world.warren().settling();
    // A loaded node reports the end of a task late.
    let monitor = ["--update-monitor", "30s"];
    let crash = ["--", "sh", "-c", "echo fatal; exit 1"];
    let create = [&["service", "create", "crash", "--image", BOX][..], &monitor, &crash].concat();
    let output = warren.run_refused(&create, FAILED);
    assert!(output.contains("exited with code 1; 4 attempts"), "{output}");
    assert!(output.contains("  | fatal"), "{output}");
    assert!(!output.contains("1 of 1 ready"), "{output}");
    // A program that ends with code 0 is not up either, if it is restarted.
    let ends = ["--restart-delay", "100ms", "--restart", "any", "--", "sh", "-c", "exit 0"];
    let create = [&["service", "create", "ends", "--image", BOX][..], &monitor, &ends].concat();
    let output = warren.run_refused(&create, FAILED);
    assert!(output.contains("exited with code 0") && !output.contains("1 of 1 ready"), "{output}");
    // What stays up settles meanwhile.
    let create = ["service", "create", "up", "--detach", "--update-monitor", "20s", "--image", BOX];
    warren.run_ok(&[&create[..], &["--", "sleep", "1000"]].concat());
    world.wait_serving("up", 1);
    let shown = world.ok("service ps up");
    assert!(shown.contains("RUNNING (settling "), "{shown}");
    warren.run_ok(&["service", "scale", "up=1"]);
    let shown = world.ok("service ps up");
    assert!(!shown.contains("settling"), "{shown}");
}

#[test]
fn database_goes_back_from_an_image_that_never_ran() {
    let world = NodeFixture::with_box();
    let flags = ["--volume", "data:/data", "--restart-max", "1", "--restart-delay", "100ms"];
    // A loaded node reports the end of a task late.
    world.create_script(
        "db",
        &[&flags[..], &["--update-monitor", "30s"]].concat(),
        "echo row >> /data/rows; sleep 1000",
    );
    let first = world.wait_serving("db", 1).remove(0);
    let output = world.warren().run_refused(&["service", "update", "db", "--command", "/no/such"], FAILED);
    assert!(output.contains("db.1 was rejected") && output.contains("cannot be run"), "{output}");
    assert!(
        output.contains("revision 2 was rolled back: the service runs revision 1 again, as 3"),
        "{output}"
    );
    assert!(output.contains("the rollback takes back: command"), "{output}");
    let second = world.wait_serving("db", 1).remove(0);
    assert_eq!(second.id, first.id, "it was not stopped for a task that cannot be created");
    let shown = inspect(&world, "db");
    assert_eq!((&shown["revision"], &shown["rollout"]["state"]), (&3.into(), &"rolled back".into()));

    // Once a new task ran, its data may be that of the new version.
    let crash = [
        "service",
        "update",
        "db",
        "--arg",
        "-c",
        "--arg",
        "echo new > /data/rows; echo no way back; exit 3",
    ];
    let output = world.warren().run_refused(&crash, FAILED);
    assert!(output.contains("exited with code 3") && output.contains("  | no way back"), "{output}");
    assert!(output.contains("ran and may have changed the data of its volumes"), "{output}");
    assert!(output.contains("no task is ready now"), "{output}");
    assert_eq!(inspect(&world, "db")["rollout"]["state"], "paused");
    world.ok("service rollback db");
    world.wait_serving("db", 1);
}

#[test]
fn failed_update_goes_back_and_lists_what_it_takes_back() {
    let world = NodeFixture::with_box();
    let file = world.node.scratch().join("c");
    std::fs::write(&file, "one").unwrap();
    world.ok(&format!("config create c {}", file.display()));
    let flags = [
        "--replicas",
        "3",
        "--env",
        "A=1",
        "--config",
        "c",
        "--restart-max",
        "1",
        "--restart-delay",
        "100ms",
    ];
    // A loaded node reports the end of a task late.
    let policy = ["--update-monitor", "30s", "--update-parallelism", "2"];
    world.create_script("web", &[&flags[..], &policy].concat(), "sleep 1000");
    let before: Vec<String> = world.wait_serving("web", 3).into_iter().map(|task| task.id).collect();
    let update = ["service", "update", "web", "--env-add", "A=2", "--config-rm", "c", "--command", "false"];
    let output = world.warren().run_refused(&update, FAILED);
    let expected = "revision 2 was rolled back: the service runs revision 1 again, as 3";
    assert!(output.contains("exited with code 1") && output.contains(expected), "{output}");
    let takes_back = output.lines().find(|line| line.contains("the rollback takes back: ")).unwrap();
    assert!(takes_back.contains("env ~A") && takes_back.contains("config c none -> 1"), "{takes_back}");
    let after: Vec<String> = world.wait_serving("web", 3).into_iter().map(|task| task.id).collect();
    assert_eq!(after, before, "tasks that kept running are not replaced");
    let tasks = task_document::of_service(&world.node, "web");
    let others = tasks.iter().filter(|task| !before.contains(&task.id)).count();
    assert_eq!(others, 2, "two at a time, and no third: {tasks:#?}");
    // A good one goes through, all at once.
    let all_at_once = "--update-parallelism 0 --update-order stop-first --update-monitor 0s";
    world.ok(&format!("service update web --env-add A=3 {all_at_once}"));
    assert_eq!(inspect(&world, "web")["rollout"]["state"], "completed");
}
