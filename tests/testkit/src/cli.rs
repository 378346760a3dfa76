//! Runs the `warren` command: arguments in; exit code, text and JSON out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::netns::enter;
use crate::tool;

/// Commands of the CLI have their own deadlines; this one catches those that miss them.
const DEADLINE: Duration = Duration::from_secs(300);

/// What [`WarrenCli::command`] adds to `service create`, unless the command line has a flag with this beginning. Most
/// tests need not wait for monitor periods, nor for clients of a stopping task or a program that ignores its stop
/// signal. Neither of the last two times is zero, so that both stages of a stop exist.
const SHORT_TIMES: [(&str, &[&str]); 3] = [
    ("--update-monitor", &["--update-monitor=0s", "--rollback-monitor=0s"]),
    ("--drain-delay", &["--drain-delay=100ms"]),
    ("--stop-grace", &["--stop-grace=1s"]),
];

/// The `warren` executable of this build: cargo puts it beside the directory of the test executables, or
/// beside the executable of a bench. Panics with the command to build it if it does not exist.
#[must_use]
#[track_caller]
pub fn binary() -> PathBuf {
    let own = std::env::current_exe().expect("a running program has a path");
    match find(&own) {
        Some(path) => path,
        None => panic!("there is no warren near {}: run `cargo build -p warren` first", own.display()),
    }
}

/// `target/debug/deps/test-0123` and `target/debug/bench` both belong to `target/debug/warren`.
fn find(own: &Path) -> Option<PathBuf> {
    own.ancestors().skip(1).take(2).map(|directory| directory.join("warren")).find(|path| path.is_file())
}

