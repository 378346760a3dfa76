//! Updates of a running service: slot by slot, without an interruption, and never further than the first
//! failure. What follows a failure is in `rollouts`.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::Value;
use warren_testkit::image::TestImage;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON, WEB};
use crate::e2e::task_document;
use crate::e2e::traffic::ClientLocation;

const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

fn service(world: &NodeFixture, name: &str) -> Value {
    world.warren().json(&["service", "inspect", name])
}

/// The ids of the tasks that serve.
fn ids(world: &NodeFixture, name: &str, count: usize) -> BTreeSet<String> {
    world.wait_serving(name, count).into_iter().map(|task| task.id).collect()
}

#[test]
fn rolling_update_keeps_the_port_available() {
    let world = NodeFixture::new();
    // Without a check, a task is ready before its server listens.
    world.ok(&format!(
        "service create web --image {WEB} --replicas 3 --publish 8088:80 --drain-delay 2s \
         --health-http :80/healthz --health-interval 1s"
    ));
    let before = ids(&world, "web", 3);
    // The tasks are ready before the port is open.
    world.assert_answered_by(ClientLocation::Outside, 8088, &["web-1", "web-2", "web-3"]);
    let mut updating =
        world.warren().command(&["service", "update", "web", "--env-add", "A=b", "--memory", "64Mi"]);
    let mut updating = updating.spawn().unwrap();
    let begin = Instant::now();
    let mut answers = 0;
    let status = loop {
        let answered = world.answering_host(ClientLocation::Outside, 8088);
        assert!(answered.is_ok(), "a request failed during the update: {answered:?}");
        answers += 1;
        let tasks = task_document::of_service(&world.node, "web");
        let serving: BTreeSet<u32> =
            tasks.iter().filter(|task| task.is_serving()).map(|task| task.slot).collect();
        assert_eq!(serving.len(), 3, "a slot was empty during the update: {tasks:#?}");
        assert!(
            tasks.iter().filter(|task| task.is_live()).count() <= 4,
            "more than one at a time: {tasks:#?}"
        );
        if let Some(status) = updating.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < 2 * SOON, "the update did not end");
    };
    assert!(status.success() && answers > 3, "{status} after {answers} answers");
    let after = ids(&world, "web", 3);
    assert!(before.is_disjoint(&after), "{before:?} {after:?}");

    // The same spec again changes nothing; `--force` does.
    world.ok("service update web --env-add A=b");
    assert_eq!(ids(&world, "web", 3), after);
    world.ok("service update web --force");
    assert!(ids(&world, "web", 3).is_disjoint(&after));
    // Changes that do not affect tasks leave them running.
    let now = ids(&world, "web", 3);
    world.ok("service update web --label-add team=shop");
    assert_eq!(ids(&world, "web", 3), now);
    assert_eq!(service(&world, "web")["spec"]["labels"]["team"], "shop");
}

