//! Encryption between nodes: what is on the wire, what happens without the process, without a key, after a removal.

use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::unistd::Pid;
use warren_network::{
    ClusterNetwork, DEFAULT_MTU, DEFAULT_WIREGUARD_PORT, Error, NetworkBackend, NodeNetwork,
    NodeNetworkSettings, WIREGUARD_OVERHEAD, WireGuard, WireGuardPrivateKey,
};

use crate::churn::throughput;
use crate::lab::cluster::{ClusterLab, Node, ServingTask, attachment, network, settings, task_key, underlay};
use crate::lab::{NetworkNamespace, assert_same, linux_network, without_indexes};

/// Longer than a handshake, and than a process needs to start, on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Part of what the tasks send.
const SECRET: &[u8] = b"a sentence that nobody may read";

fn key(node: u8) -> WireGuardPrivateKey {
    format!("{node:02x}").repeat(32).parse().unwrap()
}

fn encrypted_with(node: u8, private_key: WireGuardPrivateKey) -> NodeNetworkSettings {
    let plain = settings(node);
    let mtu = DEFAULT_MTU - WIREGUARD_OVERHEAD;
    let smaller = NodeNetworkSettings::new(plain.cluster().to_vec(), plain.blocks()[0], mtu).unwrap();
    let wireguard = WireGuard { private_key, port: DEFAULT_WIREGUARD_PORT };
    smaller.with_overlay(*plain.overlay().unwrap()).with_wireguard(wireguard).unwrap()
}

fn encrypted(node: u8) -> NodeNetworkSettings {
    encrypted_with(node, key(node))
}

/// The nodes with their keys, and the tasks .2 of the first two in one network.
pub fn peers() -> ClusterNetwork {
    let mut cluster = crate::lab::cluster::peers(1..=3);
    for (number, peer) in &mut cluster.peers {
        peer.key = Some(key(u8::try_from(*number).unwrap()).public_key());
    }
    cluster.networks.insert(1, network(&[(1, 2), (2, 2)]));
    cluster
}

fn encrypted_lab() -> ClusterLab {
    encrypted_lab_with_strictness(1)
}

pub fn encrypted_lab_with_strictness(strictness: u8) -> ClusterLab {
    let lab = ClusterLab::without_networks(strictness);
    for node in &lab.nodes {
        node.ensure_node(encrypted(node.number)).unwrap();
    }
    lab.ensure_cluster(&peers());
    lab
}

/// Everything that passes the link of a node to the others.
struct Wire(UdpSocket);

impl Wire {
    fn of(space: &NetworkNamespace) -> Self {
        let open = || {
            socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::EthAll)
                .unwrap()
        };
        let wire = UdpSocket::from(space.run(open));
        wire.set_nonblocking(true).unwrap();
        Self(wire)
    }

    /// The frames so far. Those inside of devices of the node itself are left out: they are not of Ethernet, or have
    /// the addresses of the cluster.
    fn frames(&self) -> Vec<Vec<u8>> {
        let (mut frames, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
        while let Ok(length) = self.0.recv(&mut buffer) {
            frames.push(buffer[..length].to_vec());
        }
        let is_of_underlay =
            |frame: &Vec<u8>| frame.get(12..14) == Some(&[8, 0]) && frame.get(26..29) == Some(&[192, 0, 2]);
        frames.retain(is_of_underlay);
        frames
    }
}

fn udp_port(frame: &[u8]) -> Option<u16> {
    (frame.get(23) == Some(&17)).then(|| u16::from_be_bytes([frame[36], frame[37]]))
}

/// Sends a secret until it is answered.
fn exchange(from: &ServingTask, to: &ServingTask) {
    let limit = Instant::now() + DEADLINE;
    let socket = from.space.udp_client(to.address, 80);
    loop {
        let _ = socket.send(SECRET);
        let mut answer = [0; 64];
        match socket.recv(&mut answer) {
            Ok(length) => {
                return assert_eq!(&answer[..length], format!("{} {}", to.name, from.address).as_bytes());
            }
            Err(error) => assert!(Instant::now() < limit, "{} reaches no {}: {error}", from.name, to.name),
        }
    }
}

/// The WireGuard processes of a node.
fn processes(node: &Node) -> Vec<Pid> {
    let own = node.run.path().join("wireguard.sock").to_str().unwrap().to_owned();
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_own = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == own.as_bytes())
    };
    pids.filter(is_own).map(Pid::from_raw).collect()
}

