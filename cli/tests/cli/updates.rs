//! `warren service update`, `rollback` and `history`: what is sent, what is waited for, how it ends.

use serde_json::{Value, json};

use crate::user::CliUser;

fn with_web(image: &str) -> CliUser {
    let person = CliUser::new();
    person.ok(&["service", "create", "web", "--image", image, "--replicas=2", "--env=A=1", "--memory=64Mi"]);
    person
}

fn inspect(person: &CliUser, name: &str) -> Value {
    serde_json::from_str(&person.ok(&["service", "inspect", name, "-o", "json"])).unwrap()
}

#[test]
fn an_update_is_sent_waited_for_and_shown() {
    let person = with_web("runs");
    let update = ["service", "update", "web", "--image=new", "--env-add=B=2", "--env-rm=A", "--memory="];
    let ran = person.warren(&update);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stderr, "service web updated: revision 2\nservice web: 2 of 2 updated\n");
    assert_eq!(ran.stdout.trim().len(), 25);
    let shown = inspect(&person, "web");
    assert_eq!(shown["spec"]["task"]["image"], "new");
    assert_eq!(shown["spec"]["task"]["env"], json!([{"name": "B", "value": "2"}]));
    assert_eq!(shown["spec"]["task"].get("limits"), None);
    assert_eq!((&shown["revision"], &shown["rollout"]["updated"]), (&json!(2), &json!(2)));

    // The second time there is nothing to do, unless somebody insists.
    let ran = person.warren(&update);
    let like_that = "service web is unchanged (--force replaces all tasks)\n";
    assert_eq!((ran.code, ran.stderr.as_str()), (0, like_that), "{ran:?}");
    let ran = person.warren(&["service", "update", "web", "--force", "-o", "json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(shown["revision"], 3, "{ran:?}");
}

#[test]
fn failed_update_prints_reason_and_hint() {
    let person = with_web("runs");
    let output = person.fails(1, &["service", "update", "web", "--image=fails"]);
    let end = "error: service web was not updated to revision 2
  why: web.1 failed: exited with 1; go back with `warren service rollback web`
  try: see `warren service ps web` and `warren task inspect TASK`
";
    assert!(output.ends_with(end), "{output}");
    assert!(person.ok(&["service", "ls"]).contains("paused at 0/2: web.1 failed: exited with 1"));
    let ran = person.warren(&["service", "rollback", "web"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.starts_with("service web rolled back: revision 3\n"), "{ran:?}");
    assert_eq!(inspect(&person, "web")["spec"]["task"]["image"], "runs");
}

#[test]
fn update_wait_times_out_and_detach_skips_it() {
    let person = with_web("runs");
    let output = person.fails(7, &["service", "update", "web", "--image=slow", "--timeout=3s"]);
    assert!(output.contains("\nservice web: 0 of 2 updated\n"), "{output}");
    assert!(output.contains("error: service web was not updated to revision 2 after 3s\n"), "{output}");
    assert!(output.contains("why: update: web.1 pulls slow\n"), "{output}");
    person.ok(&["service", "update", "web", "--image=slow", "--force", "--detach"]);
    assert!(person.ok(&["service", "ls"]).contains("0/2: web.1 pulls slow"));
}

#[test]
fn concurrent_update_is_reported() {
    let person = CliUser::new();
    person.ok(&["service", "create", "contested", "--image=runs", "--detach"]);
    for change in
        [&["service", "update", "contested", "--tty"][..], &["service", "rollback", "contested", "--to=1"]]
    {
        let output = person.fails(4, change);
        assert!(output.contains("why: it was changed: version"), "{output}");
        let hint = "try: check it with `warren service inspect contested`, then retry\n";
        assert!(output.ends_with(hint), "{output}");
    }
}

#[test]
fn contradictory_update_is_not_sent() {
    let person = with_web("runs");
    let output =
        person.fails(2, &["service", "update", "web", "--memory=1Mi", "--label-add=a=1", "--label-add=a=2"]);
    assert!(
        output.contains("\n  why: 2 fields are wrong\n       spec.labels[\"a\"]: is given twice\n"),
        "{output}"
    );
    assert!(output.contains("spec.task.limits.memory: 1MiB is below"), "{output}");
    person.fails(3, &["service", "update", "nobody", "--tty"]);
    person.fails(3, &["service", "update", "web", "--env-file=/nowhere/env"]);
    for wrong in ["--replicas=x", "--ulimit-add=files=1", "--constraint-add=node.x==1", "--mode=global"] {
        person.fails(2, &["service", "update", "web", wrong]);
    }
    let text = person.fails(2, &["service", "update", "web", "--strategy=canary"]);
    let expected = "error: --strategy of `warren service update` is not supported by this version\n";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(inspect(&person, "web")["revision"], 1);
}

#[test]
fn history_shows_changes() {
    let person = with_web("runs");
    person.ok(&[
        "service",
        "update",
        "web",
        "--image=new",
        "--env-add=B=2",
        "--constraint-add=node.name != x",
    ]);
    person.ok(&["service", "rollback", "web", "--to", "1"]);
    let listed = person.ok(&["service", "history", "web"]);
    let rows: Vec<&str> = listed.lines().collect();
    assert!(rows[0].starts_with("REVISION"), "{listed}");
    assert!(rows[1].starts_with("3 (current)"), "{listed}");
    let back = "env -B, image new -> runs, placement.constraints -node.name != x";
    let there = "env +B, image runs -> new, placement.constraints +node.name != x";
    assert!(rows[1].ends_with(back) && rows[2].ends_with(there), "{listed}");
    let shown: Value =
        serde_json::from_str(&person.ok(&["service", "history", "web", "-o", "json"])).unwrap();
    assert_eq!((&shown[2]["number"], &shown[1]["changes"][0]), (&json!(1), &json!("env +B")));
    person.fails(3, &["service", "history", "nobody"]);
    person.fails(3, &["service", "rollback", "web", "--to", "99"]);
    person.fails(2, &["service", "rollback", "web", "--to", "x"]);
}

#[test]
fn a_global_service_runs_on_every_node() {
    let person = CliUser::new();
    let ran = person.warren(&["service", "create", "agent", "--image=runs", "--mode=global"]);
    assert!(ran.code == 0 && ran.stderr.ends_with("service agent: 3 of 3 ready\n"), "{ran:?}");
    let listed = person.ok(&["service", "ls"]);
    let row: Vec<&str> = listed.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..3], ["agent", "global", "0/3"], "{listed}");
    let output = person.fails(2, &["service", "update", "agent", "--replicas=2"]);
    assert!(output.contains("spec.mode: a global service has one task per node"), "{output}");
}

