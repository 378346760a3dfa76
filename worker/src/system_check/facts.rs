//! What the checks find on a machine.

use std::net::SocketAddr;
use std::time::Duration;

use warren_network::{NetworkRequirement, PortUser};
use warren_runtime::supervise::{self, ContainerdPreview};
use warren_runtime::{AppArmorState, CgroupSupport};

use super::NeededPort;
use crate::node::meter::{DiskUsage, MemoryUsage};

/// A fact about the machine.
#[derive(Debug)]
pub(super) enum Fact {
    /// User id of this process.
    User(u32),
    /// Release of the kernel.
    Kernel(std::io::Result<String>),
    Cgroups(std::io::Result<CgroupSupport>),
    /// How the kernel has the file system overlay; `None` without it.
    Overlay(Option<String>),
    Network(NetworkRequirement, Result<String, warren_network::Error>),
    Containerd(Result<ContainerdPreview, supervise::Error>),
    OciRuntime(Result<String, warren_runtime::Error>),
    /// Of the machine, whether it has the program that loads profiles, and the process of the node that runs here.
    AppArmor {
        state: AppArmorState,
        has_parser: bool,
        node: Option<u32>,
    },
    Port {
        needed: NeededPort,
        user: Result<Option<PortUser>, warren_network::Error>,
        node: Option<u32>,
    },
    /// Whether the kernel's clock is synchronised, and its largest error.
    Clock(std::io::Result<KernelClock>),
    /// The file system of the data directory; `None` if it cannot be read.
    Disk(Option<DiskUsage>),
    Memory(Option<MemoryUsage>),
    /// The servers in the resolver's configuration.
    Nameservers(std::io::Result<Vec<SocketAddr>>),
    /// Only root can find out.
    NeedsRoot,
    /// The check had no result within this time.
    Late(Duration),
}

/// What the kernel knows of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelClock {
    pub is_synchronised: bool,
    /// Upper bound of the error, as far as it is known.
    pub max_error: Duration,
}
