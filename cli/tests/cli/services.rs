//! `warren service ...`: what is waited for and how it ends.

use crate::user::CliUser;

fn create<'a>(name: &'a str, image: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["service", "create", name, "--image", image], more].concat()
}

#[test]
fn a_service_is_created_waited_for_shown_and_removed() {
    let person = CliUser::new();
    let ran = person.warren(&create("web", "runs", &["--replicas=2", "--publish=8080:80"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let id = ran.stdout.trim();
    assert_eq!(id.len(), 25, "{ran:?}");
    assert!(ran.stderr.starts_with("service web created\n"), "{ran:?}");
    assert!(ran.stderr.ends_with("service web: 2 of 2 ready\n"), "{ran:?}");

    let listed = person.ok(&["service", "ls"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["web", "replicated", "0/2", "runs", "8080->80/tcp"], "{listed}");
    assert_eq!(*row.last().unwrap(), &id[..10], "{listed}");
    let tasks = person.ok(&["service", "ps", "web"]);
    let names: Vec<&str> = tasks.lines().skip(1).map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(names, ["web.1", "web.2"]);
    let shown: serde_json::Value =
        serde_json::from_str(&person.ok(&["service", "inspect", id, "-o", "json"])).unwrap();
    assert_eq!(shown["spec"]["mode"]["replicated"]["replicas"], 2);

    let ran = person.warren(&["service", "rm", "web", "web"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "web\n"), "{ran:?}");
    assert!(ran.stderr.ends_with("service web: removed\n"), "{ran:?}");
    let again = person.fails(3, &["service", "rm", "web"]);
    assert!(again.starts_with("error: nothing was removed\n  why: there is no service web\n"), "{again}");
    assert_eq!(person.ok(&["task", "ls", "-o", "json"]), "[]\n");
}

#[test]
fn what_is_created_can_be_printed_for_programs() {
    let person = CliUser::new();
    let ran = person.warren(&create("web", "runs", &["-o", "json"]));
    let shown: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(shown["name"], "web");
}

#[test]
fn a_name_that_is_taken_is_a_conflict() {
    let person = CliUser::new();
    person.ok(&create("web", "runs", &[]));
    let output = person.fails(4, &create("web", "runs", &[]));
    let expected = "error: service web was not created\n  why: there is a service web already\n";
    assert!(output.starts_with(expected), "{output}");
}

#[test]
fn rejected_task_ends_waiting() {
    let person = CliUser::new();
    let output = person.fails(1, &create("web", "rejected", &[]));
    let end = "error: service web did not reach the desired state
  \
               why: web.1: REJECTED on node-1: image rejected is not on this node
       last lines of task ID:
         | hello \u{fffd}
         | oops
  \
               try: see `warren service ps web` and `warren task inspect TASK`
";
    let id = person.ok(&["service", "ps", "-q", "web"]);
    assert!(output.replace(id.trim(), "ID").ends_with(end), "{output}");
    // Scaling it is not blamed for what went wrong before; the new slot is.
    let text = person.fails(1, &["service", "scale", "web=2"]);
    assert!(text.contains("web.2: REJECTED") && !text.contains("why: web.1"), "{text}");
}

#[test]
fn wait_times_out_with_reason_and_detach_skips_it() {
    let person = CliUser::new();
    let output = person.fails(7, &create("web", "pending", &["--timeout=3s"]));
    assert!(output.contains("web.1: PENDING: 0 of 1 nodes fit: 1 lacks memory\n"), "{output}");
    assert!(output.contains("error: service web did not reach the desired state after 3s\n"), "{output}");
    person.ok(&create("other", "pending", &["--detach"]));
    assert_eq!(person.manager.replicas("other"), Some(1));
}

#[test]
fn several_services_are_scaled_or_none() {
    let person = CliUser::new();
    person.ok(&create("a", "runs", &[]));
    person.ok(&create("b", "runs", &["--replicas=2"]));
    for _ in 0..2 {
        let ran = person.warren(&["service", "scale", "a=3", "b=0"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
        assert_eq!((person.manager.replicas("a"), person.manager.replicas("b")), (Some(3), Some(0)));
    }
    person.fails(3, &["service", "scale", "a=1", "nobody=1"]);
    person.fails(2, &["service", "scale", "a=1", "a=2"]);
    let output = person.fails(2, &["service", "scale", "a=-1"]);
    assert!(output.contains("replicas: -1 is negative; give 0 to 1000000"), "{output}");
    assert_eq!(person.manager.replicas("a"), Some(3));
    let shown: serde_json::Value =
        serde_json::from_str(&person.ok(&["service", "scale", "a=2", "-o", "json"])).unwrap();
    assert_eq!(shown[0]["replicas"]["desired"], 2);
}

#[test]
fn a_spec_that_is_wrong_is_refused_with_every_field() {
    let person = CliUser::new();
    let more = ["--memory=1Mi", "--replicas=-1", "-p80:80", "-p80:81"];
    let output = person.fails(2, &create("Web", "runs", &more[1..2]));
    assert!(
        output.contains("\n  why: 2 fields are wrong\n       spec.name: \"Web\" is not a service name"),
        "{output}"
    );
    assert!(output.contains("\n       spec.mode.replicated.replicas: -1 is negative"), "{output}");
    let text = person.fails(2, &create("web", "runs", &[more[0], more[2], more[3]]));
    let memory = "spec.task.limits.memory: 1MiB is below the runtime's minimum of 6MiB";
    assert!(text.contains(memory) && text.contains("spec.ports[1].hostPort: host port 80"), "{text}");
    assert_eq!(person.manager.replicas("web"), None);
}

#[test]
fn unsupported_flag_is_refused_by_name() {
    let person = CliUser::new();
    let output = person.fails(2, &create("web", "runs", &["--priority", "3"]));
    let expected = "error: --priority of `warren service create` is not supported by this version\n  \
                  try: leave it out; see `--help`\n";
    assert_eq!(output, expected);
    for (more, desired) in [
        (["--publish", "53:53/icmp"], "\"icmp\" is not a protocol; give tcp, udp or sctp"),
        (
            ["--publish", "80:80,mode=mesh"],
            "\"mode=mesh\" is not known; there are mode=host, mode=ingress, prefer=local and affinity=client",
        ),
        (["--mode", "job"], "job is not supported by this version; replicated and global are"),
    ] {
        let text = person.fails(2, &create("web", "runs", &more));
        assert!(text.contains(desired), "{text}");
    }
    let printed = person.fails(2, &["service", "promote", "web"]);
    assert!(
        printed.starts_with("error: `warren service promote` is not supported by this version\n"),
        "{printed}"
    );
    assert_eq!(person.manager.replicas("web"), None);
}

#[test]
fn variables_come_from_files_and_flags() {
    let person = CliUser::new();
    let file = person.path("env");
    std::fs::write(&file, "# comment\nA=1\nB=1\n").unwrap();
    let file = file.to_str().unwrap();
    person.ok(&create("web", "runs", &["--env-file", file, "--env", "B=2", "--", "-c", "x"]));
    let shown: serde_json::Value =
        serde_json::from_str(&person.ok(&["service", "inspect", "web", "-o", "json"])).unwrap();
    let env = serde_json::json!([{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]);
    assert_eq!(shown["spec"]["task"]["env"], env);
    assert_eq!(shown["spec"]["task"]["args"], serde_json::json!(["-c", "x"]));
    let output = person.fails(3, &create("x", "runs", &["--env-file", "/nowhere/env"]));
    assert!(output.contains("/nowhere/env: there is no such file"), "{output}");
    let text = person.fails(2, &create("x", "runs", &["--env", "NOT_SET"]));
    assert!(text.contains("NOT_SET has no value, and is not set in the environment"), "{text}");
}

#[test]
fn more_replicas_than_the_limit_need_a_confirmation() {
    let person = CliUser::new();
    person.ok(&["cluster", "update", "--max-replicas-per-service=3"]);
    let text = person.fails(4, &create("web", "runs", &["--replicas=4"]));
    assert!(text.ends_with("  try: correct the number, or confirm it with --yes\n"), "{text}");
    person.ok(&create("web", "runs", &["--replicas=4", "--yes"]));
    person.fails(4, &["service", "scale", "web=5"]);
    person.ok(&["service", "scale", "web=5", "--yes"]);
    assert_eq!(person.manager.replicas("web"), Some(5));
}

#[test]
fn misspelled_service_gets_a_suggestion() {
    let person = CliUser::new();
    for name in ["web", "database"] {
        person.ok(&["service", "create", name, "--image=runs"]);
    }
    for (given, hint) in [
        ("wbe", "did you mean web?"),
        ("databse", "did you mean database?"),
        ("data", "did you mean database?"),
        ("other", "run `ls` to list what exists"),
    ] {
        for command in ["inspect", "ps"] {
            let failed = person.fails(3, &["service", command, given]);
            assert!(failed.contains(&format!("try: {hint}\n")), "{failed}");
        }
    }
}
