//! `warren node ...`

use serde_json::{Value, json};

use crate::user::CliUser;

fn with_tasks() -> CliUser {
    let person = CliUser::new();
    person.ok(&["service", "create", "web", "--image=runs", "--replicas=3"]);
    person
}

fn inspect(person: &CliUser, name: &str) -> Value {
    serde_json::from_str(&person.ok(&["node", "inspect", name, "-o", "json"])).unwrap()
}

#[test]
fn labels_are_set_and_taken_away() {
    let person = CliUser::new();
    for _ in 0..2 {
        let ran = person.warren(&["node", "update", "node-1", "--label-add=zone=a", "--label-add=ssd=yes"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "node-1\n"), "{ran:?}");
        assert_eq!(inspect(&person, "node-1")["labels"], json!({"ssd": "yes", "zone": "a"}));
    }
    let ran =
        person.warren(&["node", "update", "node-1", "--label-rm=ssd", "--availability=pause", "-o", "json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&shown["labels"], &shown["availability"]), (&json!({"zone": "a"}), &json!("pause")));
    assert!(person.ok(&["node", "ls"]).contains("pause"));
    person.fails(3, &["node", "update", "nobody", "--label-add=a=b"]);
    let output = person.fails(3, &["node", "update", "node-1", "--label-rm=ssd"]);
    assert!(output.contains("node node-1 has no label ssd"), "{output}");
    for wrong in [
        &["node", "update", "node-1"][..],
        &["node", "update", "node-1", "--label-add=a"],
        &["node", "update", "node-1", "--availability=gone"],
        &["node", "update", "node-1", "--label-add=a=1", "--label-add=a=2"],
    ] {
        person.fails(2, wrong);
    }
    let output = person.fails(2, &["node", "update", "node-1", "--label-add=a=1", "--label-rm=a"]);
    assert!(output.contains("labels[\"a\"]: is both added and removed"), "{output}");
}

#[test]
fn taints_are_set_and_taken_away() {
    let person = CliUser::new();
    let taints = || inspect(&person, "node-1")["taints"].clone();
    person.ok(&["node", "update", "node-1", "--taint-add=gpu=a:NoSchedule", "--taint-add=old:NoExecute"]);
    assert_eq!(taints(), json!(["gpu=a:NoSchedule", "old:NoExecute"]));
    assert!(person.ok(&["node", "ls"]).contains("gpu=a:NoSchedule,old:NoExecute"));
    person.ok(&["node", "update", "node-1", "--taint-rm=old:NoExecute"]);
    assert_eq!(taints(), json!(["gpu=a:NoSchedule"]));
    let output = person.fails(3, &["node", "update", "node-1", "--taint-rm=gpu=a:NoExecute"]);
    assert!(output.contains("node node-1 has no taint gpu=a:NoExecute"), "{output}");
    let twice = ["node", "update", "node-1", "--taint-add=a=1:NoExecute", "--taint-add=a=2:NoExecute"];
    let output = person.fails(2, &twice);
    assert!(output.contains("taints[1]: is given twice"), "{output}");
    for wrong in ["--taint-add=a", "--taint-add=a:Now", "--taint-rm=a b", "--taint-rm="] {
        person.fails(2, &["node", "update", "node-1", wrong]);
    }
}

#[test]
fn draining_waits_until_nothing_is_left() {
    let person = with_tasks();
    assert_eq!(person.ok(&["node", "ps", "node-1"]).lines().count(), 2);
    for _ in 0..2 {
        let ran = person.warren(&["node", "drain", "node-1"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "node-1\n"), "{ran:?}");
        assert_eq!(ran.stderr, "node node-1 updated\nnode node-1: no tasks remaining\n");
    }
    assert_eq!(person.ok(&["node", "ps", "node-1", "-o", "json"]), "[]\n");
    assert_eq!(inspect(&person, "node-1")["availability"], "drain");

    let output = person.fails(7, &["node", "update", "stuck", "--availability=drain", "--timeout=3s"]);
    assert!(output.contains("node stuck: 1 task remaining\n"), "{output}");
    assert!(
        output.contains("error: node stuck still has tasks after 3s\n  why: web.3: RUNNING on stuck"),
        "{output}"
    );
    person.ok(&["node", "drain", "stuck", "--detach"]);
    let text = person.fails(2, &["node", "drain", "stuck", "--deadline=5m"]);
    assert!(text.starts_with("error: --deadline of `warren node drain` is not supported"), "{text}");
}

#[test]
fn a_node_in_use_is_only_removed_by_force() {
    let person = with_tasks();
    let output = person.fails(4, &["node", "rm", "node-1"]);
    assert!(output.contains("why: node-1 is up and runs 1 tasks"), "{output}");
    assert_eq!(person.ok(&["node", "rm", "--force", "node-1", "stuck"]), "node-1\nstuck\n");
    person.fails(3, &["node", "rm", "node-1"]);
    person.fails(3, &["node", "ps", "node-1"]);
    person.fails(2, &["node", "rm"]);
}

#[test]
fn verify_reports_each_check_and_fails_with_a_node() {
    let person = CliUser::new();
    let report = person.ok(&["node", "verify", "node-1"]);
    assert_eq!(report, "node-1\n------\n\u{221a} gpu\nStatus: verified\n\n");
    let ran = person.warren(&["node", "verify"]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("\u{d7} gpu: exited with code 1: no GPU\nStatus: failed\n"), "{ran:?}");
    assert!(ran.stderr.contains("1 of 3 nodes failed the verification"), "{ran:?}");
    assert!(person.ok(&["node", "ls"]).contains("verification failed: gpu: exited with code 1: no GPU"));
    let listed = person.ok(&["node", "ls", "--filter", "verification=verified", "-q"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert_eq!(inspect(&person, "node-2")["verification"]["checks"][0]["outcome"], "failed");
    person.fails(3, &["node", "verify", "nobody"]);
}
