//! Scripted behaviour of fake containers, and injected faults.

use std::time::Duration;

use crate::error::Error;

/// The behaviour of a fake container. The default runs until a signal ends it.
#[derive(Clone, Debug, Default)]
pub struct ContainerScript {
    /// Duration of the creation of its process.
    pub create_latency: Duration,
    /// Duration of its start.
    pub start_latency: Duration,
    /// Error of the creation of its process.
    pub create_error: Option<FakeFailure>,
    /// Exits by itself: time after the start, and exit code.
    pub exit_after: Option<(Duration, u32)>,
    /// That exit is an OOM kill.
    pub out_of_memory: bool,
    /// Ignores all signals but SIGKILL.
    pub ignores_signals: bool,
}

/// A call of the runtime.
#[allow(missing_docs, reason = "each is the method of the same name")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeOperation {
    Info,
    List,
    Inspect,
    EnsureCreated,
    Start,
    Signal,
    DeleteProcess,
    Remove,
    RemoveLayer,
    SetAttemptHistory,
    ImageFiles,
    ResolveUser,
    Exec,
    SweepOrphans,
}

/// Time of an injected fault.
#[derive(Clone, Debug)]
pub enum FaultPoint {
    /// Before the call took effect.
    Before(FakeFailure),
    /// After the call took effect: the answer is lost.
    After(FakeFailure),
}

/// Kind of an injected fault.
#[derive(Clone, Debug)]
pub enum FakeFailure {
    /// The runtime is unavailable.
    Unavailable,
    /// No answer in time.
    Timeout,
    /// Any other failure, with its message.
    Failed(String),
    /// The command is not in the image.
    CommandNotFound(String),
}

impl FakeFailure {
    pub(super) fn into_error(self, operation: RuntimeOperation) -> Error {
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
