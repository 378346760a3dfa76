//! A node in a world of its own: a lab host, directories, and a containerd that the node starts and supervises
//! itself. Either a hybrid one (`warren manager init`, or `warren manager join`) or a worker of another one's cluster
//! (`warren worker join`).

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use crate::containerd::ctr;
use crate::leaks::{Inventory, Site};
use crate::leftovers;
use crate::netns::Host;
use crate::process::Process;
use crate::scratch::Scratch;
use crate::small_disk::SmallDisk;
use crate::tool;
use crate::wait::reached;
use crate::warren::Warren;

/// The API's port on every lab host.
pub const API_PORT: u16 = 8080;

/// From nothing to a node that takes work takes a second or two; a busy machine gets more.
const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// What the node is in its cluster.
#[derive(Debug, Clone)]
enum Part {
    /// A manager of the cluster, which runs tasks as well.
    Hybrid,
    /// A manager of the cluster that runs no tasks.
    Manager,
    /// It joined the cluster whose command line this is, at that address.
    Worker { cluster: Warren, manager: SocketAddrV4 },
}

/// What a test wants to be different from a node that was given nothing but its directories.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    containerd_socket: Option<PathBuf>,
    small_disk: Option<u64>,
    own_program: bool,
}

impl Settings {
    /// One more argument for `manager init` or `worker join`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Settings {
        self.arguments.push(argument.to_owned());
        self
    }

    /// The value of the argument called `name`.
    fn value(&self, name: &str) -> Option<&str> {
        let place = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(place + 1).map(String::as_str)
    }

    /// One more variable in the node's environment.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Settings {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Uses the containerd behind `socket`, which the test started, instead of one the node starts.
    #[must_use]
    pub fn containerd(mut self, socket: &Path) -> Settings {
        self.containerd_socket = Some(socket.to_owned());
        self
    }

    /// Runs the node by its part's own program, `warren-worker` or `warren-manager`, instead of `warren`.
    #[must_use]
    pub fn own_program(mut self) -> Settings {
        self.own_program = true;
        self
    }

    /// Has its data directory, and with it what a containerd of its own stores, on a disk of `mebibytes`.
    #[must_use]
    pub fn small_disk(mut self, mebibytes: u64) -> Settings {
        self.small_disk = Some(mebibytes);
        self
    }
}

/// The cgroups of a node's containers, known by the node's id. Dropping it removes those that are empty: a node that
/// is killed cannot.
#[derive(Debug)]
struct Cgroups {
    node_id: String,
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for problem in leftovers::remove_cgroups(&self.node_id) {
            eprintln!("{problem}");
        }
    }
}

/// A node on a lab host. Dropping it ends the node, its containerd and its containers, and removes
/// everything it stored.
#[derive(Debug)]
pub struct Node {
    // In this order: the process first, then what it left in its directories, then its network.
    process: Process,
    disk: Option<SmallDisk>,
    scratch: Scratch,
    cgroups: Cgroups,
    host: Host,
    settings: Settings,
    part: Part,
    /// `None` of a manager that runs no tasks.
    name: Option<String>,
}

impl Node {
    /// Makes a cluster of one node on `host` and waits until it takes work.
    #[must_use]
    #[track_caller]
    pub fn start(host: Host, settings: Settings) -> Node {
        let scratch = Scratch::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let process = spawn(&host, &scratch, &settings, &Part::Hybrid, &["manager", "init"]);
        Node::watch((process, disk), scratch, host, settings, Part::Hybrid, &cluster)
    }

    /// Makes a cluster on `host` whose manager runs no tasks, and waits until it answers.
    #[must_use]
    #[track_caller]
    pub fn start_manager(host: Host, settings: Settings) -> Node {
        let scratch = Scratch::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let settings = settings.argument("--manager-only");
        let process = spawn(&host, &scratch, &settings, &Part::Manager, &["manager", "init"]);
        Node::watch((process, disk), scratch, host, settings, Part::Manager, &cluster)
    }

