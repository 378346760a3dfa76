//! `warren volume ...`: where data is, who uses it, and when it goes.

use serde_json::{Value, json};

use crate::user::CliUser;

fn json(person: &CliUser, arguments: &[&str]) -> Value {
    serde_json::from_str(&person.ok(&[arguments, &["-o", "json"]].concat())).unwrap()
}

#[test]
fn a_volume_is_made_listed_with_its_users_and_removed() {
    let person = CliUser::new();
    let create =
        ["volume", "create", "data", "--opt=mode=0750", "--opt=uid=33", "--label=app=shop", "--node=node-1"];
    let ran = person.warren(&create);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "data\n", "volume data created\n"));
    person.ok(&["service", "create", "web", "--image=runs", "--replicas=2", "--volume=data:/data"]);
    let shown = json(&person, &["volume", "inspect", "data"]);
    assert_eq!((&shown["driver"], &shown["nodeName"]), (&json!("local"), &json!("node-1")));
    assert_eq!((&shown["options"]["mode"], &shown["size"]), (&json!("0750"), &json!("3MiB")));
    assert_eq!(shown["users"], json!(["web.1", "web.2"]));
    // Nodes are asked for sizes only on request.
    assert!(!person.ok(&["volume", "ls"]).contains("3MiB"));
    let listed = person.ok(&["volume", "ls", "--size"]);
    assert!(listed.contains("web.1, web.2   3MiB"), "{listed}");

    let output = person.fails(4, &["volume", "rm", "data", "--purge"]);
    let end = "why: volume data is used by web.1, web.2\n  \
               try: unmount it first: `warren service update SERVICE --volume-rm data`\n";
    assert!(output.ends_with(end), "{output}");
    person.ok(&["service", "rm", "web"]);
    let ran = person.warren(&["volume", "rm", "data"]);
    let reported = "volume data was removed; its data (3MiB) stays on node-1: `warren volume ls --all` lists it, \
                    `warren volume create data --reuse` uses it again, `warren volume purge data` deletes it\n";
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("data\n", reported));
    assert!(person.manager.purged().is_empty());
    assert!(!person.ok(&["volume", "ls"]).contains("data"));
    let listed = person.ok(&["volume", "ls", "--all"]);
    assert!(listed.contains("data (removed, data remains)   local    node-1"), "{listed}");
    let refused = person.fails(4, &create);
    assert!(refused.contains("try: list the data that remains with `warren volume ls --all`"), "{refused}");
    person.ok(&[&create[..], &["--reuse"]].concat());
    let ran = person.warren(&["volume", "purge", "data"]);
    assert_eq!(ran.stderr, "volume data was removed with its data\n");
    assert_eq!(person.manager.purged(), ["data"]);
}

#[test]
fn invalid_volume_is_refused() {
    let person = CliUser::new();
    person.ok(&["volume", "create", "data"]);
    person.fails(4, &["volume", "create", "data"]);
    person.fails(3, &["volume", "create", "other", "--node=nobody"]);
    let output = person.fails(2, &["volume", "create", "other", "--driver=nfs"]);
    assert!(output.contains("\"nfs\" is not a volume driver; give local"), "{output}");
    let wrong = ["--opt=size=1G", "--opt=uid=x", "--label=a=1", "--label=a=2"];
    let text = person.fails(2, &[&["volume", "create", "other"], &wrong[..]].concat());
    let end = "  why: 3 fields are wrong
       labels[\"a\"]: is given twice
       options[\"size\"]: is not an option of the driver local; it has uid, gid and mode
       options[\"uid\"]: \"x\" is not a number of 0 to 4294967294
";
    assert!(text.contains(end), "{text}");
    let printed = person.fails(2, &["volume", "create", "a/b"]);
    assert!(printed.contains("\"a/b\" is not a volume name"), "{printed}");
    let said = person.fails(2, &["service", "create", "web", "--image=runs", "--volume=/srv:/data"]);
    assert!(said.contains("spec.task.mounts[0].source.volume.name: \"/srv\" is not a volume name"), "{said}");
}

#[test]
fn unused_volumes_are_pruned() {
    let person = CliUser::new();
    let none = person.warren(&["volume", "prune"]);
    assert_eq!((none.code, none.stderr.as_str()), (0, "there are no unused volumes\n"), "{none:?}");
    for name in ["a", "b", "used"] {
        person.ok(&["volume", "create", name, "--node=node-1"]);
    }
    person.ok(&["volume", "create", "far", "--node=stuck"]);
    person.ok(&["service", "create", "web", "--image=runs", "--volume=used:/data"]);
    let output = person.fails(2, &["volume", "prune"]);
    assert!(
        output.contains("why: confirmation is required, and standard input is not a terminal\n"),
        "{output}"
    );
    let typed = person.type_to(&["volume", "prune", "--purge"], "[y/N] ", b"n\n");
    let question =
        "This deletes unused volumes with their data: a, b, far. It cannot be undone. Continue? [y/N]";
    assert!(typed.code == 1 && typed.screen.contains(question), "{typed:?}");

    // What cannot go is told beside what went.
    let ran = person.warren(&["volume", "prune", "--purge", "--force"]);
    assert!(ran.code == 1 && ran.stderr.contains("why: far: the data of volume far is on stuck"), "{ran:?}");
    assert!(ran.stderr.starts_with("2 volumes removed with their data\n"), "{ran:?}");
    assert_eq!(
        (person.manager.purged(), ran.stdout.lines().count()),
        (vec!["a".to_owned(), "b".to_owned()], 3)
    );
    let ran = person.warren(&["volume", "prune", "-y", "-o", "json"]);
    assert_eq!(ran.stderr, "1 volume removed; the data stays on the nodes\n", "{ran:?}");
    assert_eq!(serde_json::from_str::<Value>(&ran.stdout).unwrap()[0]["name"], "far");
    assert_eq!(json(&person, &["volume", "ls"])[0]["name"], "used");
}
