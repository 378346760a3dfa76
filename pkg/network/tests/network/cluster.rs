//! Reachability across three nodes: by address, by virtual address, and while backends come and go.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use warren_network::{ClusterNetwork, TransportProtocol};

use crate::lab::cluster::{
    ClusterLab, Node, ServingTask, answers, direct, gateway, network, peers, settings, task_address,
    underlay, virtual_address,
};
use crate::lab::traffic::{ask, uninterrupted};
use crate::lab::{CLIENT, NetworkNamespace, assert_refused, connect};
use crate::published::at;

/// A task on each node, all in the default network, and what nodes know about them.
fn one_task_per_node(lab: &ClusterLab) -> (Vec<ServingTask>, ClusterNetwork) {
    let names = ["one", "two", "three"];
    let start = |(node, name): (&Node, &&'static str)| ServingTask::start(node, 2, &[1], name);
    let tasks = lab.nodes.iter().zip(&names).map(start).collect();
    let mut cluster = peers(1..=3);
    cluster.networks.insert(1, network(&[(1, 2), (2, 2), (3, 2)]));
    (tasks, cluster)
}

fn backends(nodes: impl IntoIterator<Item = u8>) -> BTreeSet<Ipv4Addr> {
    nodes.into_iter().map(|node| task_address(node, 2)).collect()
}

#[test]
fn tasks_reach_each_other_with_every_kind_of_host() {
    for (settings, strictness) in
        [settings, direct].into_iter().flat_map(|all| (0..=2).map(move |n| (all, n)))
    {
        let lab = ClusterLab::without_networks(strictness);
        for node in &lab.nodes {
            // As Docker leaves a host, and as a plain one is.
            let policy = if strictness == 1 { "DROP" } else { "ACCEPT" };
            node.shell(&format!("iptables -P FORWARD {policy}; iptables -P INPUT {policy}"));
            node.shell(&format!(
                "test ! -e /proc/sys/net/bridge || echo {} > /proc/sys/net/bridge/bridge-nf-call-iptables",
                strictness % 2
            ));
            node.ensure_node(settings(node.number)).unwrap();
        }
        let (tasks, cluster) = one_task_per_node(&lab);
        lab.ensure_cluster(&cluster);
        for (from, to) in tasks.iter().flat_map(|from| tasks.iter().map(move |to| (from, to))) {
            if from.address == to.address {
                continue;
            }
            let expected = format!("{} {}", to.name, from.address);
            let what = format!("rp_filter {strictness}: {} to {}", from.name, to.name);
            assert_eq!(from.space.fetch(to.address, 80).unwrap(), expected, "{what}");
            assert_eq!(from.space.fetch_udp(to.address, 80).unwrap(), expected, "{what}");
            assert!(from.space.ping(to.address), "{what}");
        }
        // Processes of a node reach tasks of every node.
        let answer = lab.node(1).space.fetch(task_address(3, 2), 80);
        assert_eq!(answer.unwrap(), format!("three {}", gateway(1)));
        // The outside sees the node.
        let _outside = lab.client.serve(Ipv4Addr::UNSPECIFIED, 7000, "outside");
        assert_eq!(tasks[1].space.fetch(CLIENT, 7000).unwrap(), format!("outside {}", underlay(2)));
    }
}

#[test]
fn addresses_without_a_task_are_refused_at_once() {
    for lab in ClusterLab::of_each_data_plane() {
        let (tasks, mut cluster) = one_task_per_node(&lab);
        cluster.networks.insert(1, network(&[(1, 2), (2, 2), (3, 2), (2, 9), (7, 7)]));
        lab.ensure_cluster(&cluster);
        lab.client
            .command("iptables", &["-t", "raw", "-A", "PREROUTING", "-s", "10.210.0.0/16", "-j", "DROP"]);
        for nobody in [task_address(2, 9), task_address(7, 7), task_address(9, 9)] {
            let refused = tasks[0].space.fetch(nobody, 80).unwrap_err();
            let waited = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
            assert!(!waited.contains(&refused.kind()), "{nobody}: {refused}");
        }
        // No packet with an address of the cluster leaves through the underlay.
        let rules = lab.client.command("iptables", &["-t", "raw", "-nvxL", "PREROUTING"]);
        let counted = rules.lines().last().unwrap().split_whitespace().next().unwrap();
        assert_eq!(counted, "0", "{rules}");
    }
}

#[test]
fn virtual_addresses_lead_to_every_backend() {
    for lab in ClusterLab::of_each_data_plane() {
        let (tasks, mut cluster) = one_task_per_node(&lab);
        let other = ServingTask::start(lab.node(1), 3, &[2], "other");
        cluster.networks.insert(2, network(&[(1, 3)]));
        cluster.services.insert(virtual_address(1), backends([1, 2, 3]));
        cluster.services.insert(virtual_address(2), backends([2]));
        cluster.services.insert(virtual_address(3), BTreeSet::new());
        lab.ensure_cluster(&cluster);
        // First of all, because the kernel limits how many ICMP errors it sends.
        let refused = tasks[0].space.fetch_udp(virtual_address(3), 80).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let wide = virtual_address(1);
        for from in tasks.iter().map(|task| &task.space).chain([&lab.node(1).space]) {
            let counts = answers(from, wide, 30);
            assert!(counts.len() == 3 && counts.values().all(|count| (8..=12).contains(count)), "{counts:?}");
            assert!(from.fetch_udp(wide, 80).is_ok());
        }
        assert!(tasks[0].space.ping(virtual_address(2)), "every protocol is translated");
        // The backend sees who connects, and itself as the gateway.
        let single = virtual_address(2);
        assert_eq!(tasks[0].space.fetch(single, 80).unwrap(), format!("two {}", tasks[0].address));
        assert_eq!(tasks[1].space.fetch(single, 80).unwrap(), format!("two {}", gateway(2)));
        assert_eq!(tasks[1].space.fetch_udp(single, 80).unwrap(), format!("two {}", gateway(2)));
        assert_eq!(lab.node(3).space.fetch(single, 80).unwrap(), format!("two {}", gateway(3)));
        // Without a backend, of no service, and at a port where nobody listens.
        for from in [&tasks[0].space, &lab.node(2).space] {
            for nobody in [virtual_address(3), virtual_address(99)] {
                assert_refused(from, nobody, 80);
                assert!(from.fetch_udp_briefly(nobody, 80).is_err());
            }
            assert_refused(from, single, 81);
        }
        // A task of another network.
        assert_refused(&other.space, single, 80);
        assert!(other.space.fetch_udp_briefly(single, 80).is_err());
        assert!(!other.space.ping_briefly(single));
    }
}

/// A connection that answers each line.
fn talk(stream: &mut std::net::TcpStream) -> io::Result<()> {
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0; 1])
}

