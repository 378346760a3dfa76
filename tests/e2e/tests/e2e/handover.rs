//! Clients notice nothing when tasks of a service are replaced in order.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use warren_testkit::http_load::{ClientReport, HttpClient, HttpLoad};
use warren_testkit::netns::LabHost;
use warren_testkit::wait::{WaitResult, eventually, try_eventually};
use warren_testkit::{soak, tool};

use super::networks::{Client, two_workers};
use super::telemetry::wait_for_status;
use crate::e2e::cluster::WorkerCluster;
use crate::e2e::fixture::{BOX, SOON, WEB};

/// The pause of each client between two requests.
const PAUSE: Duration = Duration::from_millis(1);
/// Longer than the drain delay and the time that a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

#[test]
fn no_request_fails_while_tasks_are_replaced() {
    let mut cluster = two_workers();
    create_with_default_times(
        &cluster,
        &format!(
            "web --image {WEB} --replicas 2 --max-per-node 10 --update-monitor 1s --publish 8088:80 \
             --health-http :80/healthz --health-interval 1s"
        ),
    );
    cluster.ok(&format!("service create client --image {BOX} --constraint node.name==w1 -- sleep 1000000"));
    cluster.wait_serving("web", 2);
    let client = Client::of(&cluster.workers[0], &cluster.wait_serving("client", 1)[0]);
    let virtual_address = client.wait_resolved("web");
    let entry = cluster.workers[1].host().address();
    let inside = PathBuf::from(format!("/proc/{}/ns/net", client.pid));
    let outside = cluster.manager.host().netns().path();
    let targets: [(PathBuf, SocketAddr); 2] =
        [(inside, (virtual_address, 80).into()), (outside, (entry, 8088).into())];
    targets.iter().for_each(|(namespace, target)| wait_answers(namespace, *target));
    let clients = targets.into_iter().flat_map(|(namespace, target)| {
        [false, true].map(|keeps_connection| HttpClient {
            namespace: namespace.clone(),
            target,
            keeps_connection,
            pause: PAUSE,
        })
    });
    let of_each_kind = soak::count(1, 3);
    let load = HttpLoad::start(clients.flat_map(|client| std::iter::repeat_n(client, of_each_kind)));
    let (requests, mut round) = (soak::count(40_000, 1_000_000), 0);
    let start = Instant::now();
    let step = |what: &str| println!("{:?} {what}", start.elapsed());
    while load.answered() < requests {
        round += 1;
        step("update");
        cluster.ok(&format!("service update web --env-add ROUND={round}"));
        step("scale up");
        cluster.ok("service scale web=10");
        // While its agent is away, a node does not acknowledge that tasks are withdrawn.
        cluster.wait_serving("web", 10);
        step("kill the agent");
        cluster.workers[0].kill();
        cluster.workers[0].run_again();
        wait_for_status(cluster.workers[0].host(), "/ready", "200", "");
        step("force an update");
        cluster.ok("service update web --force --update-parallelism 4");
        step("drain");
        cluster.ok("node drain w2");
        step("scale down");
        cluster.ok("service scale web=2");
        step("end the drain");
        cluster.ok("node update w2 --availability active");
        assert!(round < requests, "only {} answers", load.answered());
    }
    cluster.wait_serving("web", 2);
    let (answered, ClientReport { failures, .. }) = (load.answered(), load.end());
    println!("{answered} requests in {round} rounds, {} failed", failures.len());
    assert!(
        failures.is_empty(),
        "{} of {answered}: {:#?}",
        failures.len(),
        &failures[..failures.len().min(20)]
    );
}

/// Waits until every request is answered: a node knows the tasks some time after they are ready.
#[track_caller]
fn wait_answers(namespace: &Path, target: SocketAddr) {
    let ask = || -> std::io::Result<String> {
        let mut connection = connect(namespace, target)?;
        connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        Ok(answer)
    };
    // So many that each of two tasks gets one of them.
    eventually(SOON, &format!("answers of {target}"), || {
        (0..10).try_for_each(|_| match ask() {
            Ok(answer) if answer.starts_with("HTTP/1.1 200 ") => Ok(()),
            other => Err(format!("{other:?}")),
        })
    });
}