/// Through the program, the wire and the manager.
#[test]
fn every_field_kind_reaches_the_manager() {
    let person = CliUser::new();
    let create = [
        "service",
        "create",
        "web",
        "--image=runs",
        "--detach",
        "--pull=never",
        "--workdir=/srv",
        "--user=www",
        "--hostname=front",
        "--host=db:10.0.0.7",
        "--group=audio",
        "--tty",
        "--init",
        "--read-only",
        "--stop-signal=QUIT",
        "--pids=9",
        "--device=/dev/fuse:r",
        "--ulimit=nofile=1:2",
        "--shm-size=1Mi",
        "--sysctl=net.core.somaxconn=9",
        "--oom-score-adj=-5",
        "--cap-add=KILL",
        "--cap-drop=ALL",
        "--privileged",
        "--no-new-privileges",
        "--seccomp=unconfined",
        "--security-opt=apparmor=web",
        "--tmpfs=/a:exec",
        "--bind=/b:/c:ro",
        "--restart=none",
        "--log-files=2",
        "--constraint=node.role == worker",
        "--max-per-node=1",
    ];
    person.ok(&create);
    let shown = inspect(&person, "web");
    let task = &shown["spec"]["task"];
    let flat = json!({
        "pull": "never", "workdir": "/srv", "user": "www", "hostname": "front", "tty": true, "init": true,
        "readOnly": true, "stopSignal": "SIGQUIT", "shmSize": "1MiB", "oomScoreAdj": -5, "privileged": true,
        "noNewPrivileges": true, "seccomp": "unconfined", "apparmor": "web", "groups": ["audio"],
        "capAdd": ["KILL"], "capDrop": ["ALL"], "sysctls": {"net.core.somaxconn": "9"}, "limits": {"pids": 9},
    });
    for (field, expected) in flat.as_object().unwrap() {
        assert_eq!(task[field], *expected, "{field}");
    }
    assert_eq!(task["hosts"][0]["address"], "10.0.0.7");
    assert_eq!(task["devices"][0]["access"], "r");
    assert_eq!(task["ulimits"][0]["hard"], "2");
    assert_eq!(task["mounts"][0]["source"]["tmpfs"]["exec"], true);
    assert_eq!(task["mounts"][1]["source"]["bind"]["path"], "/b");
    assert_eq!((&task["restart"]["condition"], &task["logs"]["maxFiles"]), (&json!("none"), &json!(2)));
    let placement = json!({"constraints": ["node.role == worker"], "maxPerNode": 1});
    assert_eq!(shown["spec"]["placement"], placement);
}