/// Serves connections that answer every byte, until they end.
fn echo(space: &NetworkNamespace, port: u16) {
    let listener = space.listen(Ipv4Addr::UNSPECIFIED, port);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut byte = [0; 1];
                while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
            });
        }
    });
}

/// Longer than a reset takes on a busy machine, and shorter than reads wait.
const RESET: Duration = Duration::from_secs(4);

#[test]
fn removed_backends_get_no_new_connection_and_gone_ones_end_theirs() {
    for lab in ClusterLab::of_each_data_plane() {
        let (tasks, mut cluster) = one_task_per_node(&lab);
        for task in &tasks {
            echo(&task.space, 7);
        }
        let address = virtual_address(1);
        // By a virtual address, and from outside by a port in ingress mode of a node without a backend.
        let serve = |cluster: &mut ClusterNetwork, node| {
            cluster.services.insert(address, backends([node]));
            for (protocol, port) in
                [(TransportProtocol::Tcp, 7), (TransportProtocol::Tcp, 80), (TransportProtocol::Udp, 80)]
            {
                let backend = SocketAddrV4::new(task_address(node, 2), port);
                cluster.ingress.insert(at(protocol, None, port), [backend].into());
            }
        };
        serve(&mut cluster, 3);
        lab.ensure_cluster(&cluster);
        let mut clients = vec![(&tasks[0].space, address, tasks[0].address)];
        if (lab.settings)(1).overlay().is_some() {
            clients.push((&lab.client, underlay(1), CLIENT));
        }
        let open = |(client, to, seen): &(&NetworkNamespace, Ipv4Addr, Ipv4Addr)| {
            let [mut stream, mut reader] = [0, 1].map(|_| connect(client, *to, 7));
            talk(&mut stream).unwrap();
            talk(&mut reader).unwrap();
            let flow = client.udp_client(*to, 80);
            assert_eq!(ask(&flow).unwrap(), format!("three {seen}"));
            (stream, reader, flow)
        };
        let mut opened: Vec<_> = clients.iter().map(open).collect();

        // The backend is withdrawn and still runs: its connections go on, datagrams move.
        serve(&mut cluster, 2);
        lab.ensure_cluster(&cluster);
        for ((client, to, seen), (stream, reader, flow)) in clients.iter().zip(&mut opened) {
            talk(stream).unwrap();
            talk(reader).unwrap();
            assert_eq!(answers(client, *to, 5).keys().collect::<Vec<_>>(), ["two"]);
            assert_eq!(ask(flow).unwrap(), format!("two {seen}"));
        }

        // The backend is gone: its connections are reset, not left to time out.
        cluster.networks.insert(1, network(&[(1, 2), (2, 2)]));
        lab.node(3).detach(2);
        lab.ensure_cluster(&cluster);
        let start = Instant::now();
        for (_, reader, _) in &mut opened {
            let ended = uninterrupted(|| reader.read(&mut [0; 1])).unwrap_err();
            assert_eq!(ended.kind(), io::ErrorKind::ConnectionReset, "a client that only reads: {ended}");
            assert!(start.elapsed() < RESET, "{:?}", start.elapsed());
        }
        for (stream, _, _) in &mut opened {
            let start = Instant::now();
            let ended = talk(stream).and_then(|()| talk(stream)).unwrap_err();
            let reset = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
            assert!(reset.contains(&ended.kind()), "{ended}");
            assert!(start.elapsed() < RESET, "{:?}", start.elapsed());
        }
    }
}

