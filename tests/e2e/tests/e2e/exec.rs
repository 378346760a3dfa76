//! `warren task exec` and `warren service exec` on real containers.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::leaks::Inventory;
use warren_testkit::wait::eventually;

use crate::e2e::fixture::{NodeFixture, SOON, still_inventory};
use crate::e2e::three_managers::{SERVICE, ThreeManagers};

const USAGE: i32 = 2;
const CONFLICT: i32 = 4;
const NOT_EXECUTABLE: i32 = 126;
const COMMAND_NOT_FOUND: i32 = 127;
/// What a reader of one stream, and the managers and the agent of the node together, may take more while they pass
/// output on.
const MAX_GROWTH: u64 = 32 << 20;

/// A node with a task `web.1` that sleeps, and what the node has then.
fn sleeping() -> (NodeFixture, Inventory) {
    let world = NodeFixture::with_box();
    world.create_script("web", &[], "exec sleep 100000");
    world.wait_serving("web", 1);
    // What the first command leaves for all later ones: the directory of their pipes.
    world.ok("task exec web.1 true");
    // The task is ready before its service's virtual address leads to it.
    eventually(SOON, "the rules of the virtual address", || {
        let found = world.node.kernel_inventory();
        let is_led = found.names("iptables").any(|rule| rule.contains("-A WARREN-S-"));
        if is_led { Ok(()) } else { Err(format!("{found:?}")) }
    });
    let before = still_inventory(&world.node);
    (world, before)
}

fn exec<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["task", "exec"][..], more].concat()
}

/// Lines of the container's process list that contain `text`, without the list's own.
fn processes(world: &NodeFixture, text: &str) -> Vec<String> {
    let list = world.warren().run_ok(&exec(&["web.1", "ps", "-o", "args"]));
    list.lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
}

fn wait_for_processes(world: &NodeFixture, text: &str, count: usize) {
    eventually(SOON, &format!("{count} processes {text:?}"), || {
        let found = processes(world, text);
        if found.len() == count { Ok(()) } else { Err(format!("{found:?}")) }
    });
}

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn command_has_the_setup_of_the_container_and_its_code_is_returned() {
    let (world, before) = sleeping();
    let ran = world.warren().run(&exec(&["web.1", "sh", "-c", "echo out; echo error >&2; exit 42"]));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (42, "out\n", "error\n"), "{ran}");
    assert_eq!(world.warren().run(&exec(&["web.1", "sh", "-c", "kill -9 $$"])).code, 137);
    assert_eq!(world.ok("service exec web hostname"), world.ok("service exec --slot 1 web hostname"));
    assert_eq!(world.ok("task exec web.1 cat /proc/1/comm"), "sleep\n", "in the namespaces of the container");
    assert_eq!(world.ok("task exec -u nobody -w /tmp -e A=1 web.1 sh -c id;pwd;echo\t$A"), {
        "uid=65534(nobody) gid=65534(nogroup) groups=65534(nogroup)\n/tmp\n1\n"
    });
    for (flags, code, words) in [
        (&["web.1", "nosuch"][..], COMMAND_NOT_FOUND, "\"nosuch\" cannot be run"),
        (&["web.1", "/etc/passwd"], NOT_EXECUTABLE, "\"/etc/passwd\" cannot be run"),
        (&["-u", "nosuch", "web.1", "id"], USAGE, "program.user: \"nosuch\""),
        (&["-w", "/nosuch", "web.1", "id"], USAGE, "program.directory: \"/nosuch\""),
        (&["-w", "nosuch", "web.1", "id"], USAGE, "program.directory: \"nosuch\" is not an absolute path"),
        (&["-t", "web.1", "id"], USAGE, "the input is not a terminal"),
        (&["web.2", "id"], 3, "task \"web.2\" does not exist"),
    ] {
        let printed = world.warren().run_refused(&exec(flags), code);
        assert!(printed.contains(words), "{printed}");
    }
    world.assert_at_rest(&before);
    world.ok("service scale web=0");
    let task = world.warren().json(&["service", "ps", "web", "--all"])[0]["id"].as_str().unwrap().to_owned();
    let printed = world.warren().run_refused(&exec(&[&task, "id"]), CONFLICT);
    assert!(printed.contains("has ended"), "{printed}");
}

