//! Three nodes and an external client on one bridge, each in its own network namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};
use std::thread;

use tokio::runtime::{Builder, Runtime};
use warren_network::{
    Attachment, ClusterNetwork, DEFAULT_MTU, DEFAULT_VNI, DEFAULT_VXLAN_PORT, DirectRoutes, Error,
    LinuxNetwork, NetworkBackend, NetworkMembers, NetworkNumber, NodeNetworkSettings, OVERLAY_OVERHEAD,
    Overlay, PeerNode, Repairs, TaskKey, TaskNetwork,
};

use super::traffic::UdpServer;
use super::{CLIENT, EchoServer, NetworkNamespace, RunDir, eventually};

pub const ANY: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
/// Address of the client that is behind a router.
pub const FAR_CLIENT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);

/// Address of a node on the underlay.
pub fn underlay(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, node)
}

/// Another address of the node on the underlay.
pub fn second_underlay(node: u8) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 10 + node)
}

pub fn gateway(node: u8) -> Ipv4Addr {
    task_address(node, 1)
}

/// Address of a task by its node and its last byte.
pub fn task_address(node: u8, last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, node, last)
}

/// A virtual address.
pub fn virtual_address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, 224, last)
}

pub fn task_key(node: u8, last: u8) -> TaskKey {
    TaskKey::parse(&format!("task.{node}.{last}")).unwrap()
}

pub fn attachment(node: u8, last: u8, networks: &[NetworkNumber]) -> Attachment {
    Attachment { networks: networks.iter().copied().collect(), ..Attachment::new(task_address(node, last)) }
}

/// Settings of a node on the overlay.
pub fn settings(node: u8) -> NodeNetworkSettings {
    let overlay = Overlay::new(node.into(), underlay(node), DEFAULT_VXLAN_PORT, DEFAULT_VNI).unwrap();
    let range = "10.210.0.0/16".parse().unwrap();
    let block = format!("10.210.{node}.0/24").parse().unwrap();
    NodeNetworkSettings::new(vec![range], block, DEFAULT_MTU).unwrap().with_overlay(overlay)
}

/// Settings of a node with routes to its peers, without a tunnel.
pub fn direct(node: u8) -> NodeNetworkSettings {
    let overlay = settings(node);
    let mtu = DEFAULT_MTU + OVERLAY_OVERHEAD;
    let settings = NodeNetworkSettings::new(overlay.cluster().to_vec(), overlay.blocks()[0], mtu).unwrap();
    settings.with_direct_routes(DirectRoutes::new(node.into(), underlay(node), "ext").unwrap())
}

/// What every node knows: the nodes as peers, nothing else.
pub fn peers(nodes: impl IntoIterator<Item = u8>) -> ClusterNetwork {
    let peer = |node: u8| {
        let blocks = vec![format!("10.210.{node}.0/24").parse().unwrap()];
        (u16::from(node), PeerNode { blocks, underlay: underlay(node), key: None })
    };
    ClusterNetwork { peers: nodes.into_iter().map(peer).collect(), ..ClusterNetwork::default() }
}

/// A network of tasks, each given by its node and last byte.
pub fn network(members: &[(u8, u8)]) -> NetworkMembers {
    let members = members.iter().map(|(node, last)| task_address(*node, *last)).collect();
    NetworkMembers { internal: false, members }
}

pub struct Node {
    pub number: u8,
    pub network: LinuxNetwork,
    pub space: NetworkNamespace,
    pub run: Arc<RunDir>,
    runtime: Option<Runtime>,
}

impl Node {
    /// Moves the calling thread into the namespace of a new node, and starts its runtime there.
    fn enter_new(number: u8, strictness: u8) -> Self {
        let space = NetworkNamespace::enter_new();
        for device in ["all", "default"] {
            let path = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
            std::fs::write(path, strictness.to_string()).unwrap();
        }
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let run = Arc::new(RunDir(tempfile::tempdir().unwrap()));
        let network = crate::lab::linux_network(run.path());
        Self { number, network, space, run, runtime: Some(runtime) }
    }

