//! `warren manager ...`: who the managers are, what becomes of them, and what is kept of them.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::fake_manager::BACKUP;
use crate::user::CliUser;

fn names(person: &CliUser) -> Vec<String> {
    let listed: Value = serde_json::from_str(&person.ok(&["manager", "ls", "-o", "json"])).unwrap();
    let names = listed.as_array().unwrap().iter().map(|manager| manager["name"].as_str().unwrap().to_owned());
    names.collect()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn managers_are_listed_and_shown() {
    let person = CliUser::new();
    let listed = person.ok(&["manager", "ls"]);
    let line = |number| listed.lines().nth(number).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(line(1)[..4], ["m1", "leader", "READY", "10.0.0.1:8080"]);
    assert_eq!(line(3)[..4], ["m3", "voter", "UNREACHABLE", "10.0.0.3:8080"]);
    for called in ["m2", "10.0.0.2:8080", "20"] {
        let shown = person.ok(&["manager", "inspect", called, "-o", "json"]);
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!((&shown["name"], &shown["desiredSuffrage"]), (&json!("m2"), &json!("voter")), "{called}");
    }
    person.fails(3, &["manager", "inspect", "m9"]);
}

#[test]
fn managers_are_promoted_demoted_and_lead() {
    let person = CliUser::new();
    let ran = person.warren(&["manager", "demote", "m2"]);
    assert_eq!((ran.stdout.as_str(), ran.code), ("m2\n", 0));
    assert_eq!(ran.stderr, "manager m2 will be a learner: it takes a while\n");
    let ran = person.warren(&["manager", "promote", "m2"]);
    assert_eq!(ran.stderr, "manager m2 is a voter\n");
    let output = person.fails(4, &["manager", "demote", "m1"]);
    let hint = "try: check with `warren manager ls` that the other managers are ready, then retry\n";
    assert!(output.contains("would lose quorum") && output.ends_with(hint), "{output}");
    assert_eq!(person.warren(&["manager", "transfer-leadership"]).stderr, "manager m2 is the leader\n");
    assert_eq!(person.ok(&["manager", "transfer-leadership", "m3"]), "m3\n");
    let ran = person.warren(&["manager", "update", "m2", "--advertise=b:1"]);
    assert_eq!(ran.stderr, "manager m2 is now reached at b:1\n");
    person.fails(2, &["manager", "update", "m2", "--advertise=b"]);
    person.fails(3, &["manager", "promote", "m9"]);
}

#[test]
fn reachable_manager_is_removed_only_by_force() {
    let person = CliUser::new();
    let output = person.fails(4, &["manager", "rm", "m2"]);
    assert!(
        output.contains("manager m2 answers") && output.contains("or use --force, which stops m2"),
        "{output}"
    );
    assert_eq!(person.ok(&["manager", "rm", "m3"]), "m3\n");
    let ran = person.warren(&["manager", "rm", "--force", "m2"]);
    let remove = "remove it with `warren node rm m2`, with --force if it still has tasks\n";
    let rotate =
        "if somebody may have a copy of its data, replace the key in it: run `warren cluster ca rotate`\n";
    let expected =
        format!("manager m2 removed from the cluster\nnode m2 stays in the cluster; {remove}{rotate}");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("m2\n", expected.as_str()));
    let listed = person.warren(&["manager", "ls"]);
    assert_eq!(listed.stderr, format!("node m2 belongs to a removed manager; {remove}"));
    assert_eq!(names(&person), ["m1"]);
}

#[test]
fn backup_is_verified_before_rename() {
    let person = CliUser::new();
    let dir = tempfile::tempdir().unwrap();
    let (file, words) = (dir.path().join("backup"), dir.path().join("words"));
    let words_are = |words_said: &str| std::fs::write(&words, format!("{words_said}\n")).unwrap();
    let backup = ["manager", "backup", text(&file), "--passphrase-file", text(&words)];
    let files = || std::fs::read_dir(dir.path()).unwrap().count();

    let lost = dir.path().join("none/backup");
    words_are("correct horse");
    let output = person.fails(1, &["manager", "backup", text(&lost), "--passphrase-file", text(&words)]);
    assert!(output.contains(&format!("why: {}: No such file or directory", text(&lost))), "{output}");
    words_are("short");
    assert!(person.fails(2, &backup).contains("has 5 characters; give at least 8"));
    words_are("wrong horse");
    assert!(person.fails(1, &backup).contains("cannot be verified"));
    words_are("breaks off");
    assert!(person.fails(1, &backup).contains("the backup broke off"));
    assert_eq!(files(), 1, "only the passphrase: what was not finished is gone");

    words_are("correct horse");
    let ran = person.warren(&backup);
    assert_eq!((ran.code, ran.stdout.trim()), (0, text(&file)), "{ran:?}");
    assert!(ran.stderr.contains("written and verified"), "{ran:?}");
    assert_eq!(std::fs::read(&file).unwrap(), BACKUP);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(person.fails(4, &backup).contains("exists"));
    let asked = person.fails(2, &["manager", "backup", "x"]);
    assert!(asked.contains("give a file with --passphrase-file"), "{asked}");
}

