//! The command line. What is read here is already of the types the rest works with; what cannot be, is a
//! usage error (exit code 2).

mod content;
pub mod lists;
mod manager;
mod service;
pub mod spec;
mod token;
pub mod unsupported;
pub mod value;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use warren_types::{Availability, ImageReference, ManagerAddress};

use crate::connect::TalkedTo;

pub use content::{ContentCommand, ContentCreateArgs, LoginArgs, RegistryCommand};
pub use manager::{ManagerCommand, NodeArgs, PassphraseArgs};
pub use service::{CreateArgs, LogArgs, RemoveArgs, RollbackArgs, ScaleArgs, ServiceCommand, UpdateArgs};
pub use token::{TokenArgs, TokenCommand};
pub use volume::{VolumeCommand, VolumeCreateArgs};

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
    /// Manager to talk to, with the current context's identity (repeatable: whichever answers)
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',')]
    pub manager: Vec<ManagerAddress>,
    /// Read what the manager that answers has: it may be older than what was written, and needs no leader
    #[arg(long, global = true)]
    pub stale: bool,
    /// How to print what is found
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: Format,
    /// Print without colours (as with NO_COLOR set)
    #[arg(long, global = true)]
    pub no_color: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or filters like `warn,warren_client=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", value_name = "LEVEL")]
    #[arg(value_parser = warren_process::logging::parse_filter)]
    pub log_level: Option<String>,
    /// How long to wait until something is done
    #[arg(long, global = true, value_parser = value::duration, default_value = "5m", value_name = "DURATION")]
    pub timeout: Duration,
    /// Whom the command talked to.
    #[arg(skip)]
    pub talked_to: TalkedTo,
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
    /// This machine as a manager of a cluster, and the managers there are
    #[command(subcommand)]
    Manager(ManagerCommand),
    /// This machine as a worker of a cluster
    #[command(subcommand)]
    Worker(warren_worker::process::Command),
    /// What shall run
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Where it runs
    #[command(subcommand)]
    Task(TaskCommand),
    /// Machines of the cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// What lets machines join
    #[command(subcommand)]
    Token(TokenCommand),
    /// What tasks need and nobody else may see
    #[command(subcommand)]
    Secret(ContentCommand),
    /// Files that tasks see
    #[command(subcommand)]
    Config(ContentCommand),
    /// Data that outlives tasks
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Who the machines are to registries of images
    #[command(subcommand)]
    Registry(RegistryCommand),
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
    /// Print what a task wrote
    Logs {
        /// An id, the beginning of one, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        lines: LogArgs,
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
    /// List the tasks on nodes
    Ps {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Change a node's labels, or what shall run there
    Update(NodeUpdateArgs),
    /// Have a node's tasks replaced elsewhere and wait until it has none left
    Drain {
        /// A name, an id, or the beginning of one
        #[arg(value_name = "NODE")]
        node: String,
        /// Do not wait
        #[arg(long, short)]
        detach: bool,
    },
    /// Forget nodes that are down, or that run nothing any more
    Rm {
        /// Names, ids, or beginnings of ids
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Also nodes that are up and run tasks: their tasks are given up
        #[arg(long, short)]
        force: bool,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("a change").required(true).multiple(true)
    .args(["label_add", "label_rm", "availability"]))]
pub struct NodeUpdateArgs {
    /// A name, an id, or the beginning of one
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Label to set; it wins over one that the agent was started with (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label_add: Vec<(String, String)>,
    /// Label to take away (repeatable)
    #[arg(long, value_name = "KEY")]
    pub label_rm: Vec<String>,
    /// What shall run there: active (what fits), pause (nothing new), drain (nothing)
    #[arg(long, value_name = "AVAILABILITY")]
    pub availability: Option<Availability>,
    /// Do not wait until a node to drain has no tasks left
    #[arg(long, short)]
    pub detach: bool,
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
    /// Have nodes pull an image from its registry
    Pull {
        /// The image, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
        /// Only this node (repeatable); else every node that is READY
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        /// Ask the registry also where the image is there
        #[arg(long)]
        always: bool,
    },
    /// List images
    Ls {
        /// Only of this node (repeatable); else of every node that is READY
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
    },
    /// Remove images that no task uses
    Prune {
        /// Only of this node (repeatable); else of every node that is READY
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        /// Only those that were not used for so long
        #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "0s")]
        unused_for: Duration,
        /// Do not ask first
        #[arg(long, short, visible_short_alias = 'y')]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// The cluster as the manager sees it
    Info,
    /// Background loops of the managers and agents
    Loops {
        /// Only this one
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
}
