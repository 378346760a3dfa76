//! A node and an external client, each a network namespace of the test, joined by a veth; and in
//! [`cluster`] three nodes and a client on one bridge.

pub mod cluster;
pub mod traffic;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use tempfile::TempDir;
use warren_network::{
    Attachment, DEFAULT_MTU, HostPort, LinuxNetwork, NetworkBackend, NodeNetwork, NodeNetworkSettings,
    PortMapping, TaskKey, TaskNetwork, TransportProtocol, WireGuardProgram,
};
use warren_wireguard::WireGuardControl;

/// Addresses of the node on its link to the outside.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
pub const NODE_SECOND: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Address of the client.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 100);
pub const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 210, 1, 1);

/// Longer than anything here takes on a busy machine, so that a hang becomes a failure.
pub const WAIT_DEADLINE: Duration = Duration::from_secs(60);
/// For a connection, and for each read from it. A connection that is dropped costs a test this time.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(5);
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

pub struct NetworkLab {
    pub network: LinuxNetwork,
    pub run: Arc<RunDir>,
    pub node: NetworkNamespace,
    pub client: NetworkNamespace,
}

/// The network of a node, whose WireGuard process is the one of this crate.
pub fn linux_network(run: &Path) -> LinuxNetwork {
    LinuxNetwork::new(run, WireGuardProgram(env!("CARGO_BIN_EXE_warren-wireguard").into()))
}

/// Runs a test on its own node: on a thread, and with a runtime, in the node's namespace.
pub fn run_on_node<T, F>(test: T)
where
    T: FnOnce(NetworkLab) -> F + Send + 'static,
    F: Future<Output = ()>,
{
    let node = thread::spawn(move || {
        let node = NetworkNamespace::enter_new();
        let client = thread::spawn(NetworkNamespace::enter_new).join().unwrap();
        node.join_to(&client);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        // Kept here as well: a test that destructures only some fields drops the others immediately.
        let run = Arc::new(RunDir(tempfile::tempdir().unwrap()));
        let lab = NetworkLab { network: linux_network(run.path()), run: Arc::clone(&run), node, client };
        runtime.block_on(test(lab));
    });
    if let Err(panic) = node.join() {
        std::panic::resume_unwind(panic);
    }
}

impl NetworkLab {
    /// A node with attached tasks, given the last bytes of their addresses.
    pub async fn with_tasks(&self, tasks: impl IntoIterator<Item = u8>) -> Vec<NetworkNamespace> {
        self.network.ensure_node(&settings()).await.unwrap();
        let mut spaces = Vec::new();
        for last in tasks {
            let path = self.network.ensure_task(&task(last)).await.unwrap();
            spaces.push(NetworkNamespace::open(&path));
        }
        spaces
    }

    pub async fn publish(&self, ip: Option<Ipv4Addr>, host_port: u16, backends: &[(u8, u16)]) {
        self.network.ensure_port(&published(ip, host_port, backends)).await.unwrap();
    }

    /// Waits until only this process is left in the node's namespace: an iptables started by a killed agent
    /// continues for some milliseconds.
    pub async fn wait_for_orphans(&self) {
        let inode =
            |path: &Path| std::fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::ino(&found));
        let own = std::os::unix::fs::MetadataExt::ino(&self.node.0.metadata().unwrap());
        let limit = Instant::now() + WAIT_DEADLINE;
        let is_orphan = |process: &Path| {
            let pid = process.file_name().unwrap().to_str().and_then(|name| name.parse::<u32>().ok());
            let other = pid.is_some_and(|pid| pid != std::process::id());
            other && inode(&process.join("ns/net")).is_ok_and(|found| found == own)
        };
        while std::fs::read_dir("/proc").unwrap().flatten().any(|entry| is_orphan(&entry.path())) {
            assert!(Instant::now() < limit, "a process does not leave the node's namespace");
            tokio::task::yield_now().await;
        }
    }

    /// The kernel state of the node as text: links, addresses, routes, rules, chains, namespaces.
    pub fn inventory(&self) -> BTreeSet<String> {
        inventory(&self.node, self.run.path())
    }
}

/// The kernel state of a node as text, and the namespaces of its run directory.
pub fn inventory(node: &NetworkNamespace, run: &Path) -> BTreeSet<String> {
    let shown = [
        ("ip", &["-o", "-4", "addr"] as &[&str]),
        ("ip", &["-o", "-br", "link"]),
        ("ip", &["-4", "route", "show", "table", "all"]),
        ("ip", &["-4", "rule"]),
        ("ip", &["-4", "neigh", "show", "nud", "permanent"]),
        ("bridge", &["fdb", "show"]),
        ("iptables-save", &[]),
    ];
    let mut lines = BTreeSet::new();
    for (program, args) in shown {
        let mut section = String::new();
        let mut rules = BTreeMap::new();
        for line in node.command(program, args).lines().filter(|line| !line.starts_with('#')) {
            if line.starts_with('*') {
                line.clone_into(&mut section);
                rules.clear();
            }
            let line = if line.starts_with(':') { line.split(" [").next().unwrap() } else { line };
            // The kernel detects the carrier shortly after the creation of a link: not part of the state.
            let words: Vec<&str> = line.split_whitespace().collect();
            let mut line =
                if args.contains(&"-br") { words[0].to_owned() } else { line.replace(" linkdown", "") };
            // Order matters within a chain; among the jumps to these chains it does not.
            if let ["-A", chain, ..] = words[..]
                && chain.starts_with("WARREN-")
            {
                let rule = rules.entry(chain.to_owned()).or_insert(0);
                *rule += 1;
                line = format!("{rule}: {line}");
            }
            if program != "bridge" || line.contains("dev warren-vx") {
                lines.insert(format!("{program} {args:?} {section} {line}"));
            }
        }
    }
    lines.extend(nft_table(node));
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let directory = run.to_str().unwrap();
    lines.extend(mounts.lines().filter(|line| line.contains(directory)).map(str::to_owned));
    for entry in std::fs::read_dir(run.join("netns")).into_iter().flatten() {
        lines.insert(format!("file {:?}", entry.unwrap().file_name()));
    }
    lines
}