    /// Makes `host` one more manager of the cluster of `manager`, with a token of its own, and waits until the node
    /// called `name`, which it is as well, takes work.
    #[must_use]
    #[track_caller]
    pub fn join_manager(host: Host, settings: Settings, manager: &Node, name: &str) -> Node {
        let scratch = Scratch::new();
        let (cluster, disk) = (cli(&host, &scratch), disk(&scratch, &settings));
        let settings = settings.argument("--node-name").argument(name);
        let token = manager.manager_token();
        let words = ["manager", "join", &manager.api().to_string(), "--token", &token];
        let process = spawn(&host, &scratch, &settings, &Part::Hybrid, &words);
        Node::watch((process, disk), scratch, host, settings, Part::Hybrid, &cluster)
    }

    /// A token with which one machine can become a manager.
    #[must_use]
    #[track_caller]
    pub fn manager_token(&self) -> String {
        let words = ["token", "create", "--role", "manager", "--uses", "1", "--quiet"];
        self.warren().ok(&words).trim().to_owned()
    }

    /// What a new disk leaves of a manager: nothing. Ends it as [`Node::lose_power`] does and removes all that it
    /// stored; then it joins the cluster of `manager` again, and is waited for until it takes work.
    #[track_caller]
    pub fn lose_disk_and_join(&mut self, manager: &Node) {
        self.lose_power();
        let data = self.data_dir();
        std::fs::remove_dir_all(&data).unwrap_or_else(|error| panic!("{}: {error}", data.display()));
        self.join_as_manager(manager);
    }

    /// What a power cut leaves of its machine: what is on the disk. Ends the node by SIGKILL, and right behind it all
    /// that it runs; `--run-dir` is gone. Its connections are closed by the kernel: for a machine that is not heard any
    /// more its host is disconnected as well.
    #[track_caller]
    pub fn lose_power(&mut self) {
        self.process.kill();
        let problems = leftovers::remove(self.scratch.path());
        assert!(problems.is_empty(), "{problems:?}");
        let directory = self.run_dir();
        std::fs::remove_dir_all(&directory)
            .unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    }

    /// Lets an ended node join the cluster of `manager` as a manager, with a token of its own, and waits until it takes
    /// work.
    #[track_caller]
    pub fn join_as_manager(&mut self, manager: &Node) {
        let token = manager.manager_token();
        self.start_with(&["manager", "join", &manager.api().to_string(), "--token", &token]);
        let node_id = wait_ready(&self.warren(), &mut self.process, self.name.as_deref());
        self.cgroups = Cgroups { node_id };
    }

    /// Makes `host` a worker called `name` of the cluster of `manager`, with a token of its own, and waits until it
    /// takes work.
    #[must_use]
    #[track_caller]
    pub fn join(host: Host, settings: Settings, manager: &Node, name: &str) -> Node {
        let words = ["token", "create", "--role", "worker", "--uses", "1", "--quiet"];
        let token = manager.warren().ok(&words);
        Node::join_with(host, settings, manager, name, token.trim())
    }

    /// As [`Node::join`], with a token that the test made.
    #[must_use]
    #[track_caller]
    pub fn join_with(host: Host, settings: Settings, manager: &Node, name: &str, token: &str) -> Node {
        let scratch = Scratch::new();
        let (cluster, disk) = (manager.warren(), disk(&scratch, &settings));
        let settings = settings.argument("--node-name").argument(name);
        let part = Part::Worker { cluster: cluster.clone(), manager: manager.api() };
        let words = ["worker", "join", &manager.api().to_string(), "--token", token];
        let process = spawn(&host, &scratch, &settings, &part, &words);
        Node::watch((process, disk), scratch, host, settings, part, &cluster)
    }