/// Creates a service; times that are not in the command line are those of Warren, not of the tests.
#[track_caller]
fn create_with_default_times(cluster: &WorkerCluster, line: &str) {
    let line = format!("service create {line}");
    cluster.warren().settling().run_ok(&line.split(' ').collect::<Vec<_>>());
}

/// What is sent over these connections comes back until the grace of their task ends; then they end at once.
#[test]
fn connection_is_kept_until_its_task_ends() {
    let cluster = two_workers();
    // The first process of a container ignores signals that it does not handle.
    create_with_default_times(
        &cluster,
        &format!(
            "echo --image {BOX} --constraint node.name==w2 --publish 8089:80 --publish 8091:80,mode=host \
             --stop-grace 3s --update-monitor 0s -- nc -ll -p 80 -e cat"
        ),
    );
    cluster.ok(&format!("service create client --image {BOX} --constraint node.name==w1 -- sleep 1000000"));
    let client = Client::of(&cluster.workers[0], &cluster.wait_serving("client", 1)[0]);
    let virtual_address = client.wait_resolved("echo");
    let outside = cluster.manager.host().netns().path();
    let [other, own] = [0, 1].map(|number| cluster.workers[number].host().address());
    let targets: [(PathBuf, SocketAddr); 4] = [
        (PathBuf::from(format!("/proc/{}/ns/net", client.pid)), (virtual_address, 80).into()),
        (outside.clone(), (other, 8089).into()),
        (outside.clone(), (own, 8089).into()),
        (outside, (own, 8091).into()),
    ];
    let open = |(namespace, target): &(PathBuf, SocketAddr)| {
        eventually(SOON, &format!("a connection to {target}"), || {
            let mut connection = connect(namespace, *target).map_err(|error| error.to_string())?;
            exchange(&mut connection).map_err(|error| error.to_string())?;
            Ok(connection)
        })
    };
    let idle = targets.each_ref().map(open).map(|connection| std::thread::spawn(move || end_of(connection)));
    let mut used = targets.each_ref().map(open);
    let start = Instant::now();
    cluster.ok("service update echo --env-add ROUND=1 --detach");
    for connection in &mut used {
        let error = loop {
            // Not a wait: the load leaves the machine to other tests.
            std::thread::sleep(PAUSE);
            match exchange(connection) {
                Ok(()) => assert!(start.elapsed() < SOON, "the task does not end"),
                Err(error) => break error,
            }
        };
        let (target, after) = (connection.peer_addr(), start.elapsed());
        assert!(ENDS.contains(&error.kind()), "{target:?} after {after:?}: {error}");
        assert!(after >= DRAIN_AND_GRACE, "{target:?} ended after {after:?}: {error}");
    }
    let ended = Instant::now();
    // Clients that only read are told as well, at the same moment.
    for reader in idle {
        let (target, error, at) = reader.join().unwrap();
        assert!(ENDS.contains(&error.kind()), "{target}: {error}");
        let late = at.saturating_duration_since(ended);
        println!("{target}: {error} {:?} after the update", at - start);
        assert!(late < TIMEOUT, "{target} after {late:?}");
        assert!(at - start >= DRAIN_AND_GRACE, "{target} ended early");
    }
    drop(targets.each_ref().map(open));
}

/// Reads until the connection ends: from whom, how and when.
fn end_of(mut connection: TcpStream) -> (SocketAddr, std::io::Error, Instant) {
    let target = connection.peer_addr().unwrap();
    connection.set_read_timeout(Some(2 * SOON)).unwrap();
    let error = connection.read_exact(&mut [0]).unwrap_err();
    (target, error, Instant::now())
}

