//! Network namespaces as hosts, and a lab in which several of them share a switch.
//!
//! Programs run in a namespace by `nsenter --net`, not by `ip netns exec`: the latter mounts a new /sys and
//! thereby hides /sys/fs/cgroup, after which no container starts.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::tool;

/// The switch's address of a [`NetworkSwitch`], which is also every host's default gateway.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 254);

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A network namespace with nothing but loopback; dropping it deletes it and every link in it.
#[derive(Debug)]
pub struct Netns {
    name: String,
}

impl Netns {
    /// Creates a namespace with a name that no other process uses.
    #[must_use]
    #[track_caller]
    pub fn new() -> Netns {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("warren-test-{}-{number}", std::process::id());
            // A killed test process leaves its namespaces behind, and its process id may be reused.
            if path_of(&name).exists() {
                continue;
            }
            tool::run("ip", ["netns", "add", &name]);
            let netns = Netns { name };
            netns.ip(["link", "set", "lo", "up"]);
            return netns;
        }
    }

    /// Its name, as `ip netns` shows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The file that stands for it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// A command that runs `program` inside. The child's process id is the program's: nsenter does not fork.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        enter(&self.path(), program)
    }

    /// Runs `ip` with `arguments` in this namespace; the command must succeed.
    #[track_caller]
    pub fn ip<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> String {
        let arguments: Vec<&str> = arguments.into_iter().collect();
        tool::run("ip", ["-n", self.name()].iter().chain(&arguments))
    }
}

impl Default for Netns {
    fn default() -> Netns {
        Netns::new()
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let mut command = Command::new("ip");
        command.args(["netns", "delete", &self.name]);
        if let Err(error) = tool::stdout(command, tool::DEADLINE) {
            eprintln!("{error}");
        }
    }
}

/// A command that runs `program` in the network namespace of the file `netns`.
pub fn enter(netns: &Path, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", netns.display())).arg("--").arg(program);
    command
}

fn path_of(name: &str) -> PathBuf {
    Path::new("/run/netns").join(name)
}

/// A switch (a bridge in its own namespace) with the addresses 10.77.0.0/24. Programs run by [`NetworkSwitch::command`]
/// are clients outside of every host.
#[derive(Debug)]
pub struct NetworkSwitch {
    switch: Netns,
    hosts: AtomicU32,
}

impl NetworkSwitch {
    /// A switch without hosts.
    #[must_use]
    #[track_caller]
    pub fn new() -> NetworkSwitch {
        let switch = Netns::new();
        switch.ip(["link", "add", "lab", "type", "bridge"]);
        switch.ip(["address", "add", &format!("{GATEWAY}/24"), "dev", "lab"]);
        switch.ip(["link", "set", "lab", "up"]);
        NetworkSwitch { switch, hosts: AtomicU32::new(0) }
    }

    /// Adds a host: 10.77.0.1 for the first one, at most 253 of them.
    #[must_use]
    #[track_caller]
    pub fn add_host(&self) -> LabHost {
        let number = self.hosts.fetch_add(1, Ordering::Relaxed) + 1;
        let number =
            u8::try_from(number).ok().filter(|number| *number < 254).expect("a lab has 253 addresses");
        let address = Ipv4Addr::new(10, 77, 0, number);
        let netns = Netns::new();
        let port = format!("port{number}");
        let (switch, host) = (self.switch.name(), netns.name());
        let link =
            ["link", "add", &port, "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", host];
        tool::run("ip", link);
        self.switch.ip(["link", "set", &port, "master", "lab", "up"]);
        netns.ip(["address", "add", &format!("{address}/24"), "dev", "eth0"]);
        netns.ip(["link", "set", "eth0", "up"]);
        netns.ip(["route", "add", "default", "via", &GATEWAY.to_string()]);
        LabHost { netns, address, switch: switch.to_owned(), port }
    }

    /// A command that runs `program` at the switch, outside of every host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.switch.command(program)
    }
}

impl Default for NetworkSwitch {
    fn default() -> NetworkSwitch {
        NetworkSwitch::new()
    }
}

