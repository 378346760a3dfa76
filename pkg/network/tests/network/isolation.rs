//! Who may connect to whom: networks, the node itself, the outside, the metadata service.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warren_network::{NetworkBackend, NetworkMembers, NetworkNumber, PortRange, TransportProtocol};

use crate::lab::cluster::{
    ANY, ClusterLab, ServingTask, gateway, network, peers, settings, task_address, underlay, virtual_address,
};
use crate::lab::traffic::exchange;
use crate::lab::{CLIENT, NetworkNamespace, WAIT_DEADLINE, assert_refused, eventually};

/// Node, last byte, networks and name of each task.
const TASKS: [(u8, u8, &[NetworkNumber], &str); 6] = [
    (1, 2, &[2], "a1"),
    (2, 2, &[2], "a2"),
    (3, 2, &[2, 3], "ab3"),
    (1, 3, &[3], "b1"),
    (2, 3, &[3], "b2"),
    (1, 4, &[1], "c1"),
];

fn start_all(lab: &ClusterLab) -> Vec<ServingTask> {
    let tasks = TASKS
        .iter()
        .map(|(node, last, networks, name)| ServingTask::start(lab.node(*node), *last, networks, name));
    let tasks = tasks.collect();
    let mut cluster = peers(1..=3);
    for number in 1..=3 {
        let members: Vec<(u8, u8)> =
            TASKS.iter().filter(|task| task.2.contains(&number)).map(|task| (task.0, task.1)).collect();
        cluster.networks.insert(number, network(&members));
    }
    cluster.services.insert(virtual_address(1), BTreeSet::from([task_address(2, 3)]));
    lab.ensure_cluster(&cluster);
    tasks
}

#[test]
fn networks_are_apart_on_and_between_nodes() {
    for lab in ClusterLab::of_each_data_plane() {
        let tasks = start_all(&lab);
        for (from, source) in TASKS.iter().zip(&tasks) {
            for (to, target) in TASKS.iter().zip(&tasks).filter(|(to, _)| to.3 != from.3) {
                let allowed = from.2.iter().any(|number| to.2.contains(number));
                let expected = allowed.then(|| format!("{} {}", target.name, source.address));
                let what = format!("{} to {}", from.3, to.3);
                assert_eq!(source.space.fetch(target.address, 80).ok(), expected, "tcp {what}");
                if allowed {
                    assert_eq!(source.space.fetch_udp(target.address, 80).ok(), expected, "udp {what}");
                    assert!(source.space.ping(target.address), "icmp {what}");
                } else {
                    assert!(source.space.fetch_udp_briefly(target.address, 80).is_err(), "udp {what}");
                    assert!(!source.space.ping_briefly(target.address), "icmp {what}");
                    assert_refused(&source.space, target.address, 80);
                }
            }
        }
        // Through the virtual address of a service of network 3.
        let reached: Vec<&str> = tasks
            .iter()
            .filter(|task| task.space.fetch(virtual_address(1), 80).is_ok())
            .map(|task| task.name)
            .collect();
        assert_eq!(reached, ["ab3", "b1", "b2"]);
        // A published port is open to every network, and processes of the node reach every task.
        let port = crate::lab::host_port(None, 8080);
        let backends = [std::net::SocketAddrV4::new(task_address(1, 2), 80)].into();
        lab.node(1).publish(warren_network::PortMapping { host_port: port, backends });
        assert_eq!(tasks[3].space.fetch(underlay(1), 8080).unwrap(), format!("a1 {}", tasks[3].address));
        assert_eq!(tasks[4].space.fetch(underlay(1), 8080).unwrap(), format!("a1 {}", underlay(2)));
        assert_eq!(lab.node(1).space.fetch(tasks[3].address, 80).unwrap(), format!("b1 {}", gateway(1)));
    }
}