#[test]
fn paused_update_keeps_old_tasks() {
    let world = NodeFixture::new();
    let restart = ["--replicas", "3", "--restart-max", "1", "--restart-delay", "100ms"];
    // A loaded node reports the end of a task late.
    let policy = ["--update-monitor", "30s", "--update-on-failure", "pause"];
    world.create_script("web", &[&restart[..], &policy].concat(), "sleep 1000");
    let before = ids(&world, "web", 3);
    let output = world.warren().run_refused(&["service", "update", "web", "--command", "false"], FAILED);
    assert!(output.contains("exited with code 1") && output.contains("rollback"), "{output}");
    let still: BTreeSet<String> = ids(&world, "web", 3).into_iter().collect();
    assert_eq!(still, before, "tasks that ran were replaced by ones that fail");
    // It stays paused, shows the reason, and does not try again.
    let tasks = task_document::of_service(&world.node, "web").len();
    let listed = world.ok("service ls");
    assert!(listed.contains("paused at 0/3"), "{listed}");
    assert!(service(&world, "web").to_string().contains("exited with code 1"));
    world.run_and_remove_something();
    assert_eq!(task_document::of_service(&world.node, "web").len(), tasks);

    let history = world.warren().json(&["service", "history", "web"]);
    let numbers: Vec<u64> =
        history.as_array().unwrap().iter().map(|one| one["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [2, 1]);
    world.warren().run_refused(&["service", "update", "web", "--resume"], FAILED);
    world.ok("service rollback web");
    assert_eq!(ids(&world, "web", 3), before, "tasks that kept running are not replaced");
    // A missing image is a failure too, with its reason.
    let update = ["service", "update", "web", "--image", "warren.local/none:1", "--pull", "never"];
    let text = world.warren().run_refused(&update, FAILED);
    assert!(text.contains("warren.local/none:1"), "{text}");
    assert_eq!(ids(&world, "web", 3), before);
    world.ok("service rollback web --to 1");
    assert_eq!(ids(&world, "web", 3), before);
}

#[test]
fn rollback_restores_the_revision() {
    let world = NodeFixture::with_box();
    world.create_script("web", &["--env", "A=1"], "echo $A $B; sleep 1000");
    let says = |expected: &str| {
        eventually(SOON, &format!("a task with the reason {expected:?}"), || {
            let task = task_document::serving(&world.node, "web", 1)?.remove(0);
            let text = task_document::output(&world.node, &task);
            if text.trim_end() == expected { Ok(()) } else { Err(text) }
        });
    };
    says("1");
    world.ok("service update web --env-add A=2 --env-add B=x");
    says("2 x");
    world.ok("service update web --env-rm B");
    says("2");
    let history = world.ok("service history web");
    assert!(history.contains("env"), "it shows what changed: {history}");
    world.ok("service rollback web --to 2");
    says("2 x");
    world.ok("service rollback web --to 1");
    says("1");
    world.warren().run_refused(&["service", "rollback", "web", "--to", "77"], NOT_FOUND);
    world.warren().run_refused(&["service", "rollback", "nobody"], NOT_FOUND);
    world.create_script("new", &[], "sleep 1000");
    world.warren().run_refused(&["service", "rollback", "new"], CONFLICT);
    world.warren().run_refused(&["service", "history", "nobody"], NOT_FOUND);
    world.warren().run_refused(&["service", "update", "web", "--mode", "global"], USAGE);
    world.warren().run_refused(&["service", "update", "web", "--memory", "1Mi"], USAGE);
    world.warren().run_refused(&["service", "update", "web", "--update-parallelism", "-2"], USAGE);
}

#[test]
fn every_task_of_a_revision_runs_the_same_image() {
    let world = NodeFixture::with_box();
    let tagged = "warren.local/moving:1";
    let says = |text: &'static str| {
        let image = TestImage::busybox(tagged).entrypoint(["sh", "-c"]);
        image.arguments([format!("echo {text}; trap exit TERM; sleep 1000 & wait")])
    };
    world.import("one.tar", &says("one").oci_archive());
    world.ok(&format!("service create web --image {tagged} --replicas 1"));
    let pinned = service(&world, "web")["digest"].as_str().unwrap().to_owned();
    assert!(pinned.starts_with("sha256:"), "{pinned}");
    // The tag moves; the revision does not.
    world.import("two.tar", &says("two").oci_archive());
    world.ok("service scale web=2");
    let reported = |count: usize| {
        let tasks = world.wait_serving("web", count);
        tasks.iter().map(|task| task_document::output(&world.node, task)).collect::<BTreeSet<_>>()
    };
    eventually(SOON, "two of the same", || {
        let found = reported(2);
        if found == BTreeSet::from(["one\n".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    // A new revision uses the tag's present digest, and a rollback to the old one is still possible.
    world.ok("service update web --force");
    eventually(SOON, "two of the new", || {
        let found = reported(2);
        if found == BTreeSet::from(["two\n".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    world.ok("service rollback web --to 1");
    eventually(SOON, "two of the old", || {
        let found = reported(2);
        if found == BTreeSet::from(["one\n".to_owned()]) { Ok(()) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(service(&world, "web")["digest"], pinned.as_str());
    assert_ne!(BOX, tagged);
}
