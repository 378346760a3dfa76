//! The overlay of a node: conflicts, damage, MTU, ranges, removal.

use warren_network::{Error, NetworkBackend, NodeNetwork, Overlay};

use crate::lab::cluster::{
    ClusterLab, ServingTask, attachment, direct, gateway, network, peers, settings, task_address, task_key,
    underlay, virtual_address,
};
use crate::lab::traffic::exchange;
use crate::lab::{CLIENT, LOCALHOST, assert_same, run_on_node, without_indexes};

#[test]
fn another_device_on_the_port_is_named_and_left_alone() {
    let lab = ClusterLab::without_networks(1);
    let node = lab.node(1);
    node.shell(
        "ip link add docker-vx type vxlan id 9 dstport 4789 local 192.0.2.1 nolearning; ip link set docker-vx up",
    );
    let before = node.inventory();
    let taken = node.ensure_node(settings(1)).unwrap_err();
    let Error::VxlanPortTaken { port: 4789, by: Some(by) } = &taken else { panic!("{taken}") };
    assert_eq!(by, "device docker-vx");
    assert!(taken.to_string().contains("device docker-vx; stop that, or choose another port"), "{taken}");
    // Everything else works, and the packets of the other device are not touched.
    node.ensure_cluster(&peers(1..=3));
    let task = ServingTask::start(node, 2, &[1], "task");
    let port = crate::lab::host_port(None, 8080);
    let backends = [std::net::SocketAddrV4::new(task.address, 80)].into();
    node.publish(warren_network::PortMapping { host_port: port, backends });
    assert_eq!(lab.client.fetch(underlay(1), 8080).unwrap(), format!("task {CLIENT}"));
    assert!(task.space.fetch(task_address(2, 2), 80).is_err());
    let found = node.inventory();
    assert!(!found.iter().any(|line| line.contains("4789") && line.contains("WARREN")), "{found:#?}");
    // The next pass reports it again, and works once the port is free.
    let pass = node.repair();
    assert!(matches!(pass.failed.as_slice(), [Error::VxlanPortTaken { .. }]), "{pass:?}");
    node.shell("ip link del docker-vx");
    let pass = node.repair();
    assert!(pass.failed.is_empty(), "{pass:?}");
    assert!(node.shell("ip -d link show warren-vx").contains("gbp"));
    drop(task);
    node.wait(|network| async move { network.remove_node().await.unwrap() });
    let base = |line: &String| line.contains("docker-vx") || line.contains("iptables");
    let without =
        |lines: std::collections::BTreeSet<String>| lines.into_iter().filter(|line| !base(line)).collect();
    assert_same(&without(node.inventory()), &without(before), "after removing the node");
}

#[test]
fn a_process_on_the_port_is_named() {
    let lab = ClusterLab::without_networks(1);
    let node = lab.node(1);
    let socket = node.space.udp_client(CLIENT, 9);
    let port = socket.local_addr().unwrap().port();
    let overlay = Overlay::new(1, underlay(1), port, 4096).unwrap();
    let taken = node.ensure_node(settings(1).with_overlay(overlay)).unwrap_err();
    assert!(
        matches!(&taken, Error::VxlanPortTaken { by: Some(by), .. } if by.starts_with("process ")),
        "{taken}"
    );
    drop(socket);
    // Another port, another identifier: the device is replaced.
    for (port, vni) in [(4790, 4096), (4790, 77), (4789, 77)] {
        let overlay = Overlay::new(1, underlay(1), port, vni).unwrap();
        node.ensure_node(settings(1).with_overlay(overlay)).unwrap();
        let found = node.shell("ip -d link show warren-vx");
        assert!(
            found.contains(&format!("id {vni} ")) && found.contains(&format!("dstport {port} ")),
            "{found}"
        );
    }
}

