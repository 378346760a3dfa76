//! The actions that the driver executes for a task. Every action is idempotent.

use std::fmt;

use crate::AttemptHistory;

/// One action for a task. The driver executes it with a deadline and records the result in
/// [`crate::ObservedTask`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Inspect the container's record and process.
    Inspect,
    /// Pull the image that the assignment's digest names, if needed, and return its digest. Takes as long as
    /// a pull does: the action is requested repeatedly meanwhile, and a pull that is not requested any more
    /// is cancelled.
    EnsureImage,
    /// Set up network namespace, link, address and routes of the task.
    EnsureNetwork,
    /// Create the directory with the files for the container and its log.
    EnsureFiles,
    /// Create the volumes that the task mounts, and fill empty ones from the image.
    EnsureVolumes,
    /// Create the files of the task's secrets and configs in memory. Needs a manager only if they are
    /// incomplete.
    EnsureSecretObjects,
    /// Reserve the published host ports for this node, without routing traffic to the task; a task that
    /// received traffic is withdrawn.
    ReservePorts,
    /// Reserve the published host ports and route the task's share of the traffic to it.
    RouteTraffic,
    /// Create the container record with the attempt history, the root filesystem and a process that is not
    /// started.
    EnsureContainer,
    /// Start the created process.
    Start,
    /// Write the history into the container's record; without a record it is only kept in memory.
    RecordHistory(AttemptHistory),
    /// Begin to run the task's hooks of this kind in its container, which may take long. Their end is recorded by
    /// [`crate::ObservedTask::record_hooks_end`].
    RunHooks(HookKind),
    /// Send the stop signal to the process, and end hooks that still run.
    SignalStop,
    /// Kill every process of the container.
    Kill,
    /// Delete the process that exited or was never started; record and root filesystem stay.
    DeleteProcess,
    /// Remove the writable layer, of which an ended task needs nothing; the record stays.
    RemoveLayer,
    /// Remove record and root filesystem.
    RemoveContainer,
    /// Undo [`Action::EnsureNetwork`].
    RemoveNetwork,
    /// Undo [`Action::EnsureSecretObjects`]. Volumes outlive their tasks.
    RemoveSecretObjects,
    /// Stop the traffic and free the host ports, unless another task of the service holds them.
    ReleasePorts,
    /// Undo [`Action::EnsureFiles`].
    RemoveFiles,
}

/// When hooks run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookKind {
    /// Once the process has started.
    PostStart,
    /// Before the stop signal.
    PreStop,
}

impl fmt::Display for HookKind {
    /// As in the spec of Compose.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PostStart => "post_start",
            Self::PreStop => "pre_stop",
        })
    }
}

/// The kind of an [`Action`], the key of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the action of the same name")]
pub enum ActionKind {
    Inspect,
    EnsureImage,
    EnsureNetwork,
    EnsureFiles,
    EnsureVolumes,
    EnsureSecretObjects,
    ReservePorts,
    RouteTraffic,
    EnsureContainer,
    Start,
    RecordHistory,
    RunHooks,
    SignalStop,
    Kill,
    DeleteProcess,
    RemoveLayer,
    RemoveContainer,
    RemoveNetwork,
    RemoveSecretObjects,
    ReleasePorts,
    RemoveFiles,
}

impl Action {
    /// The kind of the action.
    pub fn kind(&self) -> ActionKind {
        match self {
            Self::Inspect => ActionKind::Inspect,
            Self::EnsureImage => ActionKind::EnsureImage,
            Self::EnsureNetwork => ActionKind::EnsureNetwork,
            Self::EnsureFiles => ActionKind::EnsureFiles,
            Self::EnsureVolumes => ActionKind::EnsureVolumes,
            Self::EnsureSecretObjects => ActionKind::EnsureSecretObjects,
            Self::ReservePorts => ActionKind::ReservePorts,
            Self::RouteTraffic => ActionKind::RouteTraffic,
            Self::EnsureContainer => ActionKind::EnsureContainer,
            Self::Start => ActionKind::Start,
            Self::RecordHistory(_) => ActionKind::RecordHistory,
            Self::RunHooks(_) => ActionKind::RunHooks,
            Self::SignalStop => ActionKind::SignalStop,
            Self::Kill => ActionKind::Kill,
            Self::DeleteProcess => ActionKind::DeleteProcess,
            Self::RemoveLayer => ActionKind::RemoveLayer,
            Self::RemoveContainer => ActionKind::RemoveContainer,
            Self::RemoveNetwork => ActionKind::RemoveNetwork,
            Self::RemoveSecretObjects => ActionKind::RemoveSecretObjects,
            Self::ReleasePorts => ActionKind::ReleasePorts,
            Self::RemoveFiles => ActionKind::RemoveFiles,
        }
    }
}

impl ActionKind {
    /// Whether a running process needs it, so that its permanent failure means that the task can never run
    /// here.
    pub fn is_required_to_run(self) -> bool {
        matches!(
            self,
            Self::EnsureImage
                | Self::EnsureNetwork
                | Self::EnsureFiles
                | Self::EnsureVolumes
                | Self::EnsureSecretObjects
                | Self::ReservePorts
                | Self::RouteTraffic
                | Self::EnsureContainer
                | Self::Start
        )
    }
}

impl ActionKind {
    /// Whether it changes the container's record or process, so that the container must be inspected after a
    /// failure.
    pub fn affects_container(self) -> bool {
        matches!(
            self,
            Self::EnsureContainer
                | Self::Start
                | Self::SignalStop
                | Self::Kill
                | Self::DeleteProcess
                | Self::RemoveContainer
        )
    }
}

impl fmt::Display for ActionKind {
    /// What was being done, as a prefix of the error: `creating network`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inspect => "inspecting container",
            Self::EnsureImage => "pulling image",
            Self::EnsureNetwork => "creating network",
            Self::EnsureFiles => "writing task files",
            Self::EnsureVolumes => "creating volumes",
            Self::EnsureSecretObjects => "fetching secrets and configs",
            Self::ReservePorts => "reserving published ports",
            Self::RouteTraffic => "publishing ports",
            Self::EnsureContainer => "creating container",
            Self::Start => "starting process",
            Self::RecordHistory => "recording attempt history",
            Self::RunHooks => "running hooks",
            Self::SignalStop => "sending stop signal",
            Self::Kill => "killing container",
            Self::DeleteProcess => "deleting exited process",
            Self::RemoveLayer => "removing writable layer",
            Self::RemoveContainer => "removing container",
            Self::RemoveNetwork => "removing network",
            Self::RemoveSecretObjects => "removing secrets and configs",
            Self::ReleasePorts => "releasing published ports",
            Self::RemoveFiles => "removing task files",
        })
    }
}
