//! A node on a lab host with its own directories and a containerd that the node starts and supervises: either
//! a hybrid one (`warren manager init` or `warren manager join`) or a worker of another node's cluster
//! (`warren worker join`).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::cleanup;
use crate::cli::WarrenCli;
use crate::containerd::ctr;
use crate::leaks::{Inventory, LeakScope};
use crate::netns::LabHost;
use crate::process::ChildProcess;
use crate::scratch::ScratchDir;
use crate::small_disk::SmallDisk;
use crate::tool;
use crate::wait::try_eventually;

/// The API's port on every lab host.
pub const API_PORT: u16 = 8080;

/// A node takes a second or two until it is ready; a busy machine gets more.
const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(60);

/// The role of the node in its cluster.
#[derive(Debug, Clone)]
enum NodeKind {
    /// A manager of the cluster, which runs tasks as well.
    Hybrid,
    /// A manager of the cluster that runs no tasks.
    Manager,
    /// It joined the cluster of this CLI, at that address.
    Worker { cluster: WarrenCli, manager: SocketAddrV4 },
}

/// The options of a node that differ from the defaults.
#[derive(Debug, Clone, Default)]
pub struct NodeOptions {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    containerd_socket: Option<PathBuf>,
    small_disk: Option<u64>,
    own_program: bool,
    program: Option<PathBuf>,
}

impl NodeOptions {
    /// Adds an argument for `manager init` or `worker join`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> NodeOptions {
        self.arguments.push(argument.to_owned());
        self
    }

    /// The value of the argument with this name.
    fn value(&self, name: &str) -> Option<&str> {
        let place = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(place + 1).map(String::as_str)
    }

    /// Adds a variable to the node's environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> NodeOptions {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses the containerd behind `socket`, which the test started, instead of starting one.
    #[must_use]
    pub fn containerd(mut self, socket: &Path) -> NodeOptions {
        self.containerd_socket = Some(socket.to_owned());
        self
    }

    /// Runs the node with the program of its role, `warren-worker` or `warren-manager`, instead of `warren`.
    #[must_use]
    pub fn own_program(mut self) -> NodeOptions {
        self.own_program = true;
        self
    }

    /// Runs the node with this copy of `warren`, which the node may replace.
    #[must_use]
    pub fn program(mut self, program: &Path) -> NodeOptions {
        self.program = Some(program.to_owned());
        self
    }

    /// Puts its data directory, and with it the data of its own containerd, on a disk of `mebibytes`.
    #[must_use]
    pub fn small_disk(mut self, mebibytes: u64) -> NodeOptions {
        self.small_disk = Some(mebibytes);
        self
    }
}

/// The cgroups of a node's containers, identified by the node's id. Dropping it removes the empty ones: a
/// killed node cannot.
#[derive(Debug)]
struct Cgroups {
    node_id: String,
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for problem in cleanup::remove_cgroups(&self.node_id) {
            eprintln!("{problem}");
        }
    }
}

/// A node on a lab host. Dropping it ends the node, its containerd and its containers, and removes all its
/// data.
#[derive(Debug)]
pub struct LabNode {
    // In this order: first the process, then its leftovers in its directories, then its network.
    process: ChildProcess,
    disk: Option<SmallDisk>,
    scratch: ScratchDir,
    cgroups: Cgroups,
    host: LabHost,
    settings: NodeOptions,
    kind: NodeKind,
    /// `None` for a manager that runs no tasks.
    name: Option<String>,
}

impl LabNode {
    /// Creates a cluster of one node on `host` and waits until it is ready.
    #[must_use]
    #[track_caller]
    pub fn start(host: LabHost, settings: NodeOptions) -> LabNode {
        let scratch = ScratchDir::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let process = spawn(&host, &scratch, &settings, &NodeKind::Hybrid, &["manager", "init"]);
        LabNode::watch((process, disk), scratch, host, settings, NodeKind::Hybrid, &cluster)
    }

    /// Creates a cluster on `host` whose manager runs no tasks, and waits until it answers.
    #[must_use]
    #[track_caller]
    pub fn start_manager(host: LabHost, settings: NodeOptions) -> LabNode {
        let scratch = ScratchDir::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let settings = settings.argument("--manager-only");
        let process = spawn(&host, &scratch, &settings, &NodeKind::Manager, &["manager", "init"]);
        LabNode::watch((process, disk), scratch, host, settings, NodeKind::Manager, &cluster)
    }

