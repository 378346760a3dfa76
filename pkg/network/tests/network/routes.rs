//! Routes between nodes without a tunnel: who gets in, peers on other networks, damage, changes of the data plane.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream, UdpSocket};
use std::time::Duration;

use warren_network::{
    ClusterNetwork, DEFAULT_MTU, DirectRoutes, Error, NetworkBackend, NodeNetworkSettings, OVERLAY_OVERHEAD,
    PortMapping, Repairs, WireGuard,
};

use crate::lab::cluster::{
    ANY, ClusterLab, Node, ServingTask, direct, gateway, network, peers, settings, task_address, underlay,
    virtual_address,
};
use crate::lab::traffic::{ask, exchange, uninterrupted};
use crate::lab::{CLIENT, assert_same, eventually, without_indexes};

/// The address of the fourth node, which is behind a router.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 4);

/// The first three nodes with the tasks .2 of two of them, and a service with the second one.
fn cluster() -> ClusterNetwork {
    let mut cluster = peers(1..=3);
    cluster.networks.insert(1, network(&[(1, 2), (2, 2)]));
    cluster.services.insert(virtual_address(1), [task_address(2, 2)].into());
    cluster
}

fn start_two(lab: &ClusterLab) -> [ServingTask; 2] {
    lab.ensure_cluster(&cluster());
    [(1, "one"), (2, "two")].map(|(node, name)| ServingTask::start(lab.node(node), 2, &[1], name))
}

fn assert_reach_each_other(tasks: &[ServingTask; 2], when: &str) {
    let [one, two] = tasks;
    for (from, to) in [(one, two), (two, one)] {
        let answer = from.space.fetch(to.address, 80);
        assert_eq!(answer.unwrap(), format!("{} {}", to.name, from.address), "{when}");
    }
    assert!(one.space.fetch(virtual_address(1), 80).is_ok(), "{when}");
}

