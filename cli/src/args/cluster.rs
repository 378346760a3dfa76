//! `warren cluster ...`

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use ipnet::Ipv4Net;
use warren_types::{DataPlane, DnsLabel, NodeCheck, Timestamp, UserNamespace};

use super::events::EventsArgs;
use super::listing::ListingArgs;
use super::value;

#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Show the cluster and the state of the manager that answers
    Info,
    /// Change settings of the cluster
    Update(ClusterUpdateArgs),
    /// Print what changed: the events of objects
    Events(EventsArgs),
    /// Print who called what: the audit lines of all managers
    Audit(AuditArgs),
    /// Show what is weaker than it could be: traffic, tokens, logins, privileges, policy, images, versions
    CheckSecurity,
    /// Show and replace the certificate authority
    #[command(subcommand)]
    Ca(CaSubcommand),
    /// Show and set the admission policy: which services operators may run
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show and replace the keys that encrypt what managers store
    #[command(subcommand)]
    Key(KeySubcommand),
    /// Print the key that unlocks managers, while autolock is on
    UnlockKey {
        /// Replace the key first; a manager that is down needs the earlier one once more
        #[arg(long)]
        rotate: bool,
    },
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

#[derive(Debug, Subcommand)]
pub enum CaSubcommand {
    /// Show the certificate authority, and how far its replacement is
    Status,
    /// Replace the certificate authority while everything runs; repeatable, and continues one that is in progress
    Rotate {
        /// Return without waiting until no ready node trusts the earlier certificate authority
        #[arg(long, short)]
        detach: bool,
    },
}

#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// Print the admission policy as a document, which `set` reads
    Show,
    /// Set the admission policy from a document; rules that it leaves out have their default
    Set {
        /// File with the document, or - for standard input
        #[arg(long = "filename", short = 'f', visible_alias = "file", value_name = "FILE|-")]
        file: PathBuf,
    },
    /// Set the default policy, by which operators have no power over nodes
    Reset,
}

#[derive(Debug, Subcommand)]
pub enum KeySubcommand {
    /// Show how far the replacement of the keys is
    Status,
    /// Replace the keys of the log, of snapshots and of secrets while everything runs; repeatable, and continues one
    /// that is in progress
    Rotate {
        /// Return without waiting until nothing is encrypted with an earlier key
        #[arg(long, short)]
        detach: bool,
    },
}

/// Notes at the end of `cluster audit --help`.
const AUDIT_NOTES: &str = "\
Managers record all writes, reads of logs, of the data of configs and of the audit lines themselves, programs that \
are run in containers, joins of machines, logins, and denied calls. A line is kept by the manager that received the \
call, until its files have reached 50 MiB. A manager that does not answer is named on stderr. -o json prints one \
object per line.";

#[derive(Debug, Clone, Args)]
#[command(after_help = AUDIT_NOTES)]
pub struct AuditArgs {
    /// Print new lines as they are written, after those that exist
    #[arg(long, short, conflicts_with = "until")]
    pub follow: bool,
    /// Print lines since a time (RFC 3339), or how long ago, like 10m
    #[arg(long, value_name = "DURATION|TIME", value_parser = value::since)]
    pub since: Option<Timestamp>,
    /// Print lines before a time
    #[arg(long, value_name = "DURATION|TIME", value_parser = value::since)]
    pub until: Option<Timestamp>,
    /// Print only calls of this user, node or manager, by name or id, or of a local user, like "uid 1000"
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Print only calls of this method, like services/create, or of all methods of a noun, like services
    #[arg(long, value_name = "NOUN[/VERB]")]
    pub method: Option<String>,
}

#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("SETTING").required(true).multiple(true)
    .args(["max_replicas_per_service", "task_history_limit", "data_plane", "range_add", "verify_nodes",
        "verify_remove_after", "verify_timeout", "verify_check_add", "verify_check_rm", "default_user_namespace",
        "no_new_privileges", "node_certificate_lifetime", "autolock"]))]
pub struct ClusterUpdateArgs {
    /// Refuse services with more replicas, unless their command has --yes [default: 10000]
    #[arg(long, value_name = "N")]
    pub max_replicas_per_service: Option<u32>,
    /// Keep the records and logs of this many ended tasks per slot [default: 5]
    #[arg(long, value_name = "N")]
    pub task_history_limit: Option<u32>,
    /// What carries packets between nodes: vxlan, wireguard, which encrypts them, or routes, for nodes on one L2
    /// network [default: vxlan]
    #[arg(long, value_name = "KIND")]
    pub data_plane: Option<DataPlane>,
    /// Add an address range for the networks of tasks, like 10.211.0.0/16
    #[arg(long, value_name = "CIDR")]
    pub range_add: Vec<Ipv4Net>,
    /// Keep tasks away from new nodes by the taint warren.io/unverified until checks pass on them: DNS, managers, other
    /// nodes, registries, clock, disk, and those of --verify-check-add. The nodes that the cluster has count as
    /// verified [default: off]
    #[arg(long, value_name = "on|off", value_parser = value::on_or_off)]
    pub verify_nodes: Option<bool>,
    /// Remove a worker whose verification failed this many times in a row; 0 for never. Checks are repeated after 5 s,
    /// 10 s, 20 s and so on, at last every 5 min [default: 0]
    #[arg(long, value_name = "N")]
    pub verify_remove_after: Option<u32>,
    /// How long each check may take, and the pull of its image [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub verify_timeout: Option<Duration>,
    /// Set a check in place of that with its name: a container in the network of the node, or a command of the
    /// node's shell as the user of the agent, which is root; it passes if it exits with 0 (repeatable)
    #[arg(long, value_name = "NAME=image:IMAGE [ARG...]|NAME=command:COMMAND")]
    pub verify_check_add: Vec<NodeCheck>,
    /// Remove a check (repeatable)
    #[arg(long, value_name = "NAME")]
    pub verify_check_rm: Vec<DnsLabel>,
    /// Users of the containers of services without --user-namespace: those of the node (host), or others without
    /// rights on the node (private). A service takes it when its task changes, or with `service update --force`
    /// [default: host]
    #[arg(long, value_name = "KIND")]
    pub default_user_namespace: Option<UserNamespace>,
    /// Prevent programs of services without --no-new-privileges from gaining privileges, as by setuid. A service takes
    /// it when its task changes, or with `service update --force` [default: off]
    #[arg(long, value_name = "on|off", value_parser = value::on_or_off)]
    pub no_new_privileges: Option<bool>,
    /// How long certificates of nodes and managers are valid, from 1h to 365d; each machine renews its own after two
    /// thirds of that. Managers have shorter ones within a minute; else it counts from the next renewal of each machine
    /// [default: 90d]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub node_certificate_lifetime: Option<Duration>,
    /// Encrypt the keys on the disks of managers with an unlock key: after a restart, each manager waits for `warren
    /// manager unlock` [default: off]
    #[arg(long, value_name = "on|off", value_parser = value::on_or_off)]
    pub autolock: Option<bool>,
}