/// The nftables table, each element of a set on its own: the kernel lists them in any order.
fn nft_table(node: &NetworkNamespace) -> Vec<String> {
    if !node.command("nft", &["list", "tables"]).lines().any(|line| line == "table ip warren") {
        return Vec::new();
    }
    let listed = node.command("nft", &["-s", "list", "table", "ip", "warren"]);
    let (mut block, mut within) = ("", false);
    let mut lines = Vec::new();
    for line in listed.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if !within && !line.starts_with("elements = {") {
            block = if line.ends_with('{') { line } else { block };
            lines.push(format!("nft {block} {line}"));
            continue;
        }
        within = !line.ends_with('}');
        let elements = line.trim_start_matches("elements = {").trim_end_matches('}').split(',');
        let elements = elements.map(str::trim).filter(|element| !element.is_empty());
        lines.extend(elements.map(|element| format!("nft {block} element {element}")));
    }
    lines
}

pub fn settings() -> NodeNetworkSettings {
    NodeNetworkSettings::new(
        vec!["10.210.0.0/16".parse().unwrap()],
        "10.210.1.0/24".parse().unwrap(),
        DEFAULT_MTU,
    )
    .unwrap()
}

pub fn address(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 210, 1, last)
}

pub fn key(last: u8) -> TaskKey {
    TaskKey::parse(&format!("web.{last}")).unwrap()
}

pub fn task(last: u8) -> TaskNetwork {
    TaskNetwork { task: key(last), attachment: Attachment::new(address(last)), namespace: None }
}

pub fn host_port(ip: Option<Ipv4Addr>, port: u16) -> HostPort {
    HostPort::new(ip, NonZeroU16::new(port).unwrap(), TransportProtocol::Tcp)
}

pub fn published(ip: Option<Ipv4Addr>, port: u16, backends: &[(u8, u16)]) -> PortMapping {
    let backends = backends.iter().map(|(last, port)| SocketAddrV4::new(address(*last), *port)).collect();
    PortMapping { host_port: host_port(ip, port), backends }
}

/// The node with some tasks and one published port.
pub fn all(tasks: impl IntoIterator<Item = u8>, port: &PortMapping) -> NodeNetwork {
    let mut all = NodeNetwork::new(settings());
    all.tasks = tasks.into_iter().map(|last| (key(last), Attachment::new(address(last)))).collect();
    all.ports.insert(port.host_port, port.backends.clone());
    all
}

/// The name of a task's link on the node.
pub fn link(last: u8) -> String {
    warren_network::names::link_name(&key(last))
}

/// A directory whose mounts are removed before it is, also after a failed test.
pub struct RunDir(TempDir);

impl RunDir {
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The process outlives its agents, and would outlive the test.
        if let Ok(control) = WireGuardControl::connect(&self.path().join("wireguard.sock")) {
            let _ = control.stop();
        }
        for entry in std::fs::read_dir(self.path().join("netns")).into_iter().flatten().flatten() {
            while umount2(&entry.path(), MntFlags::MNT_DETACH).is_ok() {}
        }
    }
}

/// A network namespace.
#[derive(Clone)]
pub struct NetworkNamespace(Arc<File>);

