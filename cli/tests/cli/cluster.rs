//! `warren cluster ...`

use serde_json::{Value, json};

use crate::user::CliUser;

#[test]
fn settings_are_changed_and_shown() {
    let person = CliUser::new();
    let ran = person.warren(&["cluster", "update", "--task-history-limit", "2"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "cluster updated\n"), "{ran:?}");
    assert_eq!(ran.stdout, "maxReplicasPerService: 10000\ntaskHistoryLimit: 2\ndataPlane: vxlan\n");
    let text = person.ok(&["cluster", "update", "--max-replicas-per-service=20", "-o", "json"]);
    let updated: Value = serde_json::from_str(&text).unwrap();
    let shown: Value = serde_json::from_str(&person.ok(&["cluster", "info", "-o", "json"])).unwrap();
    let expected = json!({"maxReplicasPerService": 20, "taskHistoryLimit": 2, "dataPlane": "vxlan"});
    assert_eq!((&updated["settings"], &shown["settings"]), (&expected, &expected));
    assert!(person.ok(&["cluster", "info"]).contains("  taskHistoryLimit: 2\n"));

    let text = person.ok(&["cluster", "update", "--data-plane", "wireguard"]);
    assert!(text.ends_with("dataPlane: wireguard\n"), "{text}");
    let text = person.ok(&["cluster", "update", "--data-plane", "routes"]);
    assert!(text.ends_with("dataPlane: routes\n"), "{text}");
    assert!(person.ok(&["cluster", "info"]).contains("trafficBetweenNodes: not encrypted (routes)\n"));
    let text = person.ok(&["cluster", "update", "--default-user-namespace", "private"]);
    assert!(text.ends_with("defaultUserNamespace: private\n"), "{text}");
    let text = person.ok(&["cluster", "update", "--default-user-namespace", "host"]);
    assert!(!text.contains("defaultUserNamespace"), "{text}");
    person.fails(2, &["cluster", "update", "--default-user-namespace", "none"]);
    let text = person.ok(&["cluster", "update", "--no-new-privileges", "on"]);
    assert!(text.ends_with("noNewPrivileges: true\n"), "{text}");
    let text = person.ok(&["cluster", "update", "--no-new-privileges", "off"]);
    assert!(!text.contains("noNewPrivileges"), "{text}");
    person.fails(2, &["cluster", "update", "--no-new-privileges", "true"]);
    let text = person.ok(&["cluster", "update", "--node-certificate-lifetime", "30d"]);
    assert!(text.ends_with("nodeCertificateLifetime: 30d\n"), "{text}");
    let text = person.ok(&["cluster", "update", "--node-certificate-lifetime", "90d"]);
    assert!(!text.contains("nodeCertificateLifetime"), "{text}");
    let text = person.fails(2, &["cluster", "update", "--node-certificate-lifetime", "59m"]);
    assert!(text.contains("nodeCertificateLifetime: 3540s is out of range; give 1h to 365d"), "{text}");
    let text = person.fails(2, &["cluster", "update", "--data-plane", "bridge"]);
    assert!(text.contains("give vxlan, wireguard or routes"), "{text}");

    let shown = |text: &str| -> Value {
        serde_json::from_str::<Value>(text).unwrap()["settings"]["verification"].clone()
    };
    let flags = ["--verify-nodes=on", "--verify-remove-after=5", "--verify-timeout=1m"];
    let check = "--verify-check-add=gpu=image:acme/check:1 --all";
    let text = person.ok(&[&["cluster", "update", "-o", "json", check], &flags[..]].concat());
    let checks = ["gpu=image:acme/check:1 --all"];
    let expected = json!({"enabled": true, "removeAfter": 5, "timeout": "1m", "checks": checks});
    assert_eq!(shown(&text), expected);
    let text = person.ok(&["cluster", "update", "-o", "json", "--verify-check-rm=gpu", "--verify-nodes=off"]);
    assert_eq!(shown(&text), json!({"enabled": false, "removeAfter": 5, "timeout": "1m"}));
    for wrong in ["--verify-nodes=yes", "--verify-check-add=gpu", "--verify-check-add=dns=command:true"] {
        person.fails(2, &["cluster", "update", wrong]);
    }

    person.fails(2, &["cluster", "update"]);
    person.fails(2, &["cluster", "update", "--task-history-limit", "many"]);
    let text = person.fails(2, &["cluster", "update", "--task-history-limit", "101"]);
    assert!(text.contains("taskHistoryLimit: 101 is out of range; give 0 to 100"), "{text}");
}

