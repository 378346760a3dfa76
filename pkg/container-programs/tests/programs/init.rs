//! The first process of a container, in its own PID namespace.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use warren_testkit::scratch::ScratchDir;
use warren_testkit::wait::eventually;

use crate::shim::TIMEOUT;

/// `unshare` is the parent of the first process: it forwards its exit status, and kills it when killed
/// itself.
fn first(scratch: &ScratchDir, words: &[&str]) -> Command {
    let init = warren_container_programs::ensure_installed(scratch.path()).unwrap().init;
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(init).args(words);
    command
}

fn output(words: &[&str]) -> Output {
    first(&ScratchDir::new(), words).output().unwrap()
}

fn code(script: &str) -> Option<i32> {
    output(&["--", "sh", "-c", script]).status.code()
}

/// An init that runs a script.
struct Running {
    unshare: Child,
    output: PathBuf,
}

impl Running {
    fn start(scratch: &ScratchDir, script: &str) -> Running {
        Running::start_with(scratch, &["--", "sh", "-c", script])
    }

    fn start_with(scratch: &ScratchDir, arguments: &[&str]) -> Running {
        let words = scratch.path().join("words");
        let mut command = first(scratch, arguments);
        command.stdin(Stdio::null()).stdout(File::create(&words).unwrap());
        Running { unshare: command.spawn().unwrap(), output: words }
    }

    fn output(&self) -> String {
        std::fs::read_to_string(&self.output).unwrap()
    }

    #[track_caller]
    fn wait_for(&self, word: &str) {
        eventually(TIMEOUT, word, || if self.output().contains(word) { Ok(()) } else { Err(self.output()) });
    }

    /// Its pid in the namespace of the test.
    fn init(&self) -> Pid {
        let id = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap())
    }

    fn end(&mut self) -> Option<i32> {
        eventually(TIMEOUT, "the end", || self.unshare.try_wait().unwrap().ok_or_else(|| self.output()))
            .code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It fails only when it has ended.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
    }
}

#[test]
fn exit_status_is_that_of_program() {
    assert_eq!(code("exit 0"), Some(0));
    assert_eq!(code("exit 42"), Some(42));
    assert_eq!(code("kill -KILL $$"), Some(137));
    assert_eq!(code("kill -TERM $$"), Some(143));
    let arguments = output(&["--", "printf", "<%s>", "a b", "", "--"]);
    assert_eq!(String::from_utf8(arguments.stdout).unwrap(), "<a b><><-->");
}

