//! The command line. Arguments are parsed into the types that the commands use; an argument that cannot be parsed
//! is a usage error (exit code 2).

pub mod listing;
pub mod lists;
mod manager;
mod secret_object;
mod service;
pub mod spec;
pub mod suggestion;
mod token;
pub mod unsupported;
pub mod update_policy;
pub mod value;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use warren_types::{Availability, ImageReference, ManagerAddress};

use crate::connected_cluster::ConnectedCluster;

pub use listing::{ListingArgs, PrettyArgs};
pub use manager::{ManagerSubcommand, NodeRunArgs, PassphraseArgs};
pub use secret_object::{RegistryCommand, RegistryLoginArgs, SecretObjectCommand, SecretObjectCreateArgs};
pub use service::{
    LogArgs, ServiceCommand, ServiceCreateArgs, ServiceRemoveArgs, ServiceRollbackArgs, ServiceScaleArgs,
    ServiceUpdateArgs,
};
pub use token::{TokenCommand, TokenCreateArgs};
pub use volume::{VolumeCommand, VolumeCreateArgs};

/// Run containers on a cluster of Linux machines
#[derive(Debug, Parser)]
#[command(name = "warren", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    #[command(flatten)]
    pub global: GlobalArgs,
    #[command(subcommand)]
    pub command: CliCommand,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Use this context instead of the current one
    #[arg(long, global = true, env = "WARREN_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
    /// Connect to this manager with the identity of the current context (repeatable)
    #[arg(long, global = true, value_name = "HOST:PORT", value_delimiter = ',')]
    pub manager: Vec<ManagerAddress>,
    /// Read from the manager that answers, without a leader; the result may be outdated
    #[arg(long, global = true)]
    pub stale: bool,
    /// Set the output format
    #[arg(short, long, global = true, value_enum, default_value_t, value_name = "FORMAT")]
    pub output: OutputFormat,
    /// Disable colours (same as setting NO_COLOR)
    #[arg(long, global = true)]
    pub no_color: bool,
    /// Set the log level for stderr: error, warn, info, debug, trace, or filters like
    /// `warn,warren_client=debug`
    #[arg(long, global = true, env = "WARREN_LOG_LEVEL", value_name = "LEVEL")]
    #[arg(value_parser = warren_process::logging::parse_filter)]
    pub log_level: Option<String>,
    /// Give up waiting after this time
    #[arg(long, global = true, value_parser = value::duration, default_value = "5m", value_name = "DURATION")]
    pub timeout: Duration,
    /// The cluster and the manager that the command used.
    #[arg(skip)]
    pub connected_cluster: ConnectedCluster,
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum OutputFormat {
    /// Table
    #[default]
    Table,
    /// Table with more columns
    Wide,
    /// JSON
    Json,
    /// YAML
    Yaml,
}

#[derive(Debug, Subcommand)]
pub enum CliCommand {
    /// Manage managers: create, join, run and change them
    #[command(subcommand)]
    Manager(ManagerSubcommand),
    /// Manage the worker on this machine
    #[command(subcommand)]
    Worker(warren_worker::process::WorkerCommand),
    /// Manage services
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Inspect tasks
    #[command(subcommand)]
    Task(TaskCommand),
    /// Manage nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// Manage join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage secrets
    #[command(subcommand)]
    Secret(SecretObjectCommand),
    /// Manage configs
    #[command(subcommand)]
    Config(SecretObjectCommand),
    /// Manage volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Manage registry credentials
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Manage images on nodes
    #[command(subcommand)]
    Image(ImageCommand),
    /// Show the state of the cluster and change its settings
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Print the version of this program
    Version,
}

#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks
    #[command(alias = "list")]
    Ls {
        /// Show only tasks of this service
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        service: String,
        /// Show only tasks on this node
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        node: String,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show a task in detail
    Inspect {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        pretty: PrettyArgs,
    },
    /// Print the logs of a task
    Logs {
        /// Task id, id prefix, or SERVICE.SLOT
        #[arg(value_name = "TASK")]
        task: String,
        #[command(flatten)]
        lines: LogArgs,
    },
}

