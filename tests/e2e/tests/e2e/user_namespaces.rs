//! Services whose containers have users without rights on the node.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{BOX, NodeFixture, SOON, WEB};
use crate::e2e::task_document::{self, TaskDocument};
use crate::e2e::traffic::ClientLocation;

/// The first id that nodes give out by default.
const FIRST_ID: u32 = 1_879_048_192;
/// The ids of one container.
const RANGE: u32 = 65_536;

/// The one task of `service`, and the user of its process on the node.
#[track_caller]
fn task_and_user(world: &NodeFixture, service: &str) -> (TaskDocument, u32) {
    let task = world.wait_serving(service, 1).remove(0);
    let pid = task_document::pids(&world.node)[&task.id];
    (task, fs::metadata(format!("/proc/{pid}")).unwrap().uid())
}

/// Uid and gid of a file of the node.
#[track_caller]
fn owner(path: &Path) -> (u32, u32) {
    let found = fs::metadata(path).unwrap();
    (found.uid(), found.gid())
}

/// Waits until the node has user namespaces with exactly these first ids.
#[track_caller]
fn wait_for_ranges(world: &NodeFixture, expected: &[u32]) {
    let directory = world.node.run_dir().join("user-namespaces");
    let expected: Vec<Option<u32>> = expected.iter().copied().map(Some).collect();
    eventually(SOON, "the ranges of ids in use", || {
        let names = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let first = |name: &String| name.split_once('.').and_then(|(first, _)| first.parse::<u32>().ok());
        let mut found: Vec<Option<u32>> = names.iter().map(first).collect();
        found.sort();
        let is_expected = found == expected && directory.exists() != expected.is_empty();
        if is_expected { Ok(()) } else { Err(format!("{names:?}")) }
    });
}

#[test]
fn root_of_a_container_has_no_rights_on_the_node_and_all_else_works() {
    let mut world = NodeFixture::new();
    let file = world.node.scratch().join("file");
    fs::write(&file, "hush").unwrap();
    chown(&file, Some(1000), Some(1001)).unwrap();
    let (text, back) = (file.to_str().unwrap().to_owned(), world.node.scratch().join("back"));
    world.warren().run_ok(&["secret", "create", "db", &text]);
    let flags = ["--user-namespace", "private", "--publish", "8081:80", "--volume", "data:/data"];
    let checked = ["--secret", "db", "--health-cmd", "grep -q hush /run/secrets/db && id -u | grep -qx 0"];
    let page = "mkdir /www; echo '<th>host name</th><td>here<' >/www/index.html; touch /data/new";
    let script = format!("{page}; exec httpd -f -p 80 -h /www");
    world.create_script("app", &[&flags[..], &checked].concat(), &script);
    let (task, user) = task_and_user(&world, "app");
    assert_eq!(user, FIRST_ID);
    world.assert_answered_by(ClientLocation::Outside, 8081, &["here"]);
    let data = world.node.data_dir().join("volumes/data");
    assert_eq!(owner(&data.join("new")), (0, 0), "a volume keeps the ids of the container");

    let shell = |script: &str| world.warren().run_ok(&["task", "exec", "app.1", "sh", "-c", script]);
    assert_eq!(shell("id -u; cat /run/secrets/db; stat -c ' %u:%g' /bin /data/new"), "0\nhush 0:0\n 0:0\n");
    assert_eq!(world.ok("task exec -u nobody app.1 id -u"), "65534\n");
    assert_eq!(shell("mount -t tmpfs none /tmp 2>/dev/null || echo refused"), "refused\n");
    for place in ["/tmp/copy", "/data/copy"] {
        world.warren().run_ok(&["task", "cp", &text, &format!("app.1:{place}")]);
        assert_eq!(shell(&format!("cat {place}; stat -c ' %u:%g' {place}")), "hush 1000:1001\n");
    }
    assert_eq!(owner(&data.join("copy")), (1000, 1001));
    world.warren().run_ok(&["task", "cp", "app.1:/tmp/copy", back.to_str().unwrap()]);
    assert_eq!(owner(&back), (1000, 1001));

    // The ids survive the agent, and are not given to another task.
    world.node.crash_and_recover();
    let (same, user) = task_and_user(&world, "app");
    assert_eq!((same.id, user), (task.id, FIRST_ID));
    assert_eq!(world.ok("task exec app.1 id -u"), "0\n");
    world.ok("cluster update --default-user-namespace private");
    world.ok(&format!("service create other --image {WEB} --publish 8082:80 --health-http /"));
    let (other, user) = task_and_user(&world, "other");
    assert_eq!(user, FIRST_ID + RANGE);
    assert_eq!(world.warren().json(&["task", "inspect", &other.id])["spec"]["userNamespace"], "private");
    world.assert_answered_by(ClientLocation::OwnAddress, 8082, &["other-1"]);
    wait_for_ranges(&world, &[FIRST_ID, FIRST_ID + RANGE]);
    world.ok("service rm app");
    wait_for_ranges(&world, &[FIRST_ID + RANGE]);
    world.ok(&format!("service create open --image {WEB} --user-namespace host"));
    assert_eq!(task_and_user(&world, "open").1, 0);
    world.ok("service rm other open");
    wait_for_ranges(&world, &[]);
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let directory = world.node.run_dir().join("user-namespaces");
    assert!(!mounts.contains(directory.to_str().unwrap()), "{mounts}");
}

#[test]
fn bind_that_cannot_have_other_ids_is_the_reason_of_the_task() {
    let world = NodeFixture::with_box();
    let stuck = world.node.scratch().join("stuck");
    fs::create_dir(&stuck).unwrap();
    let stuck = stuck.to_str().unwrap();
    tool::run("mount", ["-t", "ramfs", "none", stuck]);
    let bind = format!("{stuck}:/data");
    let words = ["service", "create", "app", "--detach", "--image", BOX, "--user-namespace", "private"];
    world.warren().run_ok(&[&words[..], &["--bind", &bind, "--", "sleep", "1000"]].concat());
    eventually(SOON, "the reason", || {
        let tasks = task_document::of_service(&world.node, "app");
        let reason = format!("task.mounts[0].source: {stuck} is on the mount {stuck},");
        let is_named = |task: &TaskDocument| task.state == "REJECTED" && task.reason.contains(&reason);
        if tasks.iter().any(is_named) { Ok(()) } else { Err(format!("{tasks:#?}")) }
    });
}
