//! What one test has for itself: a lab, a node on one of its hosts, a second host beside it, and two images.

use std::sync::LazyLock;
use std::time::Duration;

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use warren_testkit::containerd::ctr;
use warren_testkit::image::{Archive, Image};
use warren_testkit::leaks::{self, Inventory};
use warren_testkit::leftovers;
use warren_testkit::netns::{Host, Lab};
use warren_testkit::node::{Node, Settings};
use warren_testkit::process::Process;
use warren_testkit::scratch::Scratch;
use warren_testkit::wait::eventually;
use warren_testkit::warren::Warren;
use warren_testkit::{demo, tool};

use crate::e2e::task::{self, Task};

/// For everything that takes a second on an idle machine.
pub const SOON: Duration = Duration::from_secs(30);

/// Busybox; it runs `sh` unless told otherwise.
pub const BOX: &str = "warren.local/box:1";
/// The demo's web server on port 80; its page tells the host name of the container.
pub const WEB: &str = demo::REFERENCE;

static BOX_ARCHIVE: LazyLock<Archive> = LazyLock::new(|| Image::busybox(BOX).oci_archive());
static WEB_IMAGE: LazyLock<Image> = LazyLock::new(|| {
    demo::image(WEB).expect("the demo's server compiles on every machine that builds Warren")
});
static WEB_ARCHIVE: LazyLock<Archive> = LazyLock::new(|| WEB_IMAGE.oci_archive());

/// The image [`BOX`], packed.
pub fn box_archive() -> &'static Archive {
    &BOX_ARCHIVE
}

/// The image [`WEB`], to be packed in another way.
pub fn web_image() -> &'static Image {
    &WEB_IMAGE
}

/// A node and who looks at it.
pub struct World {
    // In this order: the node ends before the network that it stands on.
    pub node: Node,
    /// A host beside the node's.
    pub neighbour: Host,
    _lab: Lab,
}

impl World {
    /// A node that was told nothing but its place, with both images.
    #[track_caller]
    pub fn new() -> World {
        World::with(Settings::default())
    }

    /// A node with `settings` and both images.
    #[track_caller]
    pub fn with(settings: Settings) -> World {
        let lab = Lab::new();
        let node = Node::start(lab.host(), settings);
        let world = World { node, neighbour: lab.host(), _lab: lab };
        world.import("box.tar", &BOX_ARCHIVE);
        world.import("web.tar", &WEB_ARCHIVE);
        world
    }

    /// Writes `archive` to a file called `name` and imports it; returns what the import printed.
    #[track_caller]
    pub fn import(&self, name: &str, archive: &Archive) -> String {
        let path = self.node.scratch().join(name);
        archive.write(&path).unwrap();
        self.warren().ok(&["image", "import", path.to_str().unwrap()])
    }

    /// The CLI on the node's host.
    #[track_caller]
    pub fn warren(&self) -> Warren {
        self.node.warren()
    }

    /// Runs a line of arguments, which must succeed: words are separated by single blanks.
    #[track_caller]
    pub fn ok(&self, line: &str) -> String {
        self.warren().ok(&line.split(' ').collect::<Vec<_>>())
    }

    /// Creates a service of [`BOX`] whose containers run the shell script `script`, and does not wait for it.
    #[track_caller]
    pub fn create_script(&self, name: &str, flags: &[&str], script: &str) {
        let words = ["service", "create", name, "--detach", "--image", BOX];
        let command = ["--command", "sh", "--arg", "-c", "--arg", script];
        self.warren().ok(&[&words[..], flags, &command[..]].concat());
    }

    /// Waits until `count` tasks of `service` serve, and no others are there.
    #[track_caller]
    pub fn serving(&self, service: &str, count: usize) -> Vec<Task> {
        eventually(SOON, &format!("{count} tasks of {service}"), || task::serving(&self.node, service, count))
    }

    /// What the node has while it runs nothing. What its first container leaves for all later ones (empty
    /// directories above the containers' own) is part of it.
    #[track_caller]
    pub fn inventory_at_rest(&self) -> Inventory {
        self.run_and_remove_something();
        still_inventory(&self.node)
    }

    /// Runs a container and removes it: after that containerd collects what it has removed before, too.
    #[track_caller]
    pub fn run_and_remove_something(&self) {
        self.ok(&format!("service create something --image {WEB} --publish 8999:80"));
        self.ok("service rm something");
    }

    /// Waits until the node has exactly what `before` tells.
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

    /// Kills the containerd that the node started; returns the process id that it had.
    #[track_caller]
    pub fn kill_containerd(&self) -> Pid {
        let pid = self.containerd();
        signal::kill(pid, Signal::SIGKILL).unwrap();
        pid
    }

    /// A process of the test on the node's host that has the TCP port `port` there.
    #[track_caller]
    pub fn occupy(&self, port: u16) -> Occupant {
        Occupant::start(self.node.host(), port)
    }
}

/// What `node` has while nothing is being made or removed.
#[track_caller]
pub fn still_inventory(node: &Node) -> Inventory {
    // containerd forgets a file system at once and removes its directory when it gets to it.
    eventually(SOON, "one directory per file system that containerd lists", || {
        let found = node.inventory();
        let is_its = |name: &&str| {
            let parts: Vec<&str> = name.rsplit('/').take(2).collect();
            parts.get(1) == Some(&"snapshots") && parts[0].parse::<u32>().is_ok()
        };
        let directories = found.names("files").filter(is_its).count();
        // The node replaces a file by a `.partial` one, which is there only until it is on the disk.
        let writes = found.names("files").any(|name| name.ends_with(".partial"));
        // A lease is there only while a collection is being asked for.
        let is_still = directories == found.count("snapshots") && found.count("leases") == 0 && !writes;
        if is_still { Ok(found) } else { Err(format!("{directories} directories, {found:?}")) }
    })
}

/// The process id of the containerd that `node` started.
#[track_caller]
pub fn containerd_of(node: &Node) -> Pid {
    eventually(SOON, "the node's containerd", || {
        let all = leftovers::processes(node.scratch());
        let program = |command: &str| command.split(' ').next().unwrap_or_default().to_owned();
        let found = all.iter().find(|process| program(&process.command).ends_with("/containerd"));
        found.map(|process| Pid::from_raw(process.pid)).ok_or_else(|| format!("{all:?}"))
    })
}

/// A process that has a TCP port of a host, until it is dropped.
pub struct Occupant {
    process: Process,
    _scratch: Scratch,
}

impl Occupant {
    /// A web server that has `port` on `host`.
    #[track_caller]
    pub fn start(host: &Host, port: u16) -> Occupant {
        let scratch = Scratch::new();
        let mut server = host.command("/bin/busybox");
        server.args(["httpd", "-f", "-p", &port.to_string(), "-h"]).arg(scratch.path());
        let process = Process::spawn("httpd", server, &scratch.path().join("log"));
        eventually(SOON, "the server's port", || {
            let mut ss = host.command("ss");
            ss.args(["-Hlnt", &format!("sport = :{port}")]);
            let listening = tool::stdout(ss, tool::DEADLINE).map_err(|error| error.to_string())?;
            if listening.is_empty() { Err(format!("nobody has port {port}")) } else { Ok(()) }
        });
        Occupant { process, _scratch: scratch }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }
}