/// How the client of a connection learns that the other end is gone.
const ENDS: [ErrorKind; 3] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
/// The default drain delay and the grace of the test.
const DRAIN_AND_GRACE: Duration = Duration::from_secs(5);

/// A connection from a network namespace.
fn connect(namespace: &Path, target: SocketAddr) -> std::io::Result<TcpStream> {
    let namespace = File::open(namespace)?;
    let open = move || {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        let stream = TcpStream::connect_timeout(&target, TIMEOUT)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    };
    std::thread::spawn(open).join().unwrap()
}

fn exchange(connection: &mut TcpStream) -> std::io::Result<()> {
    connection.write_all(b"x")?;
    connection.read_exact(&mut [0])
}

#[test]
fn published_port_leads_from_every_node_to_a_task_that_sees_the_client() {
    let cluster = two_workers();
    cluster.ok(&format!("service create web --image {WEB} --constraint node.name==w2 --publish 8088:80"));
    cluster.wait_serving("web", 1);
    let client = cluster.manager.host();
    for worker in &cluster.workers {
        let target = format!("http://{}:8088/", worker.host().address());
        eventually(SOON, &format!("an answer of {target}"), || page(client, &target));
        eventually(SOON, &format!("an answer on {}", worker.name()), || {
            page(worker.host(), "http://127.0.0.1:8088/")
        });
    }
    let expected = format!("{} GET / 200", client.address());
    eventually(SOON, "the client in the log twice", || {
        let log = cluster.ok("service logs web");
        if log.matches(&expected).count() >= 2 { Ok(()) } else { Err(log) }
    });
    cluster.ok("service rm web");
    for worker in &cluster.workers {
        eventually(SOON, &format!("port 8088 of {} to be closed", worker.name()), || {
            let rules = tool::stdout(worker.host().command("iptables-save"), tool::DEADLINE);
            let rules = rules.map_err(|error| error.to_string())?;
            if rules.contains("8088") { Err(rules) } else { Ok(()) }
        });
    }
}

/// A port is open only on nodes with a label, with the labels of now, and also while the managers are away.
#[test]
fn selected_nodes_open_a_published_port() {
    let mut cluster = two_workers();
    cluster.ok("node update w1 --label-add edge=true");
    cluster.ok(&format!(
        "service create web --image {WEB} --constraint node.name==w2 --publish 8092:80 \
         --publish-on node.labels.edge==true"
    ));
    cluster.ok(&format!("service create client --image {BOX} --mode global -- sleep 1000000"));
    let before = cluster.wait_serving("web", 1);
    let tasks = cluster.wait_serving("client", 2);
    let containers: Vec<PathBuf> = (cluster.workers.iter())
        .map(|worker| {
            let task = tasks.iter().find(|task| task.node_name == worker.name()).unwrap();
            PathBuf::from(format!("/proc/{}/ns/net", Client::of(worker, task).pid))
        })
        .collect();
    // From outside, from the node itself, and from a container on it.
    let check = |cluster: &WorkerCluster, expected: [bool; 2]| {
        for ((worker, container), is_open) in cluster.workers.iter().zip(&containers).zip(expected) {
            let address = worker.host().address();
            let origins = [
                (cluster.manager.host().netns().path(), address),
                (worker.host().netns().path(), Ipv4Addr::LOCALHOST),
                (container.clone(), address),
            ];
            for (namespace, to) in origins {
                let what = format!("port 8092 of {} at {to} (open: {is_open})", worker.name());
                eventually(SOON, &what, || match connect(&namespace, (to, 8092).into()) {
                    Ok(_) if is_open => Ok(()),
                    Err(error) if !is_open && error.kind() == ErrorKind::ConnectionRefused => Ok(()),
                    found => Err(format!("{found:?}")),
                });
            }
        }
    };
    check(&cluster, [true, false]);
    cluster.ok("node update w2 --label-add edge=true");
    cluster.ok("node update w1 --label-rm edge");
    check(&cluster, [false, true]);
    // An agent that is killed before has the view of before.
    for worker in &cluster.workers {
        eventually(SOON, "the cache of the agent", || {
            let path = worker.data_dir().join("worker/network.json");
            let cached = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
            if cached.contains("\"entryNodes\":[2]") { Ok(()) } else { Err(cached) }
        });
    }
    cluster.manager.kill();
    for worker in &mut cluster.workers {
        worker.kill();
        nat(worker.host(), "iptables", &["-F"]).unwrap();
        worker.run_again();
        eventually(SOON, "rules from the cache of the agent", || {
            let rules = nat(worker.host(), "iptables-save", &[])?;
            if rules.contains("-j WARREN-PRE") { Ok(()) } else { Err(rules) }
        });
    }
    check(&cluster, [false, true]);
    cluster.manager.run_again();
    cluster.manager.wait_ready();
    cluster.ok("service update web --publish-on-rm node.labels.edge==true");
    check(&cluster, [true, true]);
    let after = cluster.wait_serving("web", 1);
    assert_eq!(before[0].id, after[0].id, "the updates left it alone");
}