    /// Runs an operation on the threads of the node.
    pub fn wait<T, F>(&self, work: impl FnOnce(LinuxNetwork) -> F) -> T
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (send, receive) = mpsc::channel();
        let work = work(self.network.clone());
        self.runtime.as_ref().unwrap().spawn(async move { send.send(work.await) });
        receive.recv().unwrap()
    }

    pub fn ensure_node(&self, settings: NodeNetworkSettings) -> Result<(), Error> {
        self.wait(|network| async move { network.ensure_node(&settings).await })
    }

    pub fn ensure_cluster(&self, cluster: &ClusterNetwork) -> Repairs {
        let cluster = Arc::new(cluster.clone());
        self.wait(|network| async move { network.ensure_cluster(&cluster).await.unwrap() })
    }

    /// Attaches a task that is a member of networks.
    pub fn attach(&self, last: u8, networks: &[NetworkNumber]) -> NetworkNamespace {
        self.attach_as(last, attachment(self.number, last, networks))
    }

    pub fn attach_as(&self, last: u8, attachment: Attachment) -> NetworkNamespace {
        let task = TaskNetwork { task: task_key(self.number, last), attachment, namespace: None };
        let path = self.wait(|network| async move { network.ensure_task(&task).await.unwrap() });
        NetworkNamespace::open(&path)
    }

    pub fn detach(&self, last: u8) {
        let task = task_key(self.number, last);
        self.wait(|network| async move { network.remove_task(&task).await.unwrap() });
    }

    pub fn repair(&self) -> Repairs {
        self.wait(|network| async move { network.repair().await.unwrap() })
    }

    /// Repairs until nothing fails: a port that was released may stay in use for a moment, as
    /// [`NetworkNamespace::listen`] says.
    pub fn repair_completely(&self) {
        eventually("a repair without failures", || {
            let failed = self.repair().failed;
            failed.iter().for_each(|error| println!("{error}"));
            failed.is_empty()
        });
    }

    pub fn publish(&self, port: warren_network::PortMapping) {
        self.wait(|network| async move { network.ensure_port(&port).await.unwrap() });
    }

    pub fn inventory(&self) -> BTreeSet<String> {
        super::inventory(&self.space, self.run.path())
    }

    /// Runs a shell command in the namespace of the node.
    pub fn shell(&self, command: &str) -> String {
        self.space.command("sh", &["-c", command])
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The nodes 1 to 3 and the client.
pub struct ClusterLab {
    pub nodes: Vec<Node>,
    pub client: NetworkNamespace,
    /// Settings of a node by its number.
    pub settings: fn(u8) -> NodeNetworkSettings,
    _switch: NetworkNamespace,
}

impl ClusterLab {
    /// Nodes on an overlay, without tasks.
    pub fn new() -> Self {
        Self::with(settings)
    }

    /// The same with each data plane that needs no key, one after the other.
    pub fn of_each_data_plane() -> impl Iterator<Item = Self> {
        [settings, direct].into_iter().map(Self::with)
    }

    /// Nodes with these settings, without tasks.
    pub fn with(settings: fn(u8) -> NodeNetworkSettings) -> Self {
        let lab = Self { settings, ..Self::without_networks(1) };
        for node in &lab.nodes {
            node.ensure_node(settings(node.number)).unwrap();
        }
        lab.ensure_cluster(&peers(1..=3));
        lab
    }

    /// Machines on which nothing is set up.
    pub fn without_networks(strictness: u8) -> Self {
        let spawn_in_new = || thread::spawn(NetworkNamespace::enter_new).join().unwrap();
        let switch = spawn_in_new();
        switch.command("ip", &["link", "add", "switch", "type", "bridge"]);
        switch.command("ip", &["link", "set", "switch", "up"]);
        // Frames of the bridge are not packets of the switch.
        switch.command("sh", &["-c", "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables || true"]);
        let client = spawn_in_new();
        connect(&switch, &client, "client", &[CLIENT]);
        client.command("ip", &["addr", "add", &format!("{FAR_CLIENT}/32"), "dev", "lo"]);
        let nodes = (1..=3).map(|number| {
            let node = thread::spawn(move || Node::enter_new(number, strictness)).join().unwrap();
            let port = format!("node{number}");
            connect(&switch, &node.space, &port, &[underlay(number), second_underlay(number)]);
            node.space.command("ip", &["route", "add", "default", "via", &CLIENT.to_string()]);
            node
        });
        let nodes = nodes.collect();
        Self { nodes, client, settings, _switch: switch }
    }

    pub fn node(&self, number: u8) -> &Node {
        &self.nodes[usize::from(number) - 1]
    }

    /// Tells every node the same.
    pub fn ensure_cluster(&self, cluster: &ClusterNetwork) {
        for node in &self.nodes {
            let made = node.ensure_cluster(cluster);
            assert!(made.failed.is_empty(), "{:?}", made.failed);
        }
    }
}

/// Connects a machine to the bridge.
fn connect(switch: &NetworkNamespace, machine: &NetworkNamespace, port: &str, addresses: &[Ipv4Addr]) {
    let theirs = format!("/proc/{}/fd/{}", std::process::id(), machine.0.as_raw_fd());
    let ip = |space: &NetworkNamespace, line: &str| {
        space.command("ip", &line.split(' ').collect::<Vec<_>>());
    };
    ip(switch, &format!("link add {port} type veth peer name ext netns {theirs}"));
    ip(switch, &format!("link set {port} master switch up"));
    ip(machine, "link set ext up");
    for address in addresses {
        ip(machine, &format!("addr add {address}/24 dev ext"));
    }
}

/// A task that serves TCP and UDP on port 80 and answers with its name.
pub struct ServingTask {
    pub name: &'static str,
    pub address: Ipv4Addr,
    pub space: NetworkNamespace,
    _servers: (EchoServer, UdpServer),
}

impl ServingTask {
    pub fn new(space: NetworkNamespace, address: Ipv4Addr, name: &'static str) -> Self {
        let servers = (space.serve(ANY, 80, name), space.serve_udp(ANY, 80, name));
        Self { name, address, space, _servers: servers }
    }

    /// Attaches a task to a node and serves in it.
    pub fn start(node: &Node, last: u8, networks: &[NetworkNumber], name: &'static str) -> Self {
        Self::new(node.attach(last, networks), task_address(node.number, last), name)
    }
}

/// How often each server answered TCP connections.
pub fn answers(from: &NetworkNamespace, to: Ipv4Addr, count: usize) -> BTreeMap<String, usize> {
    let mut answers = BTreeMap::new();
    for _ in 0..count {
        let answer = from.fetch(to, 80).unwrap();
        *answers.entry(answer.split(' ').next().unwrap().to_owned()).or_insert(0) += 1;
    }
    answers
}