#[test]
fn peers_are_reached_and_forgotten_as_they_come_and_go() {
    let lab = ClusterLab::new();
    let (tasks, cluster) = one_task_per_node(&lab);
    lab.ensure_cluster(&cluster);
    assert!(tasks[0].space.ping(tasks[2].address));
    // The third node leaves.
    let without = ClusterNetwork { peers: peers(1..=2).peers, ..cluster.clone() };
    lab.node(1).ensure_cluster(&without);
    assert!(!tasks[0].space.ping_briefly(tasks[2].address));
    assert!(tasks[0].space.ping(tasks[1].address), "the others stay");
    let traces = ["10.210.3.", "0x300000", "4099"];
    let is_left = |line: &String| traces.iter().any(|trace| line.contains(trace)) && !line.starts_with("nft");
    assert!(!lab.node(1).inventory().iter().any(is_left));
    // It comes back with another address.
    let moved = crate::lab::cluster::second_underlay(3);
    let mut with_moved = cluster.clone();
    with_moved.peers.get_mut(&3).unwrap().underlay = moved;
    let overlay = warren_network::Overlay::new(3, moved, 4789, 4096).unwrap();
    let settings = crate::lab::cluster::settings(3).with_overlay(overlay);
    lab.node(3).ensure_node(settings).unwrap();
    lab.ensure_cluster(&with_moved);
    assert!(tasks[0].space.ping(tasks[2].address));
    assert!(tasks[2].space.ping(tasks[1].address));
    // It gets a second block.
    let block = "10.210.77.0/24".parse().unwrap();
    with_moved.peers.get_mut(&3).unwrap().blocks.push(block);
    with_moved.networks.get_mut(&1).unwrap().members.insert(task_address(77, 5));
    let settings = crate::lab::cluster::settings(3).with_overlay(overlay).with_block(block).unwrap();
    lab.node(3).ensure_node(settings).unwrap();
    lab.ensure_cluster(&with_moved);
    let attachment = warren_network::Attachment::new(task_address(77, 5));
    let space = lab.node(3).attach_as(5, attachment);
    let late = ServingTask::new(space, task_address(77, 5), "late");
    assert_eq!(tasks[0].space.fetch(late.address, 80).unwrap(), format!("late {}", tasks[0].address));
    assert_eq!(late.space.fetch(tasks[0].address, 80).unwrap(), format!("one {}", late.address));
}