    #[track_caller]
    fn watch(
        (mut process, disk): (Process, Option<SmallDisk>),
        scratch: Scratch,
        host: Host,
        settings: Settings,
        part: Part,
        cluster: &Warren,
    ) -> Node {
        let name = match part {
            Part::Manager => None,
            _ => Some(settings.value("--node-name").map_or_else(own_name, str::to_owned)),
        };
        let node_id = wait_ready(cluster, &mut process, name.as_deref());
        Node { process, disk, scratch, cgroups: Cgroups { node_id }, host, settings, part, name }
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

    /// Where the API of its cluster listens, for `--manager` and for clients on other hosts.
    #[must_use]
    pub fn api(&self) -> SocketAddrV4 {
        match &self.part {
            Part::Hybrid | Part::Manager => SocketAddrV4::new(self.host.address(), API_PORT),
            Part::Worker { manager, .. } => *manager,
        }
    }

    /// The CLI with the cluster's admin context, on the host of its manager.
    #[must_use]
    #[track_caller]
    pub fn warren(&self) -> Warren {
        match &self.part {
            Part::Hybrid | Part::Manager => cli(&self.host, &self.scratch),
            Part::Worker { cluster, .. } => cluster.clone(),
        }
    }

    /// A command line on this node's own host, which knows no cluster.
    #[must_use]
    #[track_caller]
    pub fn local(&self) -> Warren {
        cli(&self.host, &self.scratch)
    }

    /// The lab host it runs on.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The process, to pause it, to signal it or to read its log.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// `--data-dir`.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        data_dir(&self.scratch, &self.settings)
    }

    /// The disk of its data directory, if it has one of its own ([`Settings::small_disk`]).
    #[must_use]
    #[track_caller]
    pub fn disk(&self) -> &SmallDisk {
        self.disk.as_ref().expect("this node was given a small disk")
    }

    /// `--run-dir`.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        run_dir(&self.scratch)
    }

    /// A directory that goes with the node, for archives and other files of the test.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// `--containerd-socket`.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        containerd_socket(&self.scratch, &self.settings)
    }

    /// Runs `ctr` with `arguments` on the node's containerd; it must succeed.
    #[track_caller]
    pub fn ctr<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        match tool::stdout(ctr(&self.containerd_socket(), arguments), tool::DEADLINE) {
            Ok(text) => text,
            Err(error) => panic!("{error}"),
        }
    }

    /// Kills the node's process with SIGKILL; containerd and containers live on.
    #[track_caller]
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks the node to end by SIGTERM; containers live on.
    #[track_caller]
    pub fn stop(&mut self) -> ExitStatus {
        self.process.terminate(STOP_DEADLINE)
    }

    /// Starts an ended node again on its directories (`manager run`, `worker run`) without waiting for it.
    #[track_caller]
    pub fn run_again(&mut self) {
        self.start_again("run");
    }

    /// Starts an ended node again by `manager init`, which resumes what is there, without waiting for it.
    #[track_caller]
    pub fn init_again(&mut self) {
        self.start_again("init");
    }

    /// Starts an ended worker again by `worker join`, which resumes what is there, without waiting for it.
    #[track_caller]
    pub fn join_again(&mut self, token: &str) {
        let words = ["worker", "join", &self.api().to_string(), "--token", token];
        self.start_with(&words);
    }

    #[track_caller]
    fn start_again(&mut self, verb: &str) {
        let noun = match self.part {
            Part::Hybrid | Part::Manager => "manager",
            Part::Worker { .. } => "worker",
        };
        self.start_with(&[noun, verb]);
    }

    #[track_caller]
    fn start_with(&mut self, words: &[&str]) {
        assert!(!self.process.is_running(), "the node still runs: kill or stop it first");
        self.process = spawn(&self.host, &self.scratch, &self.settings, &self.part, words);
    }

    /// Ends the node by SIGKILL, starts it again and waits until it takes work.
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

    /// Everything that the node has on the machine now. Its containerd has to answer.
    #[must_use]
    #[track_caller]
    pub fn inventory(&self) -> Inventory {
        self.look(Inventory::take)
    }

    /// What the kernel has of the node, whether anything of it still runs or not.
    #[must_use]
    #[track_caller]
    pub fn kernel_inventory(&self) -> Inventory {
        self.look(Inventory::of_kernel)
    }

    #[track_caller]
    fn look(&self, take: impl FnOnce(&Site<'_>) -> Inventory) -> Inventory {
        take(&Site {
            cgroup_mark: self.id(),
            netns: &self.host.netns().path(),
            containerd_socket: &self.containerd_socket(),
            directory: self.scratch.path(),
        })
    }
}

