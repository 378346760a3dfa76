//! Container logs through the manager: complete, in order, also during restarts of agents.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, NodeFixture, SOON};
use crate::e2e::task_document;

const NOT_FOUND: i32 = 3;

#[test]
fn lines_are_read_through_the_manager() {
    let world = NodeFixture::with_box();
    world.create_script("web", &[], "for i in 1 2 3 4 5; do echo out $i; echo err $i >&2; done; sleep 1000");
    world.wait_serving("web", 1);
    let read = |flags: &[&str]| world.warren().run(&[&["task", "logs", "web.1"][..], flags].concat());
    let whole = eventually(SOON, "all lines", || {
        let ran = read(&[]);
        if ran.stdout.lines().count() == 5 && ran.stderr.lines().count() == 5 {
            Ok(ran)
        } else {
            Err(ran.to_string())
        }
    });
    assert_eq!(whole.stdout, "out 1\nout 2\nout 3\nout 4\nout 5\n");
    assert_eq!(whole.stderr, "err 1\nerr 2\nerr 3\nerr 4\nerr 5\n");
    let ended = read(&["--tail", "2"]);
    assert_eq!(ended.stdout.lines().count() + ended.stderr.lines().count(), 2, "{ended}");
    let stamped = read(&["--timestamps", "--tail", "1"]);
    let line = format!("{}{}", stamped.stdout, stamped.stderr);
    assert!(line.starts_with("20") && line.contains("T") && line.contains("Z "), "{line}");
    let later = read(&["--since", "2099-01-01T00:00:00Z"]);
    assert_eq!((later.code, later.stdout.as_str(), later.stderr.as_str()), (0, "", ""), "{later}");
    let recent = read(&["--since", "10m"]);
    assert_eq!(recent.stdout, whole.stdout);
    let of_service = world.ok("service logs web");
    assert!(
        of_service.lines().all(|line| line.starts_with("web.1@") && line.contains("out")),
        "{of_service}"
    );
    world.warren().run_refused(&["service", "logs", "nobody"], NOT_FOUND);
    world.warren().run_refused(&["task", "logs", "web.9"], NOT_FOUND);
}

#[test]
fn follow_sees_every_line_across_agent_kill() {
    let mut cluster = WorkerCluster::new(2);
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; sleep 0.05; done; sleep 1000";
    let words =
        ["service", "create", "web", "--image", BOX, "--replicas", "2", "--command", "sh", "--arg", "-c"];
    cluster.warren().run_ok(&[&words[..], &["--arg", script]].concat());
    let mut command = cluster.warren().command(&["service", "logs", "-f", "web"]);
    let mut following = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let reader = BufReader::new(following.stdout.take().unwrap());
    let (send, lines) = std::sync::mpsc::channel();
    let thread =
        std::thread::spawn(move || reader.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    // One of the agents is killed in the middle and restarted.
    cluster.workers[0].kill();
    cluster.workers[0].run_again();
    cluster.workers[0].wait_ready();
    let mut seen = [0_u32; 2];
    while seen != [100, 100] {
        let line = lines.recv_timeout(2 * SOON).unwrap_or_else(|_| panic!("only {seen:?} lines came"));
        let slot = if line.starts_with("web.1@") { 0 } else { 1 };
        let number: u32 = line.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{line}"));
        assert_eq!(number, seen[slot] + 1, "a line is missing or came twice: {line}");
        seen[slot] = number;
    }
    following.kill().unwrap();
    following.wait().unwrap();
    let _ = thread.join();
}

#[test]
fn log_size_is_bounded_and_newest_lines_stay() {
    let world = NodeFixture::with_box();
    let script = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); echo $i xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done; \
                  sleep 1000";
    world.create_script("flood", &["--log-max-size", "256Ki", "--log-files", "3"], script);
    let task = world.wait_serving("flood", 1).remove(0);
    let last = eventually(2 * SOON, "the last line", || {
        let text = world.warren().run_ok(&["task", "logs", &task.id, "--tail", "1"]);
        if text.starts_with("60000 ") { Ok(text) } else { Err(text) }
    });
    assert_eq!(last.lines().count(), 1);
    let kept = task_document::output(&world.node, &task);
    let numbers: Vec<u32> =
        kept.lines().map(|line| line.split(' ').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.len() > 1000 && numbers.len() < 60_000, "{} lines are kept", numbers.len());
    assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "lines are missing in the middle");
    let directory = world.node.data_dir().join("tasks").join(&task.id);
    let size: u64 = walk(&directory);
    assert!(size < 4 * (256 << 10), "{size} bytes are kept");
}

fn walk(directory: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let about = entry.metadata().unwrap();
            if about.is_dir() { walk(&entry.path()) } else { about.len() }
        })
        .sum()
}

#[test]
fn lines_written_without_agent_are_kept() {
    let mut world = NodeFixture::with_box();
    world.create_script("web", &[], "i=0; while true; do i=$((i+1)); echo $i; sleep 0.02; done");
    let task = world.wait_serving("web", 1).remove(0);
    // Without an answer, the output is text of the CLI.
    let last = |world: &NodeFixture| {
        let text = task_document::output(&world.node, &task);
        text.lines().last().and_then(|line| line.parse::<u32>().ok()).unwrap_or(0)
    };
    eventually(SOON, "the first lines", || if last(&world) > 10 { Ok(()) } else { Err("few".to_owned()) });
    let before = last(&world);
    world.node.kill();
    // Not a wait: for this long no client reads the container's output.
    std::thread::sleep(Duration::from_secs(2));
    world.node.run_again();
    world.node.wait_ready();
    let text = eventually(SOON, "lines of the time without an agent", || {
        let ran = world.warren().run(&["task", "logs", &task.id]);
        if ran.code == 0 && last(&world) > before + 50 { Ok(ran.stdout) } else { Err(ran.to_string()) }
    });
    for (line, expected) in text.lines().zip(1_u32..) {
        assert_eq!(line, expected.to_string(), "a line is missing or came twice");
    }
}
