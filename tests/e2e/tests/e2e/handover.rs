//! Clients notice nothing when tasks of a service are replaced in order.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use warren_testkit::soak;

use super::networks::{Client, two_workers};
use super::telemetry::wait_for_status;
use crate::e2e::fixture::{BOX, WEB};

/// Threads that send requests, and the pause of each between two of them.
const THREADS: usize = 4;
const PAUSE: Duration = Duration::from_millis(1);
/// Longer than the drain delay and the time that a busy machine needs for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Requests from a container, each with a connection of its own, until it ends.
struct RequestLoad {
    ended: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl RequestLoad {
    fn start(client: &Client, address: Ipv4Addr) -> RequestLoad {
        let (ended, answered, start) = (Arc::default(), Arc::default(), Instant::now());
        let threads = (0..THREADS).map(|_| {
            let (ended, answered): (Arc<AtomicBool>, Arc<AtomicUsize>) =
                (Arc::clone(&ended), Arc::clone(&answered));
            let namespace = File::open(format!("/proc/{}/ns/net", client.pid)).unwrap();
            std::thread::spawn(move || {
                setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
                let mut failures = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    match request(address) {
                        Ok(()) => drop(answered.fetch_add(1, Ordering::Relaxed)),
                        Err(error) => failures.push(format!("after {:?}: {error}", start.elapsed())),
                    }
                    // Not a wait: the load leaves the machine to other tests.
                    std::thread::sleep(PAUSE);
                }
                failures
            })
        });
        RequestLoad { threads: threads.collect(), ended, answered }
    }

    fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// The failed requests.
    fn end(self) -> Vec<String> {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    }
}

fn request(address: Ipv4Addr) -> Result<(), String> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from((address, 80)), TIMEOUT)
        .map_err(|error| error.to_string())?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    let answered = stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: web\r\n\r\n")
        .and_then(|()| stream.read_to_string(&mut answer));
    match answered {
        Ok(_) if answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok\n") => Ok(()),
        Ok(_) => Err(format!("answer {answer:?}")),
        Err(error) => Err(format!("{error} after {answer:?}")),
    }
}

#[test]
fn no_request_fails_while_tasks_are_replaced() {
    let mut cluster = two_workers();
    cluster.ok(&format!(
        "service create web --image {WEB} --replicas 2 --max-per-node 10 --update-monitor 1s \
         --health-http :80/healthz --health-interval 1s"
    ));
    cluster.ok(&format!("service create client --image {BOX} --constraint node.name==w1 -- sleep 1000000"));
    cluster.wait_serving("web", 2);
    let client = Client::of(&cluster.workers[0], &cluster.wait_serving("client", 1)[0]);
    let address = client.resolve("web").unwrap()[0].parse().unwrap();
    let load = RequestLoad::start(&client, address);
    let (requests, mut round) = (soak::count(100_000, 1_000_000), 0);
    while load.answered() < requests {
        round += 1;
        cluster.ok(&format!("service update web --env-add ROUND={round}"));
        cluster.ok("service scale web=10");
        // While its agent is away, a node does not acknowledge that tasks are withdrawn.
        cluster.wait_serving("web", 10);
        cluster.workers[0].kill();
        cluster.workers[0].run_again();
        wait_for_status(cluster.workers[0].host(), "/ready", "200", "");
        cluster.ok("service update web --force --update-parallelism 4");
        cluster.ok("node drain w2");
        cluster.ok("service scale web=2");
        cluster.ok("node update w2 --availability active");
        assert!(round < requests, "only {} answers", load.answered());
    }
    cluster.wait_serving("web", 2);
    let (answered, failures) = (load.answered(), load.end());
    println!("{answered} requests in {round} rounds, {} failed", failures.len());
    assert!(
        failures.is_empty(),
        "{} of {answered}: {:#?}",
        failures.len(),
        &failures[..failures.len().min(20)]
    );
}