impl NetworkNamespace {
    /// Moves the calling thread into a new namespace, with its loopback up.
    fn enter_new() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let space = Self::open(Path::new("/proc/thread-self/ns/net"));
        space.command("ip", &["link", "set", "lo", "up"]);
        space
    }

    pub fn open(path: &Path) -> Self {
        Self(Arc::new(File::open(path).unwrap()))
    }

    /// Creates the veth pair between the node and the client; the client has no route to the node's tasks.
    fn join_to(&self, client: &Self) {
        let theirs = format!("/proc/{}/fd/{}", std::process::id(), client.0.as_raw_fd());
        let ip = |space: &Self, line: &str| {
            space.command("ip", &line.split(' ').collect::<Vec<_>>());
        };
        ip(self, &format!("link add ext type veth peer name ext netns {theirs}"));
        for (space, own) in [(self, NODE), (self, NODE_SECOND), (client, CLIENT)] {
            ip(space, &format!("addr add {own}/24 dev ext"));
            ip(space, "link set ext up");
        }
        ip(self, &format!("route add default via {CLIENT}"));
    }

    /// Runs a closure on a thread in this namespace.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            setns(&*self.0, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(inside).join()).unwrap()
    }

    /// Runs a program in this namespace and returns its output; it must succeed.
    pub fn command(&self, program: &str, args: &[&str]) -> String {
        let output = self.run(|| Command::new(program).args(args).output().unwrap());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Connects and reads everything: the server's name and the client address it reports.
    pub fn fetch(&self, ip: Ipv4Addr, port: u16) -> io::Result<String> {
        self.run(|| {
            let to = SocketAddrV4::new(ip, port).into();
            let mut stream = TcpStream::connect_timeout(&to, CONNECTION_DEADLINE)?;
            stream.set_read_timeout(Some(CONNECTION_DEADLINE))?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        })
    }

    /// Binds a socket once its port is free: a program just started by another test briefly holds copies of
    /// this process's sockets.
    fn bind<T: Send>(&self, bind: impl Fn() -> io::Result<T> + Send) -> T {
        let limit = Instant::now() + WAIT_DEADLINE;
        self.run(move || {
            loop {
                match bind() {
                    Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < limit => {}
                    outcome => return outcome.unwrap(),
                }
                // Between two checks.
                thread::sleep(CHECK_INTERVAL);
            }
        })
    }

    /// Listens on a port once it is free, see [`NetworkNamespace::bind`].
    pub fn listen(&self, ip: Ipv4Addr, port: u16) -> TcpListener {
        self.bind(|| TcpListener::bind((ip, port)))
    }

    /// Waits until the port has no listener, see [`NetworkNamespace::bind`].
    pub fn wait_closed(&self, port: u16) {
        let local = format!(":{port:04X} ");
        let listens = |line: &str| line.contains(&local) && line.contains(" 0A ");
        let table = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        eventually("no listener on the port", || !self.run(table).lines().any(listens));
    }

    /// Serves on a port until the server is dropped.
    pub fn serve(&self, ip: Ipv4Addr, port: u16, name: &'static str) -> EchoServer {
        let listener = Arc::new(self.listen(ip, port));
        let accepting = Arc::clone(&listener);
        let thread = thread::spawn(move || {
            while let Ok((mut stream, peer)) = accepting.accept() {
                // A client may disconnect at any time.
                let _ = write!(stream, "{name} {}", peer.ip());
                // A program just started by another test may have a copy, which would delay the end.
                let _ = stream.shutdown(Shutdown::Write);
            }
        });
        EchoServer { listener, thread: Some(thread) }
    }

    /// Number of connection tracking entries.
    pub fn conntrack_count(&self) -> usize {
        let read = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        self.run(read).trim().parse().unwrap()
    }
}

pub struct EchoServer {
    listener: Arc<TcpListener>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Shutting down a listening socket makes accept() return.
        let _ = nix::sys::socket::shutdown(self.listener.as_raw_fd(), nix::sys::socket::Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// An open connection.
pub fn connect(space: &NetworkNamespace, ip: Ipv4Addr, port: u16) -> TcpStream {
    let to = SocketAddrV4::new(ip, port).into();
    let stream = space.run(|| TcpStream::connect_timeout(&to, CONNECTION_DEADLINE).unwrap());
    stream.set_read_timeout(Some(CONNECTION_DEADLINE)).unwrap();
    stream
}

/// Waits for a condition that other processes or the kernel make true.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + WAIT_DEADLINE;
    while !holds() {
        assert!(Instant::now() < limit, "not in time: {what}");
        // Between two checks.
        thread::sleep(CHECK_INTERVAL);
    }
}

/// So often durations are compared before the longer one counts as longer.
pub const COMPARISONS: u32 = 6;

/// Asserts that a connection is refused immediately: a busy machine may delay all but one of several.
pub fn assert_refused(space: &NetworkNamespace, ip: Ipv4Addr, port: u16) {
    let is_immediate = |_| {
        let start = Instant::now();
        let refused = space.fetch(ip, port).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{ip}:{port}: {refused}");
        start.elapsed() < Duration::from_millis(900)
    };
    assert!((0..COMPARISONS).any(is_immediate), "{ip}:{port}: refused only after a second attempt");
}

/// Asserts that two inventories are equal, and shows only the differences.
pub fn assert_same(found: &BTreeSet<String>, expected: &BTreeSet<String>, when: &str) {
    let extra: Vec<_> = found.difference(expected).collect();
    let missing: Vec<_> = expected.difference(found).collect();
    assert!(extra.is_empty() && missing.is_empty(), "{when}: too much: {extra:#?}, missing: {missing:#?}");
}

/// Drops lines with link indexes, which change when a link is re-created.
pub fn without_indexes(inventory: &BTreeSet<String>) -> BTreeSet<String> {
    inventory.iter().map(|line| line.split("@if").next().unwrap().to_owned()).collect()
}

/// Shuts down both directions of a connection.
pub fn close(stream: &TcpStream) {
    stream.shutdown(Shutdown::Both).unwrap();
}
