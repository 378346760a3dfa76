//! Published ports of every protocol, from everywhere, on every kind of bind address.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::num::NonZeroU16;

use warren_network::{HostPort, NetworkBackend, PortMapping, TransportProtocol};

use crate::lab::cluster::{
    ANY, ClusterLab, FAR_CLIENT, Node, ServingTask, gateway, network, peers, second_underlay, task_address,
    underlay,
};
use crate::lab::traffic::{ask, ask_briefly, uninterrupted};
use crate::lab::{CLIENT, LOCALHOST, NetworkNamespace, assert_refused};

pub fn at(protocol: TransportProtocol, ip: Option<Ipv4Addr>, port: u16) -> HostPort {
    HostPort::new(ip, NonZeroU16::new(port).unwrap(), protocol)
}

fn publish(node: &Node, at: HostPort, backends: &[Ipv4Addr]) {
    let backends = backends.iter().map(|ip| SocketAddrV4::new(*ip, 80)).collect();
    node.publish(PortMapping { host_port: at, backends });
}

/// Asserts what answers on a port.
fn assert_answer(
    protocol: TransportProtocol,
    from: &NetworkNamespace,
    to: (Ipv4Addr, u16),
    expected: Option<String>,
    what: &str,
) {
    let (ip, port) = to;
    let answer = match protocol {
        TransportProtocol::Tcp => from.fetch(ip, port),
        _ if expected.is_some() => from.fetch_udp(ip, port),
        _ => from.fetch_udp_briefly(ip, port),
    };
    assert_eq!(answer.ok(), expected, "{what}");
}

#[test]
fn ports_answer_where_they_are_bound_and_nowhere_else() {
    for lab in ClusterLab::of_each_data_plane() {
        let node = lab.node(1);
        let own = ServingTask::start(node, 2, &[1], "own");
        // A task of another network, and one on another node.
        let neighbour = ServingTask::start(node, 3, &[2], "neighbour");
        let far = ServingTask::start(lab.node(2), 2, &[1], "far");
        let mut cluster = peers(1..=3);
        cluster.networks.extend([(1, network(&[(1, 2), (2, 2)])), (2, network(&[(1, 3)]))]);
        lab.ensure_cluster(&cluster);
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            publish(node, at(protocol, None, 9001), &[own.address]);
            publish(node, at(protocol, Some(second_underlay(1)), 9002), &[own.address]);
            publish(node, at(protocol, Some(LOCALHOST), 9003), &[own.address]);
            // One port, two addresses, two services.
            publish(node, at(protocol, Some(underlay(1)), 9004), &[own.address]);
            publish(node, at(protocol, Some(LOCALHOST), 9004), &[neighbour.address]);
        }
        let (here, second) = (underlay(1), second_underlay(1));
        // Origin, address, and as whom the task sees it: unchanged wherever it can answer.
        let origins = [
            ("client", &lab.client, here, CLIENT),
            ("client", &lab.client, second, CLIENT),
            ("node", &node.space, here, here),
            ("node", &node.space, second, here),
            ("node", &node.space, LOCALHOST, gateway(1)),
            ("node", &node.space, Ipv4Addr::new(127, 0, 0, 5), gateway(1)),
            ("node", &node.space, gateway(1), gateway(1)),
            ("task of another network", &neighbour.space, here, neighbour.address),
            ("task of another network", &neighbour.space, gateway(1), neighbour.address),
            ("the task itself", &own.space, here, gateway(1)),
            ("the task itself", &own.space, gateway(1), gateway(1)),
            ("task of another node", &far.space, here, underlay(2)),
            ("another node", &lab.node(3).space, here, underlay(3)),
        ];
        for protocol in [TransportProtocol::Tcp, TransportProtocol::Udp] {
            for (who, from, to, seen_as) in &origins {
                let what = format!("{protocol} {who} to {to}");
                let answer = |name: &str| Some(format!("{name} {seen_as}"));
                assert_answer(protocol, from, (*to, 9001), answer("own"), &what);
                let bound = (*to == second).then(|| answer("own")).flatten();
                assert_answer(protocol, from, (*to, 9002), bound, &format!("{what}, bound elsewhere"));
                let local = (*to == LOCALHOST).then(|| answer("own")).flatten();
                assert_answer(protocol, from, (*to, 9003), local, &format!("{what}, bound to 127.0.0.1"));
                let shared = match *to {
                    to if to == here => answer("own"),
                    LOCALHOST => answer("neighbour"),
                    _ => None,
                };
                assert_answer(protocol, from, (*to, 9004), shared, &format!("{what}, two services"));
            }
            // Not on another node, and by a client that is behind a router with its own address.
            assert_answer(protocol, &lab.client, (underlay(2), 9001), None, "client to another node");
        }
        assert_refused(&lab.client, here, 9002);
        assert_refused(&lab.client, here, 9003);
        let far_client = lab.client.run(|| {
            let socket = std::net::UdpSocket::bind((FAR_CLIENT, 0)).unwrap();
            socket.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
            socket.connect((here, 9001)).unwrap();
            socket
        });
        assert_eq!(ask(&far_client).unwrap(), format!("own {FAR_CLIENT}"));
    }
}

