//! Connections, programs, and where sockets are made.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use warren_health::{Ending, Limits};
use warren_types::spec::Probe;

use super::world::{ADDRESS, World, get, ran};

#[tokio::test]
async fn a_port_is_open_or_it_is_not() {
    let world = World::new();
    let (everywhere, port) = world.listen(Ipv4Addr::UNSPECIFIED);
    let outcome = world.probe(Probe::Tcp { port }).await;
    assert_eq!((outcome.good, outcome.output()), (true, format!("port {port} accepts connections")));
    drop(everywhere);
    // A program that another test starts has the socket as well, until it is that program.
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.probe(Probe::Tcp { port }).await.good && Instant::now() < deadline {}
    for probe in [Probe::Tcp { port }, get(port, "/")] {
        let outcome = world.probe(probe).await;
        assert_eq!((outcome.good, outcome.output()), (false, format!("connection refused on port {port}")));
    }
    let (_loopback, port) = world.listen(Ipv4Addr::LOCALHOST);
    assert!(world.probe(Probe::Tcp { port }).await.good);
    let (_own_address, port) = world.listen(ADDRESS);
    assert!(world.probe(Probe::Tcp { port }).await.good);
}

#[tokio::test]
async fn what_listens_outside_is_not_found_inside() {
    let world = World::new();
    let outside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = outside.local_addr().unwrap().port();
    assert!(!world.probe(Probe::Tcp { port }).await.good);
    // Nor the other way round: this process' own sockets stay where they were.
    let (_inside, port) = world.listen(Ipv4Addr::UNSPECIFIED);
    assert!(world.probe(Probe::Tcp { port }).await.good);
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

#[tokio::test]
async fn a_network_that_is_gone_is_a_failed_check() {
    let world = World::new();
    let gone = warren_health::Target { netns: "/none/web-1".into(), ..world.target() };
    let check = warren_types::spec::HealthCheck::new(Probe::Tcp { port: 80 });
    let outcome = world.prober.check(&check, &gone).await;
    let wanted = "the task's network cannot be entered: No such file or directory (os error 2)";
    assert_eq!((outcome.good, outcome.output().as_str()), (false, wanted));
    let (_inside, port) = world.listen(Ipv4Addr::UNSPECIFIED);
    assert!(world.probe(Probe::Tcp { port }).await.good, "the next one works");
}

#[tokio::test]
async fn a_programs_end_decides() {
    let world = World::new();
    let exec = || Probe::Exec { command: vec!["/bin/check".into(), "-v".into()] };
    for (answer, good, output) in [
        (ran(Ending::Exited(0), "fine\n"), true, "exited with code 0: fine"),
        (ran(Ending::Exited(3), "no\nway\n"), false, "exited with code 3: no\nway"),
        (ran(Ending::TimedOut, "still"), false, "did not end within 2s: still"),
        (ran(Ending::Failed("there is no /bin/check".into()), ""), false, "there is no /bin/check"),
    ] {
        *world.exec.answer.lock().unwrap() = answer;
        let outcome = world.within(exec(), Duration::from_secs(2)).await;
        assert_eq!((outcome.good, outcome.output().as_str()), (good, output));
        assert!(outcome.asked);
    }
    *world.exec.answer.lock().unwrap() = ran(Ending::Unable("containerd does not answer".into()), "");
    assert!(!world.probe(exec()).await.asked);
    assert_eq!(world.exec.asked.lock().unwrap()[0], ["/bin/check", "-v"]);
    assert_eq!(Limits::of(0), Limits::of(1));
}

#[tokio::test]
async fn programs_that_do_not_end_hold_up_no_connections() {
    let world = World::with_permits(1);
    let (_listener, port) = world.listen(ADDRESS);
    let stuck = world.probe(Probe::Exec { command: vec!["/bin/stuck".into()] });
    tokio::select! {
        biased;
        _ = stuck => panic!("nobody said how it ends"),
        outcome = world.probe(Probe::Tcp { port }) => assert!(outcome.good),
    }
}