#[test]
fn input_and_output_pass_unchanged_and_memory_stays_flat() {
    let (mut world, before) = sleeping();
    let bytes: Vec<u8> = (0..8u32 << 20).map(|n| (n ^ (n >> 8)) as u8).collect();
    let mut child = spawn(world.warren().command(&exec(&["-i", "web.1", "cat"])));
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let returned = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut all = Vec::new();
            output.read_to_end(&mut all).unwrap();
            all
        });
        input.write_all(&bytes).unwrap();
        drop(input);
        reader.join().unwrap()
    });
    assert!(child.wait().unwrap().success() && returned == bytes, "{} bytes came back", returned.len());

    let mut idle = spawn(world.warren().command(&exec(&["web.1", "sh", "-c", "echo ready; sleep 300"])));
    idle.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let idle_client = anonymous_memory(idle.id().cast_signed());
    idle.kill().unwrap();
    idle.wait().unwrap();

    let pid = world.node.process().pid();
    let before_output = anonymous_memory(pid);
    let mut child = spawn(world.warren().command(&exec(&["web.1", "head", "-c", "209715200", "/dev/zero"])));
    let mut output = child.stdout.take().unwrap();
    // Nobody reads at first.
    let mut part = vec![0; 1 << 20];
    output.read_exact(&mut part).unwrap();
    let growth = |most: u64, pid| {
        let now = anonymous_memory(pid);
        assert!(now < most + MAX_GROWTH, "{most} bytes, and now {now}");
    };
    let mut moved = 0;
    eventually(SOON, "the output to stand still", || {
        let before = std::mem::replace(&mut moved, io_bytes(pid));
        if moved - before < 100_000 { Ok(()) } else { Err(format!("{} bytes", moved - before)) }
    });
    growth(before_output, pid);
    let client = child.id().cast_signed();
    growth(idle_client, client);
    let mut total = part.len() as u64;
    loop {
        let count = output.read(&mut part).unwrap();
        total += count as u64;
        if count == 0 {
            break;
        }
        if total % (32 << 20) < count as u64 {
            growth(before_output, pid);
            growth(idle_client, client);
        }
    }
    assert_eq!(total, 200 << 20);
    assert!(child.wait().unwrap().success());
    println!("node: {} KiB before, {} KiB after", before_output >> 10, anonymous_memory(pid) >> 10);
    world.assert_at_rest(&before);
}

/// Bytes of memory of a process without those of files, which the kernel may drop and read again.
pub(super) fn anonymous_memory(pid: i32) -> u64 {
    status(&format!("/proc/{pid}/status"), "RssAnon:") << 10
}

/// Bytes that a process has read so far.
fn io_bytes(pid: i32) -> u64 {
    status(&format!("/proc/{pid}/io"), "rchar:")
}

