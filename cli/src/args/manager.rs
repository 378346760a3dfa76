//! `warren manager ...`: flags of a node's own process, which are those of its parts.

use clap::{Args, Subcommand};

/// Where a node keeps what, and where it shows whether it is well.
pub use warren_process::{MetricsArgs, PlaceArgs};

#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// Make a cluster on this machine and run its first manager and worker, or resume what an earlier init
    /// made
    Init(NodeArgs),
    /// Run what an earlier `manager init` made
    Run(NodeArgs),
}

#[derive(Debug, Clone, Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub place: PlaceArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Run no tasks on this machine
    #[arg(
        long, env = "WARREN_MANAGER_ONLY", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true"
    )]
    pub manager_only: Option<bool>,
    #[command(flatten)]
    pub manager: warren_manager::process::Flags,
    #[command(flatten)]
    pub worker: warren_worker::process::Flags,
}