#[test]
fn admission_policy_is_set_shown_and_reset() {
    let person = CliUser::new();
    let rules = || -> Value {
        let text = person.ok(&["cluster", "policy", "show", "-o", "json"]);
        serde_json::from_str::<Value>(&text).unwrap()["spec"]["operator"].clone()
    };
    let default = rules();
    assert_eq!((&default["privileged"], &default["hostBinds"]), (&json!(false), &json!([])));
    let head = "apiVersion: warren.io/v1\nkind: AdmissionPolicy\n";
    let file = person.path("policy.yaml").display().to_string();
    let write = |spec: &str| std::fs::write(&file, format!("{head}spec: {{operator: {spec}}}\n")).unwrap();
    write("{hostBinds: [/srv], limits: {memory: 1Gi}}");
    let ran = person.warren(&["cluster", "policy", "set", "-f", &file]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "admission policy set\n"), "{ran:?}");
    let shown = person.ok(&["cluster", "policy", "show"]);
    assert!(shown.starts_with(head), "{shown}");
    person.ok(&["cluster", "policy", "reset"]);
    assert_eq!(rules(), default);
    // What is shown can be set again.
    let ran = person.warren_with(&["cluster", "policy", "set", "-f", "-"], shown.as_bytes());
    assert_eq!(ran.code, 0, "{ran:?}");
    let (binds, memory) = (rules()["hostBinds"].clone(), rules()["limits"]["memory"].clone());
    assert_eq!((binds, memory), (json!(["/srv"]), json!("1GiB")));

    write("{hostBind: [/srv]}");
    let text = person.fails(2, &["cluster", "policy", "set", "-f", &file]);
    let expected =
        "policy.yaml:3:19: spec.operator: \"hostBind\" is not a field here; did you mean hostBinds?";
    assert!(text.contains(expected), "{text}");
    write("{hostBinds: [srv]}");
    let text = person.fails(2, &["cluster", "policy", "set", "-f", &file]);
    assert!(text.contains("policy.yaml:3:31: spec.operator.hostBinds[0]: \"srv\" is not"), "{text}");
    person.fails(3, &["cluster", "policy", "set", "-f", "/nowhere/policy.yaml"]);
    person.fails(2, &["cluster", "policy", "set"]);
}

#[test]
fn unlock_key_is_printed_and_replaced() {
    let person = CliUser::new();
    let info = || -> Value { serde_json::from_str(&person.ok(&["cluster", "info", "-o", "json"])).unwrap() };
    assert_eq!(info()["autolock"], "off");
    let refused = person.fails(4, &["cluster", "unlock-key"]);
    assert!(refused.contains("`warren cluster update --autolock on`"), "{refused}");
    let ran = person.warren(&["cluster", "update", "--autolock", "on"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("\n  WARREN-UNLOCK-1-key-1\n") && !ran.stdout.contains("UNLOCK"), "{ran:?}");
    assert_eq!(info()["autolock"], "on");
    let ran = person.warren(&["cluster", "unlock-key"]);
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("WARREN-UNLOCK-1-key-1\n", ""));
    let ran = person.warren(&["cluster", "unlock-key", "--rotate"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "WARREN-UNLOCK-1-key-2\n"));
    assert!(ran.stderr.starts_with("not locked with this key yet: m3; keep the earlier key"), "{ran:?}");
    let ran = person.warren(&["cluster", "update", "--autolock=off"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "cluster updated\n"));
    person.fails(4, &["cluster", "unlock-key", "--rotate"]);
    person.fails(2, &["cluster", "update", "--autolock=yes"]);
}

