//! `warren service logs` and `warren task logs`.

use std::io::Read;

use crate::user::CliUser;

fn user_with_image(image: &str) -> CliUser {
    let person = CliUser::new();
    person.ok(&["service", "create", "web", "--image", image, "--replicas=2", "--detach"]);
    person
}

#[test]
fn lines_keep_their_stream() {
    let person = user_with_image("runs");
    let (code, stdout, stderr) = person.bytes(&["service", "logs", "web"]);
    assert_eq!(code, 0);
    assert_eq!(stdout, b"web.1@node-1 | hello \xff\nweb.2@node-2 | hello \xff\n");
    assert_eq!(stderr, b"web.1@node-1 | oops\nweb.2@node-2 | oops\n");
    let (code, stdout, stderr) = person.bytes(&["task", "logs", "web.2", "--timestamps"]);
    assert_eq!(code, 0);
    assert_eq!(stdout, b"2026-11-20T14:18:00.120000000Z hello \xff\n");
    assert_eq!(stderr, b"2026-11-20T14:18:00.120000000Z oops\n");
    let asked = person.manager.last_logs_request();
    assert_eq!((asked.task.as_str(), asked.follow, asked.tail, asked.since), ("web.2", false, None, None));
}

#[test]
fn log_options_reach_the_manager() {
    let person = user_with_image("runs");
    person.bytes(&["service", "logs", "web", "-n5", "--since=2026-11-20T14:18:00Z"]);
    let asked = person.manager.last_logs_request();
    assert_eq!((asked.tail, asked.since), (Some(5), Some(1_795_184_280_000)));
    person.bytes(&["task", "logs", "web.1", "--tail=all", "--since=10m"]);
    let asked = person.manager.last_logs_request();
    assert!(asked.tail.is_none() && asked.since.is_some(), "{asked:?}");
    for wrong in ["--tail=x", "--since=yesterday"] {
        person.fails(2, &["service", "logs", "web", wrong]);
    }
    person.fails(2, &["service", "logs"]);
}

#[test]
fn closed_pipe_ends_follow() {
    let person = user_with_image("runs");
    let mut child = person.start(&["service", "logs", "-f", "web", "web"]);
    let mut first = [0; 64];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"web.1@node-1 | hello"), "{first:?}");
    // Its output is closed now.
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
    assert!(!ended.stderr.windows(5).any(|word| word == b"error"), "{ended:?}");
    assert!(person.manager.last_logs_request().follow);
}

#[test]
fn warnings_without_lines_fail() {
    let person = user_with_image("pending");
    let output = person.fails(1, &["service", "logs", "web"]);
    assert!(output.starts_with("warning: web.1@: it has no node yet\n"), "{output}");
    assert!(
        output.contains("error: the logs of web were not read\n  why: no node returned a line"),
        "{output}"
    );
    person.ok(&["service", "create", "other", "--image=runs"]);
    let (code, stdout, _) = person.bytes(&["service", "logs", "web", "other"]);
    assert_eq!((code, stdout.as_slice()), (0, &b"other.1@node-1 | hello \xff\n"[..]));
    person.fails(3, &["service", "logs", "nobody"]);
    let text = person.fails(3, &["task", "logs", "web.9"]);
    assert!(text.contains("why: there is no task web.9\n"), "{text}");
}

#[test]
fn ended_tasks_show_their_last_lines() {
    let person = user_with_image("rejected");
    let listed = person.ok(&["service", "ps", "web", "--all"]);
    let ended = listed.split_once("\n\n").unwrap().1;
    assert!(ended.starts_with("web.1 is REJECTED since "), "{listed}");
    let documents = person.ok(&["service", "ps", "web", "--all", "-o", "json"]);
    let documents: serde_json::Value = serde_json::from_str(&documents).unwrap();
    let task = &documents[0]["id"];
    let lines = format!(
        " on node-1: image rejected is not on this node\n  | hello \u{fffd}\n  | oops\n  try: warren task logs {}\n",
        task.as_str().unwrap()
    );
    assert!(ended.contains(&lines), "{listed}");
    assert_eq!(documents[0]["lastLines"], serde_json::json!(["hello \u{fffd}", "oops"]));
}

#[test]
fn earlier_tasks_are_selected() {
    let person = user_with_image("runs");
    person.bytes(&["service", "logs", "web", "--task=1", "--previous"]);
    let asked = person.manager.last_logs_request();
    assert_eq!((asked.service.as_str(), asked.task.as_str(), asked.previous), ("web", "1", true));
    person.bytes(&["task", "logs", "web.1", "-p"]);
    assert!(person.manager.last_logs_request().previous);
    person.fails(2, &["service", "logs", "web", "--previous", "--follow"]);
    let refused = person.fails(2, &["service", "logs", "web", "web", "--task=1"]);
    assert!(refused.contains("--task selects a task of one service"), "{refused}");
}
