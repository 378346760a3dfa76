//! Everything that only asks, and everything that is wrong before anything can be asked.

use crate::user::CliUser;

#[test]
fn missing_context_is_refused() {
    let person = CliUser::new();
    std::fs::remove_file(person.path("contexts.toml")).unwrap();
    let output = person.fails(2, &["service", "ls"]);
    let expected = "error: services were not listed\n  why: there is no cluster context\n  \
                  try: run `warren manager init` on this machine, or pass --manager or --context\n";
    assert_eq!(output, expected);
    // A socket of this machine's manager is enough.
    std::fs::create_dir(person.path("run")).unwrap();
    std::os::unix::fs::symlink(person.path("warren.sock"), person.path("run/warren.sock")).unwrap();
    person.ok(&["service", "ls"]);
    assert_eq!(person.ok(&["version"]), concat!("warren ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn manager_is_chosen_by_flags() {
    let person = CliUser::new();
    let output = person.fails(5, &["--context", "gone", "node", "ls"]);
    assert!(
        output.contains("why: cannot reach the manager at /nowhere/s: /nowhere/s does not exist"),
        "{output}"
    );
    let text = person.fails(3, &["--context", "nobody", "node", "ls"]);
    assert!(text.contains("there is no context \"nobody\"") && text.contains("it has: here, gone"), "{text}");
    let printed = person.fails(2, &["--manager", "127.0.0.1:1", "node", "ls"]);
    assert!(printed.contains("context \"here\" has no certificate"), "{printed}");
    let said = person.fails(2, &["--manager", "127.0.0.1", "node", "ls"]);
    assert!(said.contains("is not HOST:PORT"), "{said}");
}

#[test]
fn damaged_contexts_file_is_reported_without_content() {
    let person = CliUser::new();
    person.write_contexts("[[contexts]]\nname = \"a\"\nkey = \"SECRET");
    let output = person.fails(1, &["node", "ls"]);
    assert!(output.contains("contexts.toml: line 3") && !output.contains("SECRET"), "{output}");
}

#[test]
fn each_kind_of_refusal_has_its_exit_code() {
    let person = CliUser::new();
    let output = person.fails(6, &["node", "inspect", "forbidden"]);
    assert!(output.contains("needs the role admin; the caller has the role viewer"), "{output}");
    person.fails(3, &["task", "inspect", "web.1"]);
    person.fails(3, &["service", "inspect", "web"]);
    person.fails(3, &["service", "ps", "web"]);
    let text = person.fails(3, &["cluster", "background-tasks", "x"]);
    assert!(text.contains("there is no background task x; existing: garbage, liveness, planner"), "{text}");
    for wrong in [&["service"][..], &["nothing"], &["service", "create"], &["node", "ls", "--timeout", "x"]] {
        person.fails(2, wrong);
    }
    person.fails(2, &["node", "ls", "--log-level", "=!"]);
}

#[test]
fn leaderless_wait_prints_notice_then_hint() {
    let person = CliUser::new();
    let ran = person.warren(&["node", "inspect", "leaderless"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (5, ""));
    let lines: Vec<&str> = ran.stderr.lines().map(str::trim).collect();
    let expected =
        ["waiting for a leader", "error: node leaderless was not found", "why: no manager led within 2s"];
    let (hint, output) = lines.split_last().unwrap();
    assert_eq!(output, expected);
    assert!(hint.starts_with("try: check which managers respond with `warren manager ls --stale`"), "{hint}");
    assert!(hint.contains("`warren manager init --force-new-cluster`"), "{hint}");
}

#[test]
fn every_list_has_table_and_json() {
    let person = CliUser::new();
    assert_eq!(person.ok(&["service", "ls"]), "NAME   MODE   REPLICAS   IMAGE   PORTS   AGE   ID   UPDATE\n");
    assert_eq!(person.ok(&["service", "ls", "-o", "json"]), "[]\n");
    assert_eq!(person.ok(&["service", "ls", "-o", "yaml"]).trim(), "[]");
    assert!(person.ok(&["node", "ls"]).contains("node-1   READY"));
    assert!(person.ok(&["node", "ls", "-o", "wide"]).contains("RUNTIME"));
    let info: serde_json::Value =
        serde_json::from_str(&person.ok(&["cluster", "info", "-o", "json"])).unwrap();
    assert_eq!((&info["id"], &info["logBytesWritten"]), (&"c1".into(), &0.into()));
    assert!(person.ok(&["cluster", "info"]).starts_with("id: c1\n"));
    assert_eq!(person.ok(&["cluster", "background-tasks", "planner"]).lines().count(), 3);
    let background_tasks = person.ok(&["cluster", "bg"]);
    assert_eq!(background_tasks.lines().count(), 6);
    assert!(
        background_tasks.lines().nth(3).unwrap().starts_with("garbage     m1        node-1"),
        "{background_tasks}"
    );
    assert!(background_tasks.lines().nth(5).unwrap().starts_with("(unknown)   m2 "), "{background_tasks}");
    let tasks_run: serde_json::Value =
        serde_json::from_str(&person.ok(&["cluster", "background-tasks", "-o", "json"])).unwrap();
    assert_eq!((&tasks_run[2]["manager"], &tasks_run[2]["node"]), (&"m1".into(), &"node-1".into()));
    assert_eq!(tasks_run[4], serde_json::json!({"manager": "m2", "reason": "there is no connection to it"}));
}
