//! The life of a task as two clocks that only go forward: what managers desire, what the worker observed.

use serde::{Deserialize, Serialize};

/// How far a task has come, as its worker last said. The numbers leave gaps for states of later versions;
/// within one attempt a task only moves to higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u16)]
pub enum TaskState {
    /// Just created.
    New = 0,
    /// Waits for a node.
    Pending = 64,
    /// Has a node, which has not answered yet.
    Assigned = 192,
    /// The worker took it on.
    Accepted = 256,
    /// Image, network and the container's record are being made.
    Preparing = 320,
    /// Could start at once.
    Ready = 384,
    /// The process is being started, or waits for its next attempt.
    Starting = 448,
    /// The process runs.
    Running = 512,
    /// The process ended by itself with success and is not started again.
    Complete = 576,
    /// Stopped because the managers wanted it stopped.
    Shutdown = 640,
    /// The worker gave up after its attempts.
    Failed = 704,
    /// Can never run on this node as specified.
    Rejected = 768,
}

/// What managers want of a task. Only managers write it, and it only goes forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u16)]
pub enum Desired {
    /// Prepared (image, network, container), not started.
    Ready = 384,
    /// Running.
    Running = 512,
    /// Stopped, but kept for inspection.
    Shutdown = 640,
    /// Stopped, and nothing of it left on the node.
    Remove = 800,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Exit status; 128 + signal number when a signal ended it.
    pub code: i32,
    /// The kernel killed something in the container for want of memory during this attempt.
    pub out_of_memory: bool,
}

impl TaskState {
    /// Every state, in order.
    pub const ALL: [TaskState; 12] = [
        Self::New,
        Self::Pending,
        Self::Assigned,
        Self::Accepted,
        Self::Preparing,
        Self::Ready,
        Self::Starting,
        Self::Running,
        Self::Complete,
        Self::Shutdown,
        Self::Failed,
        Self::Rejected,
    ];

    /// The task will never run again.
    pub fn is_terminal(self) -> bool {
        self > Self::Running
    }

    /// As people see it: `RUNNING`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "NEW",
            Self::Pending => "PENDING",
            Self::Assigned => "ASSIGNED",
            Self::Accepted => "ACCEPTED",
            Self::Preparing => "PREPARING",
            Self::Ready => "READY",
            Self::Starting => "STARTING",
            Self::Running => "RUNNING",
            Self::Complete => "COMPLETE",
            Self::Shutdown => "SHUTDOWN",
            Self::Failed => "FAILED",
            Self::Rejected => "REJECTED",
        }
    }

    /// From its number, `None` for one this version does not know.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u16 == number)
    }
}

/// What a task's checks say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// It has none, or does not run.
    #[default]
    None,
    /// None has succeeded yet.
    Starting,
    /// The last ones succeeded, or not enough of them failed in a row.
    Healthy,
    /// As many failed in a row as its spec allows: it gets no traffic, and is replaced.
    Unhealthy,
}

impl Health {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::None, Self::Starting, Self::Healthy, Self::Unhealthy];

    /// As people see it: `healthy`; empty for none.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl Desired {
    /// Every desire, in order.
    pub const ALL: [Desired; 4] = [Self::Ready, Self::Running, Self::Shutdown, Self::Remove];

    /// As people see it: `RUNNING`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Running => "RUNNING",
            Self::Shutdown => "SHUTDOWN",
            Self::Remove => "REMOVE",
        }
    }

    /// From its number, `None` for one this version does not know.
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|desired| *desired as u16 == number)
    }
}
