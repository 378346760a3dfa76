//! The target of a check, and the interface that runs programs in it.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// A running container, as needed by a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeTarget {
    /// Container id in the runtime.
    pub container: String,
    /// The file to which its network namespace is bound.
    pub netns: PathBuf,
    /// Address of the task in that namespace.
    pub address: Ipv4Addr,
}

/// Runs programs in running containers, with the limits, user and privileges of the container.
#[async_trait::async_trait]
pub trait Exec: Send + Sync + 'static {
    /// Runs `command` (a program and its arguments, never empty) until it exits, or kills it with all its
    /// children after `timeout`. Keeps at most [`MAX_OUTPUT`](crate::MAX_OUTPUT) bytes of its output; the
    /// rest is discarded without blocking it. Dropping the future kills the program as well.
    async fn run(&self, target: &ProbeTarget, command: &[String], timeout: Duration) -> ExecResult;
}

/// Result of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecResult {
    /// How it ended.
    pub status: ExecStatus,
    /// The beginning of its combined stdout and stderr, as text.
    pub output: String,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecStatus {
    /// It exited: exit status, or 128 + signal number.
    Exited(i32),
    /// It exceeded the timeout.
    TimedOut,
    /// It could not be started, with the reason: no such program, or the container does not exist.
    Failed(String),
    /// The node could not start it, with the reason: no memory, no descriptors, or no answer of the
    /// runtime. This is no result for the task.
    NotStarted(String),
}
