//! `warren manager ...`: the commands that run a node, with the flags of its manager and its worker, and the
//! requests to the managers of a cluster.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_manager::process::{InitArgs, ManagerJoinArgs};
use warren_types::ManagerAddress;
use warren_worker::process::TaintArgs;

use super::listing::{ListingArgs, PrettyArgs};

pub use warren_daemon::{DirArgs, MetricsArgs};

#[derive(Debug, Subcommand)]
pub enum ManagerSubcommand {
    /// Create a cluster with this machine as its first manager and worker, or resume an earlier init
    Init {
        #[command(flatten)]
        init: InitArgs,
        #[command(flatten)]
        taints: TaintArgs,
        #[command(flatten)]
        node: NodeRunArgs,
    },
    /// Add this machine to a cluster as a manager and worker, or resume an earlier join
    Join {
        #[command(flatten)]
        join: ManagerJoinArgs,
        #[command(flatten)]
        taints: TaintArgs,
        #[command(flatten)]
        node: NodeRunArgs,
    },
    /// Run the manager that an earlier `manager init`, `join` or `restore` set up
    Run(NodeRunArgs),
    /// Unlock the manager of this machine after a restart, while autolock is on
    ///
    /// Reads the unlock key from standard input, or asks for it. `warren cluster unlock-key` prints it on a manager
    /// that is not locked.
    Unlock(DirArgs),
    /// List managers
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Show managers in detail
    Inspect {
        /// Manager names, addresses, ids, or id prefixes
        #[arg(required = true, value_name = "MANAGER")]
        managers: Vec<String>,
        #[command(flatten)]
        pretty: PrettyArgs,
    },
    /// Make managers voters, as long as the number of voters stays odd
    Promote {
        /// Manager names, addresses, ids, or id prefixes
        #[arg(required = true, value_name = "MANAGER")]
        managers: Vec<String>,
    },
    /// Make managers non-voters; they keep a copy of the state and serve requests
    Demote {
        /// Manager names, addresses, ids, or id prefixes
        #[arg(required = true, value_name = "MANAGER")]
        managers: Vec<String>,
    },
    /// Change the address of a manager
    Update {
        /// Manager name, address, id, or id prefix
        #[arg(value_name = "MANAGER")]
        who: String,
        /// Address at which other machines reach the manager
        #[arg(long, value_name = "HOST:PORT")]
        advertise: ManagerAddress,
    },
    /// Remove managers from the cluster
    ///
    /// The removed identity cannot join again; the machine can join as a new manager. Its node stays until
    /// `node rm`. Removal does not revoke a copy of the CA key.
    #[command(alias = "remove")]
    Rm {
        /// Manager names, addresses, ids, or id prefixes
        #[arg(required = true, value_name = "MANAGER")]
        managers: Vec<String>,
        /// Also remove managers that respond; they stop at once
        #[arg(long, short)]
        force: bool,
    },
    /// Transfer leadership to another manager
    TransferLeadership {
        /// Manager name, address, id, or id prefix [default: the most up-to-date voter]
        #[arg(value_name = "MANAGER")]
        to: Option<String>,
    },
    /// Write an encrypted backup of the cluster to a file
    Backup {
        /// Backup file; must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Restore a cluster from a backup with this machine as its only manager; start it with `manager run`
    Restore {
        /// Backup file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
        #[command(flatten)]
        node: NodeRunArgs,
    },
}

impl ManagerSubcommand {
    /// Whether the command acts on this machine and sends no request to a manager.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Init { .. } | Self::Join { .. } | Self::Run(_) | Self::Restore { .. })
    }
}

#[derive(Debug, Clone, Args)]
pub struct PassphraseArgs {
    /// Read the passphrase from the first line of this file; - reads standard input [default: prompt]
    #[arg(long, value_name = "FILE|-")]
    pub passphrase_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct NodeRunArgs {
    #[command(flatten)]
    pub dirs: DirArgs,
    #[command(flatten)]
    pub metrics: MetricsArgs,
    /// Run no worker on this machine
    #[arg(
        long, env = "WARREN_MANAGER_ONLY", value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true"
    )]
    pub manager_only: Option<bool>,
    #[command(flatten)]
    pub manager: warren_manager::process::ManagerFlags,
    #[command(flatten)]
    pub worker: warren_worker::process::WorkerFlags,
}
