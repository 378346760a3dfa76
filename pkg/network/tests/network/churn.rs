//! Many changes, one by one and all at once; and what they cost.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpStream};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use warren_network::{
    Attachment, ClusterNetwork, HostPort, LinuxNetwork, NetworkBackend, NetworkMembers, NodeNetwork,
    PortMapping, TaskKey, TaskNetwork, TransportProtocol,
};

use crate::lab::cluster::{
    ANY, ClusterLab, ServingTask, attachment, gateway, network, peers, settings, task_address, task_key,
    underlay, virtual_address,
};
use crate::lab::{COMPARISONS, NetworkLab, NetworkNamespace, assert_same, run_on_node, without_indexes};

/// Numbers that are the same in every run.
struct Random(u32);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % limit
    }

    fn address(&mut self) -> Ipv4Addr {
        task_address(1 + self.below(3) as u8, 10 + self.below(20) as u8)
    }

    fn addresses(&mut self) -> BTreeSet<Ipv4Addr> {
        (0..self.below(4)).map(|_| self.address()).collect()
    }
}

/// Makes one random change, in the request and on the node.
async fn change(network: &LinuxNetwork, all: &mut NodeNetwork, random: &mut Random) {
    match random.below(9) {
        0 | 1 => {
            let last = 10 + random.below(20) as u8;
            let networks: BTreeSet<u32> = (0..=random.below(3)).map(|_| 1 + random.below(3)).collect();
            let networks: Vec<u32> = networks.into_iter().collect();
            let attachment = attachment(1, last, &networks);
            let task = TaskNetwork { task: task_key(1, last), attachment, namespace: None };
            network.ensure_task(&task).await.unwrap();
            all.tasks.insert(task.task, task.attachment);
        }
        2 => {
            let task = task_key(1, 10 + random.below(20) as u8);
            network.remove_task(&task).await.unwrap();
            all.tasks.remove(&task);
        }
        3 => {
            let port = NonZeroU16::new(9000 + random.below(30) as u16).unwrap();
            let host_port = HostPort::new(None, port, TransportProtocol::ALL[random.below(3) as usize]);
            let backends: BTreeSet<SocketAddrV4> =
                random.addresses().into_iter().map(|ip| SocketAddrV4::new(ip, 80)).collect();
            all.ports.insert(host_port, backends.clone());
            network.ensure_port(&PortMapping { host_port, backends }).await.unwrap();
        }
        4 => {
            if let Some((at, _)) = all.ports.pop_first() {
                network.remove_port(at).await.unwrap();
            }
        }
        kind => {
            let cluster = Arc::make_mut(&mut all.cluster);
            match kind {
                8 => {
                    let port = NonZeroU16::new(9000 + random.below(60) as u16).unwrap();
                    let at = HostPort::new(None, port, TransportProtocol::ALL[random.below(3) as usize]);
                    let backends =
                        random.addresses().into_iter().map(|ip| SocketAddrV4::new(ip, 80)).collect();
                    if cluster.ingress.remove(&at).is_none() {
                        cluster.ingress.insert(at, backends);
                    }
                }
                5 => {
                    drop(cluster.services.insert(virtual_address(random.below(40) as u8), random.addresses()))
                }
                6 => {
                    let internal = random.below(2) == 0;
                    let members = random.addresses();
                    cluster.networks.insert(1 + random.below(3), NetworkMembers { internal, members });
                }
                _ => {
                    let node = 2 + random.below(8) as u8;
                    if cluster.peers.remove(&node.into()).is_none() {
                        cluster.peers.extend(peers([node]).peers);
                    }
                }
            }
            let made = network.ensure_cluster(&all.cluster).await.unwrap();
            assert!(made.failed.is_empty(), "{:?}", made.failed);
        }
    }
}

#[test]
fn changes_one_by_one_equal_one_application_from_scratch() {
    run_on_node(|lab| async move {
        lab.network.ensure_node(&settings(1)).await.unwrap();
        let mut all = NodeNetwork::new(settings(1));
        let mut random = Random(2026);
        let start = Instant::now();
        for step in 0..200 {
            change(&lab.network, &mut all, &mut random).await;
            if step % 50 == 49 {
                let pass = lab.network.repair().await.unwrap();
                assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "after {step}: {pass:?}");
            }
        }
        println!("200 changes: {:?}", start.elapsed());
        let one_by_one = lab.inventory();
        lab.network.remove_node().await.unwrap();
        let fresh = crate::lab::linux_network(lab.run.path());
        let made = fresh.ensure(&all).await.unwrap();
        assert!(made.failed.is_empty(), "{:?}", made.failed);
        assert_same(&without_indexes(&lab.inventory()), &without_indexes(&one_by_one), "from scratch");
        assert!(one_by_one.len() > 150, "{}", one_by_one.len());
    });
}

/// The limit of open files of the test is that of its user.
fn allow_many_sockets() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
}

