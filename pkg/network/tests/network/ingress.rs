//! Ports in ingress mode: every node accepts them for tasks of every node, which see the client.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use warren_network::{Balancing, ClusterNetwork, Error, NetworkBackend, PortMapping, TransportProtocol};

use crate::lab::cluster::{
    ANY, ClusterLab, FAR_CLIENT, Node, ServingTask, gateway, network, peers, second_underlay, task_address,
    underlay,
};
use crate::lab::traffic::{ask, uninterrupted};
use crate::lab::{CLIENT, LOCALHOST, NetworkNamespace, assert_refused, eventually};
use crate::published::at;

/// Longer than an answer takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
const BOTH: [TransportProtocol; 2] = [TransportProtocol::Tcp, TransportProtocol::Udp];

/// A task that receives on port 80, and sees the address and port of each client.
struct Receiver {
    space: NetworkNamespace,
    tcp: TcpListener,
    udp: UdpSocket,
}

impl Receiver {
    fn start(node: &Node, last: u8) -> Self {
        let space = node.attach(last, &[1]);
        let (tcp, udp) = (space.listen(ANY, 80), space.run(|| UdpSocket::bind((ANY, 80)).unwrap()));
        setsockopt(&tcp, sockopt::ReceiveTimeout, &TimeVal::seconds(DEADLINE.as_secs() as i64)).unwrap();
        udp.set_read_timeout(Some(DEADLINE)).unwrap();
        Self { space, tcp, udp }
    }

    /// The client's own address and the one that this task sees, after an exchange in both directions.
    fn see(
        &self,
        protocol: TransportProtocol,
        from: &NetworkNamespace,
        to: (Ipv4Addr, u16),
    ) -> io::Result<[SocketAddr; 2]> {
        let mut byte = [0; 1];
        if protocol == TransportProtocol::Tcp {
            let connect = || TcpStream::connect_timeout(&SocketAddr::from(to), DEADLINE);
            let mut client = from.run(connect)?;
            client.set_read_timeout(Some(DEADLINE))?;
            let (mut accepted, seen) = self.tcp.accept()?;
            accepted.write_all(b"!")?;
            client.read_exact(&mut byte)?;
            return Ok([client.local_addr()?, seen]);
        }
        let client = from.run(|| UdpSocket::bind((ANY, 0)))?;
        client.set_read_timeout(Some(DEADLINE))?;
        client.connect(to)?;
        client.send(b"?")?;
        let (_, seen) = uninterrupted(|| self.udp.recv_from(&mut byte))?;
        self.udp.send_to(b"!", seen)?;
        uninterrupted(|| client.recv(&mut byte))?;
        Ok([client.local_addr()?, seen])
    }
}

/// The port that leads to the task .2 of a node.
fn port_of(node: u8) -> u16 {
    8080 + u16::from(node)
}

/// Publishes the task .2 of each node on a port of its own, and all of them on port 8080.
fn publish(cluster: &mut ClusterNetwork) {
    let backend = |node: u8| SocketAddrV4::new(task_address(node, 2), 80);
    for protocol in BOTH {
        for node in 1..=3 {
            cluster.ingress.insert(at(protocol, None, port_of(node)), [backend(node)].into());
        }
        cluster.ingress.insert(at(protocol, None, 8080), (1..=3).map(backend).collect());
        cluster.ingress.insert(at(protocol, None, 8090), BTreeSet::new());
    }
}