#[test]
fn ca_is_replaced_with_progress() {
    let person = CliUser::new();
    let old = "ab".repeat(32);
    assert_eq!(person.ok(&["cluster", "ca", "status"]), format!("caDigest: {old}\n"));
    let ran = person.warren(&["cluster", "ca", "rotate"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", "cd".repeat(32))));
    for expected in [
        "m3: manager without a new certificate; if it is down, start it, or remove it with `warren manager rm m3`\n",
        "managers 2/3, nodes 4/5, users 1/2\n",
        "w5: node that trusts the earlier certificate authority\n",
        "managers 3/3, nodes 5/5, users 1/2\n",
        "users that have not renewed: ann; each does so with the next command\n",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    let shown: Value = serde_json::from_str(&person.ok(&["cluster", "ca", "status", "-o", "json"])).unwrap();
    assert_eq!(shown["rotation"]["phase"], "complete");
    assert_eq!(shown["rotation"]["users"], json!({"renewed": 1, "total": 2, "missing": ["ann"]}));
}

#[test]
fn detached_rotation_returns_and_the_next_one_waits() {
    let person = CliUser::new();
    let ran = person.warren(&["cluster", "ca", "rotate", "--detach"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, &*format!("{}\n", "cd".repeat(32))));
    assert!(ran.stderr.contains("is being replaced; see `warren cluster ca status`"), "{}", ran.stderr);
    person.fails(7, &["cluster", "ca", "rotate", "--timeout=0s"]);
    let ran = person.warren(&["cluster", "ca", "rotate"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", "cd".repeat(32))));
}

#[test]
fn keys_are_replaced_with_progress() {
    let person = CliUser::new();
    assert_eq!(person.ok(&["cluster", "key", "status"]), format!("secretObjectKey: {}\n", "ab".repeat(8)));
    let ran = person.warren(&["cluster", "key", "rotate"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", "cd".repeat(8))));
    for expected in [
        "m3: manager with an earlier key; if it is down, start it, or remove it with `warren manager rm m3`\n",
        "disks of managers 2/3\n",
        "managers with the new key 2/3\n",
        "objects with the new key 3/5\n",
        "objects with the new key 5/5\n",
    ] {
        assert!(ran.stderr.contains(expected), "{expected}: {}", ran.stderr);
    }
    let shown: Value = serde_json::from_str(&person.ok(&["cluster", "key", "status", "-o", "json"])).unwrap();
    assert_eq!(shown["rotation"]["phase"], "complete");
    assert_eq!(shown["rotation"]["managers"], json!({"done": 3, "total": 3}));
    assert_eq!(shown["rotation"]["objects"], json!({"done": 5, "total": 5}));
}

#[test]
fn interrupted_key_rotation_goes_on_when_it_is_given_again() {
    let person = CliUser::new();
    let ran = person.warren(&["cluster", "key", "rotate", "--detach"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, &*format!("{}\n", "ab".repeat(8))));
    assert!(ran.stderr.contains("are being replaced; see `warren cluster key status`"), "{}", ran.stderr);
    person.fails(7, &["cluster", "key", "rotate", "--timeout=0s"]);
    let ran = person.warren(&["cluster", "key", "rotate"]);
    assert_eq!((ran.code, ran.stdout), (0, format!("{}\n", "cd".repeat(8))));
}

#[test]
fn key_status_names_what_is_to_be_encrypted_again() {
    let person = CliUser::new();
    person.warren(&["cluster", "key", "rotate", "--detach"]);
    let objects = || {
        let shown = person.ok(&["cluster", "key", "status", "-o", "json"]);
        serde_json::from_str::<Value>(&shown).unwrap()["rotation"]["objects"].clone()
    };
    assert_eq!(objects(), json!({"done": 0, "total": 5}), "in the first phase");
    objects();
    let remaining = ["secret db, version 1", "the unlock key"];
    assert_eq!(objects(), json!({"done": 3, "total": 5, "remaining": remaining}));
}

#[test]
fn events_are_lines_and_a_later_begin_is_told() {
    let person = CliUser::new();
    let ran = person.warren(&["events", "service/web", "--since", "10m"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stdout, "2026-11-20T14:30:00Z  service/web           created\n");
    assert!(
        ran.stderr.starts_with("events up to index 7 (2026-11-20T14:30:00Z) are not kept any more"),
        "{ran:?}"
    );
    let text = person.ok(&["cluster", "events", "nodes", "-o", "json"]);
    let event: Value = serde_json::from_str(text.trim_end()).unwrap();
    assert_eq!((text.lines().count(), &event["kind"], &event["index"]), (1, &json!("node"), &json!(8)));
    for wrong in ["--since=yesterday", "service/"] {
        person.fails(2, &["events", wrong]);
    }
}

#[test]
fn why_exits_by_whether_something_is_wrong() {
    let person = CliUser::new();
    let ran = person.warren(&["why", "service/web"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (1, "service/web: problem\ndesired: 1 task\nfound: it is so\n"),
        "{ran:?}"
    );
    let ran = person.warren(&["why", "service/api", "-o", "json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &shown["severity"]), (0, &json!("waiting")), "{ran:?}");
    person.fails(3, &["why", "nothing"]);
    person.fails(2, &["why"]);
}