/// The name of a node that was given none.
fn own_name() -> String {
    let name = nix::unistd::gethostname().expect("a machine has a name");
    name.to_string_lossy().into_owned()
}

/// Waits until the cluster answers and the node called `name`, if it is one, is READY; answers its id. Of a manager
/// alone it is that of the cluster.
#[track_caller]
fn wait_ready(warren: &Warren, process: &mut Process, name: Option<&str>) -> String {
    let looked = reached(READY_DEADLINE, "a node that is READY", || {
        if !process.is_running() {
            return Ok(Err("the node's process has ended"));
        }
        let question = if name.is_some() { ["node", "ls"] } else { ["cluster", "info"] };
        let ran = warren.run(&[&question[..], &["-o", "json"]].concat());
        if ran.code != 0 {
            return Err(ran.to_string());
        }
        let said: serde_json::Value = serde_json::from_str(&ran.stdout).map_err(|error| error.to_string())?;
        // One that is gone is READY until it was silent for too long, but tells nothing of what it uses.
        let is_heard = |node: &serde_json::Value| node["status"] == "READY" && !node["usage"].is_null();
        let is_ours = |node: &&serde_json::Value| node["name"].as_str() == name && is_heard(node);
        let ours = match name {
            Some(_) => said.as_array().and_then(|nodes| nodes.iter().find(is_ours)),
            None => Some(&said),
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
fn disk(scratch: &Scratch, settings: &Settings) -> Option<SmallDisk> {
    settings.small_disk.map(|mebibytes| SmallDisk::new(scratch.path(), mebibytes))
}

fn data_dir(scratch: &Scratch, settings: &Settings) -> PathBuf {
    let directory = scratch.path();
    match settings.small_disk {
        Some(_) => SmallDisk::place(directory).join("data"),
        None => directory.join("data"),
    }
}

fn run_dir(scratch: &Scratch) -> PathBuf {
    scratch.path().join("run")
}

/// Unless told otherwise, the place where a containerd of the node's own listens: by naming it the test keeps
/// the node from using the machine's.
fn containerd_socket(scratch: &Scratch, settings: &Settings) -> PathBuf {
    settings.containerd_socket.clone().unwrap_or_else(|| run_dir(scratch).join("containerd/containerd.sock"))
}

#[track_caller]
fn cli(host: &Host, scratch: &Scratch) -> Warren {
    Warren::new(&scratch.path().join("contexts.toml")).inside(&host.netns().path())
}

#[track_caller]
fn spawn(host: &Host, scratch: &Scratch, settings: &Settings, part: &Part, words: &[&str]) -> Process {
    // `warren-worker` and `warren-manager` have the verbs of `warren worker` and `warren manager`.
    let mut command = match settings.own_program {
        true => cli(host, scratch).beside(&format!("warren-{}", words[0])).command(&words[1..]),
        false => cli(host, scratch).command(words),
    };
    command.arg("--data-dir").arg(data_dir(scratch, settings)).arg("--run-dir").arg(run_dir(scratch));
    if !matches!(part, Part::Manager) {
        command.arg("--containerd-socket").arg(containerd_socket(scratch, settings));
    }
    let is_first = ["init", "join"].contains(&words[1]);
    if is_first {
        let advertised = host.address().to_string();
        command.arg("--advertise").arg(advertised).args(&settings.arguments);
    }
    if is_first && matches!(part, Part::Hybrid | Part::Manager) {
        let listen = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, API_PORT);
        command.arg("--listen").arg(listen.to_string());
    }
    command.envs(settings.environment.iter().map(|(name, value)| (name, value)));
    Process::spawn("the node", command, &scratch.path().join("node.log"))
}
