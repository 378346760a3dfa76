//! What a check is aimed at, and the door through which programs are run there.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// A running container, as a check must know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The container's id, as the runtime spells it.
    pub container: String,
    /// Its first process, on the host. It may have ended, and the number may be another process's by now: whoever
    /// uses it makes sure.
    pub pid: u32,
    /// The file that its network namespace is bound to.
    pub netns: PathBuf,
    /// The task's own address in that namespace.
    pub address: Ipv4Addr,
}

/// Runs programs in running containers, with the limits, the user and the rights that the container has.
#[async_trait::async_trait]
pub trait Exec: Send + Sync + 'static {
    /// Runs `command` (a program and its arguments, never empty) to its end, or ends it with everything that it
    /// started after `timeout`. At most [`MAX_OUTPUT`](crate::MAX_OUTPUT) bytes of what it writes are kept, and the
    /// rest never holds it up. Dropping the future ends the program as well.
    async fn run(&self, target: &Target, command: &[String], timeout: Duration) -> Ran;
}

/// What came of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ran {
    /// How it ended.
    pub ending: Ending,
    /// The beginning of what it wrote to both outputs, as text.
    pub output: String,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// By itself: its exit status, 128 + signal number when a signal ended it.
    Exited(i32),
    /// It was still at work when its time was over.
    TimedOut,
    /// It could not be run, for this reason: there is no such program, the container is gone.
    Failed(String),
    /// The node could not even try, for this reason: it lacks memory or descriptors, or its runtime does not answer.
    /// That says nothing of the task.
    Unable(String),
}
