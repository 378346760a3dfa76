//! The fixture of one test: a lab, a node on one of its hosts, a second host, and two images.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use warren_testkit::cleanup;
use warren_testkit::cli::WarrenCli;
use warren_testkit::containerd::ctr;
use warren_testkit::image::{PackedImage, TestImage};
use warren_testkit::leaks::{self, Inventory};
use warren_testkit::netns::{LabHost, NetworkSwitch};
use warren_testkit::node::{LabNode, NodeOptions};
use warren_testkit::process::ChildProcess;
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;
use warren_testkit::{demo, tool};

use crate::e2e::task_document::{self, TaskDocument};

/// The port of the service with which tests begin.
const FIRST_PORT: u16 = 8999;
/// For operations that take a second on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Busybox; its default command is `sh`.
pub const BOX: &str = "warren.local/box:1";
/// The demo's web server on port 80; its page shows the host name of the container.
pub const WEB: &str = demo::REFERENCE;

static BOX_ARCHIVE: LazyLock<PackedImage> = LazyLock::new(|| TestImage::busybox(BOX).oci_archive());
static WEB_IMAGE: LazyLock<TestImage> = LazyLock::new(|| {
    demo::image(WEB).expect("the demo's server compiles on every machine that builds Warren")
});
static WEB_ARCHIVE: LazyLock<PackedImage> = LazyLock::new(|| WEB_IMAGE.oci_archive());

/// The image [`BOX`], packed.
pub fn box_archive() -> &'static PackedImage {
    &BOX_ARCHIVE
}

/// The image [`WEB`], before it is packed.
pub fn web_image() -> &'static TestImage {
    &WEB_IMAGE
}

/// A node and a client host.
pub struct NodeFixture {
    // In this order: the node ends before its network.
    pub node: LabNode,
    /// A host beside the node's.
    pub client_host: LabHost,
    _lab: NetworkSwitch,
}

impl NodeFixture {
    /// A node with default options and both images.
    #[track_caller]
    pub fn new() -> NodeFixture {
        NodeFixture::with(NodeOptions::default())
    }

    /// A node with default options and the image [`BOX`].
    #[track_caller]
    pub fn with_box() -> NodeFixture {
        NodeFixture::bare(NodeOptions::default())
    }

    /// A node with `settings` and both images.
    #[track_caller]
    pub fn with(settings: NodeOptions) -> NodeFixture {
        let world = NodeFixture::bare(settings);
        world.import("web.tar", &WEB_ARCHIVE);
        world
    }

    /// A node with `settings` and the image [`BOX`].
    #[track_caller]
    pub fn bare(settings: NodeOptions) -> NodeFixture {
        let lab = NetworkSwitch::new();
        let node = LabNode::start(lab.add_host(), settings);
        let world = NodeFixture { node, client_host: lab.add_host(), _lab: lab };
        world.import("box.tar", &BOX_ARCHIVE);
        world
    }

    /// Writes `archive` to a file called `name` and imports it; returns what the import printed.
    #[track_caller]
    pub fn import(&self, name: &str, archive: &PackedImage) -> String {
        let path = self.node.scratch().join(name);
        archive.write(&path).unwrap();
        self.warren().run_ok(&["image", "import", path.to_str().unwrap()])
    }

    /// The CLI on the node's host.
    #[track_caller]
    pub fn warren(&self) -> WarrenCli {
        self.node.warren()
    }

    /// Runs a command line, which must succeed: arguments are separated by single blanks.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.warren().run_ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Creates a service of [`BOX`] whose containers run the shell script `script`, and does not wait for it.
    #[track_caller]
    pub fn create_script(&self, name: &str, flags: &[&str], script: &str) {
        let words = ["service", "create", name, "--detach", "--image", BOX];
        let command = ["--command", "sh", "--arg", "-c", "--arg", script];
        self.warren().run_ok(&[&words[..], flags, &command[..]].concat());
    }

    /// Waits until `count` tasks of `service` serve, and no others exist.
    #[track_caller]
    pub fn wait_serving(&self, service: &str, count: usize) -> Vec<TaskDocument> {
        eventually(SOON, &format!("{count} tasks of {service}"), || {
            task_document::serving(&self.node, service, count)
        })
    }

    /// The resources of the idle node. It includes what its first container leaves for all later ones (empty
    /// directories above the containers' own).
    #[track_caller]
    pub fn inventory_at_rest(&self) -> Inventory {
        self.run_and_remove_something();
        still_inventory(&self.node)
    }

    /// Runs a container and removes it: after that containerd also collects what it removed before.
    #[track_caller]
    pub fn run_and_remove_something(&self) {
        self.ok(&format!("service create something --image {WEB} --publish {FIRST_PORT}:80"));
        self.ok("service rm something");
    }