    /// Joins `host` to the cluster of `manager` as a manager and node called `name`, with its own token, and
    /// waits until the node is ready.
    #[must_use]
    #[track_caller]
    pub fn join_manager(host: LabHost, settings: NodeOptions, manager: &LabNode, name: &str) -> LabNode {
        let scratch = ScratchDir::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let settings = settings.argument("--node-name").argument(name);
        let token = manager.manager_token();
        let words = ["manager", "join", &manager.api().to_string(), "--token", &token];
        let process = spawn(&host, &scratch, &settings, &NodeKind::Hybrid, &words);
        LabNode::watch((process, disk), scratch, host, settings, NodeKind::Hybrid, &cluster)
    }

    /// A token that lets one machine join as a manager.
    #[must_use]
    #[track_caller]
    pub fn manager_token(&self) -> String {
        let words = ["token", "create", "--role", "manager", "--uses", "1", "--quiet"];
        self.warren().run_ok(&words).trim().to_owned()
    }

    /// Simulates a new disk for a manager. Ends it as [`LabNode::lose_power`] does and removes all its data;
    /// then joins it to the cluster of `manager` again, and waits until it is ready.
    #[track_caller]
    pub fn lose_disk_and_join(&mut self, manager: &LabNode) {
        self.lose_power();
        let data = self.data_dir();
        std::fs::remove_dir_all(&data).unwrap_or_else(|error| panic!("{}: {error}", data.display()));
        self.rejoin_as_manager(manager);
    }

    /// Simulates a power cut: only the disk is left. Ends the node by SIGKILL, and directly after that all
    /// that it runs; `--run-dir` is removed. The kernel closes its connections: to simulate a silent machine,
    /// disconnect its host as well.
    #[track_caller]
    pub fn lose_power(&mut self) {
        self.process.kill();
        let problems = cleanup::remove(self.scratch.path());
        assert!(problems.is_empty(), "{problems:?}");
        let directory = self.run_dir();
        std::fs::remove_dir_all(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    }

    /// Joins a stopped node to the cluster of `manager` as a manager, with its own token, and waits until it
    /// is ready.
    #[track_caller]
    pub fn rejoin_as_manager(&mut self, manager: &LabNode) {
        let token = manager.manager_token();
        self.start_with(&["manager", "join", &manager.api().to_string(), "--token", &token]);
        let node_id = wait_ready(&self.warren(), &mut self.process, self.name.as_deref());
        self.cgroups = Cgroups { node_id };
    }

    /// Joins `host` to the cluster of `manager` as a worker called `name`, with its own token, and waits
    /// until it is ready.
    #[must_use]
    #[track_caller]
    pub fn join(host: LabHost, settings: NodeOptions, manager: &LabNode, name: &str) -> LabNode {
        let words = ["token", "create", "--role", "worker", "--uses", "1", "--quiet"];
        let token = manager.warren().run_ok(&words);
        LabNode::join_with(host, settings, manager, name, token.trim())
    }

    /// As [`LabNode::join`], with a token that the test created.
    #[must_use]
    #[track_caller]
    pub fn join_with(
        host: LabHost,
        settings: NodeOptions,
        manager: &LabNode,
        name: &str,
        token: &str,
    ) -> LabNode {
        let scratch = ScratchDir::new();
        let (cluster, disk) = (manager.warren(), disk(&scratch, &settings));
        let settings = settings.argument("--node-name").argument(name);
        let part = NodeKind::Worker { cluster: cluster.clone(), manager: manager.api() };
        let words = ["worker", "join", &manager.api().to_string(), "--token", token];
        let process = spawn(&host, &scratch, &settings, &part, &words);
        LabNode::watch((process, disk), scratch, host, settings, part, &cluster)
    }

    #[track_caller]
    fn watch(
        (mut process, disk): (ChildProcess, Option<SmallDisk>),
        scratch: ScratchDir,
        host: LabHost,
        settings: NodeOptions,
        part: NodeKind,
        cluster: &WarrenCli,
    ) -> LabNode {
        let name = match part {
            NodeKind::Manager => None,
            _ => Some(settings.value("--node-name").map_or_else(own_name, str::to_owned)),
        };
        let node_id = wait_ready(cluster, &mut process, name.as_deref());
        LabNode { process, disk, scratch, cgroups: Cgroups { node_id }, host, settings, kind: part, name }
    }

    /// Waits until the cluster answers and this node is READY.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        wait_ready(&self.warren(), &mut self.process, self.name.as_deref());
    }

