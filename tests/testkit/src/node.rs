//! One hybrid node (`warren manager init`) in a world of its own: a lab host, directories, and a containerd
//! that the node starts and supervises itself.

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
use crate::tool;
use crate::wait::reached;
use crate::warren::Warren;

/// The API's port on every lab host.
pub const API_PORT: u16 = 8080;

/// From nothing to a node that takes work takes a second or two; a busy machine gets more.
const READY_DEADLINE: Duration = Duration::from_secs(60);
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// What a test wants to be different from a node that was given nothing but its directories.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    containerd_socket: Option<PathBuf>,
}

impl Settings {
    /// One more argument for `manager init`.
    #[must_use]
    pub fn argument(mut self, argument: &str) -> Settings {
        self.arguments.push(argument.to_owned());
        self
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
}

/// The cgroups of a node's containers, known by the id of its cluster. Dropping it removes those that are empty: a
/// node that is killed cannot.
#[derive(Debug)]
struct Cgroups {
    cluster_id: String,
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for problem in leftovers::remove_cgroups(&self.cluster_id) {
            eprintln!("{problem}");
        }
    }
}

/// A hybrid node on a lab host. Dropping it ends the node, its containerd and its containers, and removes
/// everything it stored.
#[derive(Debug)]
pub struct Node {
    // In this order: the process first, then what it left in its directories, then its network.
    process: Process,
    scratch: Scratch,
    cgroups: Cgroups,
    host: Host,
    settings: Settings,
}

impl Node {
    /// Makes a cluster of one node on `host` and waits until it takes work.
    #[must_use]
    #[track_caller]
    pub fn start(host: Host, settings: Settings) -> Node {
        let scratch = Scratch::new();
        let mut process = spawn(&host, &scratch, &settings, "init");
        let warren = cli(&host, &scratch);
        wait_ready(&warren, &mut process);
        let info = warren.json(&["cluster", "info"]);
        let Some(cluster_id) = info["id"].as_str() else { panic!("`cluster info` tells no id: {info}") };
        let cgroups = Cgroups { cluster_id: cluster_id.to_owned() };
        Node { process, scratch, cgroups, host, settings }
    }

    /// Waits until the cluster answers and this node is READY.
    #[track_caller]
    pub fn wait_ready(&mut self) {
        wait_ready(&self.warren(), &mut self.process);
    }

    /// Where the API listens, for `--manager` and for clients on other hosts.
    #[must_use]
    pub fn api(&self) -> SocketAddrV4 {
        api(&self.host)
    }

    /// The CLI on this host with the admin context that `init` wrote.
    #[must_use]
    #[track_caller]
    pub fn warren(&self) -> Warren {
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
        data_dir(&self.scratch)
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

    /// Starts an ended node again on its directories (`manager run`) without waiting for it.
    #[track_caller]
    pub fn run_again(&mut self) {
        self.start_again("run");
    }

    /// Starts an ended node again by `manager init`, which resumes what is there, without waiting for it.
    #[track_caller]
    pub fn init_again(&mut self) {
        self.start_again("init");
    }

    #[track_caller]
    fn start_again(&mut self, verb: &str) {
        assert!(!self.process.is_running(), "the node still runs: kill or stop it first");
        self.process = spawn(&self.host, &self.scratch, &self.settings, verb);
    }

    /// Ends the node by SIGKILL, starts it again and waits until it takes work.
    #[track_caller]
    pub fn crash_and_recover(&mut self) {
        self.kill();
        self.run_again();
        self.wait_ready();
    }

    /// The id of the cluster that the node made.
    #[must_use]
    #[track_caller]
    pub fn cluster_id(&self) -> &str {
        &self.cgroups.cluster_id
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
            cgroup_mark: self.cluster_id(),
            netns: &self.host.netns().path(),
            containerd_socket: &self.containerd_socket(),
            directory: self.scratch.path(),
        })
    }
}

/// Waits until the cluster answers and its node is READY.
#[track_caller]
fn wait_ready(warren: &Warren, process: &mut Process) {
    let looked = reached(READY_DEADLINE, "a node that is READY", || {
        if !process.is_running() {
            return Ok(Err("the node's process has ended"));
        }
        for arguments in [["cluster", "info"], ["node", "ls"]] {
            let ran = warren.run(&arguments);
            if ran.code != 0 || (arguments[0] == "node" && !ran.stdout.contains("READY")) {
                return Err(ran.to_string());
            }
        }
        Ok(Ok(()))
    });
    let problem = match looked {
        Ok(Ok(())) => return,
        Ok(Err(ended)) => ended.to_owned(),
        Err(error) => error.to_string(),
    };
    panic!("{problem}; the end of its log:\n{}", process.log_tail(60));
}

fn api(host: &Host) -> SocketAddrV4 {
    SocketAddrV4::new(host.address(), API_PORT)
}

fn data_dir(scratch: &Scratch) -> PathBuf {
    scratch.path().join("data")
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
fn spawn(host: &Host, scratch: &Scratch, settings: &Settings, verb: &str) -> Process {
    let mut command = cli(host, scratch).command(&["manager", verb]);
    command.arg("--data-dir").arg(data_dir(scratch)).arg("--run-dir").arg(run_dir(scratch));
    command.arg("--containerd-socket").arg(containerd_socket(scratch, settings));
    if verb == "init" {
        let listen = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, API_PORT);
        command.arg("--listen").arg(listen.to_string()).arg("--advertise").arg(host.address().to_string());
        command.args(&settings.arguments);
    }
    command.envs(settings.environment.iter().map(|(name, value)| (name, value)));
    Process::spawn("the node", command, &scratch.path().join("node.log"))
}