    /// Waits until the node has exactly the resources of `before`.
    #[track_caller]
    pub fn assert_at_rest(&self, before: &Inventory) {
        leaks::assert_returns_to(before, SOON, || self.node.inventory());
    }

    /// The process id of the containerd that the node started.
    #[track_caller]
    pub fn containerd(&self) -> Pid {
        containerd_of(&self.node)
    }

    /// Kills the containerd that the node started and waits until the node has started another.
    #[track_caller]
    pub fn restart_containerd(&self) {
        let before = self.kill_containerd();
        eventually(SOON, "another containerd", || {
            let command = ctr(&self.node.containerd_socket(), ["namespaces", "list"]);
            tool::stdout(command, tool::DEADLINE).map_err(|error| error.to_string())
        });
        assert_ne!(self.containerd(), before);
    }

    /// Kills the containerd that the node started; returns its process id.
    #[track_caller]
    pub fn kill_containerd(&self) -> Pid {
        let pid = self.containerd();
        signal::kill(pid, Signal::SIGKILL).unwrap();
        pid
    }

    /// A process of the test on the node's host that listens on the TCP port `port`.
    #[track_caller]
    pub fn occupy(&self, port: u16) -> PortOccupant {
        PortOccupant::start(self.node.host(), port)
    }
}

/// The resources of `node` while nothing is being created or removed.
#[track_caller]
pub fn still_inventory(node: &LabNode) -> Inventory {
    // containerd deletes the record of a file system at once and its directory later.
    eventually(SOON, "one directory per file system that containerd lists", || {
        let found = node.inventory();
        let is_its = |name: &&str| {
            let parts: Vec<&str> = name.rsplit('/').take(2).collect();
            parts.get(1) == Some(&"snapshots") && parts[0].parse::<u32>().is_ok()
        };
        let directories = found.names("files").filter(is_its).count();
        // The node replaces a file through a `.partial` one, which exists only until it is on the disk.
        let writes = found.names("files").any(|name| name.ends_with(".partial"));
        // A lease exists only during a collection.
        // Every node closes the port of a removed service, a moment after its last task is gone.
        let port = format!("--dport {FIRST_PORT}");
        let is_open = found.names("iptables").any(|rule| rule.contains(&port));
        // `warren-exec` ends a moment after the command that it ran in a container.
        let executes = found.names("processes").any(|command| command.starts_with("warren-exec"));
        let is_busy = writes || is_open || executes || found.count("leases") > 0;
        let is_still = directories == found.count("snapshots") && !is_busy;
        if is_still { Ok(found) } else { Err(format!("{directories} directories, {found:?}")) }
    })
}

/// The process id of the containerd that `node` started.
#[track_caller]
pub fn containerd_of(node: &LabNode) -> Pid {
    eventually(SOON, "the node's containerd", || {
        let all = cleanup::processes(node.scratch());
        let program = |command: &str| command.split(' ').next().unwrap_or_default().to_owned();
        let found = all.iter().find(|process| program(&process.command).ends_with("/containerd"));
        found.map(|process| Pid::from_raw(process.pid)).ok_or_else(|| format!("{all:?}"))
    })
}

/// The log of a node since a moment: the file has the output of all its runs.
pub struct LogSince {
    path: PathBuf,
    earlier: usize,
}

impl LogSince {
    /// What `node` writes from now on.
    #[track_caller]
    pub fn of(node: &LabNode) -> LogSince {
        let path = node.scratch().join("node.log");
        let earlier = std::fs::read(&path).unwrap().len();
        LogSince { path, earlier }
    }

    /// Its text so far.
    #[track_caller]
    pub fn text(&self) -> String {
        let all = std::fs::read(&self.path).unwrap();
        String::from_utf8_lossy(&all[self.earlier..]).into_owned()
    }
}

/// A process that listens on a TCP port of a host, until it is dropped.
pub struct PortOccupant {
    process: ChildProcess,
    _scratch: ScratchDir,
}

impl PortOccupant {
    /// A web server that has `port` on `host`.
    #[track_caller]
    pub fn start(host: &LabHost, port: u16) -> PortOccupant {
        let scratch = ScratchDir::new();
        let mut server = host.command("/bin/busybox");
        server.args(["httpd", "-f", "-p", &port.to_string(), "-h"]).arg(scratch.path());
        let process = ChildProcess::spawn("httpd", server, &scratch.path().join("log"));
        eventually(SOON, "the server's port", || {
            let mut ss = host.command("ss");
            ss.args(["-Hlnt", &format!("sport = :{port}")]);
            let listening = tool::stdout(ss, tool::DEADLINE).map_err(|error| error.to_string())?;
            if listening.is_empty() { Err(format!("no process listens on port {port}")) } else { Ok(()) }
        });
        PortOccupant { process, _scratch: scratch }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }
}
