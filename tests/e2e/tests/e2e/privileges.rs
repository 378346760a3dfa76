//! Seccomp profiles of users, and privileges that programs do not gain.

use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::task_document;

/// A profile that refuses to make directories, and nothing else.
pub const NO_DIRECTORIES: &str = r#"{
    "defaultAction": "SCMP_ACT_ALLOW",
    "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]
}"#;

/// Runs a script beside the first process of the task in slot 1.
#[track_caller]
fn beside(world: &NodeFixture, service: &str, script: &str) -> String {
    world.warren().run_ok(&["task", "exec", &format!("{service}.1"), "sh", "-c", script])
}

#[test]
fn own_seccomp_profile_holds_in_the_container_and_beside_it() {
    let mut world = NodeFixture::with_box();
    let file = world.node.scratch().join("strict.json");
    std::fs::write(&file, NO_DIRECTORIES).unwrap();
    world.warren().run_ok(&["config", "create", "strict", file.to_str().unwrap()]);
    let script = "mkdir /made 2>&1 | grep -c 'not permitted'; touch /file && ls /file";
    let held = format!("{script}; trap exit TERM; sleep 1000 & wait");
    world.create_script("app", &["--seccomp", "config/strict"], &held);
    let task = world.wait_serving("app", 1).remove(0);
    eventually(SOON, "the output of app", || {
        let text = task_document::output(&world.node, &task);
        if text == "1\n/file\n" { Ok(()) } else { Err(text) }
    });
    assert_eq!(beside(&world, "app", script), "1\n/file\n");

    // The profile belongs to the container, not to the agent.
    world.node.crash_and_recover();
    assert_eq!(beside(&world, "app", "mkdir /again 2>/dev/null || echo refused"), "refused\n");

    // A new version of the config is rolled out.
    std::fs::write(&file, r#"{"defaultAction": "SCMP_ACT_ALLOW"}"#).unwrap();
    world.warren().run_ok(&["config", "update", "strict", file.to_str().unwrap()]);
    eventually(SOON, "a task with the new profile", || {
        let tasks = task_document::serving(&world.node, "app", 1)?;
        if tasks[0].id == task.id { Err("there is only the old one".to_owned()) } else { Ok(()) }
    });
    assert_eq!(beside(&world, "app", "mkdir /later && echo made"), "made\n");
}

#[test]
fn tasks_take_the_default_of_the_cluster_for_new_privileges() {
    let world = NodeFixture::with_box();
    world.create_script("early", &["--replicas", "0"], "exit");
    world.ok("cluster update --no-new-privileges on");
    let weak = world.ok("cluster check-security");
    assert!(weak.contains("a stricter default of the cluster: early (noNewPrivileges)"), "{weak}");
    world.ok("service update early --force");
    let weak = world.ok("cluster check-security");
    assert!(!weak.contains("early"), "{weak}");
    let script = "awk '/^NoNewPrivs/ { print $2 }' /proc/self/status";
    let held = format!("{script}; trap exit TERM; sleep 1000 & wait");
    world.create_script("app", &[], &held);
    world.create_script("open", &["--no-new-privileges=false"], &held);
    for (name, expected) in [("app", "1\n"), ("open", "0\n")] {
        let task = world.wait_serving(name, 1).remove(0);
        eventually(SOON, &format!("the output of {name}"), || {
            let text = task_document::output(&world.node, &task);
            if text == expected { Ok(()) } else { Err(text) }
        });
        assert_eq!(beside(&world, name, script), expected, "{name}");
    }
    // What runs is not replaced, and a later change takes the default.
    world.ok("cluster update --no-new-privileges off");
    world.ok("service update app --env A=b");
    let task = world.wait_serving("app", 1).remove(0);
    eventually(SOON, "the output of the next task", || {
        let text = task_document::output(&world.node, &task);
        if text == "0\n" { Ok(()) } else { Err(text) }
    });
}
