//! The desired state and the observed state of a task. Both only advance: managers write the first, the
//! worker reports the second.

use serde::{Deserialize, Serialize};

/// Observed state of a task, as its worker last reported it. The numbers leave gaps for states of later
/// versions; within one attempt a task only moves to higher ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u16)]
pub enum TaskState {
    /// Just created.
    New = 0,
    /// Not assigned to a node yet.
    Pending = 64,
    /// Assigned to a node, which has not reported yet.
    Assigned = 192,
    /// The worker accepted it.
    Accepted = 256,
    /// Image, network and container record are being created.
    Preparing = 320,
    /// Can start immediately.
    Ready = 384,
    /// The process is being started, or waits for its next attempt.
    Starting = 448,
    /// The process runs.
    Running = 512,
    /// The process exited with success and is not restarted.
    Complete = 576,
    /// Stopped by the managers.
    Shutdown = 640,
    /// The restart policy allows no further attempt.
    Failed = 704,
    /// Can never run on this node as specified.
    Rejected = 768,
}

/// Desired state of a task. Only managers write it, and it only advances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[repr(u16)]
pub enum DesiredTaskState {
    /// Prepared (image, network, container), not started.
    Ready = 384,
    /// Running.
    Running = 512,
    /// Stopped, but kept for inspection.
    Shutdown = 640,
    /// Stopped, and removed from the node.
    Remove = 800,
}

/// How a process exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskExit {
    /// Exit status; 128 + signal number when a signal ended it.
    pub code: i32,
    /// The kernel killed a process of the container during this attempt because it was out of memory.
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

    /// Whether the task never runs again.
    pub fn is_terminal(self) -> bool {
        self > Self::Running
    }

    /// Human-readable: `RUNNING`.
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
}

/// Result of a task's health checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Health {
    /// It has no health check, or does not run.
    #[default]
    None,
    /// No check has succeeded yet.
    Starting,
    /// The last check succeeded, or too few failed in a row.
    Healthy,
    /// As many checks in a row failed as its spec allows: it receives no traffic and is replaced.
    Unhealthy,
}

impl Health {
    /// All values.
    pub const ALL: [Self; 4] = [Self::None, Self::Starting, Self::Healthy, Self::Unhealthy];

    /// Human-readable: `healthy`; empty for none.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

impl DesiredTaskState {
    /// Every desired state, in order.
    pub const ALL: [DesiredTaskState; 4] = [Self::Ready, Self::Running, Self::Shutdown, Self::Remove];

    /// Human-readable: `RUNNING`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Running => "RUNNING",
            Self::Shutdown => "SHUTDOWN",
            Self::Remove => "REMOVE",
        }
    }
}
