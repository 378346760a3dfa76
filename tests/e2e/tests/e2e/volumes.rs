//! Data that outlives tasks: its node, its users, its initial contents, and its removal.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::{Value, json};
use warren_testkit::image::{ImageLayer, TestImage};
use warren_testkit::wait::eventually;

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, NodeFixture, SOON};
use crate::e2e::task_document;

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

/// Prints the output of `script`, then ends on its stop signal.
fn holding(script: &str) -> String {
    format!("{script}; trap exit TERM; sleep 1000 & wait")
}

/// The arguments for a service of the busybox image that runs `script`.
fn words<'a>(name: &'a str, flags: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let words =
        ["service", "create", name, "--image", BOX, "--command", "sh", "--arg", "-c", "--arg", script];
    [&words[..], flags].concat()
}

#[track_caller]
fn wait_for_output(world: &NodeFixture, name: &str, expected: &str) {
    let task = world.wait_serving(name, 1).remove(0);
    eventually(SOON, &format!("the output of {name}"), || {
        let text = task_document::output(&world.node, &task);
        if text.trim_end() == expected { Ok(()) } else { Err(format!("{text:?} instead of {expected:?}")) }
    });
}

#[test]
fn data_outlives_tasks_services_and_the_node() {
    let mut world = NodeFixture::with_box();
    let script = holding("echo line >>/data/log; wc -l </data/log");
    world.warren().run_ok(&words("first", &["--volume", "data:/data"], &script));
    wait_for_output(&world, "first", "1");
    world.ok("service update first --force");
    wait_for_output(&world, "first", "2");
    world.node.crash_and_recover();
    let show = holding("cat /data/log; touch /data/x 2>&1 | grep -o 'Read-only'");
    world.warren().run_ok(&words("reader", &["--volume", "data:/data:ro"], &show));
    wait_for_output(&world, "reader", "line\nline\nRead-only");
    let sub = holding("echo sub >/here/file; ls -a /here");
    world.warren().run_ok(&words("sub", &["--volume", "data:/here,subpath=a/b"], &sub));
    wait_for_output(&world, "sub", ".\n..\nfile");
    let directory = world.node.data_dir().join("volumes/data");
    assert_eq!(fs::read_to_string(directory.join("a/b/file")).unwrap(), "sub\n");
    // Its users are named, by ls, inspect and errors.
    let volume = world.warren().json(&["volume", "inspect", "data"]);
    let users = volume["users"].to_string();
    assert!(["first.1", "reader.1", "sub.1"].iter().all(|user| users.contains(user)), "{volume}");
    assert!(volume["size"].as_str().is_some_and(|size| size != "0B"), "{volume}");
    let text = world.warren().run_refused(&["volume", "rm", "data"], CONFLICT);
    assert!(text.contains("first"), "{text}");
    world.warren().run_refused(&["volume", "rm", "data", "--purge"], CONFLICT);
    world.ok("service rm first reader sub");
    // After a removal its data stays, and is used again only on request.
    world.ok("volume rm data");
    assert_eq!(world.warren().json(&["volume", "ls"]), json!([]));
    let again = holding("wc -l </data/log");
    let again = words("again", &["--volume", "data:/data"], &again);
    let text = world.warren().run_refused(&again, CONFLICT);
    assert!(text.contains("volume data was removed, and its data") && text.contains("--reuse"), "{text}");
    world.warren().run_refused(&["volume", "create", "data"], CONFLICT);
    let remains = world.warren().json(&["volume", "ls", "--all"]);
    let shown = (&remains[0]["name"], &remains[0]["nodeName"]);
    assert_eq!(shown, (&json!("data"), &json!(world.node.name())), "{remains}");
    assert!(remains[0]["releasedAt"].is_string() && remains[0]["size"].is_string(), "{remains}");
    world.ok("volume create data --reuse");
    world.warren().run_ok(&again);
    wait_for_output(&world, "again", "2");
    world.warren().run_refused(&["volume", "purge", "data"], CONFLICT);
    world.ok("service rm again");
    world.ok("volume rm data");
    world.ok("volume purge data");
    assert!(!directory.exists());
    assert_eq!(world.warren().json(&["volume", "ls", "--all"]), json!([]));
    world.warren().run_refused(&["volume", "rm", "data"], NOT_FOUND);
}

