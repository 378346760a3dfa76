//! `warren service ...`

use clap::{ArgGroup, Args, Subcommand};
use warren_types::Timestamp;

use super::documents::AsDocumentArgs;
use super::exec::{EXEC_NOTES, ExecArgs};
use super::forward::{FORWARD_NOTES, ForwardArgs};
use super::listing::{ListingArgs, PrettyArgs};
use super::lists::{ListAdditions, ListRemovals, UpdateAdditions};
use super::spec::SpecArgs;
use super::value::{self, ModeName, ScaleTarget, TailLines};

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// Create a service and wait until it runs
    Create(Box<ServiceCreateArgs>),
    /// List services
    #[command(alias = "list")]
    Ls(ListingArgs),
    /// List the tasks of services with their node and state
    Ps {
        /// Service names, ids, or id prefixes
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
        /// Also list the ended tasks of removed slots, and show how tasks ended with their last lines
        #[arg(long, short)]
        all: bool,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show a service in detail
    Inspect {
        /// Service name, id, or id prefix
        #[arg(value_name = "SERVICE")]
        service: String,
        #[command(flatten)]
        pretty: PrettyArgs,
        #[command(flatten)]
        document: AsDocumentArgs,
    },
    /// Update a service and wait until its tasks are replaced
    Update(Box<ServiceUpdateArgs>),
    /// Roll a service back to an earlier revision and wait until its tasks run it
    Rollback(ServiceRollbackArgs),
    /// List the revisions of a service and their changes
    History {
        /// Service name, id, or id prefix
        #[arg(value_name = "SERVICE")]
        service: String,
        #[command(flatten)]
        listing: ListingArgs,
    },
    /// Show the resource usage of tasks, busiest first, until interrupted
    Top {
        /// Service names, ids, or id prefixes [default: all services]
        #[arg(value_name = "SERVICE")]
        services: Vec<String>,
        /// Print once and exit (default when standard output is not a terminal)
        #[arg(long)]
        once: bool,
    },
    /// Print the logs of services, those of ended tasks too
    Logs {
        /// Service names, ids, or id prefixes; also tasks, as in `task logs`
        #[arg(required = true, value_name = "SERVICE")]
        services: Vec<String>,
        /// Print only this task: its id, or the tasks of a slot: SERVICE.SLOT, or the number of the slot
        #[arg(long, value_name = "TASK|SLOT")]
        task: Option<String>,
        #[command(flatten)]
        lines: LogArgs,
    },
    /// Run a command in the container of a ready task of a service
    #[command(after_help = EXEC_NOTES)]
    Exec {
        /// Service name, id, or id prefix
        #[arg(value_name = "SERVICE")]
        service: String,
        /// Run it in the task of this slot [default: the lowest slot with a ready task]
        #[arg(long, value_name = "N")]
        slot: Option<u32>,
        #[command(flatten)]
        exec: ExecArgs,
    },
    /// Forward local ports to ports of ready tasks of a service
    #[command(after_help = FORWARD_NOTES)]
    PortForward {
        /// Service name, id, or id prefix
        #[arg(value_name = "SERVICE")]
        service: String,
        /// Forward to the task of this slot [default: the lowest slot with a ready task, for each connection]
        #[arg(long, value_name = "N")]
        slot: Option<u32>,
        #[command(flatten)]
        ports: ForwardArgs,
    },
    /// Set the number of replicas and wait until they run
    Scale(ServiceScaleArgs),
    /// Remove services and wait until their tasks are gone
    #[command(alias = "remove")]
    Rm(ServiceRemoveArgs),
}

