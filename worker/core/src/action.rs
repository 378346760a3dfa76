//! What the shell can be told to do for a task. Every action is harmless the second time.

use std::fmt;

use crate::Ledger;

/// One thing to do for a task. The shell does it with a deadline and tells [`crate::Found`] how it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Look at the container's record and process.
    Inspect,
    /// Make the image present on the node, bound to the digest that the assignment names, and say which digest
    /// that is. Goes on for as long as a pull does: it is asked for again and again meanwhile, and a pull that
    /// is not asked for any more is given up.
    EnsureImage,
    /// Network namespace, link, address and routes of the task.
    EnsureNetwork,
    /// Directory with the files that the container sees and its log.
    EnsureFiles,
    /// Make the volumes that the task mounts, and fill those that are empty from the image.
    EnsureVolumes,
    /// Files of the task's secrets and configs in memory. Needs a manager only where they are not there wholly.
    EnsureContents,
    /// Take the published host ports for this node, without sending the task any traffic; a task that was
    /// served is withdrawn.
    HoldPorts,
    /// Take the published host ports and send the task its share of their traffic.
    Serve,
    /// Container record with the ledger, root filesystem and a process that is made but not started.
    EnsureContainer,
    /// Start the process that was made.
    Start,
    /// Write the ledger into the container's record; without a record it is kept in memory alone.
    RecordLedger(Ledger),
    /// Ask the process to stop.
    SignalStop,
    /// End every process of the container.
    Kill,
    /// Forget the process that ended or was never started; record and root filesystem stay.
    DeleteProcess,
    /// Remove record and root filesystem.
    RemoveContainer,
    /// Undo [`Action::EnsureNetwork`].
    RemoveNetwork,
    /// Undo [`Action::EnsureContents`]. Volumes outlive their tasks.
    RemoveContents,
    /// No traffic, and the host ports are free unless another task of the service holds them.
    ReleasePorts,
    /// Undo [`Action::EnsureFiles`].
    RemoveFiles,
}

/// The kind of an [`Action`], to remember which one failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "each is the action of the same name")]
pub enum Verb {
    Inspect,
    EnsureImage,
    EnsureNetwork,
    EnsureFiles,
    EnsureVolumes,
    EnsureContents,
    HoldPorts,
    Serve,
    EnsureContainer,
    Start,
    RecordLedger,
    SignalStop,
    Kill,
    DeleteProcess,
    RemoveContainer,
    RemoveNetwork,
    RemoveContents,
    ReleasePorts,
    RemoveFiles,
}

impl Action {
    /// What kind of action it is.
    pub fn verb(&self) -> Verb {
        match self {
            Self::Inspect => Verb::Inspect,
            Self::EnsureImage => Verb::EnsureImage,
            Self::EnsureNetwork => Verb::EnsureNetwork,
            Self::EnsureFiles => Verb::EnsureFiles,
            Self::EnsureVolumes => Verb::EnsureVolumes,
            Self::EnsureContents => Verb::EnsureContents,
            Self::HoldPorts => Verb::HoldPorts,
            Self::Serve => Verb::Serve,
            Self::EnsureContainer => Verb::EnsureContainer,
            Self::Start => Verb::Start,
            Self::RecordLedger(_) => Verb::RecordLedger,
            Self::SignalStop => Verb::SignalStop,
            Self::Kill => Verb::Kill,
            Self::DeleteProcess => Verb::DeleteProcess,
            Self::RemoveContainer => Verb::RemoveContainer,
            Self::RemoveNetwork => Verb::RemoveNetwork,
            Self::RemoveContents => Verb::RemoveContents,
            Self::ReleasePorts => Verb::ReleasePorts,
            Self::RemoveFiles => Verb::RemoveFiles,
        }
    }
}

impl Verb {
    /// It leads towards a running process, so its permanent failure means that the task can never run here.
    pub fn brings_up(self) -> bool {
        matches!(
            self,
            Self::EnsureImage
                | Self::EnsureNetwork
                | Self::EnsureFiles
                | Self::EnsureVolumes
                | Self::EnsureContents
                | Self::HoldPorts
                | Self::Serve
                | Self::EnsureContainer
                | Self::Start
        )
    }
}

impl Verb {
    /// It changes the container's record or process, so that the container must be looked at after a
    /// failure.
    pub fn is_about_the_container(self) -> bool {
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

impl fmt::Display for Verb {
    /// What was being done, to go before the error: `making the network`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inspect => "looking at the container",
            Self::EnsureImage => "getting the image",
            Self::EnsureNetwork => "making the network",
            Self::EnsureFiles => "writing the task's files",
            Self::EnsureVolumes => "making its volumes",
            Self::EnsureContents => "getting its secrets and configs",
            Self::HoldPorts => "taking the published ports",
            Self::Serve => "publishing the ports",
            Self::EnsureContainer => "making the container",
            Self::Start => "starting the process",
            Self::RecordLedger => "recording the task's history",
            Self::SignalStop => "sending the stop signal",
            Self::Kill => "killing the container",
            Self::DeleteProcess => "clearing the ended process",
            Self::RemoveContainer => "removing the container",
            Self::RemoveNetwork => "removing the network",
            Self::RemoveContents => "removing its secrets and configs",
            Self::ReleasePorts => "releasing the published ports",
            Self::RemoveFiles => "removing the task's files",
        })
    }
}
