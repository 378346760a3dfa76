//! The `warren` command as a person types it: arguments in; exit code, words and JSON out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::netns::enter;
use crate::tool;

/// A command of the CLI has deadlines of its own; this one catches those that do not keep them.
const DEADLINE: Duration = Duration::from_secs(120);

/// The `warren` executable of this build: cargo puts it beside the directory of the test executables, or
/// beside the executable of a bench. Panics with what to run when it is not there.
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

/// How a command ended and what it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// The command line, for messages.
    pub command: String,
    /// The exit code; 128 plus the signal's number for one that was killed, as a shell has it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl std::fmt::Display for Ran {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Ran { command, code, stdout, stderr } = self;
        write!(formatter, "`{command}` ended with {code}\nstdout: {stdout}\nstderr: {stderr}")
    }
}

/// The CLI with a contexts file of its own, in the network namespace of a host if wanted.
#[derive(Debug, Clone)]
pub struct Warren {
    program: PathBuf,
    contexts: PathBuf,
    netns: Option<PathBuf>,
}

impl Warren {
    /// A CLI that keeps its contexts in the file `contexts`.
    #[must_use]
    #[track_caller]
    pub fn new(contexts: &Path) -> Warren {
        Warren { program: binary(), contexts: contexts.to_owned(), netns: None }
    }

    /// Runs commands in the network namespace of the file `netns` from now on.
    #[must_use]
    pub fn inside(mut self, netns: &Path) -> Warren {
        self.netns = Some(netns.to_owned());
        self
    }

    /// Runs another program of this build from now on, which lies beside `warren`.
    #[must_use]
    pub fn beside(mut self, name: &str) -> Warren {
        self.program = self.program.with_file_name(name);
        self
    }

    /// A command that will run `warren` with `arguments`: for those that stay in the foreground. Settings of
    /// the person who runs the tests do not reach it.
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
        command.env("WARREN_CONTEXTS", &self.contexts).env("NO_COLOR", "1").args(arguments);
        command
    }

    /// Runs `arguments` to the end, however it ends; panics only when it does not within two minutes.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> Ran {
        let line = format!("warren {}", arguments.join(" "));
        match tool::output(self.command(arguments), DEADLINE) {
            Ok(output) => Ran {
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
    pub fn ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.code, 0, "{ran}");
        ran.stdout
    }

    /// Runs `arguments` with `-o json`, which must succeed, and returns what it printed.
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

    /// Runs `arguments`, which must end with the exit code `code` (not 0) and a reason on standard error;
    /// returns the reason.
    #[track_caller]
    pub fn refused(&self, arguments: &[&str], code: i32) -> String {
        assert_ne!(code, 0, "0 is not a refusal");
        let ran = self.run(arguments);
        assert_eq!(ran.code, code, "{ran}");
        assert!(!ran.stderr.trim().is_empty(), "a refusal without a reason: {ran}");
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
    use crate::scratch::{self, Scratch};

    /// A stand-in for the CLI: what is tested here is how it is run.
    fn stand_in(scratch: &Scratch, script: &str) -> Warren {
        let program = scratch.path().join("warren");
        scratch::install(&program, format!("#!/bin/sh\n{script}\n").as_bytes());
        Warren { program, contexts: scratch.path().join("contexts.toml"), netns: None }
    }

    #[test]
    fn the_executable_is_looked_for_beside_tests_and_benches() {
        let scratch = Scratch::new();
        let debug = scratch.path().join("debug");
        std::fs::create_dir_all(debug.join("deps")).unwrap();
        assert_eq!(find(&debug.join("deps/test-0123")), None);
        std::fs::write(debug.join("warren"), "").unwrap();
        assert_eq!(find(&debug.join("deps/test-0123")), Some(debug.join("warren")));
        assert_eq!(find(&debug.join("bench")), Some(debug.join("warren")));
    }

    #[test]
    fn code_and_words_come_back() {
        let scratch = Scratch::new();
        let warren = stand_in(&scratch, "echo \"$@\"; echo why >&2; exit 3");
        let ran = warren.run(&["service", "ls"]);
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "service ls\n", "why\n"));
        assert_eq!(warren.refused(&["x"], 3), "why\n");
    }

    #[test]
    fn json_is_asked_for_and_parsed() {
        let scratch = Scratch::new();
        let warren = stand_in(&scratch, "echo \"[\\\"$*\\\"]\"");
        assert_eq!(warren.json(&["node", "ls"])[0], "node ls -o json");
    }

    #[test]
    fn only_the_contexts_file_reaches_the_command() {
        let scratch = Scratch::new();
        let netns = Netns::new();
        let warren = stand_in(&scratch, "env; readlink /proc/self/ns/net").inside(&netns.path());
        let said = warren.ok(&[]);
        let names: Vec<&str> = said.lines().filter(|line| line.starts_with("WARREN_")).collect();
        assert_eq!(names, [format!("WARREN_CONTEXTS={}", warren.contexts.display())]);
        let own = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert!(!said.contains(own.to_str().unwrap()), "{said}");
    }

    #[test]
    #[should_panic(expected = "ended with 5")]
    fn a_failure_is_shown_whole() {
        let scratch = Scratch::new();
        stand_in(&scratch, "exit 5").ok(&["node", "ls"]);
    }
}
