//! Health checks and usage: what is waited for, what is shown.

use serde_json::{Value, json};

use crate::user::CliUser;

fn create<'a>(image: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["service", "create", "web", "--image", image, "--health-tcp=80"], more].concat()
}

#[test]
fn wait_prints_check_output() {
    let person = CliUser::new();
    let output = person.fails(7, &create("unsure", &["--timeout=3s"]));
    assert!(
        output.contains("\nweb.1: health check: connection refused on port 80 (2 of 3), on node-1\n"),
        "{output}"
    );
    let end = "error: service web did not reach the desired state after 3s\n  \
               why: web.1: health check: connection refused";
    assert!(output.contains(end), "{output}");
}

#[test]
fn unhealthy_service_ends_waiting() {
    let person = CliUser::new();
    let text = person.fails(1, &create("unhealthy", &[]));
    let end = "error: service web did not reach the desired state
  why: web.1: unhealthy: connection refused on port 80 (3 consecutive failures), on node-1
       last lines of task ID:
         | hello \u{fffd}
         | oops
  try: see `warren service ps web` and `warren task inspect TASK`
";
    let id = person.ok(&["service", "ps", "-q", "web"]);
    assert!(text.replace(id.trim(), "ID").ends_with(end), "{text}");
    assert!(person.ok(&["service", "ps", "web"]).contains("RUNNING (unhealthy)"));
    let shown: Value = serde_json::from_str(&person.ok(&["task", "inspect", "web.1", "-o", "json"])).unwrap();
    assert_eq!((&shown["health"], &shown["ready"]), (&json!("unhealthy"), &json!(false)));
    assert_eq!(shown["checks"][1]["output"], "connection refused on port 80");
    // Another one that is unhealthy already does not end the wait of a scale.
    let printed = person.fails(1, &["service", "scale", "web=2"]);
    assert!(printed.contains("why: web.2: unhealthy") && !printed.contains("why: web.1"), "{printed}");
}

#[test]
fn health_check_is_set_and_removed() {
    let person = CliUser::new();
    let health = ["--health-http=/ok", "-p8080:80", "--health-header=Host=a", "--health-interval=5s"];
    person.ok(&[&["service", "create", "web", "--image=runs", "--detach"], &health[..]].concat());
    let inspect = || -> Value {
        let shown: Value =
            serde_json::from_str(&person.ok(&["service", "inspect", "web", "-o", "json"])).unwrap();
        shown["spec"]["task"]["health"].clone()
    };
    let headers = json!([{"name": "Host", "value": "a"}]);
    let expected = json!({
        "probe": {"http": {"port": 80, "path": "/ok", "headers": headers}}, "interval": "5s", "timeout": "5s",
        "retries": 3, "startPeriod": "0s", "startInterval": "1s",
    });
    assert_eq!(inspect(), expected);
    person.ok(&["service", "update", "web", "--health-cmd=test -e /ok"]);
    assert_eq!(inspect()["probe"]["exec"]["command"], json!(["/bin/sh", "-c", "test -e /ok"]));
    person.ok(&["service", "update", "web", "--no-health"]);
    assert_eq!(inspect(), Value::Null);
    let history = person.ok(&["service", "history", "web"]);
    assert!(history.lines().nth(1).unwrap().ends_with("health removed"), "{history}");
}

#[test]
fn busiest_task_is_listed_first() {
    let person = CliUser::new();
    let empty = "TASK   NODE   STATE   CPU   MEMORY   RECEIVED   SENT   READ   WRITTEN   PIDS\n";
    assert_eq!(person.ok(&["service", "top"]), empty);
    person.ok(&["service", "create", "web", "--image=runs", "--replicas=2", "--cpus=0.5"]);
    person.ok(&["service", "create", "api", "--image=runs"]);
    // Once, since nobody sits at a terminal.
    let shown = person.ok(&["service", "top", "web", "web", "--once"]);
    let rows: Vec<&str> = shown.lines().collect();
    assert!(rows[1].starts_with("web.2   node-2   RUNNING   0.2/0.5   12MiB"), "{shown}");
    assert!(rows.len() == 3 && rows[2].starts_with("web.1   node-1"), "{shown}");
    let all: Value = serde_json::from_str(&person.ok(&["service", "top", "-o", "json"])).unwrap();
    assert_eq!((all.as_array().unwrap().len(), &all[0]["usage"]["cpu"]), (3, &json!("0.2")));
    person.fails(3, &["service", "top", "nobody"]);
}

#[test]
fn top_redraws_on_a_terminal() {
    let person = CliUser::new();
    person.ok(&["service", "create", "web", "--image=runs"]);
    let mut watched = person.watch_at_terminal(&["service", "top"]);
    watched.read_until("web.1");
    person.ok(&["service", "create", "later", "--image=runs"]);
    watched.read_until("later.1");
}