#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// List nodes
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// Show a node in detail
    Inspect {
        /// Node name, id, id prefix, or self
        #[arg(value_name = "NODE")]
        node: String,
        #[command(flatten)]
        pretty: PrettyArgs,
    },
    /// List the tasks on nodes
    Ps {
        /// Node names, ids, id prefixes, or self: the node of the manager that answers
        #[arg(default_value = "self", value_name = "NODE")]
        nodes: Vec<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Make managers voters; the same as `manager promote`
    Promote {
        /// Node names, ids, id prefixes, or self
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Make managers non-voters; the same as `manager demote`
    Demote {
        /// Node names, ids, id prefixes, or self
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
    },
    /// Change the labels or the availability of a node
    Update(NodeUpdateArgs),
    /// Stop sending new tasks to a node and move the ones it has
    Drain {
        /// Node name, id, or id prefix
        #[arg(value_name = "NODE")]
        node: String,
        /// Return without waiting for the node to be empty
        #[arg(long, short)]
        detach: bool,
    },
    /// Remove nodes that are down or have no tasks
    #[command(alias = "remove")]
    Rm {
        /// Node names, ids, or id prefixes
        #[arg(required = true, value_name = "NODE")]
        nodes: Vec<String>,
        /// Also remove nodes that are up or have tasks; their tasks are orphaned
        #[arg(long, short)]
        force: bool,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("CHANGE").required(true).multiple(true)
    .args(["label_add", "label_rm", "availability"]))]
pub struct NodeUpdateArgs {
    /// Node name, id, or id prefix
    #[arg(value_name = "NODE")]
    pub node: String,
    /// Set a label; overrides the same label given by the agent (repeatable)
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label_add: Vec<(String, String)>,
    /// Remove a label (repeatable)
    #[arg(long, value_name = "KEY")]
    pub label_rm: Vec<String>,
    /// Set the availability: active (accept tasks), pause (no new tasks), drain (no tasks)
    #[arg(long, value_name = "AVAILABILITY")]
    pub availability: Option<Availability>,
    /// Return without waiting for a drained node to be empty
    #[arg(long, short)]
    pub detach: bool,
}

#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Import an OCI or docker archive onto nodes
    Import {
        /// Archive file; - reads standard input
        #[arg(value_name = "FILE|-")]
        file: PathBuf,
        /// Import only onto this node, or onto those with a label (repeatable) [default: all that are READY]
        #[arg(long, value_name = "NAME|ID|all|KEY=VALUE")]
        node: Vec<String>,
    },
    /// Copy an image from a node that has it to other nodes; layers that they have are not sent
    Copy {
        /// Image reference, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
        /// Node that gets the image, or a label of such nodes (repeatable)
        #[arg(long, required = true, value_name = "NAME|ID|all|KEY=VALUE", num_args = 1..)]
        to: Vec<String>,
        /// Node that sends it [default: one that has it]
        #[arg(long, value_name = "NAME|ID", default_value = "", hide_default_value = true)]
        from: String,
    },
    /// Pull an image onto nodes
    Pull {
        /// Image reference, like nginx:1.27
        #[arg(value_name = "REFERENCE")]
        reference: ImageReference,
        /// Pull only onto this node, or onto those with a label (repeatable) [default: all that are READY]
        #[arg(long, value_name = "NAME|ID|all|KEY=VALUE")]
        node: Vec<String>,
        /// Ask the registry even if the node already has the image
        #[arg(long)]
        always: bool,
    },
    /// List images on nodes
    #[command(alias = "list")]
    Ls {
        /// Show only images of this node (repeatable) [default: every node that is READY]
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Remove images that no task uses
    Prune {
        /// Prune only this node (repeatable) [default: every node that is READY]
        #[arg(long, value_name = "NAME|ID")]
        node: Vec<String>,
        /// Remove only images unused for this long
        #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "0s")]
        unused_for: Duration,
        /// Do not ask for confirmation
        #[arg(long, short, visible_short_alias = 'y')]
        force: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster and the state of the manager that answers
    Info,
    /// Change settings of the cluster
    Update(ClusterUpdateArgs),
    /// List background tasks of managers and agents
    #[command(visible_alias = "bg")]
    BackgroundTasks {
        /// Show only this background task
        #[arg(value_name = "NAME")]
        name: Option<String>,
        #[command(flatten)]
        listing: ListingArgs,
    },
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("SETTING").required(true).multiple(true)
    .args(["max_replicas_per_service", "task_history_limit"]))]
pub struct ClusterUpdateArgs {
    /// Refuse services with more replicas, unless their command has --yes [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_replicas_per_service: Option<u32>,
    /// Keep the records and logs of this many ended tasks per slot [default: 5]
    #[arg(long, value_name = "N")]
    pub task_history_limit: Option<u32>,
}