#[test]
fn damage_of_the_overlay_and_of_isolation_is_repaired() {
    let lab = ClusterLab::new();
    let local = ServingTask::start(lab.node(1), 2, &[2], "local");
    let remote = ServingTask::start(lab.node(2), 2, &[2], "remote");
    let other = ServingTask::start(lab.node(2), 3, &[3], "other");
    let mut cluster = peers(1..=3);
    cluster.networks.insert(2, network(&[(1, 2), (2, 2)]));
    cluster.services.insert(virtual_address(1), [remote.address].into());
    for (port, task) in [(8081, &local), (8082, &remote)] {
        let at = crate::lab::host_port(None, port);
        cluster.ingress.insert(at, [std::net::SocketAddrV4::new(task.address, 80)].into());
    }
    lab.ensure_cluster(&cluster);
    let node = lab.node(1);
    let pass = node.repair();
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    let whole = node.inventory();
    for damage in [
        "iptables -F; iptables -t nat -F; iptables -t mangle -F; iptables -t raw -F",
        "nft flush ruleset",
        "nft delete table ip warren",
        "nft flush set ip warren allowed",
        "nft add element ip warren allowed { 10.210.2.3 . 2 }",
        "nft insert rule ip warren forward accept",
        "iptables -t mangle -D POSTROUTING -j WARREN-POST",
        "iptables -F WARREN-VXIN",
        "iptables -t nat -F WARREN-VIP",
        "ip link del warren-vx",
        "ip link set warren-vx down",
        "ip link set warren-vx mtu 1300",
        "ip link del warren-vx; ip link add warren-vx type vxlan id 4096 dstport 4789 local 192.0.2.1",
        "ip route del 10.210.2.0/24",
        "ip route add 10.210.9.0/24 via 10.210.2.1 dev warren-vx onlink proto 87",
        "ip route del 10.210.224.0/19",
        "ip route flush table main proto 87",
        "ip neigh del 10.210.2.1 dev warren-vx",
        "ip neigh add 10.210.9.1 lladdr 02:57:00:00:00:09 dev warren-vx nud permanent",
        "bridge fdb del 02:57:c0:00:02:02 dev warren-vx dst 192.0.2.2",
        "bridge fdb append 00:00:00:00:00:00 dev warren-vx dst 192.0.2.100",
        "ip rule del pref 900",
        "ip rule del pref 901",
        "ip rule del pref 1002",
        "ip rule del pref 9000",
        "ip rule add pref 1009 fwmark 0x900000/0xfff00000 lookup 4105 protocol 87",
        "ip rule del pref 1002; ip rule add pref 1002 fwmark 0x200000/0xff00000 lookup 4098 protocol 87",
        "ip rule del pref 1002; ip rule add pref 1002 fwmark 0x200000/0xfff00000 prohibit protocol 87",
        "ip route flush table 4098",
        "ip route replace default via 10.210.3.1 dev warren-vx onlink table 4098 proto 87",
        "iptables -t raw -F WARREN-RAW-ZONE",
        "iptables -t mangle -F WARREN-ENTRY",
        "iptables -t mangle -F WARREN-EXIT",
        "iptables -t mangle -F WARREN-PRE",
        "iptables -t mangle -D OUTPUT -j WARREN-OUT",
        "iptables -t nat -F WARREN-NODES",
        "iptables -t nat -F WARREN-H-8082-tcp",
        "echo 1 > /proc/sys/net/ipv4/conf/warren-vx/rp_filter",
        "echo 0 > /proc/sys/net/ipv4/conf/warren-vx/src_valid_mark",
        "echo 0 > /proc/sys/net/ipv4/conf/warren-vx/route_localnet",
    ] {
        node.shell(damage);
        let pass = node.repair();
        assert!(!pass.repaired.is_empty() && pass.failed.is_empty(), "{damage}: {pass:?}");
        let again = node.repair();
        assert!(again.repaired.is_empty() && again.failed.is_empty(), "{damage}: {again:?}");
        assert_same(&without_indexes(&node.inventory()), &without_indexes(&whole), damage);
        assert!(local.space.fetch(virtual_address(1), 80).is_ok(), "{damage}");
        assert!(local.space.fetch(other.address, 80).is_err(), "{damage}");
        // As the entry node, also for itself, and as the node of the task.
        for (from, entry, port, answer) in [
            (&lab.client, underlay(1), 8082, format!("remote {CLIENT}")),
            (&node.space, LOCALHOST, 8082, format!("remote {}", gateway(1))),
            (&lab.client, underlay(2), 8081, format!("local {CLIENT}")),
        ] {
            assert_eq!(from.fetch(entry, port).unwrap(), answer, "{damage}");
        }
    }
    // A change meets a damaged table: it is written completely.
    node.shell("nft delete table ip warren; iptables -t nat -F WARREN-VIP");
    cluster.networks.get_mut(&2).unwrap().members.insert(task_address(3, 9));
    lab.ensure_cluster(&cluster);
    assert!(local.space.fetch(other.address, 80).is_err());
}

