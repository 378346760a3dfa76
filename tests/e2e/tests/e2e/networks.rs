//! Containers of several nodes reach each other by name, and only on their networks.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use warren_testkit::image::TestImage;
use warren_testkit::netns::NetworkSwitch;
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::tool;
use warren_testkit::wait::{WaitResult, eventually};

use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON, WEB, web_image};
use crate::e2e::task_document::{self, TaskDocument};

/// A running container as a client.
pub(super) struct Client {
    pub(super) pid: i32,
    name: String,
}

impl Client {
    pub(super) fn of(node: &LabNode, task: &TaskDocument) -> Client {
        Client { pid: task_document::pids(node)[&task.id], name: task.name.clone() }
    }

    /// The output of a program of busybox in the container.
    fn run(&self, arguments: &[&str]) -> WaitResult<String> {
        self.enter(&["--mount", "--uts", "--", "/bin/busybox"], arguments)
    }

    /// The output of a program in the namespace of the container's network and those of `flags`.
    fn enter(&self, flags: &[&str], arguments: &[&str]) -> WaitResult<String> {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.pid.to_string(), "--net"]).args(flags).args(arguments);
        tool::stdout(command, tool::DEADLINE).map_err(|error| format!("{}: {error}", self.name))
    }

    /// The host name of the container that answers at a name or an address.
    fn answering_host(&self, host: &str) -> WaitResult<String> {
        // A statically linked busybox cannot resolve names except in nslookup.
        let resolved = if host.parse::<Ipv4Addr>().is_ok() { None } else { Some(self.resolve(host)?) };
        let address = resolved.into_iter().flatten().next().unwrap_or_else(|| host.to_owned());
        let url = format!("http://{address}/");
        let page =
            self.enter(&["--", "curl"], &["--silent", "--show-error", "--fail", "--max-time", "3", &url])?;
        let (_, rest) = page.split_once("host name</th><td>").ok_or_else(|| page.clone())?;
        Ok(rest.split('<').next().unwrap_or_default().to_owned())
    }

    /// Waits until exactly these containers answer there.
    #[track_caller]
    fn assert_answered_by(&self, host: &str, expected: &[&str]) {
        let expected: BTreeSet<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        let mut seen = BTreeSet::new();
        eventually(SOON, &format!("answers of {expected:?} at {host} for {}", self.name), || {
            seen.insert(self.answering_host(host)?);
            assert!(seen.is_subset(&expected), "expected answers of {expected:?}, got {seen:?}");
            if seen == expected { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }

    /// The addresses of a name, in the order of the answer.
    pub(super) fn resolve(&self, name: &str) -> WaitResult<Vec<String>> {
        let output = self.run(&["nslookup", "-type=a", name])?;
        let answers = output.split_once("\n\n").map_or("", |(_, answers)| answers);
        let addresses = answers.lines().filter_map(|line| line.strip_prefix("Address: "));
        Ok(addresses.map(|address| address.trim().to_owned()).collect())
    }

    /// Waits until a name has an address: its tasks are ready before nodes know it.
    #[track_caller]
    pub(super) fn wait_resolved(&self, name: &str) -> Ipv4Addr {
        eventually(SOON, &format!("an address of {name} for {}", self.name), || {
            let found = self.resolve(name)?;
            found.first().and_then(|address| address.parse().ok()).ok_or_else(|| format!("{found:?}"))
        })
    }
}

/// The commands of the README, on two nodes of these names.
#[test]
fn example_of_the_readme_works() {
    let cluster = two_workers();
    let db = web_image().clone().known_as("docker.io/shop/db:1");
    let web = TestImage::busybox("docker.io/shop/web:1").arguments(["sleep", "1000000"]);
    for (file, image) in [("db.tar", db), ("web.tar", web)] {
        cluster.import(file, &image.oci_archive());
    }
    let readme = include_str!("../../../../README.md");
    let (_, block) = readme.split_once("Services reach each other by name, on every node:\n\n```\n").unwrap();
    let (commands, _) = block.split_once("```").unwrap();
    for line in commands.lines() {
        cluster.ok(line.strip_prefix("warren ").unwrap());
    }
    let [web, db] = ["web", "db"].map(|name| cluster.wait_serving(name, 1).remove(0));
    assert_eq!((web.node_name.as_str(), db.node_name.as_str()), ("w1", "w2"));
    Client::of(&cluster.workers[0], &web).assert_answered_by("db", &["db-1"]);
}

/// Two workers with both images.
pub(super) fn two_workers() -> WorkerCluster {
    let cluster = WorkerCluster::with(2, |_| NodeOptions::default());
    cluster.import("web.tar", &web_image().oci_archive());
    cluster
}

/// A container on each of the two workers that waits.
fn clients(cluster: &WorkerCluster, service: &str, flags: &str) -> [Client; 2] {
    cluster.ok(&format!(
        "service create {service} --image {BOX} --replicas 2 --max-per-node 1 {flags} -- sleep 1000000"
    ));
    running_clients(cluster, service)
}

/// The containers of such a service, once they run.
fn running_clients(cluster: &WorkerCluster, service: &str) -> [Client; 2] {
    eventually(2 * SOON, &format!("a container of {service} on each worker"), || {
        let tasks = task_document::serving(&cluster.manager, service, 2)?;
        let client = |worker: &LabNode| {
            let task = tasks.iter().find(|task| task.node_name == worker.name())?;
            Some(Client { pid: *task_document::pids(worker).get(&task.id)?, name: task.name.clone() })
        };
        match (client(&cluster.workers[0]), client(&cluster.workers[1])) {
            (Some(first), Some(second)) => Ok([first, second]),
            _ => Err(format!("{tasks:#?}")),
        }
    })
}

/// The devices of a worker that lead to other nodes: that for encrypted packets, and that of the overlay.
fn tunnels(worker: &LabNode) -> [bool; 2] {
    let links = worker.host().netns().ip(["-brief", "link"]);
    ["warren-wg ", "warren-vx "].map(|device| links.contains(device))
}

/// Waits until all workers have these devices, see [`tunnels`].
fn wait_tunnels(cluster: &WorkerCluster, expected: [bool; 2]) {
    eventually(SOON, "the devices of the data plane", || {
        let found: Vec<_> = cluster.workers.iter().map(tunnels).collect();
        if found.iter().all(|worker| *worker == expected) { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

#[test]
fn packets_between_nodes_take_the_data_plane_of_the_cluster() {
    let mut cluster = two_workers();
    cluster.ok(&format!("service create web --image {WEB} --replicas 2 --max-per-node 1"));
    cluster.wait_spread("web", &[("w1", 1), ("w2", 1)]);
    let clients = clients(&cluster, "client", "--init");
    let all_answer =
        || clients.iter().for_each(|client| client.assert_answered_by("web", &["web-1", "web-2"]));
    all_answer();
    assert!(cluster.ok("cluster info").contains("not encrypted (VXLAN)"));

    cluster.ok("cluster update --data-plane wireguard");
    assert!(cluster.ok("cluster info").contains("trafficBetweenNodes: encrypted (WireGuard)"));
    wait_tunnels(&cluster, [true, true]);
    all_answer();
    let key = cluster.workers[0].data_dir().join("worker/wireguard.key");
    assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);

    // Encryption goes on without the agent, and with the next one. A node without its key makes another one.
    std::fs::remove_file(&key).unwrap();
    let address = clients[0].resolve("web").unwrap().remove(0);
    cluster.workers[0].kill();
    for client in &clients {
        client.assert_answered_by(&address, &["web-1", "web-2"]);
    }
    cluster.workers[0].run_again();
    cluster.workers[0].wait_ready();
    assert!(key.exists());
    all_answer();

    cluster.ok("cluster update --data-plane routes");
    assert!(cluster.ok("cluster info").contains("trafficBetweenNodes: not encrypted (routes)"));
    wait_tunnels(&cluster, [false, false]);
    all_answer();
    eventually(SOON, "no condition", || {
        let listed = cluster.ok("node ls");
        if listed.contains("network unavailable") { Err(listed) } else { Ok(()) }
    });

    cluster.ok("cluster update --data-plane vxlan");
    wait_tunnels(&cluster, [false, true]);
    all_answer();
}

#[test]
fn services_reach_each_other_by_name_on_every_node() {
    let cluster = two_workers();
    cluster.ok(&format!(
        "service create web --image {WEB} --replicas 3 --max-per-node 2 --publish 8088:80 --network default,alias=shop"
    ));
    let tasks = cluster.wait_serving("web", 3);
    let all = ["web-1", "web-2", "web-3"];
    let addresses: BTreeSet<String> = tasks.iter().map(|task| task.address.clone()).collect();
    for client in clients(&cluster, "client", "--init") {
        for name in ["web", "web.warren", "shop", "tasks.web"] {
            client.assert_answered_by(name, &all);
        }
        for task in &tasks {
            let instance = format!("web-{}", task.slot);
            client.assert_answered_by(&instance, &[&instance]);
            client.assert_answered_by(&task.address, &[&instance]);
            assert_eq!(client.resolve(&instance).unwrap(), [task.address.as_str()]);
        }
        assert_eq!(client.resolve("tasks.web").unwrap().into_iter().collect::<BTreeSet<_>>(), addresses);
        let virtual_address = client.resolve("web").unwrap();
        assert!(
            virtual_address.len() == 1 && !addresses.contains(&virtual_address[0]),
            "{virtual_address:?}"
        );
        let unknown = client.resolve("database").unwrap_err();
        assert!(unknown.contains("NXDOMAIN"), "{unknown}");
    }
}

/// Names, virtual addresses and published ports of running tasks need no manager.
#[test]
fn names_and_virtual_addresses_outlive_the_managers() {
    let mut cluster = two_workers();
    cluster.ok(&format!("service create web --image {WEB} --replicas 2 --max-per-node 1 --publish 8088:80"));
    cluster.wait_spread("web", &[("w1", 1), ("w2", 1)]);
    let clients = clients(&cluster, "client", "--init");
    clients.iter().for_each(|client| client.assert_answered_by("web", &["web-1", "web-2"]));
    let before = clients[0].resolve("web").unwrap();
    cluster.manager.kill();
    // One agent ends in order and one at once; both answer from what they had.
    cluster.workers[0].stop();
    cluster.workers[0].run_again();
    let check = |cluster: &WorkerCluster, clients: &[Client]| {
        for client in clients {
            client.assert_answered_by("web", &["web-1", "web-2"]);
            client.assert_answered_by("web-1", &["web-1"]);
            let now = eventually(SOON, "the addresses of web", || client.resolve("web"));
            assert_eq!(now, before);
        }
        for worker in &cluster.workers {
            let url = format!("http://{}:8088/", worker.host().address());
            eventually(SOON, &format!("an answer of {url}"), || {
                let mut curl = cluster.manager.host().command("curl");
                curl.args(["--silent", "--show-error", "--fail", "--max-time", "3", &url]);
                tool::stdout(curl, tool::DEADLINE).map_err(|error| error.to_string())
            });
        }
    };
    check(&cluster, &clients);
    cluster.workers[1].kill();
    cluster.workers[1].run_again();
    check(&cluster, &clients);
    // A rebooted node has only its disk.
    cluster.workers[0].lose_power();
    cluster.workers[0].run_again();
    cluster.manager.run_again();
    cluster.manager.wait_ready();
    cluster.wait_spread("web", &[("w1", 1), ("w2", 1)]);
    let clients = running_clients(&cluster, "client");
    check(&cluster, &clients);
    cluster.ok("service scale web=1");
    for client in &clients {
        eventually(SOON, "one address of tasks.web", || {
            let found = client.resolve("tasks.web")?;
            if found.len() == 1 { Ok(()) } else { Err(format!("{found:?}")) }
        });
        client.assert_answered_by("tasks.web", &["web-1"]);
    }
}

/// Only members of a network reach each other, by no address, and learn no names of other networks.
#[test]
fn networks_separate_services() {
    let cluster = two_workers();
    for network in ["left", "right"] {
        cluster.ok(&format!("network create {network} --internal"));
        cluster.ok(&format!(
            "service create {network}-web --image {WEB} --replicas 2 --max-per-node 1 --network {network}"
        ));
    }
    cluster.ok(&format!(
        "service create both --image {WEB} --replicas 2 --max-per-node 1 --network left --network right"
    ));
    let servers = ["left-web", "right-web", "both"].map(|name| {
        let tasks = cluster.wait_spread(name, &[("w1", 1), ("w2", 1)]);
        (name, tasks)
    });
    for (network, own, foreign) in [("left", "left-web", "right-web"), ("right", "right-web", "left-web")] {
        for client in clients(&cluster, &format!("{network}-client"), &format!("--network {network}")) {
            for reachable in [own, "both"] {
                client.assert_answered_by(reachable, &[&format!("{reachable}-1"), &format!("{reachable}-2")]);
            }
            assert!(client.resolve(foreign).unwrap_err().contains("NXDOMAIN"));
            let (_, tasks) = servers.iter().find(|(name, _)| *name == foreign).unwrap();
            for task in tasks {
                client.answering_host(&task.address).unwrap_err();
                client.run(&["ping", "-c", "1", "-W", "1", &task.address]).unwrap_err();
            }
        }
    }
}

/// A TCP connection from a container to an echo server.
struct EchoConnection {
    client: Child,
    answers: Receiver<String>,
}

impl EchoConnection {
    fn open(client: &Client, address: &str) -> EchoConnection {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &client.pid.to_string(),
            "--net",
            "--",
            "/bin/busybox",
            "nc",
            address,
            "7000",
        ]);
        let mut client = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (lines, answers) = channel();
        let output = BufReader::new(client.stdout.take().unwrap());
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        EchoConnection { client, answers }
    }

    /// As [`EchoConnection::open`], once the server answers at the address.
    #[track_caller]
    fn open_eventually(client: &Client, address: &str) -> EchoConnection {
        let script = format!("echo ready | busybox nc -w 5 {address} 7000");
        eventually(SOON, &format!("an echo of {address} for {}", client.name), || {
            match client.enter(&["--", "sh", "-c"], &[&script])?.as_str() {
                "ready\n" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        EchoConnection::open(client, address)
    }

    #[track_caller]
    fn exchange(&mut self, line: &str) {
        let input = self.client.stdin.as_mut().unwrap();
        input.write_all(format!("{line}\n").as_bytes()).unwrap_or_else(|error| panic!("{line}: {error}"));
        let answer = self.answers.recv_timeout(SOON);
        assert_eq!(answer.as_deref(), Ok(line), "the connection has ended or hangs");
    }
}

impl Drop for EchoConnection {
    fn drop(&mut self) {
        let _ = (self.client.kill(), self.client.wait());
    }
}

/// Managers and agents are killed, and the manager is cut off, while the endpoints of another service change.
#[test]
fn connections_outlive_kills_and_partitions_while_endpoints_change() {
    let mut cluster = two_workers();
    cluster.ok(&format!(
        "service create echo --image {BOX} --init --constraint node.name==w2 -- nc -ll -p 7000 -e cat"
    ));
    cluster.ok(&format!("service create web --image {WEB} --replicas 2 --max-per-node 3"));
    cluster.wait_serving("echo", 1);
    let clients = clients(&cluster, "client", "--init");
    let address = clients[0].wait_resolved("echo").to_string();
    let mut connections = clients.each_ref().map(|client| EchoConnection::open_eventually(client, &address));
    for (round, replicas) in [5, 1, 4, 2, 6, 3].into_iter().enumerate() {
        cluster.ok(&format!("service scale web={replicas} --detach"));
        match round % 3 {
            0 => cluster.workers[round % 2].kill(),
            1 => cluster.manager.kill(),
            _ => cluster.manager.host().disconnect(),
        }
        connections.iter_mut().for_each(|connection| connection.exchange(&format!("during {round}")));
        match round % 3 {
            0 => cluster.workers[round % 2].run_again(),
            1 => cluster.manager.run_again(),
            _ => cluster.manager.host().connect(),
        }
        cluster.manager.wait_ready();
        connections.iter_mut().for_each(|connection| connection.exchange(&format!("after {round}")));
    }
    let names: Vec<String> = (1..=3).map(|slot| format!("web-{slot}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    cluster.wait_serving("web", 3);
    for client in &clients {
        eventually(SOON, "three addresses of tasks.web", || {
            let found = client.resolve("tasks.web")?;
            if found.len() == 3 { Ok(()) } else { Err(format!("{found:?}")) }
        });
        client.assert_answered_by("web", &names);
        client.assert_answered_by("tasks.web", &names);
    }
    connections.iter_mut().for_each(|connection| connection.exchange("end"));
}

#[test]
fn route_into_the_range_of_the_cluster_is_a_condition_of_the_node() {
    let lab = NetworkSwitch::new();
    let manager = LabNode::start_manager(lab.add_host(), NodeOptions::default());
    let host = lab.add_host();
    host.netns().ip(["route", "add", "blackhole", "10.210.77.0/24"]);
    host.netns().ip(["route", "add", "10.210.78.0/24", "dev", "lo"]);
    let worker = LabNode::join(host, NodeOptions::default(), &manager, "w1");
    let expected = ["- range conflict", "the route to 10.210.78.0/24 on lo leads elsewhere"];
    eventually(SOON, "the condition of the node", || {
        let shown = manager.warren().run_ok(&["node", "inspect", worker.name()]);
        if expected.iter().all(|part| shown.contains(part)) { Ok(()) } else { Err(shown) }
    });
}