    /// The node's name in its cluster; empty for a manager that runs no tasks.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The API address of its cluster, for `--manager` and for clients on other hosts.
    #[must_use]
    pub fn api(&self) -> SocketAddrV4 {
        match &self.kind {
            NodeKind::Hybrid | NodeKind::Manager => SocketAddrV4::new(self.host.address(), API_PORT),
            NodeKind::Worker { manager, .. } => *manager,
        }
    }

    /// The CLI with the cluster's admin context, on the host of its manager.
    #[must_use]
    #[track_caller]
    pub fn warren(&self) -> WarrenCli {
        match &self.kind {
            NodeKind::Hybrid | NodeKind::Manager => cli(&self.host, &self.scratch),
            NodeKind::Worker { cluster, .. } => cluster.clone(),
        }
    }

    /// A CLI on this node's own host, without a context.
    #[must_use]
    #[track_caller]
    pub fn local(&self) -> WarrenCli {
        cli(&self.host, &self.scratch)
    }

    /// The lab host it runs on.
    #[must_use]
    pub fn host(&self) -> &LabHost {
        &self.host
    }

    /// The process, to pause it, to signal it or to read its log.
    pub fn process(&mut self) -> &mut ChildProcess {
        &mut self.process
    }

    /// `--data-dir`.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        data_dir(&self.scratch, &self.settings)
    }

    /// The disk of its data directory, if it has one of its own ([`NodeOptions::small_disk`]).
    #[must_use]
    #[track_caller]
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("the node was created with a small disk")
    }

    /// `--run-dir`.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        run_dir(&self.scratch)
    }

    /// A directory that is removed with the node, for archives and other files of the test.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// `--containerd-socket`.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        containerd_socket(&self.scratch, &self.settings)
    }

    /// Runs `ctr` with `arguments` on the node's containerd; the command must succeed.
    #[track_caller]
    pub fn ctr<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        match tool::stdout(ctr(&self.containerd_socket(), arguments), tool::DEADLINE) {
            Ok(text) => text,
            Err(error) => panic!("{error}"),
        }
    }

    /// Kills the node's process with SIGKILL; containerd and containers keep running.
    #[track_caller]
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Stops the node with SIGTERM; containers keep running.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        self.process.terminate(STOP_DEADLINE)
    }

    /// Starts a stopped node again on its directories (`manager run`, `worker run`) without waiting for it.
    #[track_caller]
    pub fn run_again(&mut self) {
        self.start_again("run");
    }

    /// Starts a stopped node again by `manager init`, which resumes existing data, without waiting for it.
    #[track_caller]
    pub fn init_again(&mut self) {
        self.start_again("init");
    }

    /// Starts a stopped worker again by `worker join`, which resumes existing data, without waiting for it.
    #[track_caller]
    pub fn join_again(&mut self, token: &str) {
        let words = ["worker", "join", &self.api().to_string(), "--token", token];
        self.start_with(&words);
    }

    #[track_caller]
    fn start_again(&mut self, verb: &str) {
        let noun = match self.kind {
            NodeKind::Hybrid | NodeKind::Manager => "manager",
            NodeKind::Worker { .. } => "worker",
        };
        self.start_with(&[noun, verb]);
    }

    #[track_caller]
    fn start_with(&mut self, words: &[&str]) {
        assert!(!self.process.is_running(), "the node still runs: kill or stop it first");
        self.process = spawn(&self.host, &self.scratch, &self.settings, &self.kind, words);
    }

    /// Ends the node by SIGKILL, starts it again and waits until it is ready.
    #[track_caller]
    pub fn crash_and_recover(&mut self) {
        self.kill();
        self.run_again();
        self.wait_ready();
    }

    /// The node's id in its cluster.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.cgroups.node_id
    }

    /// All resources of the node on the machine now. Its containerd must answer.
    #[must_use]
    #[track_caller]
    pub fn inventory(&self) -> Inventory {
        self.take_inventory(Inventory::take)
    }

    /// The kernel resources of the node, whether any of its processes run or not.
    #[must_use]
    #[track_caller]
    pub fn kernel_inventory(&self) -> Inventory {
        self.take_inventory(Inventory::of_kernel)
    }

    #[track_caller]
    fn take_inventory(&self, take: impl FnOnce(&LeakScope<'_>) -> Inventory) -> Inventory {
        take(&LeakScope {
            cgroup_pattern: self.id(),
            netns: &self.host.netns().path(),
            containerd_socket: &self.containerd_socket(),
            directory: self.scratch.path(),
        })
    }
}

