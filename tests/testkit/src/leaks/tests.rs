use super::*;
use crate::containerd::TestContainerd;
use crate::image::TestImage;
use crate::netns::Netns;
use crate::process::ChildProcess;
use crate::scratch::ScratchDir;

fn inventory(entries: &[(&'static str, &str)]) -> Inventory {
    let mut inventory = Inventory::default();
    for (kind, name) in entries {
        inventory.add(kind, [(*name).to_owned()]);
    }
    inventory
}

#[test]
fn equal_things_are_counted_each() {
    let found = inventory(&[("links", "veth a"), ("links", "veth a"), ("links", "veth a"), ("mounts", "/x")]);
    assert_eq!(found.count("links"), 3);
    assert_eq!(found.names("links").collect::<Vec<_>>(), ["veth a", "veth a (2)", "veth a (3)"]);
    assert_eq!(found.count("tasks"), 0);
    assert_eq!(found.counts(), BTreeMap::from([("links", 3), ("mounts", 1)]));
}

#[test]
fn diff_lists_added_and_removed() {
    let before = inventory(&[("links", "veth a"), ("mounts", "/x")]);
    let after = inventory(&[("links", "veth a"), ("links", "veth b")]);
    assert_eq!(before.difference(&after).to_string(), "+ links: veth b\n- mounts: /x");
    assert_eq!(before.difference(&before).to_string(), "no difference");
}

#[test]
#[should_panic(expected = "+ links: veth b")]
fn remaining_resource_is_named() {
    let before = inventory(&[]);
    assert_returns_to(&before, Duration::ZERO, || inventory(&[("links", "veth b")]));
}

/// Kinds of which the test creates one each.
const MADE: [&str; 14] = [
    "addresses",
    "cgroups",
    "containers",
    "files",
    "iptables",
    "links",
    "listening sockets",
    "log files",
    "mounts",
    "processes",
    "routing rules",
    "runc states",
    "snapshots",
    "tasks",
];

const SOON: Duration = Duration::from_secs(60);

fn change_rule(netns: &Netns, action: &str) {
    let mut command = netns.command("iptables");
    command.args([action, "INPUT", "-j", "ACCEPT"]);
    crate::tool::stdout(command, crate::tool::DEADLINE).unwrap();
}

fn make(netns: &Netns, containerd: &TestContainerd, log: &Path, mark: &str) -> ChildProcess {
    let cgroup = format!("/default/{mark}");
    let run = "run --detach --null-io --cgroup";
    let program = "warren.local/b:1 leaky tail -f /dev/null";
    containerd.ctr(run.split(' ').chain([cgroup.as_str()]).chain(program.split(' ')));
    netns.ip("link add va type veth peer name vb".split(' '));
    netns.ip("address add 10.9.9.1/32 dev va".split(' '));
    netns.ip("rule add pref 900 to 10.9.0.0/16 lookup main".split(' '));
    change_rule(netns, "-A");
    let mut listener = netns.command("/bin/busybox");
    listener.args("nc -l -p 81 -e true".split(' '));
    ChildProcess::spawn("nc", listener, log)
}

fn unmake(netns: &Netns, containerd: &TestContainerd, log: &Path, listener: ChildProcess) {
    drop(listener);
    std::fs::remove_file(log).unwrap();
    containerd.ctr("tasks kill --signal 9 leaky".split(' '));
    eventually(SOON, "the container's end", || {
        let tasks = containerd.ctr(["tasks", "list"]);
        if tasks.contains("STOPPED") { Ok(()) } else { Err(tasks) }
    });
    containerd.ctr("tasks delete leaky".split(' '));
    containerd.ctr("containers delete leaky".split(' '));
    netns.ip("link delete va".split(' '));
    netns.ip("rule delete pref 900".split(' '));
    change_rule(netns, "-D");
}

#[test]
fn container_resources_appear_and_disappear() {
    let (netns, containerd, scratch) = (Netns::new(), TestContainerd::start(), ScratchDir::new());
    let archive = scratch.path().join("image.tar");
    TestImage::busybox("warren.local/b:1").oci_archive().write(&archive).unwrap();
    containerd.ctr(["images", "import", archive.to_str().unwrap()]);
    let (path, socket, directory) = (netns.path(), containerd.socket(), containerd.directory());
    let mark = directory.file_name().unwrap().to_str().unwrap();
    let site = LeakScope { netns: &path, containerd_socket: &socket, directory, cgroup_pattern: mark };
    let before = Inventory::take(&site);
    assert_eq!(before.count("images"), 1);
    assert_eq!(before.count("containers") + before.count("tasks") + before.count("processes"), 0);
    assert_eq!(before.names("links").collect::<Vec<_>>(), ["loopback lo"]);

    let log = directory.join("task.log");
    let listener = make(&netns, &containerd, &log, mark);
    let after = eventually(SOON, "everything to be seen", || {
        let after = Inventory::take(&site);
        let unseen: Vec<_> = MADE.iter().filter(|kind| after.count(kind) <= before.count(kind)).collect();
        if unseen.is_empty() { Ok(after) } else { Err(format!("no more of {unseen:?}")) }
    });
    assert!(after.names("links").any(|name| name == "veth va"), "{after:?}");

    unmake(&netns, &containerd, &log, listener);
    assert_returns_to(&before, SOON, || Inventory::take(&site));
}