/// A host at a [`NetworkSwitch`]: a namespace with an address on `eth0`.
#[derive(Debug)]
pub struct LabHost {
    netns: Netns,
    address: Ipv4Addr,
    switch: String,
    port: String,
}

impl LabHost {
    /// Its namespace.
    #[must_use]
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Its address in the lab.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// A command that runs `program` on this host.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.netns.command(program)
    }

    /// Disconnects the host from the switch. Harmless twice.
    #[track_caller]
    pub fn disconnect(&self) {
        tool::run("ip", ["-n", &self.switch, "link", "set", &self.port, "down"]);
    }

    /// Reconnects it. Harmless twice.
    #[track_caller]
    pub fn connect(&self) {
        tool::run("ip", ["-n", &self.switch, "link", "set", &self.port, "up"]);
    }

    /// Whether this host is isolated from all other isolated hosts; all others still reach them. Harmless
    /// twice.
    #[track_caller]
    pub fn isolate(&self, apart: bool) {
        let isolated = if apart { "on" } else { "off" };
        let port = ["link", "set", "dev", &self.port, "type", "bridge_slave", "isolated", isolated];
        tool::run("ip", ["-n", &self.switch].iter().chain(&port));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ChildProcess;
    use crate::scratch::ScratchDir;
    use crate::wait::eventually;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(60);

    fn fetch(mut command: Command, url: &str) -> Result<String, String> {
        command.args(["--silent", "--show-error", "--max-time", "2", url]);
        tool::stdout(command, SOON).map_err(|error| error.to_string())
    }

    #[test]
    fn a_namespace_goes_with_its_guard() {
        let netns = Netns::new();
        let path = netns.path();
        let inside = tool::stdout(netns.command("ip"), SOON);
        assert!(inside.is_err(), "ip without arguments prints its usage and fails");
        assert!(netns.ip(["-brief", "link"]).starts_with("lo"));
        assert!(path.exists());
        drop(netns);
        assert!(!path.exists());
    }

    #[test]
    fn the_child_is_the_program_itself() {
        let scratch = ScratchDir::new();
        let netns = Netns::new();
        let mut command = netns.command("sh");
        command.args(["-c", "echo $$; readlink /proc/self/ns/net"]);
        let mut process = ChildProcess::spawn("a shell", command, &scratch.path().join("log"));
        process.wait(SOON);
        let log = process.log();
        let mut lines = log.lines();
        assert_eq!(lines.next(), Some(process.pid().to_string().as_str()));
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_ne!(lines.next(), own.to_str());
    }

    #[test]
    fn hosts_of_a_lab_reach_each_other_until_a_link_is_cut() {
        let lab = NetworkSwitch::new();
        let (one, two) = (lab.add_host(), lab.add_host());
        let scratch = ScratchDir::new();
        std::fs::write(scratch.path().join("index.html"), "here").unwrap();
        let mut server = one.command("/bin/busybox");
        server.args(["httpd", "-f", "-p", "80", "-h"]).arg(scratch.path());
        let _server = ChildProcess::spawn("httpd", server, &scratch.path().join("log"));
        let url = format!("http://{}/", one.address());
        let answers = |command: Command| {
            let text = fetch(command, &url)?;
            if text == "here" { Ok(()) } else { Err(text) }
        };
        eventually(SOON, "an answer from the first host", || answers(two.command("curl")));
        eventually(SOON, "an answer at the switch", || answers(lab.command("curl")));
        for _ in 0..2 {
            one.disconnect();
        }
        assert!(fetch(two.command("curl"), &url).is_err());
        for _ in 0..2 {
            one.connect();
        }
        eventually(SOON, "an answer after the cut", || answers(two.command("curl")));
        for _ in 0..2 {
            [&one, &two].into_iter().for_each(|host| host.isolate(true));
        }
        assert!(fetch(two.command("curl"), &url).is_err());
        eventually(SOON, "another answer at the switch", || answers(lab.command("curl")));
        for _ in 0..2 {
            one.isolate(false);
        }
        eventually(SOON, "an answer to one that is apart alone", || answers(two.command("curl")));
    }
}