/// Notes at the end of `service update --help`.
const UPDATE_NOTES: &str = "\
Options that are not given keep their current value. An empty value (--memory=) resets an option to its default; \
so does --command or --arg with a single empty word.
Removals (-rm) are applied before additions (-add). An added item replaces the item with the same key: name, path in \
the container, host port, or the node value that a constraint compares. --env is the same as --env-add, and so on. \
Removing a missing item is not an error.
--cap-add of a dropped capability makes it a default one again, and --cap-drop of an added one likewise.
A health option changes the current check; another kind of check replaces it and keeps its intervals.
Escape a colon in a path as \\:, and a comma in secrets, configs and volumes as \\,";

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("NAME").required(true).args(["positional_name", "name"]))]
#[command(group = ArgGroup::new("IMAGE").required(true).args(["image"]))]
#[command(after_help = "Escape a colon in a path as \\:, and a comma in secrets, configs and volumes as \\,")]
pub struct ServiceCreateArgs {
    /// Service name
    #[arg(value_name = "NAME")]
    pub positional_name: Option<String>,
    /// Service name, as a flag
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Scheduling mode: replicated, or global (one task on every eligible node, or for every value of --per)
    #[arg(long, value_name = "MODE", value_parser = value::mode, default_value = "replicated")]
    pub mode: ModeName,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub additions: ListAdditions,
    /// Run without a health check (the default)
    #[arg(long, alias = "no-healthcheck", conflicts_with_all = [
        "health_http", "health_tcp", "health_cmd", "health_exec", "health_interval", "health_timeout",
        "health_retries", "health_start_period", "health_start_interval", "health_header",
    ])]
    pub no_health: bool,
    /// Accept more replicas than the cluster's limit per service
    #[arg(long, short)]
    pub yes: bool,
    /// Return without waiting
    #[arg(long, short)]
    pub detach: bool,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = UPDATE_NOTES)]
pub struct ServiceUpdateArgs {
    /// Service name, id, or id prefix
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// Replace all tasks even if nothing changed
    #[arg(long)]
    pub force: bool,
    /// Continue a paused update or rollback, without other changes
    #[arg(long, conflicts_with_all = ["force", "rollback"])]
    pub resume: bool,
    /// Roll back to the previous revision, like `warren service rollback`, without other changes
    #[arg(long, conflicts_with = "force")]
    pub rollback: bool,
    #[command(flatten)]
    pub spec: SpecArgs,
    #[command(flatten)]
    pub additions: UpdateAdditions,
    #[command(flatten)]
    pub removals: ListRemovals,
    /// Accept more replicas than the cluster's limit per service
    #[arg(long, short)]
    pub yes: bool,
    /// Return without waiting
    #[arg(long, short)]
    pub detach: bool,
    /// Print no progress
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Args)]
pub struct ServiceRollbackArgs {
    /// Service name, id, or id prefix
    #[arg(value_name = "SERVICE")]
    pub service: String,
    /// Revision to roll back to; see `service history` [default: the previous revision]
    #[arg(long, value_name = "REVISION")]
    pub to: Option<u64>,
    /// Return without waiting
    #[arg(long, short)]
    pub detach: bool,
}

/// Selection and format of log lines.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Follow the log output
    #[arg(long, short)]
    pub follow: bool,
    /// Print only this many of the last lines of each task, or all
    #[arg(long, short = 'n', value_name = "N|all", value_parser = value::tail, default_value = "all")]
    pub tail: TailLines,
    /// Print only lines after this time
    #[arg(long, value_name = "DURATION|TIME", value_parser = value::since)]
    pub since: Option<Timestamp>,
    /// Print a timestamp before each line
    #[arg(long, short)]
    pub timestamps: bool,
    /// Print the log of the last ended task before the current one, of each slot for a service
    #[arg(long, short, conflicts_with = "follow")]
    pub previous: bool,
    /// Print control characters to a terminal too, which may change it
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Args)]
pub struct ServiceScaleArgs {
    /// Services and their number of replicas
    #[arg(required = true, value_name = "SERVICE=N", value_parser = value::scaling)]
    pub targets: Vec<ScaleTarget>,
    /// Accept more replicas than the cluster's limit per service
    #[arg(long, short)]
    pub yes: bool,
    /// Return without waiting
    #[arg(long, short)]
    pub detach: bool,
}

#[derive(Debug, Args)]
pub struct ServiceRemoveArgs {
    /// Service names, ids, or id prefixes
    #[arg(required = true, value_name = "SERVICE")]
    pub services: Vec<String>,
    /// Also remove bootstrap services
    #[arg(long, short)]
    pub force: bool,
    /// Return without waiting
    #[arg(long, short)]
    pub detach: bool,
}
