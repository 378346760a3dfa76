//! Nothing remains after removal, after a kill at any point, or after an agent lost its state.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use warren_network::{LinuxNetwork, NetworkBackend};

use crate::lab::{
    CLIENT, NODE, NetworkLab, NetworkNamespace, address, all, assert_same, eventually, host_port, key, link,
    published, run_on_node, settings, task, without_indexes,
};

/// Set for a process that works in a given run directory until it is killed.
const VICTIM: &str = "WARREN_NETWORK_TEST_VICTIM";
/// The file that this process creates in the directory before it works.
const READY: &str = "ready";

/// Foreign rules, so that all tables exist beforehand, and can be compared afterwards.
fn rules_of_others(lab: &NetworkLab) {
    for rule in [
        "-t raw -A PREROUTING -s 198.51.100.0/24 -j DROP",
        "-t nat -A POSTROUTING -s 172.17.0.0/16 -j MASQUERADE",
        "-t filter -N DOCKER",
        "-t filter -A FORWARD -o docker0 -j DOCKER",
    ] {
        lab.node.command("iptables", &rule.split(' ').collect::<Vec<_>>());
    }
    lab.node.command("ip", &["link", "add", "wcstranger", "type", "veth", "peer", "name", "wcother"]);
    lab.node.command("ip", &["route", "add", "unreachable", "10.99.0.0/16"]);
}

#[test]
fn removal_leaves_the_node_as_it_was() {
    run_on_node(|lab| async move {
        rules_of_others(&lab);
        let before = lab.inventory();
        let tasks = lab.with_tasks([2, 3]).await;
        let server = tasks[0].serve([0, 0, 0, 0].into(), 80, "two");
        lab.publish(None, 8080, &[(2, 80), (3, 80)]).await;
        lab.publish(None, 8081, &[(2, 80)]).await;
        lab.publish(Some(NODE), 8082, &[]).await;
        let with_two = lab.inventory();
        assert_eq!(lab.client.fetch(NODE, 8081).unwrap(), format!("two {CLIENT}"));
        lab.network.ensure_task(&task(4)).await.unwrap();
        lab.publish(None, 8083, &[(4, 80)]).await;
        for _ in 0..2 {
            lab.network.remove_port(host_port(None, 8083)).await.unwrap();
            lab.network.remove_task(&key(4)).await.unwrap();
            assert_same(&lab.inventory(), &with_two, "after removing a task");
        }
        drop(server);
        for _ in 0..2 {
            lab.network.remove_node().await.unwrap();
            assert_same(&lab.inventory(), &before, "after removing the node");
        }
        assert_eq!(lab.node.conntrack_count(), 0);
        assert!(!lab.run.path().join("netns").exists());
        drop(lab.node.listen([0, 0, 0, 0].into(), 8080));
    });
}

#[test]
fn agent_without_state_removes_everything() {
    run_on_node(|lab| async move {
        let before = lab.inventory();
        lab.with_tasks([2]).await;
        lab.publish(None, 8080, &[(2, 80)]).await;
        lab.node.command("ip", &["link", "add", "wc0123456789abc", "type", "veth", "peer", "name", "x"]);
        crate::lab::linux_network(lab.run.path()).remove_node().await.unwrap();
        // The base chains of tables that did not exist before remain, empty.
        let base = |line: &String| {
            line.contains("iptables-save") && !line.contains("-A ") && !line.contains("WARREN")
        };
        let without_base = |lines: BTreeSet<String>| lines.into_iter().filter(|line| !base(line)).collect();
        assert_same(&without_base(lab.inventory()), &without_base(before), "after removing the node");
    });
}

#[test]
fn partly_created_tasks_are_completed() {
    run_on_node(|lab| async move {
        lab.with_tasks([]).await;
        let (name, file) = (link(2), lab.run.path().join("netns/web.2"));
        let path = file.to_str().unwrap();
        let directory = file.parent().unwrap().to_str().unwrap();
        let own = "/proc/thread-self/ns/net";
        for state in [
            format!("mkdir -p {directory}; touch {path}"),
            format!("touch {path}; unshare --net mount --bind {own} {path}"),
            format!("touch {path}; for n in 1 2; do unshare --net mount --bind {own} {path}; done"),
            format!("ip link add {name} type veth peer name other"),
            format!(
                "touch {path}; unshare --net mount --bind {own} {path}; \
                 nsenter --net={path} ip link add eth0 type veth peer name elsewhere"
            ),
        ] {
            let state = state.replace("/proc/thread-self", "/proc/self");
            lab.node.command("sh", &["-c", &state]);
            let path = lab.network.ensure_task(&task(2)).await.unwrap();
            let _server = NetworkNamespace::open(&path).serve([0, 0, 0, 0].into(), 80, "two");
            assert_eq!(lab.node.fetch(address(2), 80).unwrap(), "two 10.210.1.1", "{state}");
            lab.network.remove_task(&key(2)).await.unwrap();
            assert!(!file.exists() && !lab.inventory().iter().any(|line| line.contains(&name)), "{state}");
        }
    });
}

