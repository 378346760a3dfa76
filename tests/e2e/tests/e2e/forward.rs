//! `warren task port-forward` and `warren service port-forward` to real containers.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::cli::WarrenCli;
use warren_testkit::netns::LabHost;
use warren_testkit::tool;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON};
use crate::e2e::three_managers::{SERVICE, ThreeManagers};

const USAGE: i32 = 2;
const CONFLICT: i32 = 4;

/// A running `port-forward` and its local ports.
struct Forwarding {
    child: Child,
    ports: Vec<u16>,
}

impl Forwarding {
    fn start(warren: &WarrenCli, noun: &str, arguments: &[&str], ports: usize) -> Forwarding {
        let mut command = warren.command(&[&[noun, "port-forward"][..], arguments].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        let port = |line: String| {
            let local = line.strip_prefix("forwarding 127.0.0.1:").unwrap().split(' ').next().unwrap();
            local.parse().unwrap()
        };
        let ports = (0..ports).map(|_| port(lines.next().expect("a line for each port").unwrap())).collect();
        Forwarding { child, ports }
    }

    /// Ends it and returns what it printed on standard error.
    fn end(mut self) -> String {
        kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGINT).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(130));
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

/// Runs a shell script on a host.
fn shell(host: &LabHost, script: &str) -> String {
    let mut command: Command = host.command("sh");
    command.args(["-c", script]);
    tool::stdout(command, 4 * tool::DEADLINE).unwrap()
}

#[test]
fn connections_pass_with_both_ends_and_refusals_are_named() {
    let world = NodeFixture::with_box();
    // A server that answers only after the end of what it is sent, and one that ends its own direction first.
    let servers = "nc -ll -p 7001 -e sh -c 'n=$(wc -c); echo got $n' & \
                   nc -ll -p 7002 -e sh -c 'echo bye; exec 1>&-; cat >/tmp/kept' & \
                   nc -ll -p 7003 -e head -c 100000000 /dev/zero & exec sleep 100000";
    world.create_script("web", &[], servers);
    world.wait_serving("web", 1);
    eventually(SOON, "the ports of the servers", || {
        let listening = world.ok("task exec web.1 netstat -ltn");
        let is_open = |port: u16| listening.contains(&format!(":{port} "));
        if (7001..=7003).all(is_open) { Ok(()) } else { Err(listening) }
    });
    let host = world.node.host();
    let warren = world.warren();
    let forwarding = Forwarding::start(&warren, "task", &["web.1", ":7001", "0:7002", ":7003", ":7009"], 4);
    let [waits, ends, sends, closed] = forwarding.ports[..] else { panic!("{:?}", forwarding.ports) };
    let counted = format!("head -c 3000000 /dev/zero | busybox nc 127.0.0.1 {waits}");
    assert_eq!(shell(host, &counted), "got 3000000\n", "the end of one direction passes");
    assert_eq!(shell(host, &format!("(echo kept; sleep 0.2) | busybox nc 127.0.0.1 {ends}")), "bye\n");
    eventually(SOON, "the rest arrives", || {
        let kept = world.warren().run_ok(&["task", "exec", "web.1", "cat", "/tmp/kept"]);
        if kept == "kept\n" { Ok(()) } else { Err(kept) }
    });
    let all = format!("for i in 1 2 3 4; do busybox nc 127.0.0.1 {sends} </dev/null | wc -c & done; wait");
    assert_eq!(shell(host, &all), "100000000\n".repeat(4));
    assert_eq!(shell(host, &format!("busybox nc 127.0.0.1 {closed} </dev/null; true")), "");
    let taken = format!("{sends}:80");
    let printed = warren.run_refused(&["task", "port-forward", "web.1", ":80", &taken], CONFLICT);
    assert!(printed.contains(&format!("cannot listen on 127.0.0.1 port {sends}")), "{printed}");
    let printed = forwarding.end();
    assert!(printed.contains("port 7009 of the task: connection refused"), "{printed}");

    warren.run_refused(&["task", "port-forward", "web.1", "web:80"], USAGE);
    warren.run_refused(&["task", "port-forward", "web.2", ":80"], 3);
    warren.run_refused(&["service", "port-forward", "none", ":80"], 3);
    world.ok("service scale web=0");
    let forwarding = Forwarding::start(&warren, "service", &["web", ":7001"], 1);
    assert_eq!(shell(host, &format!("busybox nc 127.0.0.1 {} </dev/null; true", forwarding.ports[0])), "");
    let printed = forwarding.end();
    assert!(printed.contains("service web has no ready task"), "{printed}");
}

#[test]
fn ports_and_files_of_every_node_are_reached_through_every_manager() {
    let trio = ThreeManagers::new();
    trio.create_service(&[]);
    for via in &trio.nodes {
        for slot in ["1", "2", "3"] {
            let task = format!("{SERVICE}.{slot}");
            let host = via.warren().run_ok(&["task", "cp", &format!("{task}:/etc/hostname"), "-"]);
            assert!(host.contains("ustar"), "{host:?}");
            let forwarding =
                Forwarding::start(&via.warren(), "service", &["--slot", slot, SERVICE, ":80"], 1);
            shell(via.host(), &format!("busybox nc 127.0.0.1 {} </dev/null; true", forwarding.ports[0]));
            let printed = forwarding.end();
            assert!(printed.contains("port 80 of the task: connection refused"), "{printed}");
        }
    }
}
