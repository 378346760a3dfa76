use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{Backlog, listen};

use super::*;

const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
const GATEWAY: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 77);

fn at(ip: Option<Ipv4Addr>) -> HostPort {
    HostPort::new(ip, NonZeroU16::new(8080).unwrap(), TransportProtocol::Tcp)
}

/// Runs the test in its own network namespace, with its loopback up.
fn in_new_namespace(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let mut netlink = super::super::netlink::Netlink::open().unwrap();
            let up = super::super::message::link_up(1);
            netlink
                .submit(vec![super::super::netlink::NetlinkChange::set("bring up lo".to_owned(), up)])
                .unwrap();
            test();
        });
    });
}

/// Waits for a condition that may be delayed by programs being started: they hold copies of the sockets.
fn eventually(mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < limit, "it never came true");
        thread::yield_now();
    }
}

#[test]
fn listener_of_another_program_is_detected_and_named() {
    for theirs in [ANY, LOCAL] {
        for ours in [None, Some(LOCAL)] {
            in_new_namespace(|| {
                let _listener = TcpListener::bind((theirs, 8080)).unwrap();
                let taken = with_holder(HeldPorts::default().ensure(at(ours), GATEWAY).unwrap_err());
                let Error::PortTaken { port, by: Some(by) } = taken else { panic!("{taken}") };
                assert_eq!((port, by.pid), (at(ours), std::process::id()));
            });
        }
    }
}

#[test]
fn programs_started_by_this_process_may_be_holders() {
    let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
    // The kernel may still be replacing the program.
    eventually(|| !is_copy(child.id()));
    assert!(!is_copy(std::process::id()));
    assert!(has_not_executed(b"", b"warren\0run\0") && has_not_executed(b"warren\0run\0", b"warren\0run\0"));
    assert!(!has_not_executed(b"cat\0", b"warren\0run\0"));
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn a_udp_socket_of_others_is_noticed_and_named() {
    for (theirs, ours) in [(ANY, None), (LOCAL, None), (ANY, Some(LOCAL)), (LOCAL, Some(LOCAL))] {
        in_new_namespace(|| {
            let udp = HostPort::new(ours, NonZeroU16::new(8080).unwrap(), TransportProtocol::Udp);
            let socket = UdpSocket::bind((theirs, 8080)).unwrap();
            let mut ports = HeldPorts::default();
            // The protocols have separate ports.
            ports.ensure(at(ours), GATEWAY).unwrap();
            let taken = with_holder(ports.ensure(udp, GATEWAY).unwrap_err());
            let Error::PortTaken { port, by: Some(by) } = taken else { panic!("{taken}") };
            assert_eq!((port, by.pid), (udp, std::process::id()));
            assert_eq!(udp_holder(8080).unwrap().pid, std::process::id());
            drop(socket);
            eventually(|| ports.ensure(udp, GATEWAY).is_ok());
            assert!(UdpSocket::bind((theirs, 8080)).is_err());
        });
    }
}

#[test]
fn sctp_ports_are_held_with_or_without_kernel_support() {
    in_new_namespace(|| {
        let sctp = HostPort::new(None, NonZeroU16::new(8080).unwrap(), TransportProtocol::Sctp);
        let mut ports = HeldPorts::default();
        ports.ensure(sctp, GATEWAY).unwrap();
        assert!(ports.is_held(&sctp) && !ports.is_held(&at(None)));
        ports.remove(sctp);
        assert!(!ports.is_held(&sctp));
    });
}

#[test]
fn held_port_is_refused_to_others_until_released() {
    for ours in [None, Some(LOCAL)] {
        in_new_namespace(|| {
            let mut ports = HeldPorts::default();
            ports.ensure(at(ours), GATEWAY).unwrap();
            ports.ensure(at(ours), GATEWAY).unwrap();
            for theirs in [ANY, LOCAL] {
                assert!(TcpListener::bind((theirs, 8080)).is_err(), "{theirs}");
            }
            // Without a listener a connection is refused and does not hang.
            let refused = TcpStream::connect((LOCAL, 8080)).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            ports.remove(at(ours));
            ports.remove(at(ours));
            eventually(|| TcpListener::bind((ANY, 8080)).is_ok());
        });
    }
}

#[test]
fn different_addresses_do_not_conflict() {
    in_new_namespace(|| {
        let _listener = TcpListener::bind(("127.0.0.2", 8080)).unwrap();
        let mut ports = HeldPorts::default();
        ports.ensure(at(Some(LOCAL)), GATEWAY).unwrap();
        assert!(matches!(ports.ensure(at(None), GATEWAY), Err(Error::PortTaken { .. })));
        assert!(ports.is_held(&at(Some(LOCAL))) && !ports.is_held(&at(None)));
        ports.retain(&BTreeSet::new());
        assert!(!ports.is_held(&at(Some(LOCAL))));
    });
}

#[test]
fn dns_server_of_the_node_does_not_conflict() {
    in_new_namespace(|| {
        let _own = UdpSocket::bind((GATEWAY, 53)).unwrap();
        let dns = |ip| HostPort::new(ip, NonZeroU16::new(53).unwrap(), TransportProtocol::Udp);
        let mut ports = HeldPorts::default();
        ports.ensure(dns(None), GATEWAY).unwrap();
        assert!(matches!(ports.ensure(dns(Some(GATEWAY)), LOCAL), Err(Error::PortTaken { .. })));
        ports.remove(dns(None));
        let _other = UdpSocket::bind((LOCAL, 53)).unwrap();
        assert!(matches!(ports.ensure(dns(None), GATEWAY), Err(Error::PortTaken { .. })));
    });
}

#[test]
fn an_address_of_another_machine_is_refused() {
    in_new_namespace(|| {
        let foreign = Some(Ipv4Addr::new(192, 0, 2, 77));
        assert!(matches!(
            HeldPorts::default().ensure(at(foreign), GATEWAY),
            Err(Error::HostIpMissing { .. })
        ));
    });
}

#[test]
fn time_wait_connections_do_not_conflict() {
    in_new_namespace(|| {
        let listener = TcpListener::bind((LOCAL, 8080)).unwrap();
        let mut client = TcpStream::connect((LOCAL, 8080)).unwrap();
        // The side that closes first enters TIME_WAIT: the server.
        drop(listener.accept().unwrap());
        assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
        drop((client, listener));
        eventually(|| socket_inodes(at(None)).iter().all(|inode| *inode == NO_INODE));
        assert!(try_bind(at(None), false).is_err(), "the memory is in the way of a plain bind");
        let mut ports = HeldPorts::default();
        ports.ensure(at(None), GATEWAY).unwrap();
        // Another process may bind with SO_REUSEADDR, as servers do, but cannot listen.
        let foreign = try_bind(at(None), true);
        assert!(foreign.and_then(|socket| listen(&socket, Backlog::new(1)?)).is_err());
    });
}

#[test]
fn socket_tables_parse() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retr uid timeout inode\n\
        0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0\n\
        1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4712 1 0\n\
        2: 0200007F:1F90 0100007F:9999 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0\n\
        3: 0000000000000000FFFF00000100007F:1F90 0:0 01 0:0 0:0 0 0 0 4713 1 0\n\
        4: nonsense\n";
    let inodes = |at| parse_sockets(table, at).into_iter().map(|(_, inode)| inode).collect::<Vec<_>>();
    assert_eq!(inodes(at(None)), [4711, 0, 4713]);
    assert_eq!(inodes(at(Some(LOCAL))), [4711, 4713]);
}
