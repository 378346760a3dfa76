//! `warren task restart` and `warren task attach` on real containers.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document::{self, TaskDocument};

const CONFLICT: i32 = 4;

/// Waits until the output of a task begins with `text`.
#[track_caller]
fn wait_for_output(world: &NodeFixture, task: &TaskDocument, text: &str) {
    eventually(SOON, &format!("{text:?} in the output of {}", task.name), || {
        let output = task_document::output(&world.node, task);
        if output.starts_with(text) { Ok(()) } else { Err(output) }
    });
}

#[test]
fn restarted_task_is_stopped_in_order_and_replaced() {
    let world = NodeFixture::with_box();
    let script = "trap 'echo asked to stop; exit 3' TERM; echo begun; while true; do sleep 0.1; done";
    world.create_script("web", &["--replicas", "2", "--stop-grace", "10s"], script);
    let before = world.wait_serving("web", 2);
    before.iter().for_each(|task| wait_for_output(&world, task, "begun\n"));
    let id = |slot: u64| {
        let tasks = world.warren().json(&["service", "ps", "web"]);
        let mut slots = tasks.as_array().unwrap().iter().filter(|task| task["slot"] == slot);
        slots.next().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let (first, second) = (id(1), id(2));
    let printed = world.ok("task restart web.1");
    assert!(
        printed.starts_with("web.1: ") && printed.ends_with(&format!(" runs instead of {first}\n")),
        "{printed}"
    );
    assert_eq!((id(1) == first, id(2)), (false, second), "{before:?}");
    eventually(SOON, "the stop signal", || {
        let lines = world.warren().run_ok(&["task", "logs", &first]);
        if lines == "begun\nasked to stop\n" { Ok(()) } else { Err(lines) }
    });
    // Not a failure: the next one is not delayed.
    for _ in 0..3 {
        world.ok("task restart web.1");
    }
    world.wait_serving("web", 2);
    let printed = world.warren().run_refused(&["task", "restart", &first], CONFLICT);
    assert!(printed.contains("has ended or is being stopped"), "{printed}");
    world.warren().run_refused(&["task", "restart", "web.3"], 3);
}

#[test]
fn output_is_printed_from_now_on_until_the_task_ends() {
    let world = NodeFixture::with_box();
    let script = "echo earlier; while [ ! -e /tmp/end ]; do sleep 0.1; echo now; done; echo last >&2; exit 7";
    world.create_script("web", &["--restart", "none"], script);
    let task = world.wait_serving("web", 1).remove(0);
    wait_for_output(&world, &task, "earlier\n");
    let refused = world.warren().run_refused(&["task", "attach", "-i", "web.1"], CONFLICT);
    assert!(refused.contains("its standard input is not open") && refused.contains("--stdin"), "{refused}");
    let mut command = world.warren().command(&["task", "attach", "web.1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "now");
    world.ok("task exec web.1 touch /tmp/end");
    assert!(lines.all(|line| line.unwrap() == "now"));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "last\n");
}

fn attach_with_input(world: &NodeFixture) -> Child {
    let mut command = world.warren().command(&["task", "attach", "-i", "web.1"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

#[test]
fn input_stays_open_until_a_client_ends_it() {
    let mut world = NodeFixture::with_box();
    world.create_script("web", &["--restart", "none", "--stdin"], "cat; echo end; exit 5");
    world.wait_serving("web", 1);
    let mut first = attach_with_input(&world);
    first.stdin.as_mut().unwrap().write_all(b"first\n").unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "first");
    // Neither the end of the client nor that of the agent ends the input.
    first.kill().unwrap();
    first.wait().unwrap();
    world.node.kill();
    world.node.run_again();
    world.node.wait_ready();
    world.wait_serving("web", 1);
    let mut second = attach_with_input(&world);
    // Dropped, which is its end.
    second.stdin.take().unwrap().write_all(b"a\nb").unwrap();
    let output = second.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "a\nbend\n");
}