#[test]
fn empty_volume_is_filled_from_image() {
    let world = NodeFixture::with_box();
    let layer = ImageLayer::new()
        .directory("/seed", 0o750)
        .file("/seed/config", "from the image\n", 0o640)
        .directory("/seed/deep", 0o711)
        .symlink("/seed/link", "/etc/passwd");
    let image = TestImage::busybox("warren.local/seeded:1").layer(layer);
    world.import("seeded.tar", &image.oci_archive());
    let create = |name: &str, flags: &[&str], script: &str| {
        let script = holding(script);
        let words = ["service", "create", name, "--image", "warren.local/seeded:1", "--command", "sh"];
        world.warren().run_ok(&[&words[..], &["--arg", "-c", "--arg", &script], flags].concat());
    };
    let look = "stat -c %a /seed /seed/config /seed/deep; readlink /seed/link; cat /seed/config";
    create("one", &["--volume", "seeded:/seed"], &format!("{look}; echo changed >/seed/config"));
    wait_for_output(&world, "one", "750\n640\n711\n/etc/passwd\nfrom the image");
    world.ok("service rm one");
    create("two", &["--volume", "seeded:/seed"], "cat /seed/config");
    wait_for_output(&world, "two", "changed");
    create("three", &["--volume", "bare:/seed,nocopy"], "ls /seed | wc -l");
    wait_for_output(&world, "three", "0");
    // The symlink of the image was copied as a link; no file of the node was read or written through it.
    let directory = world.node.data_dir().join("volumes/seeded");
    assert!(fs::symlink_metadata(directory.join("link")).unwrap().is_symlink());
    // A volume with its own uid.
    world.ok("volume create owned --opt uid=1234 --opt gid=77 --opt mode=0700 --label team=shop");
    create(
        "four",
        &["--volume", "owned:/seed", "--user", "1234:77"],
        "id -u; touch /seed/mine && ls /seed/mine",
    );
    wait_for_output(&world, "four", "1234\n/seed/mine");
    let owned = fs::metadata(world.node.data_dir().join("volumes/owned")).unwrap();
    assert_eq!((owned.uid(), owned.gid(), owned.permissions().mode() & 0o7777), (1234, 77, 0o700));
}

#[test]
fn symlink_in_volume_cannot_escape() {
    let world = NodeFixture::with_box();
    let outside = world.node.scratch().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("precious"), "of the host").unwrap();
    let script =
        holding(&format!("ln -s {} /data/out; ln -s /etc /data/etc; echo linked", outside.display()));
    world.warren().run_ok(&words("first", &["--volume", "data:/data"], &script));
    wait_for_output(&world, "first", "linked");
    for (name, subpath) in [("out", "out"), ("etc", "etc/x")] {
        let volume = format!("data:/here,subpath={subpath}");
        let flags =
            [&words(name, &["--volume", &volume], "ls /here; exec tail -f /dev/null")[..], &["--detach"]];
        world.warren().run_ok(&flags.concat());
    }
    for name in ["out", "etc"] {
        eventually(SOON, "a refusal or a directory of the volume itself", || {
            let tasks = task_document::of_service(&world.node, name);
            let refused =
                tasks.iter().any(|task| task.state == "REJECTED" && task.reason.contains("volume data"));
            let text = || {
                tasks
                    .iter()
                    .find(|task| task.is_serving())
                    .map(|task| task_document::output(&world.node, task))
            };
            match refused || text() == Some(String::new()) {
                true => Ok(()),
                false => Err(format!("{tasks:#?} {:?}", text())),
            }
        });
    }
    world.ok("service rm first out etc");
    world.ok("volume rm data --purge");
    assert_eq!(fs::read_to_string(outside.join("precious")).unwrap(), "of the host");
}