/// Packets dropped by the rule against spoofed source addresses.
fn dropped_as_spoofed(node: &NetworkNamespace) -> u64 {
    let chain = node.command("iptables", &["-t", "raw", "-nvxL", "WARREN-RAW-C"]);
    let rule = chain.lines().find(|line| line.contains("rpfilter")).unwrap();
    rule.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn spoofed_addresses_do_not_get_in() {
    let lab = ClusterLab::new();
    let tasks = start_all(&lab);
    let (hostile, node) = (&tasks[0].space, &lab.node(1).space);
    // As another task of the node, of another node, a gateway, a node, and the outside.
    for source in [task_address(1, 3), task_address(2, 3), gateway(2), underlay(2), CLIENT] {
        hostile.command("ip", &["addr", "add", &format!("{source}/32"), "dev", "eth0"]);
        for target in [task_address(1, 3), task_address(2, 3)].into_iter().filter(|to| *to != source) {
            let before = dropped_as_spoofed(node);
            hostile.run(|| {
                let socket = std::net::UdpSocket::bind((source, 0)).unwrap();
                socket.send_to(b"?", (target, 80)).unwrap();
            });
            eventually(&format!("drop from {source} to {target}"), || dropped_as_spoofed(node) > before);
        }
        hostile.command("ip", &["addr", "del", &format!("{source}/32"), "dev", "eth0"]);
    }
    // From the outside, to a task, to a virtual address, and into the tunnel.
    for range in ["10.210.1.0/24", "10.210.224.0/19"] {
        lab.client.command("ip", &["route", "add", range, "via", &underlay(1).to_string()]);
    }
    for target in [tasks[0].address, virtual_address(1)] {
        assert!(lab.client.fetch_udp_briefly(target, 80).is_err());
    }
    let received = |node: u8| {
        let table = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let table = lab.node(node).space.run(table);
        let (_, counts) = table.split_once("warren-vx:").unwrap();
        counts.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = received(2);
    // VXLAN header with the cluster's identifier, Ethernet header from the first node to the second.
    let macs = [underlay(2), underlay(1)].map(warren_network::names::overlay_mac).concat();
    let frame = [&[0x88, 0, 0, 0, 0, 0x10, 0, 0][..], &macs, &[8, 0], &[0; 46]].concat();
    for from in [&lab.client, hostile] {
        from.run(|| {
            let socket = std::net::UdpSocket::bind((ANY, 0)).unwrap();
            socket.send_to(&frame, (underlay(2), 4789)).unwrap();
        });
    }
    // The peer itself gets through, with a datagram that is sent only once.
    let socket = tasks[0].space.udp_client(tasks[1].address, 80);
    socket.set_read_timeout(Some(WAIT_DEADLINE)).unwrap();
    exchange(&socket, b"?").unwrap();
    assert_eq!(received(2), before + 1);
}

#[test]
fn the_node_is_reached_only_where_it_allows() {
    for lab in ClusterLab::of_each_data_plane() {
        let tasks = start_all(&lab);
        let node = lab.node(1);
        let _servers = [22, 53, 9100, 9101].map(|port| node.space.serve(ANY, port, "node"));
        let _dns = node.space.serve_udp(ANY, 53, "node");
        let task = &tasks[0].space;
        let reach = |port| [gateway(1), underlay(1)].map(|address| task.fetch(address, port).is_ok());
        assert_eq!(reach(22), [false, false]);
        assert_eq!(reach(53), [true, false], "DNS answers on the gateway only");
        assert!(task.fetch_udp(gateway(1), 53).is_ok());
        assert!(task.ping(gateway(1)));
        assert_refused(task, underlay(1), 9100);
        // Over the overlay neither.
        assert!(tasks[1].space.fetch_udp_briefly(gateway(1), 53).is_err());
        // The node and the outside are not affected.
        assert_eq!(node.space.fetch(gateway(1), 22).unwrap(), format!("node {}", gateway(1)));
        assert_eq!(lab.client.fetch(underlay(1), 9100).unwrap(), format!("node {CLIENT}"));
        let allowed = PortRange { protocol: TransportProtocol::Tcp, first: 9100, last: 9100 };
        node.ensure_node((lab.settings)(1).with_allowed_ports([allowed].into())).unwrap();
        assert_eq!(reach(9100), [true, true]);
        assert_eq!(reach(9101), [false, false]);
        // A firewall that drops by default is no obstacle for DNS.
        node.shell("iptables -P INPUT DROP");
        assert!(task.fetch_udp(gateway(1), 53).is_ok());
    }
}

#[test]
fn internal_networks_have_no_way_out() {
    for lab in ClusterLab::of_each_data_plane() {
        let inside = ServingTask::start(lab.node(1), 2, &[5], "inside");
        let neighbour = ServingTask::start(lab.node(2), 2, &[5], "neighbour");
        let bridging = ServingTask::start(lab.node(1), 3, &[1, 5], "bridging");
        let port = crate::lab::host_port(None, 8080);
        let backends = [std::net::SocketAddrV4::new(bridging.address, 80)].into();
        lab.node(1).publish(warren_network::PortMapping { host_port: port, backends });
        let mut cluster = peers(1..=3);
        cluster.networks.insert(5, NetworkMembers { internal: true, ..network(&[(1, 2), (2, 2), (1, 3)]) });
        cluster.networks.insert(1, network(&[(1, 3)]));
        cluster.services.insert(virtual_address(1), BTreeSet::from([task_address(2, 2)]));
        lab.ensure_cluster(&cluster);
        let _outside = lab.client.serve(ANY, 7000, "outside");
        let _outside_udp = lab.client.serve_udp(ANY, 7000, "outside");
        let _node = lab.node(1).space.serve(ANY, 53, "node");
        assert_eq!(
            inside.space.fetch(neighbour.address, 80).unwrap(),
            format!("neighbour {}", inside.address)
        );
        assert_eq!(
            inside.space.fetch(virtual_address(1), 80).unwrap(),
            format!("neighbour {}", inside.address)
        );
        assert!(inside.space.fetch(gateway(1), 53).is_ok(), "its DNS server is reached");
        assert_refused(&inside.space, CLIENT, 7000);
        assert!(inside.space.fetch_udp_briefly(CLIENT, 7000).is_err());
        assert!(!inside.space.ping_briefly(CLIENT) && !inside.space.ping_briefly(underlay(2)));
        assert!(bridging.space.fetch(CLIENT, 7000).is_ok(), "the other network has a way out");
        // The published port leads to a member: that is not out. On another node it is.
        assert!(inside.space.fetch(underlay(1), 8080).is_ok());
        assert!(neighbour.space.fetch(underlay(1), 8080).is_err());
        assert_eq!(lab.client.fetch(underlay(1), 8080).unwrap(), format!("bridging {CLIENT}"));
    }
}

#[test]
fn metadata_is_refused_unless_allowed() {
    let lab = ClusterLab::new();
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    lab.client.command("ip", &["addr", "add", "169.254.169.254/32", "dev", "lo"]);
    let _server = lab.client.serve(metadata, 80, "secrets");
    let plain = lab.node(1).attach(2, &[1]);
    let allowed = warren_network::Attachment {
        allows_metadata: true,
        ..warren_network::Attachment::new(task_address(1, 3))
    };
    let allowed = lab.node(1).attach_as(3, allowed);
    assert_refused(&plain, metadata, 80);
    assert_eq!(allowed.fetch(metadata, 80).unwrap(), format!("secrets {}", underlay(1)));
    assert_eq!(lab.node(1).space.fetch(metadata, 80).unwrap(), format!("secrets {}", underlay(1)));
    // Where the machine itself serves or redirects it.
    lab.node(1)
        .shell("iptables -t nat -I PREROUTING -d 169.254.169.254 -j DNAT --to-destination 192.0.2.100");
    let _redirected = lab.client.serve(CLIENT, 80, "secrets");
    assert_refused(&plain, metadata, 80);
}

#[test]
fn rules_of_users_filter_published_traffic_and_survive() {
    let lab = ClusterLab::new();
    let node = lab.node(1);
    let task = ServingTask::start(node, 2, &[1], "task");
    let port = crate::lab::host_port(None, 8080);
    let backends = [std::net::SocketAddrV4::new(task.address, 80)].into();
    node.publish(warren_network::PortMapping { host_port: port, backends });
    assert!(lab.client.fetch(underlay(1), 8080).is_ok());
    node.shell(&format!("iptables -A WARREN-USER -s {CLIENT} -p tcp -j REJECT --reject-with tcp-reset"));
    assert_refused(&lab.client, underlay(1), 8080);
    assert!(lab.node(2).space.fetch(underlay(1), 8080).is_ok(), "others are not concerned");
    let pass = node.repair();
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    let restarted = crate::lab::linux_network(node.run.path());
    let mut all = warren_network::NodeNetwork::new(settings(1));
    all.tasks.insert(crate::lab::cluster::task_key(1, 2), crate::lab::cluster::attachment(1, 2, &[1]));
    node.wait(|_| async move {
        warren_network::NetworkBackend::ensure(&restarted, &all).await.unwrap();
    });
    assert!(node.shell("iptables -S WARREN-USER").contains("-j REJECT"));
    node.wait(|network| async move { warren_network::NetworkBackend::remove_node(&network).await.unwrap() });
    assert!(node.shell("iptables -S WARREN-USER").contains("-j REJECT"), "it is kept for the next start");
    node.shell("iptables -F WARREN-USER");
    node.wait(|network| async move { warren_network::NetworkBackend::remove_node(&network).await.unwrap() });
    assert!(!node.shell("iptables-save").contains("WARREN"));
}

/// Restarts of an agent under traffic. When each of them deleted the table, about one in thirty refused a packet.
const RESTARTS: usize = 60;
/// So that a failure of a restart becomes a failure of the test.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn restarted_agents_refuse_no_packet_that_is_allowed() {
    let lab = ClusterLab::new();
    let node = lab.node(1);
    let (source, target) = (node.attach(2, &[2]), node.attach(3, &[2]));
    // It does not answer: each packet is the first of a connection to the rules.
    let _receiver = target.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 80)).unwrap());
    let socket = source.udp_client(task_address(1, 3), 80);
    let mut all = warren_network::NodeNetwork::new(settings(1));
    all.cluster = std::sync::Arc::new(peers(1..=3));
    for last in [2, 3] {
        all.tasks
            .insert(crate::lab::cluster::task_key(1, last), crate::lab::cluster::attachment(1, last, &[2]));
    }
    let ended = AtomicBool::new(false);
    let (refused, passes): (BTreeSet<String>, Vec<_>) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let limit = Instant::now() + LIMIT;
            let goes_on = || !ended.load(Ordering::Relaxed) && Instant::now() < limit;
            let sends = std::iter::from_fn(|| goes_on().then(|| socket.send(b"x")));
            sends.filter_map(|sent| sent.err().map(|error| error.to_string())).collect()
        });
        let restart = || {
            let restarted = crate::lab::linux_network(node.run.path());
            let all = all.clone();
            node.wait(|_| async move { restarted.ensure(&all).await.unwrap() })
        };
        let passes = std::iter::repeat_with(restart).take(RESTARTS).collect();
        ended.store(true, Ordering::Relaxed);
        (sender.join().unwrap(), passes)
    });
    for pass in passes {
        assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    }
    assert_eq!(refused, BTreeSet::new());
}