/// The result of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// The command line, for messages.
    pub command: String,
    /// The exit code; 128 plus the signal's number for a killed command, as in a shell.
    pub code: i32,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl std::fmt::Display for CommandOutput {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CommandOutput { command, code, stdout, stderr } = self;
        write!(formatter, "`{command}` ended with {code}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// The CLI with its own contexts file, optionally in the network namespace of a host.
#[derive(Debug, Clone)]
pub struct WarrenCli {
    program: PathBuf,
    contexts: PathBuf,
    netns: Option<PathBuf>,
    /// New services have the times of the command line, or the default ones.
    settles: bool,
}

impl WarrenCli {
    /// A CLI that keeps its contexts in the file `contexts`.
    #[must_use]
    #[track_caller]
    pub fn new(contexts: &Path) -> WarrenCli {
        WarrenCli { program: binary(), contexts: contexts.to_owned(), netns: None, settles: false }
    }

    /// Runs commands in the network namespace of the file `netns`.
    #[must_use]
    pub fn in_netns(mut self, netns: &Path) -> WarrenCli {
        self.netns = Some(netns.to_owned());
        self
    }

    /// Passes `service create` on as it is. Otherwise tasks of a new service count as ready as soon as they run and
    /// have little time to stop, unless the command line has other times.
    #[must_use]
    pub fn settling(mut self) -> WarrenCli {
        self.settles = true;
        self
    }

    /// Runs another program of this build, which is in the same directory as `warren`.
    #[must_use]
    pub fn with_program(mut self, name: &str) -> WarrenCli {
        self.program = self.program.with_file_name(name);
        self
    }

    /// Runs this copy of the program.
    #[must_use]
    pub fn with_copy(self, program: &Path) -> WarrenCli {
        WarrenCli { program: program.to_owned(), ..self }
    }

    /// A command that runs `warren` with `arguments`, for those that stay in the foreground. The environment
    /// of the user who runs the tests does not reach it.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = match &self.netns {
            Some(netns) => enter(netns, &self.program),
            None => Command::new(&self.program),
        };
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("WARREN_") {
                command.env_remove(name);
            }
        }
        command.env("WARREN_CONTEXTS", &self.contexts).env("NO_COLOR", "1");
        let created = arguments.windows(2).position(|words| words == ["service", "create"]);
        match created.filter(|_| !self.settles) {
            Some(place) => {
                let (before, after) = arguments.split_at(place + 2);
                command.args(before);
                for (flag, short) in SHORT_TIMES {
                    if !after.iter().any(|argument| argument.starts_with(flag)) {
                        command.args(short);
                    }
                }
                command.args(after)
            }
            None => command.args(arguments),
        };
        command
    }

    /// Runs `arguments` to the end, with any exit code; panics if it takes more than two minutes.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        let line = format!("warren {}", arguments.join(" "));
        match tool::output(self.command(arguments), DEADLINE) {
            Ok(output) => CommandOutput {
                command: line,
                code: exit_code(output.status),
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            },
            Err(error) => panic!("{error}"),
        }
    }

    /// Runs `arguments`, which must succeed, and returns the standard output.
    #[track_caller]
    pub fn run_ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, 0, "{ran}");
        ran.stdout
    }

    /// Runs `arguments` with `-o json`, which must succeed, and returns the parsed output.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["-o", "json"]).collect();
        let ran = self.run(&arguments);
        assert_eq!(ran.code, 0, "{ran}");
        match serde_json::from_str(&ran.stdout) {
            Ok(value) => value,
            Err(error) => panic!("not JSON: {error}\n{ran}"),
        }
    }

    /// Runs `arguments`, which must fail with the exit code `code` (not 0) and a reason on standard error;
    /// returns the reason.
    #[track_caller]
    pub fn run_refused(&self, arguments: &[&str], code: i32) -> String {
        assert_ne!(code, 0, "0 is not an error code");
        let ran = self.run(arguments);
        assert_eq!(ran.code, code, "{ran}");
        assert!(!ran.stderr.trim().is_empty(), "no reason on standard error: {ran}");
        ran.stderr
    }
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::scratch::{self, ScratchDir};

    /// A stand-in for the CLI: these tests check how it is run.
    fn fake_cli(scratch: &ScratchDir, script: &str) -> WarrenCli {
        let program = scratch.path().join("warren");
        scratch::install(&program, format!("#!/bin/sh\n{script}\n").as_bytes());
        WarrenCli { program, contexts: scratch.path().join("contexts.toml"), netns: None, settles: true }
    }

    #[test]
    fn the_executable_is_looked_for_beside_tests_and_benches() {
        let scratch = ScratchDir::new();
        let debug = scratch.path().join("debug");
        std::fs::create_dir_all(debug.join("deps")).unwrap();
        assert_eq!(find(&debug.join("deps/test-0123")), None);
        std::fs::write(debug.join("warren"), "").unwrap();
        assert_eq!(find(&debug.join("deps/test-0123")), Some(debug.join("warren")));
        assert_eq!(find(&debug.join("bench")), Some(debug.join("warren")));
    }

    #[test]
    fn exit_code_and_output_are_returned() {
        let scratch = ScratchDir::new();
        let warren = fake_cli(&scratch, "echo \"$@\"; echo why >&2; exit 3");
        let ran = warren.run(&["service", "ls"]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "service ls\n", "why\n"));
        assert_eq!(warren.run_refused(&["x"], 3), "why\n");
    }

    #[test]
    fn new_services_have_short_times_by_default() {
        let scratch = ScratchDir::new();
        let plain = WarrenCli { settles: false, ..fake_cli(&scratch, "echo \"$@\"") };
        let create = ["service", "create", "web"];
        let (monitors, stop) =
            ("--update-monitor=0s --rollback-monitor=0s", "--drain-delay=100ms --stop-grace=1s");
        assert_eq!(plain.run_ok(&create), format!("service create {monitors} {stop} web\n"));
        let own = plain.run_ok(&["service", "create", "web", "--update-monitor", "1s"]);
        assert_eq!(own, format!("service create {stop} web --update-monitor 1s\n"));
        let own = plain.run_ok(&["service", "create", "web", "--stop-grace=3s", "--drain-delay", "2s"]);
        assert_eq!(own, format!("service create {monitors} web --stop-grace=3s --drain-delay 2s\n"));
        assert_eq!(plain.settling().run_ok(&create), "service create web\n");
    }

    #[test]
    fn json_is_asked_for_and_parsed() {
        let scratch = ScratchDir::new();
        let warren = fake_cli(&scratch, "echo \"[\\\"$*\\\"]\"");
        assert_eq!(warren.json(&["node", "ls"])[0], "node ls -o json");
    }

    #[test]
    fn only_the_contexts_file_reaches_the_command() {
        let scratch = ScratchDir::new();
        let netns = Netns::new();
        let warren = fake_cli(&scratch, "env; readlink /proc/self/ns/net").in_netns(&netns.path());
        let text = warren.run_ok(&[]);
        let names: Vec<&str> = text.lines().filter(|line| line.starts_with("WARREN_")).collect();
        assert_eq!(names, [format!("WARREN_CONTEXTS={}", warren.contexts.display())]);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert!(!text.contains(own.to_str().unwrap()), "{text}");
    }

    #[test]
    #[should_panic(expected = "ended with 5")]
    fn failure_shows_all_output() {
        let scratch = ScratchDir::new();
        fake_cli(&scratch, "exit 5").run_ok(&["node", "ls"]);
    }
}