#[test]
fn hosts_that_are_no_nodes_do_not_get_in() {
    let lab = ClusterLab::with(direct);
    // Otherwise the kernel drops some of them before the firewall.
    lab.node(1).shell("for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done");
    let [one, two] = start_two(&lab);
    let receiver = one.space.run(|| UdpSocket::bind((ANY, 9)).unwrap());
    let send = |from: Ipv4Addr, to: Ipv4Addr| {
        lab.client.run(|| UdpSocket::bind((from, 0)).unwrap().send_to(b"forged", (to, 9)).unwrap())
    };
    lab.client.command("ip", &["route", "add", "10.210.0.0/16", "via", &underlay(1).to_string()]);
    send(CLIENT, one.address);
    // As tasks of a node that does not exist and of the node itself, its gateway, and a virtual address.
    for source in [task_address(9, 2), task_address(1, 7), gateway(1), virtual_address(1)] {
        lab.client.command("ip", &["addr", "add", &format!("{source}/32"), "dev", "ext"]);
        send(source, one.address);
        lab.client.command("ip", &["addr", "del", &format!("{source}/32"), "dev", "ext"]);
    }
    two.space.run(|| UdpSocket::bind((ANY, 0)).unwrap().send_to(b"task", (one.address, 9)).unwrap());
    let mut received = [0; 16];
    let (length, sender) = uninterrupted(|| receiver.recv_from(&mut received)).unwrap();
    assert_eq!((&received[..length], sender.ip()), (&b"task"[..], two.address.into()));
    assert!(lab.client.fetch_udp_briefly(virtual_address(1), 80).is_err());

    // Peers reach tasks, not what is behind them, and no port of the node.
    lab.node(2).shell(&format!("ip route add 10.210.3.9 via {} dev ext", underlay(1)));
    let forwarded = || lab.node(1).shell("iptables -t raw -nvxL WARREN-RAW-PEER | tail -1");
    let count = |line: String| line.split_whitespace().next().unwrap().parse::<u64>().unwrap();
    let before = count(forwarded());
    lab.node(2).space.run(|| {
        let socket = UdpSocket::bind((gateway(2), 0)).unwrap();
        socket.send_to(b"?", (task_address(3, 9), 9)).unwrap();
    });
    eventually("a packet that is not forwarded", || count(forwarded()) > before);
    assert_eq!(count(forwarded()), before + 1);
    let _node = lab.node(1).space.serve(ANY, 9100, "node");
    for (port, backends) in [(9101, [SocketAddrV4::new(one.address, 80)].into()), (9102, [].into())] {
        let host_port = crate::lab::host_port(None, port);
        lab.node(1).publish(PortMapping { host_port, backends });
    }
    // Nothing checks the connections of a node itself on their way out.
    let peer = &lab.node(2).space;
    for port in [9100, 9101, 9102] {
        let connect = || TcpStream::connect_timeout(&(gateway(1), port).into(), Duration::from_millis(300));
        assert!(peer.run(connect).is_err(), "{port}");
    }
    assert!(peer.ping(gateway(1)));
    assert_eq!(peer.fetch(underlay(1), 9101).unwrap(), format!("one {}", underlay(2)));
    // A process of the node that is bound to another address gets answers.
    let answer = lab.node(1).space.run(|| {
        let socket = UdpSocket::bind((underlay(1), 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket.connect((two.address, 80)).unwrap();
        ask(&socket).unwrap()
    });
    assert_eq!(answer, format!("two {}", gateway(1)));
}

fn elsewhere(repairs: &Repairs) -> &Error {
    let [error] = repairs.failed.as_slice() else { panic!("{repairs:?}") };
    error
}

#[test]
fn peer_on_another_network_is_named_and_the_others_are_reached() {
    let lab = ClusterLab::with(direct);
    let tasks = start_two(&lab);
    let node = lab.node(1);
    let mut cluster = cluster();
    let mut peer = cluster.peers[&3].clone();
    peer.underlay = ELSEWHERE;
    peer.blocks = vec!["10.210.4.0/24".parse().unwrap(), "10.210.5.0/24".parse().unwrap()];
    cluster.peers.insert(4, peer);
    cluster.networks.insert(1, network(&[(1, 2), (2, 2), (4, 2)]));
    let changed = node.ensure_cluster(&cluster);
    let Error::PeersElsewhere { peers, device } = elsewhere(&changed) else { panic!("{changed:?}") };
    assert_eq!((peers, device.as_str()), (&[ELSEWHERE].into(), "ext"));
    let text = "node address 198.51.100.4 is not on the network of ext; `--data-plane routes` needs all nodes on \
                one L2 network";
    assert_eq!(elsewhere(&changed).to_string(), text);
    assert_reach_each_other(&tasks, "with a peer elsewhere");
    assert!(tasks[0].space.fetch(task_address(4, 2), 80).is_err());
    assert!(!node.shell("ip route").contains("10.210.4.0"), "nor by way of a router");
    // All are named, and each pass does so again.
    for (number, last) in [(5, 5), (6, 6)] {
        let mut peer = cluster.peers[&4].clone();
        peer.underlay = Ipv4Addr::new(198, 51, 100, last);
        peer.blocks = vec![format!("10.210.{}.0/24", 10 + last).parse().unwrap()];
        cluster.peers.insert(number, peer);
    }
    node.ensure_cluster(&cluster);
    let pass = node.repair();
    let text = elsewhere(&pass).to_string();
    assert!(
        text.starts_with(
            "node addresses 198.51.100.4, 198.51.100.5, 198.51.100.6 are not on the network of ext;"
        ),
        "{text}"
    );
    assert_reach_each_other(&tasks, "after a pass");
    // Another device, on which none of them is: nothing is left on the first one.
    node.shell("ip link add other type veth peer name far; ip link set other up; ip link set far up");
    let other = DirectRoutes::new(1, underlay(1), "other").unwrap();
    node.ensure_node(direct(1).with_direct_routes(other)).unwrap_err();
    assert!(!node.shell("ip route show dev ext").contains("10.210."));
    node.ensure_node(direct(1)).unwrap_err();
    assert_reach_each_other(&tasks, "on the first device again");
    // The machine gets an address on the network of the peers.
    node.shell("ip addr add 198.51.100.1/24 dev ext");
    let pass = node.repair();
    assert!(pass.failed.is_empty(), "{pass:?}");
    assert!(node.shell("ip route").contains("10.210.5.0/24 via 198.51.100.4 dev ext"));
}

#[test]
fn damage_is_repaired() {
    let lab = ClusterLab::with(direct);
    let tasks = start_two(&lab);
    let node = lab.node(1);
    let pass = node.repair();
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    let whole = node.inventory();
    for damage in [
        "ip route del 10.210.2.0/24",
        "ip route replace 10.210.2.0/24 via 192.0.2.3 dev ext src 10.210.1.1 proto 87",
        "ip route add 10.210.9.0/24 via 192.0.2.2 dev ext proto 87",
        "ip link set ext down; ip link set ext up; ip route add default via 192.0.2.100",
        "ip link add warren-vx type vxlan id 4096 dstport 4789 local 192.0.2.1",
        "iptables -t raw -F WARREN-RAW-PEER",
        "iptables -t nat -F WARREN-PEER",
    ] {
        node.shell(damage);
        let pass = node.repair();
        assert!(!pass.repaired.is_empty() && pass.failed.is_empty(), "{damage}: {pass:?}");
        assert_same(&without_indexes(&node.inventory()), &without_indexes(&whole), damage);
        assert_reach_each_other(&tasks, damage);
    }
}

fn change_all(nodes: &[Node], settings: fn(u8) -> NodeNetworkSettings) {
    for node in nodes {
        node.ensure_node(settings(node.number)).unwrap();
        let pass = node.repair();
        assert!(pass.failed.is_empty(), "{pass:?}");
    }
}

#[test]
fn data_plane_that_is_left_leaves_nothing_behind() {
    let lab = ClusterLab::new();
    let tasks = start_two(&lab);
    let node = lab.node(1);
    let link = |task: &ServingTask| task.space.command("ip", &["link", "show", "eth0"]);
    let mut cluster = cluster();
    for (port, task) in [(8081, &tasks[0]), (8082, &tasks[1])] {
        let backends = [SocketAddrV4::new(task.address, 80)].into();
        cluster.ingress.insert(crate::lab::host_port(None, port), backends);
    }
    lab.ensure_cluster(&cluster);
    let by_ingress = |port| lab.client.fetch(underlay(1), port).ok();
    assert_eq!([8081, 8082].map(by_ingress), ["one", "two"].map(|name| Some(format!("{name} {CLIENT}"))));
    let vxlan = node.inventory();
    change_all(&lab.nodes, direct);
    let routes = node.inventory();
    let traces =
        ["warren-vx", "WARREN-VX", "WARREN-RAW-VX", "4789", "PERMANENT", "fff00000", "9000", "table 40"];
    let left = |line: &&String| traces.iter().any(|trace| line.contains(trace)) && !line.contains("dev wc");
    assert_eq!(routes.iter().find(left), None);
    assert_reach_each_other(&tasks, "with routes");
    assert_eq!([8081, 8082].map(by_ingress), [Some(format!("one {CLIENT}")), None]);
    assert!(link(&tasks[0]).contains(&format!("mtu {}", DEFAULT_MTU + OVERLAY_OVERHEAD)));
    for length in [1472, 1473, 9000] {
        let socket = tasks[0].space.udp_client(tasks[1].address, 80);
        assert!(exchange(&socket, &vec![7; length]).is_ok(), "{length}");
    }

    change_all(&lab.nodes, settings);
    assert_same(&node.inventory(), &vxlan, "with VXLAN again");
    assert_reach_each_other(&tasks, "with VXLAN again");
    assert_eq!(by_ingress(8082), Some(format!("two {CLIENT}")));
    assert!(link(&tasks[0]).contains(&format!("mtu {DEFAULT_MTU}")));

    let wireguard = WireGuard { private_key: "11".repeat(32).parse().unwrap(), port: 51820 };
    node.ensure_node(settings(1).with_wireguard(wireguard).unwrap()).unwrap();
    change_all(&lab.nodes, direct);
    assert_same(&node.inventory(), &routes, "with routes after WireGuard");
    assert!(!node.run.path().join("wireguard.sock").exists());
    assert_reach_each_other(&tasks, "with routes after WireGuard");
    drop(tasks);
    node.wait(|network| async move { network.remove_node().await.unwrap() });
    assert!(!node.inventory().iter().any(|line| line.contains("10.210.") || line.contains("WARREN")));
}