#[test]
fn datagrams_follow_a_port_as_it_changes() {
    let lab = ClusterLab::new();
    let node = lab.node(1);
    lab.ensure_cluster(&peers(1..=3));
    let (first, second) =
        (ServingTask::start(node, 2, &[1], "first"), ServingTask::start(node, 3, &[1], "second"));
    let port = at(TransportProtocol::Udp, None, 9000);
    // A client sends already while the port is not published, and never changes its own port.
    let flow = lab.client.udp_client(underlay(1), 9000);
    ask_briefly(&flow).unwrap_err();
    publish(node, port, &[first.address]);
    // Errors about earlier datagrams, at most three, may arrive late.
    let answer = || (0..3).find_map(|_| ask(&flow).ok()).map_or_else(|| ask(&flow), Ok);
    assert_eq!(answer().unwrap(), format!("first {CLIENT}"));
    publish(node, port, &[second.address]);
    assert_eq!(answer().unwrap(), format!("second {CLIENT}"));
    publish(node, port, &[]);
    ask_briefly(&flow).unwrap_err();
    publish(node, port, &[first.address]);
    assert_eq!(answer().unwrap(), format!("first {CLIENT}"));
    node.wait(move |network| async move { network.remove_port(port).await.unwrap() });
    ask_briefly(&flow).unwrap_err();
    let _own = node.space.serve_udp(ANY, 9000, "node");
    assert_eq!(answer().unwrap(), format!("node {CLIENT}"));
    // A process of the node has the port now.
    let mapping = PortMapping { host_port: port, backends: BTreeSet::new() };
    let taken = node.wait(|network| async move { network.ensure_port(&mapping).await.unwrap_err() });
    assert!(taken.to_string().contains("port 9000/udp is in use by process network"), "{taken}");
}

/// The checksum of SCTP (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0_u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}

/// After this time without an answer, an opening chunk is sent again.
const RETRANSMISSION: std::time::Duration = std::time::Duration::from_secs(1);

#[test]
fn sctp_reaches_the_backend() {
    use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
    let lab = ClusterLab::new();
    let node = lab.node(1);
    let task = node.attach(2, &[1]);
    publish(node, at(TransportProtocol::Sctp, None, 9000), &[task_address(1, 2)]);
    // A chunk that opens an association, over raw sockets: this kernel need not have SCTP itself.
    let raw = || {
        let kind = (AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Sctp);
        let raw = std::net::UdpSocket::from(socket(kind.0, kind.1, kind.2, kind.3).unwrap());
        raw.set_read_timeout(Some(RETRANSMISSION)).unwrap();
        raw
    };
    let receiver = task.run(raw);
    let mut packet = [&5000_u16.to_be_bytes()[..], &9000_u16.to_be_bytes(), &[0; 8]].concat();
    packet.extend([1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let checksum = crc32c(&packet).to_le_bytes();
    packet[8..12].copy_from_slice(&checksum);
    let sender = lab.client.run(raw);
    lab.client.run(|| sender.connect((underlay(1), 0)).unwrap());
    let mut received = [0; 128];
    let mut exchange = || {
        sender.send(&packet).unwrap();
        uninterrupted(|| receiver.recv(&mut received))
    };
    // A datagram may be lost, so that every sender repeats this chunk.
    let length = (0..15).find_map(|_| exchange().ok()).expect("the chunk arrives");
    let sctp = &received[20..length];
    assert_eq!((&sctp[..2], &sctp[2..4]), (&5000_u16.to_be_bytes()[..], &80_u16.to_be_bytes()[..]));
    assert_eq!(&received[12..16], &CLIENT.octets());
}