#[test]
fn destinations_that_only_the_earlier_agent_knew_are_refused_after_the_next_repair() {
    let lab = ClusterLab::new();
    let node = lab.node(1);
    let _target = ServingTask::start(lab.node(2), 2, &[2], "target");
    let source = node.attach(2, &[2]);
    let mut cluster = peers(1..=2);
    cluster.networks.insert(2, network(&[(1, 2), (2, 2)]));
    lab.ensure_cluster(&cluster);
    let target = task_address(2, 2);
    assert!(source.fetch(target, 80).is_ok());
    // Its rules may still translate to a task that it does not know.
    cluster.networks.insert(2, network(&[(1, 2)]));
    let restarted = std::sync::Arc::new(crate::lab::linux_network(node.run.path()));
    let mut all = warren_network::NodeNetwork::new(settings(1));
    all.tasks.insert(crate::lab::cluster::task_key(1, 2), crate::lab::cluster::attachment(1, 2, &[2]));
    all.cluster = std::sync::Arc::new(cluster);
    let network = restarted.clone();
    let pass = node.wait(|_| async move { network.ensure(&all).await.unwrap() });
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    assert!(source.fetch(target, 80).is_ok());
    let pass = node.wait(|_| async move { restarted.repair().await.unwrap() });
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    assert_refused(&source, target, 80);
}
