//! The command line. What is read here is already of the types the rest works with; what cannot be, is a
//! usage error (exit code 2).

mod manager;
mod service;
pub mod unsupported;
pub mod value;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use warren_client::Address;

pub use manager::{ManagerCommand, Settings};
pub use service::{CreateArgs, RemoveArgs, ScaleArgs, ServiceCommand};

/// Runs containers on a group of Linux machines.
#[derive(Debug, Parser)]
#[command(name = "warren", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Context to use instead of the current one
    #[arg(long, global = true, env = "WARREN_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Manager to talk to, with the current context's identity
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub manager: Option<Address>,
    /// How to print what is found
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    /// Print without colours (as with NO_COLOR set)
    #[arg(long, global = true)]
    pub no_color: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or filters like `warn,warren_client=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", value_name = "LEVEL")]
    #[arg(value_parser = value::log_filter)]
    pub log_level: Option<String>,
    /// How long to wait until something is done
    #[arg(long, global = true, value_parser = value::duration, default_value = "5m", value_name = "DURATION")]
    pub timeout: Duration,
}

/// How to print what is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Table,
    /// For people with wide screens
    Wide,
    /// For programs
    Json,
    /// For both
    Yaml,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// This machine as a manager of a cluster
    #[command(subcommand)]
    Manager(ManagerCommand),
    /// What shall run
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Where it runs
    #[command(subcommand)]
    Task(TaskCommand),
    /// Machines of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Images on the machines
    #[command(subcommand)]
    Image(ImageCommand),
    /// The cluster as a whole
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Print the version of this program
    Version,
}

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks
    Ls {
        /// Only tasks of this service
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        service: String,
        /// Only tasks on this node
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        node: String,
    },
    /// Show all of a task
    Inspect {
        /// An id, the beginning of one, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    Ls,
    /// Show all of a node
    Inspect {
        /// A name, an id, or the beginning of one
        #[arg(value_name = "NODE")]
        node: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Load an OCI or docker archive onto nodes
    Import {
        /// The archive; - reads standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// Only onto this node (repeatable); else onto every node that is READY
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// The cluster as the manager sees it
    Info,
    /// The manager's background loops
    Loops {
        /// Only this one
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}