fn status(file: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// A terminal of the test.
struct Terminal {
    keyboard: File,
    line: OwnedFd,
}

impl Terminal {
    fn new() -> Self {
        let size = Winsize { ws_row: 33, ws_col: 101, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        fcntl(&pty.master, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        Self { keyboard: pty.master.into(), line: pty.slave }
    }

    /// Starts a command on it.
    fn start(&self, mut command: Command) -> Child {
        let end = || Stdio::from(self.line.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap()
    }

    /// Reads until `text` was printed.
    fn wait_for(&mut self, text: &str) {
        let (mut seen, mut bytes) = (Vec::new(), [0; 1024]);
        eventually(SOON, &format!("{text:?} on the terminal"), || {
            while let Ok(count) = self.keyboard.read(&mut bytes) {
                seen.extend_from_slice(&bytes[..count]);
            }
            let output = String::from_utf8_lossy(&seen);
            if output.contains(text) { Ok(()) } else { Err(output.into_owned()) }
        });
    }

    fn stty(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("stty");
        command.args(arguments).stdin(self.line.try_clone().unwrap());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }
}

#[test]
fn terminal_is_raw_has_its_size_and_is_restored() {
    let (world, before) = sleeping();
    let mut terminal = Terminal::new();
    let original = terminal.stty(&["-g"]);
    let text = "stty size; read a; stty size; trap 'echo interrupted; exit 5' INT; echo ready; \
                while true; do sleep 1; done";
    let mut child = terminal.start(world.warren().command(&exec(&["-it", "web.1", "sh", "-c", text])));
    terminal.wait_for("33 101\r\n");
    assert_ne!(terminal.stty(&["-g"]), original, "it is raw");
    terminal.stty(&["cols", "90", "rows", "20"]);
    signal(&child, Signal::SIGWINCH);
    eventually(SOON, "the new size", || {
        // It is sent independently of input.
        let sizes = world.warren().run_ok(&exec(&["web.1", "sh", "-c", "stty size </dev/pts/0"]));
        if sizes == "20 90\n" { Ok(()) } else { Err(sizes) }
    });
    terminal.keyboard.write_all(b"x\r").unwrap();
    terminal.wait_for("20 90\r\nready\r\n");
    terminal.keyboard.write_all(b"\x03").unwrap();
    terminal.wait_for("interrupted\r\n");
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(terminal.stty(&["-g"]), original, "after the end");

    let mut child = terminal.start(world.warren().command(&exec(&["-it", "web.1", "nosuch"])));
    assert_eq!(child.wait().unwrap().code(), Some(COMMAND_NOT_FOUND));
    assert_eq!(terminal.stty(&["-g"]), original, "after an error");

    let text = "echo ready; sleep 1001";
    let mut child = terminal.start(world.warren().command(&exec(&["-it", "web.1", "sh", "-c", text])));
    terminal.wait_for("ready\r\n");
    assert_ne!(terminal.stty(&["-g"]), original, "it is raw");
    signal(&child, Signal::SIGTERM);
    child.wait().unwrap();
    assert_eq!(terminal.stty(&["-g"]), original, "after a signal");
    wait_for_processes(&world, "sleep 1001", 0);
    world.assert_at_rest(&before);
}

#[test]
fn command_ends_with_its_client_with_a_signal_and_with_the_agent() {
    let (mut world, before) = sleeping();
    // Both ignore the hang-up; the second one replaces the shell.
    let stubborn = ["web.1", "sh", "-c", "trap '' HUP; sleep 1001 & exec sleep 1001"];
    let mut child = spawn(world.warren().command(&exec(&stubborn)));
    wait_for_processes(&world, "sleep 1001", 2);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for_processes(&world, "sleep 1001", 0);

    for (number, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let child = spawn(world.warren().command(&exec(&["web.1", "sleep", "1002"])));
        wait_for_processes(&world, "sleep 1002", 1);
        signal(&child, number);
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(code), "{number}");
        wait_for_processes(&world, "sleep 1002", 0);
    }

    let child = spawn(world.warren().command(&exec(&["-i", "web.1", "sh", "-c", "sleep 1003; cat"])));
    wait_for_processes(&world, "sleep 1003", 2);
    world.node.kill();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", String::from_utf8_lossy(&output.stderr));
    world.node.run_again();
    world.node.wait_ready();
    wait_for_processes(&world, "sleep 1003", 0);
    world.assert_at_rest(&before);
}

#[test]
fn command_runs_through_every_manager() {
    let trio = ThreeManagers::new();
    trio.create_service(&[]);
    for via in &trio.nodes {
        for slot in ["1", "2", "3"] {
            let name = format!("{SERVICE}.{slot}");
            let text = via.warren().run_ok(&exec(&[&name, "echo", "here"]));
            assert_eq!(text, "here\n");
        }
    }
}