#[test]
fn a_node_leaves_nothing_behind() {
    let lab = ClusterLab::without_networks(2);
    let node = lab.node(1);
    // The tables exist before, so that they can be compared.
    for table in ["raw", "mangle", "nat", "filter"] {
        node.shell(&format!("iptables -t {table} -A OUTPUT -d 198.51.100.1 -j ACCEPT"));
    }
    node.shell("nft add table inet stranger");
    let before = node.inventory();
    for own in [settings(1), direct(1)] {
        node.ensure_node(own.clone()).unwrap();
        let mut cluster = peers((1..=200).filter(|number| *number != 11));
        cluster.networks.insert(2, network(&[(1, 2), (2, 2)]));
        cluster.services.insert(virtual_address(1), [task_address(1, 2)].into());
        let backends = [1, 2].map(|node| std::net::SocketAddrV4::new(task_address(node, 2), 80));
        cluster.ingress.insert(crate::lab::host_port(None, 8080), backends.into());
        cluster.ingress.insert(crate::lab::host_port(None, 8081), [].into());
        let made = node.ensure_cluster(&cluster);
        assert!(made.failed.is_empty(), "{:?}", made.failed);
        let with_peers = node.inventory();
        let ways = with_peers.iter().filter(|line| line.contains(" via ")).count();
        assert!(ways >= if own.overlay().is_some() { 2 * 198 } else { 199 }, "{ways}");
        for _ in 0..2 {
            node.attach(2, &[2, 3]);
            node.attach(3, &[3]);
            node.detach(2);
            node.detach(3);
            assert_same(&node.inventory(), &with_peers, "after removing the tasks");
        }
        // An agent without any state removes everything as well.
        for fresh in [false, true] {
            node.ensure_node(own.clone()).unwrap();
            node.ensure_cluster(&cluster);
            let network =
                if fresh { crate::lab::linux_network(node.run.path()) } else { node.network.clone() };
            node.wait(|_| async move { network.remove_node().await.unwrap() });
            assert_same(&node.inventory(), &before, "after removing the node");
            assert!(node.shell("nft list tables").contains("stranger"));
        }
    }
}

#[test]
fn the_mtu_follows_from_the_underlay() {
    let lab = ClusterLab::without_networks(1);
    let node = lab.node(1);
    let mtu = |peers: &[std::net::Ipv4Addr]| {
        let peers = peers.to_vec();
        let found = node.wait(|network| async move { network.underlay(underlay(1), &peers).await.unwrap() });
        assert_eq!(found.device, "ext");
        found.mtu
    };
    assert_eq!(mtu(&[underlay(2)]), 1500);
    node.shell("ip route add 192.0.2.2 dev ext mtu 1400");
    assert_eq!(mtu(&[underlay(3), underlay(2)]), 1400);
    assert_eq!(mtu(&[underlay(3)]), 1500);
    node.shell("ip link set ext mtu 600");
    assert_eq!(mtu(&[]), 600);
    let missing = node.wait(|network| async move { network.underlay(CLIENT, &[]).await });
    assert!(matches!(missing, Err(Error::UnderlayMissing { address: CLIENT })));
}