#[test]
fn missing_program_is_named() {
    let scratch = ScratchDir::new();
    let plain = scratch.path().join("plain");
    std::fs::write(&plain, "text").unwrap();
    for (words, code, expected) in [
        (&["--", "no-such-program"][..], 127, "cannot run \"no-such-program\""),
        (&["--", "/no/such/program"], 127, "cannot run \"/no/such/program\""),
        (&["--", plain.to_str().unwrap()], 126, "cannot run"),
        (&["--", "/"], 126, "cannot run"),
        (&["--"], 125, "must be called as"),
        (&["sh"], 125, "must be called as"),
        (&["--input", "/pipe"], 125, "must be called as"),
    ] {
        let output = output(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        assert!(stderr.starts_with("warren-init: ") && stderr.contains(expected), "{words:?}: {stderr}");
    }
}

#[test]
fn input_comes_from_pipe_until_its_last_writer_closes() {
    let scratch = ScratchDir::new();
    let pipe = scratch.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let words = ["--input", pipe.to_str().unwrap(), "--", "sh", "-c", "cat; echo end; cat /dev/stdin"];
    let mut running = Running::start_with(&scratch, &words);
    let open = || OpenOptions::new().write(true).open(&pipe).unwrap();
    let holder = open();
    for line in ["first", "second"] {
        // Closed at once; the holder keeps the input open.
        open().write_all(format!("{line}\n").as_bytes()).unwrap();
        running.wait_for(line);
    }
    assert!(!running.output().contains("end"));
    drop(holder);
    assert_eq!(running.end(), Some(0));
    assert_eq!(running.output(), "first\nsecond\nend\n");
}

#[test]
fn program_that_closes_its_input_runs_on() {
    let scratch = ScratchDir::new();
    let pipe = scratch.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let script = "exec <&-; trap 'exit 3' TERM; echo closed; tail -f /dev/null & while :; do wait; done";
    let words = ["--input", pipe.to_str().unwrap(), "--", "sh", "-c", script];
    let mut running = Running::start_with(&scratch, &words);
    let mut writer = OpenOptions::new().write(true).open(&pipe).unwrap();
    running.wait_for("closed");
    writer.write_all(b"lost").unwrap();
    eventually(TIMEOUT, "the pipe has no reader", || match writer.write(b"x") {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Err(format!("{written:?}")),
    });
    kill(running.init(), Signal::SIGTERM).unwrap();
    assert_eq!(running.end(), Some(3), "it got no SIGPIPE");
}

#[test]
fn orphans_are_reaped() {
    // Each of these is sent to the first process when the shell in between exits.
    let script = "for i in $(seq 200); do (true &); done; echo started; exec tail -f /dev/null";
    let scratch = ScratchDir::new();
    let mut running = Running::start(&scratch, script);
    running.wait_for("started");
    let init = running.init();
    eventually(TIMEOUT, "the end of all orphans", || {
        let children = std::fs::read_to_string(format!("/proc/{init}/task/{init}/children")).unwrap();
        if children.split_whitespace().count() == 1 { Ok(()) } else { Err(children) }
    });
    kill(init, Signal::SIGTERM).unwrap();
    assert_eq!(running.end(), Some(143));
}

#[test]
fn signals_are_forwarded() {
    let script = "for s in HUP INT QUIT USR1 USR2 WINCH CONT TSTP RTMIN; do trap \"echo got $s.\" $s; done
        trap 'echo got TERM.; exit 7' TERM; echo ready;
        tail -f /dev/null & while :; do wait; done";
    let scratch = ScratchDir::new();
    let words = scratch.path().join("script");
    std::fs::write(&words, script).unwrap();
    // dash does not support real-time signals.
    let mut running = Running::start(&scratch, &format!("exec bash {}", words.display()));
    running.wait_for("ready");
    let init = running.init();
    let tell = |name: &str| {
        let status = Command::new("kill").args(["-s", name, &init.to_string()]).status().unwrap();
        assert!(status.success());
        running.wait_for(&format!("got {name}."));
    };
    for name in ["HUP", "INT", "QUIT", "USR1", "USR2", "WINCH", "CONT", "TSTP", "RTMIN"] {
        tell(name);
    }
    tell("TERM");
    assert_eq!(running.end(), Some(7));
}

#[test]
fn early_signal_is_not_lost() {
    for _ in 0..warren_testkit::soak::count(20, 500) {
        let scratch = ScratchDir::new();
        let mut running = Running::start(&scratch, "exec tail -f /dev/null");
        let init = eventually(TIMEOUT, "the first process", || {
            let id = running.unshare.id();
            let path = format!("/proc/{id}/task/{id}/children");
            let child = std::fs::read_to_string(path).unwrap_or_default();
            let pid: i32 = child.trim().parse().map_err(|_| "no child".to_owned())?;
            let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if comm == "warren-init\n" && is_prepared(pid) { Ok(Pid::from_raw(pid)) } else { Err(comm) }
        });
        kill(init, Signal::SIGTERM).unwrap();
        assert_eq!(running.end(), Some(143));
    }
}

/// Whether the process blocks SIGTERM. While it waits for signals, that is as soon as it has a child, the
/// kernel does not show it.
fn is_prepared(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap_or("0");
    let is_holding = u64::from_str_radix(blocked.trim(), 16).unwrap_or(0) & (1 << 14) != 0;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    is_holding || !children.is_empty()
}

#[test]
fn program_starts_with_default_signals() {
    let output = output(&["--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let set = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    assert_eq!(set("SigBlk:"), 0);
    // Signals ignored by the parent of this test stay ignored, but these are changed by the programs in
    // between.
    for signal in [Signal::SIGPIPE, Signal::SIGTTOU, Signal::SIGCHLD] {
        assert_eq!(set("SigIgn:") & (1 << (signal as i32 - 1)), 0, "{signal} is ignored");
    }
}

#[test]
fn program_gets_terminal() {
    let scratch = ScratchDir::new();
    let init = warren_container_programs::ensure_installed(scratch.path()).unwrap().init;
    // `script` creates a terminal; the process group of a process and of the terminal are fields 5 and 8.
    let stat = "read -r line < /proc/self/stat; set -- ${line##*)}; echo group $3 terminal $6 mine $$";
    let inner = format!("{} -- sh -c '{stat}'", init.display());
    let transcript = scratch.path().join("transcript");
    let output = Command::new("script")
        .args(["-q", "-e", "-c", &inner])
        .arg(&transcript)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(output.status.success() && words.len() >= 6 && words[0] == "group", "{text}");
    assert_eq!(words[1], words[3], "{text}");
    assert_eq!(words[1], words[5], "{text}");
    assert!(Path::new(&transcript).exists());
}
