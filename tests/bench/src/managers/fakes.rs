//! A process with workers that pretend.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::warren::Warren;

use crate::node::cpu_seconds;

/// The word by which this program runs as them.
pub const WORD: &str = "fake-workers";

/// Workers that joined. Dropping it ends them.
pub struct Fakes {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// How many seconds passed until the last one had joined.
    pub joined: f64,
}

impl Fakes {
    /// Has so many machines join; they open no sessions yet.
    pub fn join(warren: &Warren, managers: &[SocketAddr], count: usize) -> anyhow::Result<Self> {
        Self::join_as(warren, managers, count, "fake")
    }

    /// As [`Fakes::join`]; their names begin with `name`.
    pub fn join_as(
        warren: &Warren,
        managers: &[SocketAddr],
        count: usize,
        name: &str,
    ) -> anyhow::Result<Self> {
        let token = warren.ok(&["token", "create", "--role", "worker", "--quiet"]);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(WORD).arg(token.trim()).arg(name).arg(count.to_string());
        command.args(managers.iter().map(ToString::to_string));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("a child's standard input")?;
        let output = BufReader::new(child.stdout.take().context("a child's standard output")?);
        let mut fakes = Self { child, input, output, joined: 0.0 };
        fakes.joined = fakes.hear_after("joined ")?;
        Ok(fakes)
    }

    /// Has all of them open their sessions; answers how many seconds passed until the last one was welcome.
    pub fn open(&mut self) -> anyhow::Result<f64> {
        writeln!(self.input, "open")?;
        self.hear_after("opened ")
    }

    /// They stand still from now on, without a word to anybody.
    pub fn fall_silent(&self) -> anyhow::Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGSTOP)?)
    }

    /// How much CPU their process has used, in seconds.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.child.id().cast_signed())
    }

    /// The number that they say behind `word`.
    fn hear_after(&mut self, word: &str) -> anyhow::Result<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let said = line.trim().strip_prefix(word);
        Ok(said.with_context(|| format!("wanted {word:?}, the workers said {line:?}"))?.parse()?)
    }
}

impl Drop for Fakes {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