#[test]
fn links_get_another_mtu_without_being_replaced() {
    let lab = ClusterLab::new();
    let task = ServingTask::start(lab.node(1), 2, &[1], "task");
    let index = |line: String| line.split(':').next().unwrap().to_owned();
    let before = index(task.space.command("ip", &["-o", "link", "show", "eth0"]));
    let overlay = *settings(1).overlay().unwrap();
    let ranges = settings(1).cluster().to_vec();
    let smaller = warren_network::NodeNetworkSettings::new(ranges, settings(1).blocks()[0], 1300).unwrap();
    lab.node(1).ensure_node(smaller.with_overlay(overlay)).unwrap();
    let pass = lab.node(1).repair();
    assert!(pass.failed.is_empty() && pass.repaired.iter().any(|what| what.contains("MTU")), "{pass:?}");
    let link = task.space.command("ip", &["-o", "link", "show", "eth0"]);
    assert!(link.contains("mtu 1300") && index(link.clone()) == before, "{link}");
    assert!(lab.node(1).shell("ip link show warren-vx").contains("mtu 1300"));
    assert_eq!(lab.node(1).space.fetch(task.address, 80).unwrap(), "task 10.210.1.1");
}

#[test]
fn large_datagrams_pass_a_smaller_path() {
    let lab = ClusterLab::new();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    let mut cluster = peers(1..=3);
    cluster.networks.insert(1, network(&[(1, 2), (2, 2)]));
    lab.ensure_cluster(&cluster);
    for (node, peer) in [(1, 2), (2, 1)] {
        lab.node(node).shell(&format!("ip route add 192.0.2.{peer} dev ext mtu 1400"));
    }
    for length in [1, 1422, 9000] {
        let socket = one.space.udp_client(two.address, 80);
        let answer = exchange(&socket, &vec![7; length]).unwrap();
        assert_eq!(answer, format!("two {}", one.address), "{length}");
    }
}

#[test]
fn routes_of_the_machine_conflict_with_a_range() {
    let lab = ClusterLab::new();
    let node = lab.node(1);
    node.attach(2, &[1]);
    let conflict = |range: &str| {
        let range = range.parse().unwrap();
        node.wait(|network| async move { network.range_conflict(range).await.unwrap() })
    };
    for free in ["10.210.0.0/16", "10.0.0.0/8", "198.51.100.0/24"] {
        assert_eq!(conflict(free), None, "{free}");
    }
    node.shell("ip link add corporate type veth peer name far; ip link set corporate up");
    node.shell("ip addr add 10.50.1.1/24 dev corporate; ip route add 172.16.0.0/12 via 192.0.2.100");
    node.shell("ip route add 0.0.0.0/1 via 192.0.2.100; ip route add unreachable 10.60.0.0/16");
    for (range, destination, device) in [
        ("10.50.0.0/16", "10.50.1.0/24", "corporate"),
        ("172.20.0.0/16", "172.16.0.0/12", "ext"),
        ("192.0.0.0/16", "192.0.2.0/24", "ext"),
        ("10.50.1.1/32", "10.50.1.0/24", "corporate"),
    ] {
        let found = conflict(range).unwrap();
        assert!(
            found.destination.to_string() == destination || found.destination.prefix_len() == 32,
            "{found:?}"
        );
        assert_eq!(found.device.as_deref(), Some(device), "{range}");
    }
    assert_eq!(conflict("10.60.0.0/16"), None, "nothing is behind it");
}

#[test]
fn an_agent_that_starts_again_changes_nothing() {
    run_on_node(|lab| async move {
        for own in [settings(1), direct(1)] {
            let mut all = NodeNetwork::new(own);
            all.tasks.insert(task_key(1, 2), attachment(1, 2, &[1, 2]));
            let mut cluster = peers(1..=3);
            cluster.networks.insert(2, network(&[(1, 2), (2, 2)]));
            cluster.services.insert(virtual_address(1), [task_address(2, 2)].into());
            all.cluster = std::sync::Arc::new(cluster);
            let made = lab.network.ensure(&all).await.unwrap();
            assert!(made.failed.is_empty(), "{:?}", made.failed);
            let before = lab.inventory();
            let restarted = crate::lab::linux_network(lab.run.path());
            let pass = restarted.ensure(&all).await.unwrap();
            assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
            assert_same(&lab.inventory(), &before, "after a restart");
        }
    });
}