/// The default name of a node.
fn own_name() -> String {
    let name = nix::unistd::gethostname().expect("a machine has a name");
    name.to_string_lossy().into_owned()
}

/// Waits until the cluster answers and the node called `name`, if any, is READY; returns its id. Without a
/// name, returns the cluster's id.
#[track_caller]
fn wait_ready(warren: &WarrenCli, process: &mut ChildProcess, name: Option<&str>) -> String {
    let looked = try_eventually(READY_DEADLINE, "a node that is READY", || {
        if !process.is_running() {
            return Ok(Err("the node's process has ended"));
        }
        let question = if name.is_some() { ["node", "ls"] } else { ["cluster", "info"] };
        let ran = warren.run(&[&question[..], &["-o", "json"]].concat());
        if ran.code != 0 {
            return Err(ran.to_string());
        }
        let output: serde_json::Value =
            serde_json::from_str(&ran.stdout).map_err(|error| error.to_string())?;
        // A stopped node stays READY until its heartbeat timeout, but reports no usage.
        let is_heard = |node: &serde_json::Value| node["status"] == "READY" && !node["usage"].is_null();
        let is_ours = |node: &&serde_json::Value| node["name"].as_str() == name && is_heard(node);
        let ours = match name {
            Some(_) => output.as_array().and_then(|nodes| nodes.iter().find(is_ours)),
            None => Some(&output),
        };
        let id = ours.and_then(|found| found["id"].as_str());
        id.map(|id| Ok(id.to_owned())).ok_or_else(|| ran.to_string())
    });
    let problem = match looked {
        Ok(Ok(id)) => return id,
        Ok(Err(ended)) => ended.to_owned(),
        Err(error) => error.to_string(),
    };
    panic!("{problem}; the end of its log:\n{}", process.log_tail(60));
}

#[track_caller]
fn disk(scratch: &ScratchDir, settings: &NodeOptions) -> Option<SmallDisk> {
    settings.small_disk.map(|mebibytes| SmallDisk::new(scratch.path(), mebibytes))
}

fn data_dir(scratch: &ScratchDir, settings: &NodeOptions) -> PathBuf {
    let directory = scratch.path();
    match settings.small_disk {
        Some(_) => SmallDisk::mount_point(directory).join("data"),
        None => directory.join("data"),
    }
}

fn run_dir(scratch: &ScratchDir) -> PathBuf {
    scratch.path().join("run")
}

/// The socket of the node's own containerd by default: naming it keeps the node from using the machine's
/// containerd.
fn containerd_socket(scratch: &ScratchDir, settings: &NodeOptions) -> PathBuf {
    settings.containerd_socket.clone().unwrap_or_else(|| run_dir(scratch).join("containerd/containerd.sock"))
}

#[track_caller]
fn cli(host: &LabHost, scratch: &ScratchDir) -> WarrenCli {
    WarrenCli::new(&scratch.path().join("contexts.toml")).in_netns(&host.netns().path())
}

#[track_caller]
fn spawn(
    host: &LabHost,
    scratch: &ScratchDir,
    settings: &NodeOptions,
    part: &NodeKind,
    words: &[&str],
) -> ChildProcess {
    // `warren-worker` and `warren-manager` have the verbs of `warren worker` and `warren manager`.
    let mut command = match (settings.own_program, &settings.program) {
        (true, _) => cli(host, scratch).with_program(&format!("warren-{}", words[0])).command(&words[1..]),
        (false, Some(program)) => cli(host, scratch).with_copy(program).command(words),
        (false, None) => cli(host, scratch).command(words),
    };
    command.arg("--data-dir").arg(data_dir(scratch, settings)).arg("--run-dir").arg(run_dir(scratch));
    if !matches!(part, NodeKind::Manager) {
        command.arg("--containerd-socket").arg(containerd_socket(scratch, settings));
    }
    let is_first = ["init", "join"].contains(&words[1]);
    if is_first {
        let advertised = host.address().to_string();
        command.arg("--advertise").arg(advertised).args(&settings.arguments);
    }
    if is_first && matches!(part, NodeKind::Hybrid | NodeKind::Manager) {
        let listen = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, API_PORT);
        command.arg("--listen").arg(listen.to_string());
    }
    command.envs(settings.environment.iter().map(|(name, value)| (name, value)));
    ChildProcess::spawn("the node", command, &scratch.path().join("node.log"))
}