fn nat(host: &LabHost, program: &str, arguments: &[&str]) -> WaitResult<String> {
    let mut command = host.command(program);
    command.args(["-t", "nat"]).args(arguments);
    tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
}

#[test]
fn options_of_a_published_port_select_the_task() {
    let cluster = two_workers();
    cluster.ok(&format!("service create edge --image {WEB} --mode global --publish 8089:80,prefer=local"));
    cluster.wait_serving("edge", 2);
    let workers = [0, 1].map(|i| &cluster.workers[i]);
    let client = cluster.manager.host();
    let served = || {
        let log = cluster.ok("service logs edge");
        let of = |worker: &str| format!("@{worker} | {} GET / 200", client.address());
        workers.map(|worker| log.matches(&of(worker.name())).count())
    };
    // How many of some requests through a worker each task gets.
    let shares = |through: usize| -> WaitResult<[usize; 2]> {
        let (before, target) = (served(), format!("http://{}:8089/", workers[through].host().address()));
        (0..REQUESTS).try_for_each(|_| page(client, &target))?;
        let shares = || {
            let now = served();
            // The logs of a node that answers late are left out.
            let shares = [0, 1].map(|number| now[number].saturating_sub(before[number]));
            if shares[0] + shares[1] == REQUESTS { Ok(shares) } else { Err(format!("{shares:?}")) }
        };
        try_eventually(SHOWN, "the requests in the log", shares).map_err(|error| error.to_string())
    };
    for (through, expected) in [(0, [REQUESTS, 0]), (1, [0, REQUESTS])] {
        eventually(SOON, "only tasks of the same node", || {
            shares(through)
                .and_then(|found| if found == expected { Ok(()) } else { Err(format!("{found:?}")) })
        });
    }
    let tasks = || cluster.ok("service ps edge --format {{.ID}}");
    let before = tasks();
    cluster.ok("service update edge --publish 8089:80,affinity=client");
    eventually(SOON, "one task through both nodes", || {
        let found = [shares(0)?, shares(1)?];
        let is_one = found[0] == found[1] && found[0].contains(&0);
        if is_one { Ok(()) } else { Err(format!("{found:?}")) }
    });
    assert_eq!(tasks(), before, "the update left them alone");
    cluster.ok("service rm edge");
}

/// So many that equal shares are seen.
const REQUESTS: usize = 4;
/// How long requests take to be in the log. They are repeated if it has too many or too few by then.
const SHOWN: Duration = Duration::from_secs(2);

fn page(host: &LabHost, url: &str) -> WaitResult<()> {
    let mut command = host.command("curl");
    command.args(["--silent", "--show-error", "--fail", "--max-time", "3", url]);
    tool::stdout(command, tool::DEADLINE).map(drop).map_err(|error| error.to_string())
}
