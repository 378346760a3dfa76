//! `warren image ...`

use serde_json::Value;

use crate::user::CliUser;

const IMPORTED: &str = "IMAGE   NODE     SIZE   DIGEST\nweb:1   node-1   4B     sha256:1\n";

#[test]
fn images_are_imported_from_files_and_from_standard_input() {
    let person = CliUser::new();
    let file = person.path("web.tar");
    std::fs::write(&file, "good").unwrap();
    let file = file.to_str().unwrap();
    for _ in 0..2 {
        assert_eq!(person.ok(&["image", "import", file]), IMPORTED);
    }
    let ran = person.warren_with(&["image", "import", "-"], b"good");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, IMPORTED), "{ran:?}");
    let ran = person.warren_with(&["image", "import", "-"], b"bad");
    assert!(ran.code == 1 && ran.stderr.contains("node-1: this is no image archive"), "{ran:?}");
    let output = person.fails(1, &["image", "import", file, "--node", "node-1", "--node", "full"]);
    assert!(output.contains("why: full: the disk is full\n"), "{output}");
    let text = person.fails(3, &["image", "import", "/nowhere/web.tar"]);
    assert!(text.contains("/nowhere/web.tar: there is no such file"), "{text}");
    person.fails(2, &["image", "import", person.path("").to_str().unwrap()]);
}

#[test]
fn images_are_pulled_with_progress() {
    let person = CliUser::new();
    let ran = person.warren(&["image", "pull", "web:1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, IMPORTED), "{ran:?}");
    assert_eq!(ran.stderr, "node-1: 1 of 2 layers, 2 of 4 B\npulling web:1\n");
    assert!(person.ok(&["image", "pull", "web:1", "--always"]).contains("sha256:2"));
    let output = person.fails(1, &["image", "pull", "web:1", "--node=node-1", "--node=full"]);
    assert!(
        output.contains("error: the image web:1 was not pulled\n  why: full: the disk is full\n"),
        "{output}"
    );
    person.fails(2, &["image", "pull"]);
    let text = person.fails(2, &["image", "pull", "Not an image!"]);
    assert!(text.contains("is not an image reference"), "{text}");
}

#[test]
fn image_is_copied_to_nodes() {
    let person = CliUser::new();
    let ran = person.warren(&["image", "copy", "web:1", "--to", "node-2", "node-3"]);
    let table = "IMAGE   NODE     SIZE   DIGEST\n\
                 web:1   node-2   4B     sha256:1\n\
                 web:1   node-3   4B     sha256:1\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (0, table), "{ran:?}");
    let ran = person.warren(&["image", "copy", "web:1", "--to=node-1"]);
    assert!(ran.code == 0 && ran.stderr.contains("there is nothing to copy"), "{ran:?}");
    let output = person.fails(1, &["image", "copy", "web:1", "--to=node-2", "--to=full"]);
    assert!(
        output.contains("error: the image web:1 was not copied\n  why: full: the disk is full\n"),
        "{output}"
    );
    person.fails(3, &["image", "copy", "web:1", "--to=node-2", "--from=node-3"]);
    person.fails(2, &["image", "copy", "web:1"]);
}

#[test]
fn unreachable_node_is_reported_in_image_list() {
    let person = CliUser::new();
    let expected =
        "IMAGE   NODE     SIZE   TASKS   LAST USED   DIGEST\nweb:1   node-1   4B     2       never       1\n";
    assert_eq!(person.ok(&["image", "ls"]), expected);
    let ran = person.warren(&["image", "ls", "--node=node-1", "--node=away", "-o", "json"]);
    let shown: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((ran.code, &shown[0]["node"]), (1, &"node-1".into()), "{ran:?}");
    assert!(ran.stderr.contains("why: away: it did not answer in time\n"), "{ran:?}");
}

#[test]
fn prune_needs_confirmation() {
    let person = CliUser::new();
    let output = person.fails(2, &["image", "prune"]);
    assert!(
        output.contains("why: confirmation is required, and standard input is not a terminal\n"),
        "{output}"
    );
    assert!(person.manager.prune_requests().is_empty());
    let ran = person.warren(&["image", "prune", "-y", "--node=node-1", "--unused-for=24h"]);
    assert!(ran.code == 0 && ran.stderr == "1 image removed, 4B\n", "{ran:?}");
    let asked = person.manager.prune_requests();
    assert_eq!((asked[0].unused_for_ms, asked[0].nodes.as_slice()), (86_400_000, &["node-1".to_owned()][..]));
    let ran = person.warren(&["image", "prune", "--force", "--node=away"]);
    assert!(ran.code == 1 && ran.stderr.contains("not every node removed its images"), "{ran:?}");
    person.fails(2, &["image", "prune", "--force", "--unused-for=x"]);
}
