//! `warren manager ...`: flags of a node's own process, which are those of its parts, and what is asked of the
//! cluster's managers.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use warren_manager::process::{InitArgs, JoinArgs};
use warren_types::ManagerAddress;

/// Where a node keeps what, and where it shows whether it is well.
pub use warren_process::{MetricsArgs, PlaceArgs};

#[derive(Debug, Subcommand)]
pub enum ManagerCommand {
    /// Make a cluster on this machine and run its first manager and worker, or resume what an earlier init
    /// made
    Init {
        #[command(flatten)]
        init: InitArgs,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Make this machine a further manager of a cluster and run it, with a worker, or resume what an earlier join made;
    /// one that was removed from the cluster joins anew
    Join {
        #[command(flatten)]
        join: JoinArgs,
        #[command(flatten)]
        node: NodeArgs,
    },
    /// Run what an earlier `manager init`, `join` or `restore` made
    Run(NodeArgs),
    /// List managers
    Ls,
    /// Show all of managers
    Inspect {
        /// Names, addresses, ids, or beginnings of ids
        #[arg(required = true, value_name = "MANAGER")]
        who: Vec<String>,
    },
    /// Give managers a vote, as far as the number of voters stays odd
    Promote {
        /// Names, addresses, ids, or beginnings of ids
        #[arg(required = true, value_name = "MANAGER")]
        who: Vec<String>,
    },
    /// Take managers' votes; they keep the state and serve
    Demote {
        /// Names, addresses, ids, or beginnings of ids
        #[arg(required = true, value_name = "MANAGER")]
        who: Vec<String>,
    },
    /// Change where a manager is reached
    Update {
        /// A name, an address, an id, or the beginning of one
        #[arg(value_name = "MANAGER")]
        who: String,
        /// Where other machines reach it from now on
        #[arg(long, value_name = "HOST:PORT")]
        advertise: ManagerAddress,
    },
    /// Have managers leave the cluster; what they were is not let in again. Their nodes stay in it until `node rm`.
    /// A CA key that somebody copied is not taken back by this
    Rm {
        /// Names, addresses, ids, or beginnings of ids
        #[arg(required = true, value_name = "MANAGER")]
        who: Vec<String>,
        /// Also managers that answer: they stop at once
        #[arg(long, short)]
        force: bool,
    },
    /// Have another manager lead
    TransferLeadership {
        /// A name, an address, an id, or the beginning of one [default: whoever is furthest]
        #[arg(value_name = "MANAGER")]
        to: Option<String>,
    },
    /// Write all that another machine needs to go on as this cluster into a file, encrypted
    Backup {
        /// The file, which must not exist
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
    },
    /// Make this machine the only manager of the cluster in a backup; then start it with `manager run`
    Restore {
        /// The file
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        passphrase: PassphraseArgs,
        #[command(flatten)]
        node: NodeArgs,
    },
}

impl ManagerCommand {
    /// Whether it is about this machine, and does not ask a manager.
    pub fn is_of_this_machine(&self) -> bool {
        matches!(self, Self::Init { .. } | Self::Join { .. } | Self::Run(_) | Self::Restore { .. })
    }
}

#[derive(Debug, Clone, Args)]
pub struct PassphraseArgs {
    /// A file with the passphrase in its first line; - reads standard input [default: ask for it]
    #[arg(long, value_name = "FILE|-")]
    pub passphrase_file: Option<PathBuf>,
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