#[test]
fn a_task_may_change_its_address() {
    run_on_node(|lab| async move {
        lab.with_tasks([2]).await;
        let moved = warren_network::TaskNetwork { task: key(2), ..task(3) };
        let path = lab.network.ensure_task(&moved).await.unwrap();
        let _server = NetworkNamespace::open(&path).serve([0, 0, 0, 0].into(), 80, "two");
        assert_eq!(lab.node.fetch(moved.attachment.address, 80).unwrap(), "two 10.210.1.1");
        assert!(lab.node.fetch(address(2), 80).is_err());
        assert!(!lab.inventory().iter().any(|line| line.contains("10.210.1.2 ")));
    });
}

#[test]
fn a_given_namespace_replaces_another() {
    run_on_node(|lab| async move {
        lab.with_tasks([2]).await;
        let given = lab.run.path().join("given");
        let file = given.to_str().unwrap();
        let make = format!("touch {file}; unshare --net mount --bind /proc/self/ns/net {file}");
        lab.node.command("sh", &["-c", &make]);
        let inode = |path: &Path| std::fs::metadata(path).unwrap().ino();
        let asked = warren_network::TaskNetwork { namespace: Some(given.clone()), ..task(2) };
        // None is given by a repair, which keeps what is there.
        for asked in [&asked, &asked, &task(2)] {
            let path = lab.network.ensure_task(asked).await.unwrap();
            assert_eq!(inode(&path), inode(&given));
            let _server = NetworkNamespace::open(&path).serve([0, 0, 0, 0].into(), 80, "two");
            assert_eq!(lab.node.fetch(address(2), 80).unwrap(), "two 10.210.1.1");
        }
        lab.network.remove_task(&key(2)).await.unwrap();
        // Lazily: a process that another test starts may have the file open until its exec.
        lab.node.command("umount", &["--lazy", file]);
        std::fs::remove_file(given).unwrap();
    });
}

/// Creates and removes tasks and ports, for a number of rounds or endlessly.
async fn work(network: &LinuxNetwork, rounds: usize) {
    for _ in 0..rounds {
        network.ensure_node(&settings()).await.unwrap();
        network.ensure_task(&task(2)).await.unwrap();
        network.ensure_port(&published(None, 8080, &[(2, 80)])).await.unwrap();
        network.ensure_task(&task(3)).await.unwrap();
        network.ensure_port(&published(None, 8080, &[(2, 80), (3, 80)])).await.unwrap();
        network.remove_port(host_port(None, 8080)).await.unwrap();
        network.remove_task(&key(3)).await.unwrap();
        network.remove_task(&key(2)).await.unwrap();
        network.remove_node().await.unwrap();
    }
}

#[test]
fn repeated_work_leaves_nothing() {
    if let Some(directory) = std::env::var_os(VICTIM) {
        // Started by the test below, in its node's namespace.
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let directory = Path::new(&directory);
        std::fs::write(directory.join(READY), "").unwrap();
        return runtime.block_on(work(&crate::lab::linux_network(directory), usize::MAX));
    }
    run_on_node(|lab| async move {
        rules_of_others(&lab);
        let before = lab.inventory();
        work(&lab.network, 2).await;
        assert_same(&lab.inventory(), &before, "after removing the node");
    });
}

/// A process that is killed when the test ends.
struct KilledProcess(Child);

impl KilledProcess {
    fn start(lab: &NetworkLab) -> Self {
        let program = std::env::current_exe().unwrap();
        let spawn = || {
            Command::new(program)
                .args(["--exact", "leftovers::repeated_work_leaves_nothing"])
                .env(VICTIM, lab.run.path())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        };
        let ready = lab.run.path().join(READY);
        let started = Self(lab.node.run(spawn));
        eventually("the victim works", || ready.exists());
        std::fs::remove_file(ready).unwrap();
        started
    }
}

impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kill_at_any_point_is_repaired_and_removed() {
    run_on_node(|lab| async move {
        rules_of_others(&lab);
        let before = lab.inventory();
        let desired = all([2], &published(None, 8080, &[(2, 80)]));
        lab.network.ensure(&desired).await.unwrap();
        let whole = lab.inventory();
        lab.network.remove_node().await.unwrap();
        let mut half_done = 0;
        for kill in 0..12_u64 {
            let victim = KilledProcess::start(&lab);
            // Not a wait: the times of the kills, spread over more than one round.
            tokio::time::sleep(Duration::from_millis(40 + kill * 37)).await;
            drop(victim);
            lab.wait_for_orphans().await;
            half_done += usize::from(lab.inventory() != before);
            let network = crate::lab::linux_network(lab.run.path());
            if kill % 2 == 0 {
                // What only the victim knew of the cluster is removed by the second pass.
                for pass in [network.ensure(&desired).await.unwrap(), network.repair().await.unwrap()] {
                    assert!(pass.failed.is_empty(), "{:?}", pass.failed);
                }
                assert_same(&without_indexes(&lab.inventory()), &without_indexes(&whole), "after a repair");
            }
            network.remove_node().await.unwrap();
            assert_same(&lab.inventory(), &before, "after removing the node");
        }
        assert!(half_done > 0, "no kill came while the victim was at work");
    });
}
