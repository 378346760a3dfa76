//! Checks whether a machine can run a node, before it is one or when something is wrong. Start reading at [`check`].
//!
//! `gather` finds facts, `judge` decides about them and has no input but these. Nothing on the machine is changed: no
//! program is started that would stay, no packet is sent. Only the programs of the firewall, which list rules here, may
//! have the kernel load its modules for that.

mod facts;
mod gather;
mod judge;
mod kernel_clock;

use std::path::PathBuf;

use warren_network::HostPort;
use warren_types::NodeCheckOutcome;

use crate::process::WorkerFlags;

/// What to check.
#[derive(Debug, Clone)]
pub struct SystemCheckOptions {
    /// Directory for persistent state; need not exist.
    pub data_dir: PathBuf,
    /// Directory for sockets and volatile state; need not exist.
    pub run_dir: PathBuf,
    /// Flags of the worker; `None` for a machine that runs no tasks.
    pub worker: Option<WorkerFlags>,
    /// Ports that the node needs.
    pub ports: Vec<NeededPort>,
    /// Process of the node that runs here, which may have these ports.
    pub node: Option<u32>,
}

/// A port that a node needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededPort {
    /// What it is for: `managers and API`.
    pub purpose: &'static str,
    /// The port.
    pub at: HostPort,
    /// The flag that selects another one.
    pub flag: &'static str,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemCheckResult {
    /// Name of the check.
    pub name: String,
    /// How it went.
    pub outcome: NodeCheckOutcome,
    /// What was found.
    pub message: String,
    /// The command or change that mends it; empty if it passed.
    pub hint: String,
}

/// Runs all checks at once; it takes a few seconds at most.
pub async fn check(options: SystemCheckOptions) -> Vec<SystemCheckResult> {
    let facts = gather::gather(options).await;
    facts.into_iter().map(|(name, fact)| judge::judge(name, &fact)).collect()
}