#[test]
fn task_follows_its_volume_or_stays_pending() {
    let cluster = WorkerCluster::new(2);
    let sleep = holding("true");
    let slotted = "data-{{.Task.Slot}}:/data";
    cluster.warren().run_ok(&words(
        "db",
        &["--replicas", "2", "--volume", slotted, "--max-per-node", "1"],
        &sleep,
    ));
    cluster.wait_spread("db", &[("w1", 1), ("w2", 1)]);
    let volumes = cluster.warren().json(&["volume", "ls"]);
    let place = |name: &str| -> String {
        let all = volumes.as_array().unwrap();
        let volume = all.iter().find(|volume| volume["name"] == name).unwrap_or_else(|| panic!("{volumes}"));
        volume["nodeName"].as_str().unwrap().to_owned()
    };
    let (first, second) = (place("data-1"), place("data-2"));
    assert_ne!(first, second);
    // Tasks that use it are placed there.
    let flags = ["--replicas", "3", "--volume", "data-1:/data"];
    cluster.warren().run_ok(&words("follower", &flags, &sleep));
    cluster.wait_spread("follower", &[(&first, 3)]);
    let impossible = ["--detach", "--volume", "data-1:/a", "--volume", "data-2:/b"];
    cluster.warren().run_ok(&words("both", &impossible, &sleep));
    let says = |service: &str, parts: &[&str]| {
        eventually(SOON, &format!("the reason of {service}"), || {
            let tasks = task_document::of_service(&cluster.manager, service);
            let reported = tasks.iter().any(|task| parts.iter().all(|part| task.reason.contains(part)));
            if reported { Ok(()) } else { Err(format!("{parts:?} not in {tasks:#?}")) }
        });
    };
    says("both", &["0 of 2 nodes fit", "data-1", "data-2"]);
    // A drained node keeps its volumes, so tasks that need them wait.
    cluster.ok(&format!("node update {first} --availability drain --detach"));
    says("follower", &["data-1", &first, "drained"]);
    cluster.ok(&format!("node update {first} --availability active"));
    cluster.wait_spread("follower", &[(&first, 3)]);
    cluster.ok("service rm both follower");
    // A lost node too.
    let mut workers = cluster.workers;
    let lost = workers.iter_mut().find(|worker| worker.name() == first).unwrap();
    lost.kill();
    let manager = &cluster.manager;
    eventually(3 * SOON, "the reason of the lost one", || {
        let tasks = task_document::of_service(manager, "db");
        let reported =
            tasks.iter().any(|task| task.reason.contains("data-1") && task.reason.contains(&first));
        if reported { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
    manager.warren().run_refused(&["volume", "rm", "data-1", "--purge"], CONFLICT);
}

#[test]
fn bad_volumes_are_refused_with_the_reason() {
    let world = NodeFixture::with_box();
    world.ok("volume create data");
    let new = "service create new --image warren.local/box:1";
    let cases: [(String, i32, &str); 13] = [
        ("volume create data".into(), CONFLICT, "already exists"),
        ("volume create other --driver nfs".into(), USAGE, "local"),
        ("volume create other --opt size=1G".into(), USAGE, "uid, gid and mode"),
        ("volume create other --opt mode=99".into(), USAGE, "mode"),
        ("volume create other --node nobody".into(), NOT_FOUND, "nobody"),
        ("volume create .hidden".into(), USAGE, "name"),
        ("volume rm nobody".into(), NOT_FOUND, "nobody"),
        ("volume inspect nobody".into(), NOT_FOUND, "nobody"),
        (format!("{new} --volume data"), USAGE, "NAME:TARGET"),
        (format!("{new} --volume data:relative"), USAGE, "absolute path"),
        (format!("{new} --volume a/b:/data"), USAGE, "volume name"),
        (format!("{new} --volume data:/d,subpath=../x"), USAGE, "relative path"),
        (format!("{new} --volume x-{{{{.Task.ID}}}}:/d"), USAGE, "new volume for each task"),
    ];
    for (line, code, reason) in &cases {
        let text = world.warren().run_refused(&line.split(' ').collect::<Vec<_>>(), *code);
        assert!(text.contains(reason), "{line}: {text}");
    }
    assert_eq!(world.warren().json(&["volume", "ls"]).as_array().map(Vec::len), Some(1));
    // Prune removes unused volumes, and keeps the others.
    world.warren().run_ok(&words("user", &["--volume", "used:/data"], &holding("true")));
    let pruned = world.ok("volume prune --force");
    assert!(pruned.contains("data") && !pruned.contains("used"), "{pruned}");
    let left: Vec<Value> = world.warren().json(&["volume", "ls"]).as_array().unwrap().clone();
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["name"], "used");
}