#[test]
fn every_node_leads_to_every_task_which_sees_the_client() {
    for (lab, mut cluster) in [
        (ClusterLab::new(), peers(1..=3)),
        (crate::wireguard::encrypted_lab_with_strictness(2), crate::wireguard::peers()),
    ] {
        for node in &lab.nodes {
            // As Docker and a VPN leave a host.
            node.shell("iptables -P FORWARD DROP; iptables -P INPUT DROP; iptables -A INPUT -i lo -j ACCEPT");
            node.shell("iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
            node.shell("echo 1 > /proc/sys/net/ipv4/conf/all/src_valid_mark");
        }
        cluster.networks.insert(1, network(&[(1, 2), (2, 2), (3, 2)]));
        cluster.networks.insert(2, network(&[(1, 3), (2, 3)]));
        publish(&mut cluster);
        lab.ensure_cluster(&cluster);
        let tasks: Vec<Receiver> = lab.nodes.iter().map(|node| Receiver::start(node, 2)).collect();
        let others = [1, 2].map(|node| lab.node(node).attach(3, &[2]));
        let from_client = |source: Ipv4Addr| {
            for protocol in BOTH {
                for entry in 1..=3 {
                    for (task, node) in tasks.iter().zip(1..=3) {
                        let what = format!("{protocol} from {source} by node {entry} to {node}");
                        let to = (underlay(entry), port_of(node));
                        let seen = task.see(protocol, &lab.client, to);
                        let [own, seen] = seen.unwrap_or_else(|error| panic!("{what}: {error}"));
                        assert_eq!((own.ip(), seen), (source.into(), own), "{what}");
                    }
                }
            }
        };
        from_client(CLIENT);
        for entry in 1..=3 {
            let route = format!("route add {} dev ext src {FAR_CLIENT}", underlay(entry));
            lab.client.command("ip", &route.split(' ').collect::<Vec<_>>());
        }
        from_client(FAR_CLIENT);

        // Origin, address, and as whom a task sees it: of the entry node, and of another one.
        let (own, other) = (&lab.node(1).space, &others[0]);
        let second = second_underlay(1);
        let origins = [
            ("node", own, LOCALHOST, gateway(1), gateway(1)),
            ("node", own, underlay(1), underlay(1), gateway(1)),
            ("node", own, second, underlay(1), gateway(1)),
            ("node", own, gateway(1), gateway(1), gateway(1)),
            ("another node", &lab.node(2).space, underlay(1), underlay(2), gateway(1)),
            ("task", other, underlay(1), task_address(1, 3), task_address(1, 3)),
            ("task", other, gateway(1), task_address(1, 3), task_address(1, 3)),
            ("task of another node", &others[1], underlay(1), underlay(2), gateway(1)),
            ("the task itself", &tasks[0].space, gateway(1), gateway(1), task_address(1, 2)),
        ];
        for (who, from, to, local, remote) in origins {
            for protocol in BOTH {
                for (task, node) in tasks.iter().zip(1..=3) {
                    let what = format!("{protocol} {who} by {to} to node {node}");
                    let seen = task.see(protocol, from, (to, port_of(node)));
                    let [_, seen] = seen.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(seen.ip(), if node == 1 { local } else { remote }, "{what}");
                }
            }
        }
        // Without a task, from everywhere at once.
        for from in [&lab.client, own, other] {
            assert_refused(from, underlay(1), 8090);
            assert!(from.fetch_udp_briefly(underlay(1), 8090).is_err());
        }
        assert_refused(own, LOCALHOST, 8090);
        // The same port of a client reaches one task through two nodes.
        let client = lab.client.run(|| UdpSocket::bind((ANY, 0)).unwrap());
        client.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut byte = [0; 1];
        for entry in [1, 2, 1, 2] {
            client.send_to(b"?", (underlay(entry), port_of(3))).unwrap();
            let (_, seen) = uninterrupted(|| tasks[2].udp.recv_from(&mut byte)).unwrap();
            assert_eq!(seen.ip(), FAR_CLIENT);
            tasks[2].udp.send_to(b"!", seen).unwrap();
            let (_, answered) = uninterrupted(|| client.recv_from(&mut byte)).unwrap();
            assert_eq!(answered, (underlay(entry), port_of(3)).into());
        }
    }
}

#[test]
fn only_known_entry_nodes_deliver_packets_of_clients() {
    let lab = ClusterLab::new();
    let mut cluster = peers(1..=3);
    publish(&mut cluster);
    lab.ensure_cluster(&cluster);
    let task = Receiver::start(lab.node(1), 2);
    let through = lab.node(2);
    let client = lab.client.udp_client(underlay(2), port_of(1));
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    // With an address of the device, the kernel itself would accept packets of any client there.
    lab.node(1).shell("ip addr add 198.51.100.9/32 dev warren-vx");
    // No number, that of the task's node, and that of no node.
    for forged in ["0x0", "0x1", "0x9"] {
        through.shell(&format!("iptables -t mangle -A WARREN-EXIT -j MARK --set-mark {forged}"));
        client.send(b"forged").unwrap();
        let other = lab.client.udp_client(underlay(2), port_of(1));
        other.send(b"forged").unwrap();
    }
    let entry = || lab.node(1).shell("iptables -t mangle -nvxL WARREN-ENTRY | tail -1");
    eventually("six forged packets", || entry().split_whitespace().next() == Some("6"));
    through
        .shell("iptables -t mangle -F WARREN-EXIT; iptables -t mangle -A WARREN-EXIT -j MARK --set-mark 2");
    client.send(b"genuine").unwrap();
    let mut received = [0; 16];
    let (length, seen) = uninterrupted(|| task.udp.recv_from(&mut received)).unwrap();
    assert_eq!((&received[..length], seen), (&b"genuine"[..], client.local_addr().unwrap()));
    // An error that the node of the task sends takes the same way back.
    let reject = "FORWARD -i warren-vx -p tcp --dport 80 -j REJECT --reject-with tcp-reset";
    lab.node(1).shell(&format!("iptables -I {reject}"));
    assert_refused(&lab.client, underlay(2), port_of(1));
    lab.node(1).shell(&format!("iptables -D {reject}"));

    // An entry node that is gone gets no answers, and nobody else does: they have the address of the task.
    lab.client.command("iptables", &["-t", "raw", "-A", "PREROUTING", "-s", "10.210.0.0/16", "-j", "DROP"]);
    let without = ClusterNetwork { peers: peers([1, 3]).peers, ..cluster.clone() };
    lab.node(1).ensure_cluster(&without);
    let _ = task.udp.send_to(b"?", seen);
    let dropped = || lab.node(1).shell("iptables -nvxL WARREN-FWD | grep 'connmark'");
    eventually("a dropped answer", || dropped().split_whitespace().next() == Some("1"));
    let rules = lab.client.command("iptables", &["-t", "raw", "-nvxL", "PREROUTING"]);
    assert_eq!(rules.lines().last().unwrap().split_whitespace().next(), Some("0"), "{rules}");
    let found = lab.node(1).inventory();
    assert!(!found.iter().any(|line| line.contains("0x200000") || line.contains("4098")), "{found:#?}");
    lab.node(1).ensure_cluster(&cluster);
    task.udp.send_to(b"!", seen).unwrap();
    assert_eq!(uninterrupted(|| client.recv(&mut received)).unwrap(), 1);
    // Connections end with their task, whatever node they came through.
    assert!(lab.node(1).space.conntrack_count() > 0);
    lab.node(1).detach(2);
    assert_eq!(lab.node(1).space.conntrack_count(), 0);
}

#[test]
fn port_of_another_process_or_of_host_mode_is_left_alone() {
    for lab in ClusterLab::of_each_data_plane() {
        let node = lab.node(1);
        let process = node.space.serve(ANY, port_of(1), "process");
        let one = ServingTask::start(node, 2, &[1], "one");
        let two = ServingTask::start(node, 3, &[1], "two");
        let mut cluster = peers(1..=3);
        publish(&mut cluster);
        for _ in 0..2 {
            let told = node.ensure_cluster(&cluster);
            let [Error::PortTaken { port, by: Some(by) }] = told.failed.as_slice() else {
                panic!("{told:?}")
            };
            assert_eq!((*port, by.pid), (at(TransportProtocol::Tcp, None, port_of(1)), std::process::id()));
        }
        let answer = |name: &str| format!("{name} {CLIENT}");
        assert_eq!(lab.client.fetch(underlay(1), port_of(1)).unwrap(), answer("process"));
        assert_eq!(lab.client.fetch_udp(underlay(1), port_of(1)).unwrap(), answer("one"));
        drop(process);
        node.space.wait_closed(port_of(1));
        node.repair_completely();
        assert_eq!(lab.client.fetch(underlay(1), port_of(1)).unwrap(), answer("one"));

        let flow = lab.client.udp_client(underlay(1), port_of(1));
        assert_eq!(ask(&flow).unwrap(), answer("one"));
        for protocol in BOTH {
            let backends = [SocketAddrV4::new(two.address, 80)].into();
            node.publish(PortMapping { host_port: at(protocol, None, port_of(1)), backends });
        }
        assert_eq!(lab.client.fetch(underlay(1), port_of(1)).unwrap(), answer("two"));
        assert_eq!(ask(&flow).unwrap(), answer("two"));
        for protocol in BOTH {
            let host_port = at(protocol, None, port_of(1));
            node.wait(move |network| async move { network.remove_port(host_port).await.unwrap() });
        }
        assert_eq!(lab.client.fetch(underlay(1), port_of(1)).unwrap(), answer("one"));
        assert_eq!(ask(&flow).unwrap(), answer("one"));
        let pass = node.repair();
        assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
        // Without a way back through this node, tasks of others are left out.
        let is_entry = (lab.settings)(1).overlay().is_some();
        if !is_entry {
            assert_refused(&lab.client, underlay(1), port_of(2));
            assert_eq!(lab.client.fetch(underlay(1), 8080).unwrap(), answer("one"));
        }
        // What is no longer published is free.
        cluster.ingress.clear();
        node.ensure_cluster(&cluster);
        drop(node.space.listen(ANY, port_of(1)));
        assert!(one.space.fetch(underlay(1), port_of(1)).is_err());
    }
}

const TASKS: [&str; 3] = ["one", "two", "three"];

/// Which task answers clients with this source address through a node.
fn answering(lab: &ClusterLab, source: Ipv4Addr, entry: u8, protocol: TransportProtocol) -> String {
    let route = format!("route replace {} dev ext src {source}", underlay(entry));
    lab.client.command("ip", &route.split(' ').collect::<Vec<_>>());
    let answer = match protocol {
        TransportProtocol::Tcp => lab.client.fetch(underlay(entry), 8080),
        _ => lab.client.fetch_udp(underlay(entry), 8080),
    };
    let answer = answer.unwrap_or_else(|error| panic!("{protocol} from {source} by {entry}: {error}"));
    let (task, seen) = answer.split_once(' ').unwrap();
    assert_eq!(seen, source.to_string());
    task.to_owned()
}

/// A task on each node behind port 8080, which has these options.
fn lab_with(balancing: Balancing) -> (ClusterLab, ClusterNetwork, [ServingTask; 3]) {
    let lab = ClusterLab::new();
    let mut cluster = peers(1..=3);
    publish(&mut cluster);
    cluster.balancing = BOTH.map(|protocol| (at(protocol, None, 8080), balancing)).into();
    lab.ensure_cluster(&cluster);
    let tasks =
        [1, 2, 3].map(|node| ServingTask::start(lab.node(node), 2, &[1], TASKS[usize::from(node) - 1]));
    (lab, cluster, tasks)
}

fn without_node(cluster: &ClusterNetwork, node: u8) -> ClusterNetwork {
    let mut cluster = cluster.clone();
    for backends in cluster.ingress.values_mut() {
        backends.retain(|backend| *backend.ip() != task_address(node, 2));
    }
    cluster
}

#[test]
fn client_affinity_selects_the_same_task_through_every_node() {
    let balancing = Balancing { client_affinity: true, ..Balancing::default() };
    let (lab, cluster, _tasks) = lab_with(balancing);
    let sources: Vec<Ipv4Addr> = (1..=12).map(|last| Ipv4Addr::new(203, 0, 113, 100 + last)).collect();
    for source in &sources {
        lab.client.command("ip", &["addr", "add", &format!("{source}/32"), "dev", "lo"]);
    }
    let mut selected: BTreeMap<Ipv4Addr, String> = BTreeMap::new();
    let all = || {
        sources.iter().flat_map(|source| (1..=3).flat_map(move |entry| BOTH.map(|it| (*source, entry, it))))
    };
    for (source, entry, protocol) in all() {
        let task = answering(&lab, source, entry, protocol);
        let first = selected.entry(source).or_insert_with(|| task.clone());
        assert_eq!(*first, task, "{protocol} from {source} by {entry}");
    }
    let tasks: BTreeSet<&str> = selected.values().map(String::as_str).collect();
    assert_eq!(tasks, TASKS.into(), "{selected:?}");
    // Only clients of the task that is not ready get another one, until it is ready again.
    lab.ensure_cluster(&without_node(&cluster, 2));
    for (source, entry, protocol) in all() {
        let (before, now) = (&selected[&source], answering(&lab, source, entry, protocol));
        assert!(now == *before || before == "two", "{source}: {before}, then {now}");
        assert_ne!(now, "two");
    }
    lab.ensure_cluster(&cluster);
    for (source, task) in &selected {
        assert_eq!(answering(&lab, *source, 3, TransportProtocol::Tcp), *task, "{source}");
    }
    for node in &lab.nodes {
        let pass = node.repair();
        assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
    }
}

#[test]
fn tasks_of_the_entry_node_are_preferred_while_it_has_any() {
    let balancing = Balancing { prefer_local: true, ..Balancing::default() };
    let (lab, cluster, _tasks) = lab_with(balancing);
    let answers = |entry: u8| -> BTreeSet<String> {
        let of = |protocol| (0..6).map(move |_| protocol);
        BOTH.into_iter().flat_map(of).map(|protocol| answering(&lab, CLIENT, entry, protocol)).collect()
    };
    for (entry, task) in (1..=3).zip(TASKS) {
        assert_eq!(answers(entry), [task.to_owned()].into(), "{entry}");
    }
    lab.ensure_cluster(&without_node(&cluster, 1));
    assert_eq!(answers(1), ["two", "three"].map(str::to_owned).into());
    lab.ensure_cluster(&cluster);
    assert_eq!(answers(1), ["one".to_owned()].into());
}