/// Waits until the node has this many. A process answers no more a moment before it has ended.
fn wait_for_processes(node: &Node, count: usize) -> Vec<Pid> {
    let end = Instant::now() + DEADLINE;
    loop {
        let found = processes(node);
        if found.len() == count {
            return found;
        }
        assert!(Instant::now() < end, "{found:?}");
        // Between two checks.
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn only_process(node: &Node) -> Pid {
    wait_for_processes(node, 1)[0]
}

#[test]
fn nothing_between_nodes_can_be_read() {
    let lab = ClusterLab::new();
    lab.ensure_cluster(&peers());
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    let wire = Wire::of(&lab.node(1).space);
    let seen = || {
        let frames = wire.frames();
        let readable = frames.iter().filter(|frame| frame.windows(SECRET.len()).any(|part| part == SECRET));
        let to = |port| frames.iter().filter(|frame| udp_port(frame) == Some(port)).count();
        (readable.count(), to(4789), to(DEFAULT_WIREGUARD_PORT))
    };
    exchange(&one, &two);
    let (readable, vxlan, encrypted_packets) = seen();
    assert!(readable > 0 && vxlan > 0 && encrypted_packets == 0, "the check itself works");

    for node in &lab.nodes {
        node.ensure_node(encrypted(node.number)).unwrap();
    }
    // What was sent before the last node had changed.
    wire.frames();
    exchange(&one, &two);
    exchange(&two, &one);
    assert!(one.space.fetch(two.address, 80).is_ok() && two.space.ping(one.address));
    // The largest packets, and larger ones.
    for length in [1362, 1363, 9000] {
        let socket = one.space.udp_client(two.address, 80);
        let limit = Instant::now() + DEADLINE;
        // The first one may be answered with the MTU, which is smaller than before.
        while socket.send(&vec![7; length]).is_err() || socket.recv(&mut [0; 64]).is_err() {
            assert!(Instant::now() < limit, "{length}");
        }
    }
    let (readable, vxlan, encrypted_packets) = seen();
    assert!(readable == 0 && vxlan <= 40 && encrypted_packets > 0, "{readable} {vxlan} {encrypted_packets}");

    // Back again: the device is gone, and nothing is encrypted.
    for node in &lab.nodes {
        node.ensure_node(settings(node.number)).unwrap();
        wait_for_processes(node, 0);
        assert!(!node.shell("ip link").contains("warren-wg"));
    }
    exchange(&one, &two);
    assert!(seen().0 > 0);
}

#[test]
fn a_node_accepts_nothing_unencrypted() {
    // Otherwise the kernel drops it before the firewall.
    let lab = encrypted_lab_with_strictness(0);
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    exchange(&one, &two);
    lab.node(2).ensure_node(settings(2)).unwrap();
    assert!(one.space.fetch_udp_briefly(two.address, 80).is_err());
    assert!(two.space.fetch_udp_briefly(one.address, 80).is_err());
    let dropped = lab.node(1).shell("iptables -nvxL WARREN-IN | grep 'DROP.*dpt:4789'");
    assert_ne!(dropped.split_whitespace().next(), Some("0"), "{dropped}");
}

#[test]
fn a_killed_process_is_started_again() {
    let lab = encrypted_lab();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    exchange(&one, &two);
    let wire = Wire::of(&lab.node(1).space);
    let node = lab.node(1);
    let whole = node.inventory();
    for _ in 0..3 {
        let before = only_process(node);
        kill(before, Signal::SIGKILL).unwrap();
        exchange(&one, &two);
        assert_ne!(only_process(node), before);
        let pass = node.repair();
        assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
        assert_same(&without_indexes(&node.inventory()), &without_indexes(&whole), "after a kill");
    }
    let frames = wire.frames();
    assert!(!frames.iter().any(|frame| frame.windows(SECRET.len()).any(|part| part == SECRET)));
}

#[test]
fn an_agent_that_starts_again_takes_the_process_over() {
    let lab = encrypted_lab();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    exchange(&one, &two);
    let node = lab.node(1);
    let (process, before) = (only_process(node), node.inventory());
    let mut all = NodeNetwork::new(encrypted(1));
    all.tasks.insert(task_key(1, 2), attachment(1, 2, &[1]));
    all.cluster = std::sync::Arc::new(peers());
    let restarted = linux_network(node.run.path());
    let pass = node.wait(|_| async move { restarted.ensure(&all).await.unwrap() });
    assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
    assert_eq!(only_process(node), process);
    assert_same(&node.inventory(), &before, "after a restart");
    exchange(&two, &one);
    let socket = std::fs::metadata(node.run.path().join("wireguard.sock")).unwrap();
    assert_eq!(socket.mode() & 0o777, 0o600, "who can connect can read the key");
}

#[test]
fn damage_is_repaired() {
    let lab = encrypted_lab();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    let node = lab.node(1);
    let pass = node.repair();
    assert!(pass.repaired.is_empty() && pass.failed.is_empty(), "{pass:?}");
    let whole = node.inventory();
    // The process ends with its device, and its watch may start it again before the pass.
    let is_watched = |damage: &str| damage.starts_with("ip link ");
    for damage in [
        "ip link set warren-wg down",
        "ip link set warren-wg mtu 1300",
        "ip rule del pref 890",
        "ip rule add pref 891 from 192.0.2.1 lookup main protocol 87",
        "ip route flush table 4096",
        "ip route del unreachable default metric 4096 table 4096",
        "ip route add 192.0.2.77 dev warren-wg table 4096 proto 87",
        "echo 1 > /proc/sys/net/ipv4/conf/warren-wg/rp_filter",
        "iptables -F WARREN-OUT",
        "ip link del warren-wg",
    ] {
        node.shell(damage);
        let pass = node.repair();
        assert!(pass.failed.is_empty(), "{damage}: {pass:?}");
        assert!(!pass.repaired.is_empty() || is_watched(damage), "{damage}: {pass:?}");
        only_process(node);
        assert_same(&without_indexes(&node.inventory()), &without_indexes(&whole), damage);
        exchange(&one, &two);
    }
}

#[test]
fn peers_follow_a_new_key() {
    let lab = encrypted_lab();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    exchange(&one, &two);
    lab.node(1).ensure_node(encrypted_with(1, key(9))).unwrap();
    assert!(one.space.fetch_udp_briefly(two.address, 80).is_err(), "the others do not know it yet");
    let mut cluster = peers();
    cluster.peers.get_mut(&1).unwrap().key = Some(key(9).public_key());
    lab.ensure_cluster(&cluster);
    exchange(&one, &two);
    exchange(&two, &one);
    // A peer without a key is not reached in plain text instead.
    cluster.peers.get_mut(&2).unwrap().key = None;
    let wire = Wire::of(&lab.node(1).space);
    lab.node(1).ensure_cluster(&cluster);
    assert!(one.space.fetch_udp_briefly(two.address, 80).is_err());
    assert!(!wire.frames().iter().any(|frame| udp_port(frame) == Some(4789)));
}

#[test]
fn a_port_in_use_is_reported_and_nothing_is_sent() {
    let lab = ClusterLab::without_networks(1);
    let node = lab.node(1);
    let wanted = underlay(1);
    let holder = node.space.run(|| UdpSocket::bind((wanted, DEFAULT_WIREGUARD_PORT)).unwrap());
    let refused = node.ensure_node(encrypted(1)).unwrap_err();
    assert!(matches!(refused, Error::WireGuard(_)), "{refused}");
    let text = refused.to_string();
    assert!(text.contains("51820") && text.contains("none are sent"), "{text}");
    drop(holder);
    node.repair_completely();
    only_process(node);
}

#[test]
fn a_node_leaves_no_process_behind() {
    let lab = ClusterLab::without_networks(1);
    let node = lab.node(1);
    for table in ["raw", "mangle", "nat", "filter"] {
        node.shell(&format!("iptables -t {table} -A OUTPUT -d 198.51.100.1 -j ACCEPT"));
    }
    let before = node.inventory();
    let cluster = std::sync::Arc::new(peers());
    for fresh in [false, true] {
        let run = std::sync::Arc::clone(&node.run);
        let cluster = std::sync::Arc::clone(&cluster);
        let agent = node.wait(|_| async move {
            let agent = linux_network(run.path());
            agent.ensure_node(&encrypted(1)).await.unwrap();
            agent.ensure_cluster(&cluster).await.unwrap();
            agent
        });
        only_process(node);
        // An agent without any state removes everything as well. The first one must not see it: it would start the
        // process again.
        let agent = if fresh {
            drop(agent);
            only_process(node);
            linux_network(node.run.path())
        } else {
            agent
        };
        node.wait(|_| async move { agent.remove_node().await.unwrap() });
        assert_same(&node.inventory(), &before, "after removing the node");
        wait_for_processes(node, 0);
        assert!(!Path::new(&node.run.path().join("wireguard.sock")).exists());
    }
}

#[test]
fn encrypted_packets_pass_quickly_enough() {
    let lab = encrypted_lab();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    exchange(&one, &two);
    let best = (0..6).map(|_| throughput(&one.space, &two.space, (two.address, 5001))).fold(0.0, f64::max);
    println!("Gbit/s encrypted: {:.2}", best * 8.0 / 1e9);
    // A build without optimization reaches a fortieth of what a release does.
    assert!(best > 1e6, "{best} bytes per second");
}