#[test]
fn paused_update_is_resumed() {
    let person = with_web("runs");
    let refused = person.fails(4, &["service", "update", "web", "--resume"]);
    assert!(refused.contains("its update is not paused"), "{refused}");
    person.fails(1, &["service", "update", "web", "--image=fails"]);
    let ran = person.warren(&["service", "update", "web"]);
    assert_eq!(ran.stderr, "service web is unchanged (--resume continues its update)\n");
    person.fails(2, &["service", "update", "web", "--resume", "--image=other"]);
    person.fails(2, &["service", "update", "web", "--resume", "--force"]);
    let ran = person.warren(&["service", "update", "web", "--resume"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.starts_with("service web continues its update to revision 2\n"), "{ran:?}");
}

#[test]
fn update_flag_rolls_back_as_in_swarm() {
    let person = with_web("runs");
    person.ok(&["service", "update", "web", "--image=new"]);
    person.fails(2, &["service", "update", "web", "--rollback", "--image=other"]);
    person.ok(&["service", "update", "web", "--rollback"]);
    assert_eq!(inspect(&person, "web")["spec"]["task"]["image"], "runs");
}

#[test]
fn update_policy_is_sent_and_shown() {
    let person = with_web("runs");
    let flags = ["--update-parallelism=25%", "--update-delay=10s", "--update-order=stop-first"];
    let more = ["--update-monitor=5s", "--update-max-failure-ratio=0.25", "--update-failure-action=pause"];
    let back = ["--rollback-parallelism=0", "--rollback-monitor=0s", "--rollback-on-failure=continue"];
    person.ok(&[&["service", "update", "web"][..], &flags, &more, &back].concat());
    let shown = inspect(&person, "web");
    let expected = json!({
        "parallelism": "25%", "delay": "10s", "order": "stop-first", "monitor": "5s", "failureRatio": "0.25",
        "onFailure": "pause",
    });
    assert_eq!(shown["spec"]["update"], expected);
    assert_eq!(shown["spec"]["rollback"]["parallelism"], "0");
    person.ok(&[
        "service",
        "update",
        "web",
        "--update-order=",
        "--update-on-failure=",
        "--rollback-parallelism=",
    ]);
    let shown = inspect(&person, "web");
    assert_eq!(shown["spec"]["update"].get("order"), None);
    assert_eq!(shown["spec"]["rollback"]["parallelism"], "1");
    let wrong = [
        ("--update-parallelism=x", "give one like 2, 25% or 0"),
        ("--update-failure-ratio=2", "give one from 0 to 1"),
        ("--update-on-failure=stop", "give rollback, pause or continue"),
        ("--update-order=both", "give start-first or stop-first"),
        ("--rollback-on-failure=rollback", "a rollback is not rolled back; give pause or continue"),
        ("--update-monitor=25h", "is longer than 24 hours"),
    ];
    for (flag, expected) in wrong {
        let refused = person.fails(2, &["service", "update", "web", flag]);
        assert!(refused.contains(expected), "{flag}: {refused}");
    }
}

#[test]
fn seccomp_profile_in_a_file_becomes_a_config() {
    let person = CliUser::new();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("strict.json");
    std::fs::write(&file, r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#).unwrap();
    let option = format!("--security-opt=seccomp={}", file.display());
    for name in ["web", "api"] {
        person.ok(&["service", "create", name, "--image=nginx", "--detach", &option]);
    }
    let profile = inspect(&person, "web")["spec"]["task"]["seccomp"].clone();
    assert_eq!(inspect(&person, "api")["spec"]["task"]["seccomp"], profile);
    let config = profile.as_str().unwrap().strip_prefix("config/seccomp-").unwrap().to_owned();
    assert!(person.ok(&["config", "ls"]).contains(&config));
    person.ok(&["service", "update", "web", "--detach", "--seccomp="]);
    assert_eq!(inspect(&person, "web")["spec"]["task"]["seccomp"], "default");
    std::fs::write(&file, "{}").unwrap();
    let text = person.fails(2, &["service", "create", "new", "--image=nginx", "--detach", &option]);
    assert!(text.contains("strict.json: defaultAction: is missing"), "{text}");
}