#[test]
fn backup_is_restored_on_an_empty_machine() {
    let person = CliUser::new();
    let dir = tempfile::tempdir().unwrap();
    let (file, words, data) = (dir.path().join("backup"), dir.path().join("words"), dir.path().join("data"));
    std::fs::write(&file, BACKUP).unwrap();
    std::fs::write(&words, "correct horse").unwrap();
    let restore = |more: &[&str]| {
        let fixed = ["manager", "restore", text(&file), "--passphrase-file", text(&words)];
        let fixed = [&fixed[..], &["--data-dir", text(&data), "--manager-only", "--node-name=m9"]].concat();
        [&fixed[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<String>>()
    };
    let run = |more: &[&str]| {
        let arguments = restore(more);
        person.warren(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    };
    std::fs::write(&words, "wrong horse").unwrap();
    let ran = run(&[]);
    assert!(ran.code == 1 && ran.stderr.contains("cannot be decrypted"), "{ran:?}");
    std::fs::write(&words, "correct horse").unwrap();
    let ran = run(&["--cluster-range=10.9.0.0/16"]);
    assert!(ran.code == 2 && ran.stderr.contains("--cluster-range conflicts"), "{ran:?}");
    assert!(!data.join("manager").exists());

    let ran = run(&["--advertise=127.0.0.1:1"]);
    let next = format!("warren manager run --data-dir {}\n", text(&data));
    assert!(ran.code == 0 && ran.stdout.contains(&next), "{ran:?}");
    let kept = std::fs::read_to_string(data.join("node.toml")).unwrap();
    assert!(kept.contains("cluster-range = [\"10.210.0.0/16\"]") && kept.contains("name = \"m9\""), "{kept}");
    assert!(data.join("manager/member").exists() && !data.join("manager.restoring").exists());
    let again = run(&[]);
    assert!(again.code == 4 && again.stderr.contains("has a manager already"), "{again:?}");
}

#[test]
fn restored_manager_keeps_name_and_manager_only() {
    let person = CliUser::new();
    let (file, words) = (person.path("backup"), person.path("words"));
    let [before, restored, reported] = ["before", "restored", "told"].map(|name| person.path(name));
    std::fs::write(&words, "correct horse").unwrap();
    let place = ["--listen=127.0.0.1:0", "--metrics-listen=none", "--data-dir", text(&before)];
    let init = [&["manager", "init", "--manager-only", "--node-name=m7"], &place[..]].concat();
    let mut manager = person.watch_at_terminal(&init);
    manager.read_until("to add machines, run on them");
    let backup = ["--context=default", "manager", "backup", text(&file), "--passphrase-file", text(&words)];
    person.ok(&backup);
    drop(manager);

    let restore = |data: &Path, more: &[&str]| {
        let fixed = ["manager", "restore", text(&file), "--passphrase-file", text(&words)];
        let place = ["--listen=127.0.0.1:1", "--data-dir", text(data)];
        let output = person.ok(&[&fixed[..], &place, more].concat());
        (output, std::fs::read_to_string(data.join("node.toml")).unwrap())
    };
    let (printed, kept) = restore(&restored, &[]);
    assert!(kept.contains("name = \"m7\"") && !kept.contains("[worker]"), "{kept}");
    assert!(printed.contains("is named m7 and runs no tasks"), "{printed}");
    let (said, kept) = restore(&reported, &["--node-name=m8", "--manager-only=false"]);
    assert!(kept.contains("name = \"m8\"") && kept.contains("[worker]"), "{kept}");
    assert!(said.contains("is named m8 and runs tasks"), "{said}");
}
