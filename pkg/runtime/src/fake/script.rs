//! How a fake container behaves, and how a fake runtime fails.

use std::time::Duration;

use crate::error::Error;

/// The behaviour of a fake container. The default runs until a signal ends it.
#[derive(Clone, Debug, Default)]
pub struct Script {
    /// How long making its process takes.
    pub create_latency: Duration,
    /// How long starting it takes.
    pub start_latency: Duration,
    /// Why its process cannot be made.
    pub create_error: Option<Failure>,
    /// Ends by itself: how long after its start, and with which code.
    pub exit_after: Option<(Duration, u32)>,
    /// That end is a kill for want of memory.
    pub out_of_memory: bool,
    /// Does not end on any signal but SIGKILL.
    pub ignores_signals: bool,
}

/// A call of the runtime.
#[allow(missing_docs, reason = "each is the method of the same name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Info,
    List,
    Inspect,
    EnsureCreated,
    Start,
    Signal,
    DeleteProcess,
    Remove,
    SetLedger,
    ImageFiles,
    RunsAs,
    SweepStrays,
}

/// When a call fails.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Before it took effect.
    Before(Failure),
    /// After it took effect: the answer got lost.
    After(Failure),
}

/// How a call fails.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The runtime is away.
    Unavailable,
    /// No answer in time.
    Timeout,
    /// Any other failure, with its text.
    Failed(String),
    /// The image does not have this command.
    CommandNotFound(String),
}

impl Failure {
    pub(super) fn into_error(self, operation: Operation) -> Error {
        let action = format!("{operation:?}");
        match self {
            Self::Unavailable => Error::Unavailable { action, reason: "set to be away".to_owned() },
            Self::Timeout => Error::Timeout { action, reason: "set to be late".to_owned() },
            Self::Failed(reason) => Error::Failed { action, reason },
            Self::CommandNotFound(command) => {
                Error::CommandNotFound { command, reason: "executable file not found in $PATH".to_owned() }
            }
        }
    }
}
