//! The handle of a process with simulated workers.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use warren_testkit::cli::WarrenCli;

use crate::node::cpu_seconds;

/// The argument that runs this program as simulated workers.
pub const SUBCOMMAND: &str = "fake-workers";

/// Workers that joined. Dropping it ends them.
pub struct FakeWorkers {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Seconds until the last one had joined.
    pub joined: f64,
}

impl FakeWorkers {
    /// Joins this many machines, without sessions.
    pub fn join(warren: &WarrenCli, managers: &[SocketAddr], count: usize) -> anyhow::Result<Self> {
        Self::join_as(warren, managers, count, "fake")
    }

    /// As [`FakeWorkers::join`]; their names begin with `name`.
    pub fn join_as(
        warren: &WarrenCli,
        managers: &[SocketAddr],
        count: usize,
        name: &str,
    ) -> anyhow::Result<Self> {
        let token = warren.run_ok(&["token", "create", "--role", "worker", "--quiet"]);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SUBCOMMAND).arg(token.trim()).arg(name).arg(count.to_string());
        command.args(managers.iter().map(ToString::to_string));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().context("a child's standard input")?;
        let output = BufReader::new(child.stdout.take().context("a child's standard output")?);
        let mut fakes = Self { child, input, output, joined: 0.0 };
        fakes.joined = fakes.time_reply("joined ")?;
        Ok(fakes)
    }

    /// Opens the sessions of all; returns the seconds until the last one was accepted.
    pub fn open(&mut self) -> anyhow::Result<f64> {
        writeln!(self.input, "open")?;
        self.time_reply("opened ")
    }

    /// Runs `change`, and returns the seconds from its end until each has heard of the cluster's network, and the
    /// bytes of that per worker.
    pub fn watch_network(
        &mut self,
        change: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<(f64, f64)> {
        writeln!(self.input, "watch")?;
        self.time_reply("watching ")?;
        change()?;
        let start = Instant::now();
        let bytes = self.time_reply("watched ")?;
        Ok((start.elapsed().as_secs_f64(), bytes))
    }

    /// Runs `change`, which stops a task, and returns the seconds from its end until the task's worker is told that all
    /// have acknowledged that.
    pub fn watch_withdrawal(&mut self, change: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<f64> {
        writeln!(self.input, "watch-withdrawal")?;
        self.time_reply("watching ")?;
        change()?;
        let start = Instant::now();
        self.time_reply("withdrawn ")?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Stops all of them without closing their connections.
    pub fn pause(&self) -> anyhow::Result<()> {
        Ok(kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGSTOP)?)
    }

    /// The CPU time of their process, in seconds.
    pub fn cpu(&self) -> anyhow::Result<f64> {
        cpu_seconds(self.child.id().cast_signed())
    }

    /// The number in the process's output line that starts with `keyword`.
    fn time_reply(&mut self, keyword: &str) -> anyhow::Result<f64> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let text = line.trim().strip_prefix(keyword);
        Ok(text
            .with_context(|| format!("expected {keyword:?}, the process of the workers wrote {line:?}"))?
            .parse()?)
    }
}

impl Drop for FakeWorkers {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
