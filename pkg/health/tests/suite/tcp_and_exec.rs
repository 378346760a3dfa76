//! TCP checks, programs, and the namespace of sockets.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use warren_health::{ExecStatus, ProbeLimits};
use warren_types::spec::Probe;

use super::fixture::{ADDRESS, ProbeFixture, get, ran};

#[tokio::test]
async fn tcp_check_follows_port_state() {
    let world = ProbeFixture::new();
    let (everywhere, port) = world.listen(Ipv4Addr::UNSPECIFIED);
    let outcome = world.probe(Probe::Tcp { port }).await;
    assert_eq!((outcome.succeeded, outcome.output()), (true, format!("port {port} accepts connections")));
    drop(everywhere);
    // A program started by another test also holds the socket until its exec.
    let deadline = Instant::now() + Duration::from_secs(60);
    while world.probe(Probe::Tcp { port }).await.succeeded && Instant::now() < deadline {}
    for probe in [Probe::Tcp { port }, get(port, "/")] {
        let outcome = world.probe(probe).await;
        assert_eq!(
            (outcome.succeeded, outcome.output()),
            (false, format!("connection refused on port {port}"))
        );
    }
    let (_loopback, port) = world.listen(Ipv4Addr::LOCALHOST);
    assert!(world.probe(Probe::Tcp { port }).await.succeeded);
    let (_own_address, port) = world.listen(ADDRESS);
    assert!(world.probe(Probe::Tcp { port }).await.succeeded);
}

#[tokio::test]
async fn host_listener_is_not_reached() {
    let world = ProbeFixture::new();
    let outside = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = outside.local_addr().unwrap().port();
    assert!(!world.probe(Probe::Tcp { port }).await.succeeded);
    // Conversely, sockets of this process stay in its own namespace. Outside, the port is bound without a listener, so
    // that no other program has it.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let port = bound.local_addr().unwrap().port();
    let _inside = world.listen_on(Ipv4Addr::UNSPECIFIED, port);
    assert!(world.probe(Probe::Tcp { port }).await.succeeded);
    assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
}

#[tokio::test]
async fn missing_network_fails_the_check() {
    let world = ProbeFixture::new();
    let missing = warren_health::ProbeTarget { netns: "/none/web-1".into(), ..world.target() };
    let check = warren_types::spec::HealthCheck::new(Probe::Tcp { port: 80 });
    let outcome = world.prober.check(&check, &missing).await;
    let expected = "cannot enter the network namespace of the task: No such file or directory (os error 2)";
    assert_eq!((outcome.succeeded, outcome.output().as_str()), (false, expected));
    let (_inside, port) = world.listen(Ipv4Addr::UNSPECIFIED);
    assert!(world.probe(Probe::Tcp { port }).await.succeeded, "the next one works");
}

#[tokio::test]
async fn exit_code_decides_result() {
    let world = ProbeFixture::new();
    let exec = || Probe::Exec { command: vec!["/bin/check".into(), "-v".into()] };
    for (answer, good, output) in [
        (ran(ExecStatus::Exited(0), "fine\n"), true, "exited with code 0: fine"),
        (ran(ExecStatus::Exited(3), "no\nway\n"), false, "exited with code 3: no\nway"),
        (ran(ExecStatus::TimedOut, "still"), false, "did not end within 2s: still"),
        (ran(ExecStatus::Failed("there is no /bin/check".into()), ""), false, "there is no /bin/check"),
    ] {
        *world.exec.result.lock().unwrap() = answer;
        let outcome = world.probe_with_timeout(exec(), Duration::from_secs(2)).await;
        assert_eq!((outcome.succeeded, outcome.output().as_str()), (good, output));
        assert!(outcome.is_conclusive);
    }
    *world.exec.result.lock().unwrap() = ran(ExecStatus::NotStarted("containerd does not answer".into()), "");
    assert!(!world.probe(exec()).await.is_conclusive);
    assert_eq!(world.exec.commands.lock().unwrap()[0], ["/bin/check", "-v"]);
    assert_eq!(ProbeLimits::for_cores(0), ProbeLimits::for_cores(1));
}

#[tokio::test]
async fn programs_that_do_not_end_hold_up_no_connections() {
    let world = ProbeFixture::with_permits(1);
    let (_listener, port) = world.listen(ADDRESS);
    let stuck = world.probe(Probe::Exec { command: vec!["/bin/stuck".into()] });
    tokio::select! {
        biased;
        _ = stuck => panic!("the program has no configured result"),
        outcome = world.probe(Probe::Tcp { port }) => assert!(outcome.succeeded),
    }
}
