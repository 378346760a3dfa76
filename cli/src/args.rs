//! The command line: one file per noun, and the flags that several share. Arguments are parsed into the types that
//! the commands use; an argument that cannot be parsed is a usage error (exit code 2).

mod cluster;
pub mod completion;
mod context;
pub mod docker;
#[cfg(test)]
mod documented;
mod documents;
mod events;
mod exec;
mod forward;
mod image;
pub mod listing;
pub mod lists;
mod manager;
mod network;
mod node;
#[cfg(test)]
mod reference;
mod secret_object;
mod service;
pub mod spec;
mod stack;
pub mod suggestion;
mod system;
mod task;
mod token;
pub mod unsupported;
pub mod update_policy;
mod upgrade;
mod user;
pub mod value;
mod volume;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use warren_types::ManagerAddress;

use crate::connected_cluster::ConnectedCluster;

pub use cluster::{AuditArgs, CaSubcommand, ClusterCommand, ClusterUpdateArgs, KeySubcommand, PolicyCommand};
pub use context::ContextCommand;
pub use documents::{ApplyArgs, AsDocumentArgs, DiffArgs, DocumentFileArgs, DocumentRemoveArgs, PruneArgs};
pub use events::{EventsArgs, ObjectSelector, WhyArgs};
pub use exec::ExecArgs;
pub use forward::ForwardArgs;
pub use image::ImageCommand;
pub use listing::{ListingArgs, PrettyArgs};
pub use manager::{ManagerSubcommand, NodeRunArgs, PassphraseArgs};
pub use network::NetworkCommand;
pub use node::{NodeCommand, NodeUpdateArgs};
pub use secret_object::{RegistryCommand, RegistryLoginArgs, SecretObjectCommand, SecretObjectCreateArgs};
pub use service::{
    LogArgs, ServiceCommand, ServiceCreateArgs, ServiceRemoveArgs, ServiceRollbackArgs, ServiceScaleArgs,
    ServiceUpdateArgs,
};
pub use stack::{ComposeFileArgs, StackCommand, StackConfigArgs, StackDeployArgs, StackRemoveArgs};
pub use system::{SystemCheckArgs, SystemCommand, SystemInstallArgs, SystemUninstallArgs};
pub use task::TaskCommand;
pub use token::{TokenCommand, TokenCreateArgs};
pub use upgrade::UpgradeArgs;
pub use user::{LoginArgs, LoginTokenArgs, UserCommand, UserCreateArgs};
pub use volume::{VolumeCommand, VolumeCreateArgs};

/// Notes at the end of `--help`.
const DOCKER_NOTES: &str = "\
Commands of Docker that mean exactly a command of Warren are accepted: ps, run --detach --name, exec, logs, attach, \
cp, restart, stats, images, pull, container ..., swarm init, swarm join, service create --name NAME IMAGE ARGS. \
Others say what to use.";

/// Notes at the end of `top --help`.
const TOP_NOTES: &str = "\
Keys: c, m, n and s sort the tasks by CPU, memory, name and state, and the same key again the other way round; / \
filters them by name, node or state; the arrow keys choose a task, Enter shows its log, Esc closes it; q ends. Nodes \
measure usage every five seconds. RESERVED is what services reserve of a node.";

const UPGRADE_NOTES: &str = "\
Followers come first, then the leader, then workers. Each machine checks the program, puts it in place of its own and \
restarts its node with it; containers keep running. The next machine follows when the node is READY with the new \
program and its manager has caught up, within --timeout. The command stops at the first failure and says where it \
stands. Given again, it continues: machines that run this program already are left out. The earlier program stays \
beside the new one, with .old at the end of its name.";

const IMPORT_SWARM_NOTES: &str = "\
It changes nothing, and needs no cluster of Warren: `warren import-swarm > swarm.yaml`, then `warren diff -f \
swarm.yaml` and `warren apply -f swarm.yaml`. Standard error says what the documents cannot carry: the data of secrets \
and volumes, labels of nodes. The exit code is 1 if an object was left out.";

/// Run containers on a cluster of Linux machines
#[derive(Debug, Parser)]
#[command(name = "warren", version, propagate_version = true, max_term_width = 110, after_help = DOCKER_NOTES)]
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
    #[arg(value_parser = warren_daemon::logging::parse_filter)]
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

/// A shell that can complete command lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CompletionShell {
    Bash,
    Zsh,
    Fish,
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
    /// Create or update a stack: an application of several services, as Compose files describe it
    Deploy(StackDeployArgs),
    /// Manage stacks
    #[command(subcommand)]
    Stack(StackCommand),
    /// Create and update what documents describe: services, secrets, configs, networks, volumes and nodes
    Apply(ApplyArgs),
    /// Show what `apply` would change and where tasks would run; exits with 1 if anything differs
    Diff(DiffArgs),
    /// Remove what documents name, services first
    Rm(DocumentRemoveArgs),
    /// Print the JSON Schema of documents, for editors
    Schema,
    /// Inspect tasks
    #[command(subcommand)]
    Task(TaskCommand),
    /// Manage nodes
    #[command(subcommand)]
    Node(NodeCommand),
    /// Manage join tokens
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage users: people and programs that call the managers
    #[command(subcommand)]
    User(UserCommand),
    /// Log in to a cluster with a token of `user create`
    Login(LoginArgs),
    /// Manage secrets
    #[command(subcommand)]
    Secret(SecretObjectCommand),
    /// Manage configs
    #[command(subcommand)]
    Config(SecretObjectCommand),
    /// Manage networks
    #[command(subcommand)]
    Network(NetworkCommand),
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
    /// Check this machine, and have systemd run its node
    #[command(subcommand)]
    System(SystemCommand),
    /// Manage the clusters that this CLI knows
    #[command(subcommand)]
    Context(ContextCommand),
    /// Replace the program of the nodes, one machine after the other
    #[command(after_help = UPGRADE_NOTES)]
    Upgrade(UpgradeArgs),
    /// Print what changed: the events of objects
    Events(EventsArgs),
    /// Show nodes and tasks with their usage, live, and the log of a task
    #[command(after_help = TOP_NOTES)]
    Top,
    /// Show an object in detail, whatever kind it is
    Inspect {
        /// Service, task, node, network, volume, secret or config
        #[arg(value_name = "[NOUN/]NAME", value_parser = events::name_with_noun)]
        object: ObjectSelector,
    },
    /// Explain why an object is as it is, and what to do
    Why(WhyArgs),
    /// Print the objects of a running Docker Swarm as documents for `apply`
    #[command(after_help = IMPORT_SWARM_NOTES)]
    ImportSwarm {
        /// Socket of Docker on a manager of the Swarm
        #[arg(long, value_name = "PATH", default_value = "/var/run/docker.sock")]
        socket: PathBuf,
    },
    /// Print the script that completes commands, flags and names in a shell
    Completion {
        /// Shell
        shell: CompletionShell,
    },
    /// Write the manual: one page per command
    Man {
        /// Directory for the pages, which is created [default: print the page of warren]
        #[arg(value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Print what can follow on a command line, for the scripts of `completion`
    #[command(name = "__complete", hide = true)]
    Complete {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Print the version of this program
    Version,
}