/// The first port in ingress mode of many.
const FIRST_PORT: u16 = 20_000;

/// The last port in ingress mode beside so many services: at most 1,000 ports.
fn last_port(count: u32) -> HostPort {
    let port = FIRST_PORT + count.min(1_000) as u16 - 1;
    HostPort::new(None, NonZeroU16::new(port).unwrap(), TransportProtocol::Tcp)
}

/// The node with one local task and many services of three backends each, most of them with a port in ingress mode; the
/// last of both leads to the local task only.
fn many_services(count: u32) -> NodeNetwork {
    let mut all = NodeNetwork::new(settings(1));
    for last in [2, 3] {
        all.tasks.insert(task_key(1, last), attachment(1, last, &[1]));
    }
    let mut cluster = peers(1..=3);
    let mut members = BTreeSet::new();
    for service in 0..count {
        let backends: BTreeSet<Ipv4Addr> =
            (0..3).map(|n| Ipv4Addr::from(0x0ad2_0202 + service * 3 + n)).collect();
        members.extend(backends.iter().copied());
        if service < count.min(1_000) {
            let backends = backends.iter().map(|ip| SocketAddrV4::new(*ip, 80)).collect();
            cluster.ingress.insert(last_port(service + 1), backends);
        }
        cluster.services.insert(Ipv4Addr::from(0x0ad2_e001 + service), backends);
    }
    cluster.services.insert(last_address(count), [task_address(1, 3)].into());
    cluster.ingress.insert(last_port(count), [SocketAddrV4::new(task_address(1, 3), 80)].into());
    cluster.networks.insert(1, NetworkMembers { internal: false, members });
    all.cluster = Arc::new(cluster);
    all
}

fn last_address(count: u32) -> Ipv4Addr {
    Ipv4Addr::from(0x0ad2_e001 + count - 1)
}

/// The fastest of many connections from a task to the last service, and to the last port; and the time to write them.
async fn connection_time(lab: &NetworkLab, count: u32) -> ([Duration; 2], Duration) {
    let all = many_services(count);
    let start = Instant::now();
    let pass = lab.network.ensure(&all).await.unwrap();
    let load = start.elapsed();
    assert!(pass.failed.is_empty(), "{:?}", pass.failed);
    let open = |last| NetworkNamespace::open(&lab.run.path().join("netns").join(task_key(1, last).as_str()));
    let (client, server) = (open(2), open(3));
    let _server = server.serve(ANY, 80, "server");
    let service = SocketAddrV4::new(last_address(count), 80);
    let port = SocketAddrV4::new(gateway(1), last_port(count).port());
    let fastest = |to: SocketAddrV4| {
        let once = |_| {
            let start = Instant::now();
            TcpStream::connect_timeout(&to.into(), Duration::from_secs(5)).unwrap();
            start.elapsed()
        };
        client.run(|| (0..500).map(once).min().unwrap())
    };
    ([service, port].map(fastest), load)
}

#[test]
fn many_services_cost_a_connection_what_few_cost() {
    allow_many_sockets();
    run_on_node(|lab| async move {
        let load = compare_connections(&lab).await;
        // Once more from scratch: the chains exist already above.
        lab.network.remove_node().await.unwrap();
        let all = many_services(5_000);
        let fresh = crate::lab::linux_network(lab.run.path());
        let start = Instant::now();
        fresh.ensure(&all).await.unwrap();
        println!("5000 services: first load {:?}, over another state {load:?}", start.elapsed());
        let mut cluster = ClusterNetwork::clone(&all.cluster);
        let mut times = Vec::new();
        for round in 0..10_u32 {
            let address = Ipv4Addr::from(0x0ad2_e001 + round * 400);
            cluster.services.get_mut(&address).unwrap().pop_first();
            let cluster = Arc::new(cluster.clone());
            let start = Instant::now();
            fresh.ensure_cluster(&cluster).await.unwrap();
            times.push(start.elapsed());
        }
        times.sort();
        println!("change of one endpoint: median {:?}, all {times:?}", times[5]);
        println!("change of one port beside 5,000 services: {:?}", port_changes(&fresh, cluster).await);
        let start = Instant::now();
        let attachment = Attachment::new(task_address(1, 9));
        let late = TaskNetwork { task: TaskKey::parse("late").unwrap(), attachment, namespace: None };
        fresh.ensure_task(&late).await.unwrap();
        println!("attach of one task: {:?}", start.elapsed());
        let start = Instant::now();
        let pass = fresh.repair().await.unwrap();
        println!("a pass that changes nothing: {:?}", start.elapsed());
        assert!(pass.failed.is_empty() && pass.repaired.is_empty(), "{pass:?}");
        let fewer = many_services(1_000);
        fresh.ensure(&fewer).await.unwrap();
        let fewer = ClusterNetwork::clone(&fewer.cluster);
        println!("change of one port beside 1,000 services: {:?}", port_changes(&fresh, fewer).await);
    });
}

/// The times in which one port of 1,000 gets another endpoint.
async fn port_changes(network: &LinuxNetwork, mut cluster: ClusterNetwork) -> Vec<Duration> {
    let mut times = Vec::new();
    for round in 1..=10 {
        cluster.ingress.get_mut(&last_port(round * 90)).unwrap().pop_first();
        let cluster = Arc::new(cluster.clone());
        let start = Instant::now();
        network.ensure_cluster(&cluster).await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    times
}

/// Asserts that a connection costs with many services and ports what it costs with one, and returns the time to write
/// the many. Other programs make a whole measurement slower at times: a flat chain is slower in every comparison.
async fn compare_connections(lab: &NetworkLab) -> Duration {
    // A flat chain would cost 60 microseconds more for 5,000 services, and 17 for 1,000 ports, of about 40. The limits
    // allow half of that.
    const LIMITS: [Duration; 2] = [Duration::from_micros(30), Duration::from_micros(9)];
    for comparison in 1.. {
        let (few, _) = connection_time(lab, 1).await;
        let (many, load) = connection_time(lab, 5_000).await;
        println!("connection by service and port: with one of them {few:?}, with 5000 and 1000 {many:?}");
        if (0..2).all(|i| many[i] < few[i] + LIMITS[i]) {
            return load;
        }
        assert!(comparison < COMPARISONS, "{few:?} {many:?}");
    }
    unreachable!()
}

/// Bytes per second over one connection to port 5001 of the receiver, as fast as it reads.
pub fn throughput(sender: &NetworkNamespace, receiver: &NetworkNamespace, to: (Ipv4Addr, u16)) -> f64 {
    const TIME: Duration = Duration::from_millis(150);
    let listener = receiver.listen(ANY, 5001);
    let mut stream = crate::lab::connect(sender, to.0, to.1);
    let (mut incoming, _) = listener.accept().unwrap();
    let sending = std::thread::spawn(move || {
        let data = vec![0; 128 * 1024];
        let start = Instant::now();
        while start.elapsed() < TIME && stream.write_all(&data).is_ok() {}
        // A program just started by another test may have a copy, which would delay the end.
        let _ = stream.shutdown(Shutdown::Write);
    });
    let (mut total, mut buffer) = (0, vec![0; 256 * 1024]);
    let start = Instant::now();
    while let Ok(count @ 1..) = incoming.read(&mut buffer) {
        total += count;
    }
    let elapsed = start.elapsed();
    sending.join().unwrap();
    total as f64 / elapsed.as_secs_f64()
}

#[test]
fn the_overlay_is_about_as_fast_as_a_bare_one() {
    allow_many_sockets();
    let lab = ClusterLab::new();
    let one = ServingTask::start(lab.node(1), 2, &[1], "one");
    let two = ServingTask::start(lab.node(2), 2, &[1], "two");
    let mut cluster = peers(1..=3);
    cluster.networks.insert(1, network(&[(1, 2), (2, 2)]));
    cluster.services.insert(virtual_address(1), [two.address].into());
    cluster.ingress.insert(crate::lab::host_port(None, 5002), [SocketAddrV4::new(two.address, 5001)].into());
    lab.ensure_cluster(&cluster);
    for (node, peer) in [(1, 2), (2, 1)] {
        lab.node(node).shell(&format!(
            "ip link add bare type vxlan id 9 dstport 4790 local 192.0.2.{node} remote 192.0.2.{peer};
             ip addr add 198.51.100.{node}/24 dev bare; ip link set bare mtu 1450 up"
        ));
    }
    let bare = Ipv4Addr::new(198, 51, 100, 2);
    let nodes = [&lab.node(1).space, &lab.node(2).space];
    // The load of a busy machine changes from round to round: what is compared was measured together.
    let round = |_| {
        let bare = throughput(nodes[0], nodes[1], (bare, 5001));
        let direct = throughput(&one.space, &two.space, (two.address, 5001));
        let by_service = throughput(&one.space, &two.space, (virtual_address(1), 5001));
        let [here, elsewhere] =
            [2, 1].map(|entry| throughput(&lab.client, &two.space, (underlay(entry), 5002)));
        let gigabits = [bare, direct, by_service, here, elsewhere].map(|bytes| bytes * 8.0 / 1e9);
        println!(
            "Gbit/s: bare, tasks, by virtual address, from outside by the task's node and by another \
             {gigabits:.2?}"
        );
        [direct / bare, by_service / direct, elsewhere / direct]
    };
    for comparison in 1.. {
        let mut ratios: Vec<[f64; 3]> = (0..7).map(round).collect();
        let medians = [0, 1, 2].map(|place| {
            ratios.sort_by(|a, b| a[place].total_cmp(&b[place]));
            ratios[3][place]
        });
        // A mistake such as fragmentation costs more than half.
        if medians.iter().all(|median| *median > 0.5) {
            return;
        }
        assert!(comparison < COMPARISONS, "{ratios:.2?}");
    }
}
