//! The list flags of a service: those of `service create`, and those with which `service update` adds items
//! (`--env` is `--env-add` there) and removes them (`--env-rm`).

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use warren_types::{
    Capability, Constraint, Device, DnsLabel, HostEntry, HttpHeader, Mount, NetworkName, PlacementPreference,
    SecretObjectMount, TaintSelector, Ulimit, UlimitName,
};

use super::value::{self, EnvVariable, NetworkChoice, PortList, PortRemoval};

/// Form of `--secret` and `--config`.
const SECRET_OBJECT_MOUNT: &str = "NAME[:TARGET][,uid=N][,gid=N][,mode=OCTAL][,template]";

/// Items to set or add, per list.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Repeatable options")]
pub struct ListAdditions {
    /// Set a label on the service
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Set a label on the containers of the tasks
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub container_label: Vec<(String, String)>,
    /// Set an environment variable; without a value it is taken from the environment of this command
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = value::variable)]
    pub env: Vec<EnvVariable>,
    /// Read environment variables from a file, one per line; # starts a comment
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Run only on nodes that match: 'node.labels.zone in (a,b)'. Operators: ==, !=, in, notin, exists. Keys:
    /// node.id, node.name, node.ip, node.role, node.arch, node.os, node.labels.KEY, engine.labels.KEY.
    #[arg(long, value_name = "TEST")]
    pub constraint: Vec<Constraint>,
    /// Run also on nodes with this taint; * tolerates all
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]|*")]
    pub toleration: Vec<TaintSelector>,
    /// Spread tasks evenly over the values of a label of nodes, node.labels.KEY or engine.labels.KEY; a further
    /// preference within each value
    #[arg(long, visible_alias = "placement-pref", alias = "placement-pref-add", value_name = "spread=LABEL")]
    pub prefer: Vec<PlacementPreference>,
    /// Publish a port or a range on every node, with mode=host on those that run tasks [host port: automatic,
    /// protocol: tcp]
    #[arg(long, short, value_name = "[[IP:]HOST:]CONTAINER[/PROTOCOL]", value_parser = value::publish)]
    pub publish: Vec<PortList>,
    /// Open ports in ingress mode only on nodes that match, in the form of --constraint, instead of on every node
    #[arg(long, value_name = "TEST")]
    pub publish_on: Vec<Constraint>,
    /// Connect to a network, instead of to the network default; or to the network of the node (host), or to none
    #[arg(long, value_name = "NAME[,alias=NAME]|host|none")]
    pub network: Vec<NetworkChoice>,
    /// Add a name of the service on all its networks
    #[arg(long, visible_alias = "network-alias", value_name = "NAME")]
    pub alias: Vec<DnsLabel>,
    /// Ask this DNS server for names outside the cluster, instead of those of the node
    #[arg(long, value_name = "IP")]
    pub dns: Vec<Ipv4Addr>,
    /// Search names in this domain as well
    #[arg(long, value_name = "DOMAIN")]
    pub dns_search: Vec<String>,
    /// Add an entry to /etc/hosts
    #[arg(long, value_name = "NAME:IP", value_parser = value::host)]
    pub host: Vec<HostEntry>,
    /// Add a supplementary group, by name or number
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,
    #[command(flatten)]
    pub mounts: MountArgs,
    /// Mount a secret as a file [default: /run/secrets/NAME, owned by the container user, mode 0400]
    #[arg(long, value_name = SECRET_OBJECT_MOUNT, value_parser = value::secret_mount)]
    pub secret: Vec<SecretObjectMount>,
    /// Mount a config as a file [default: /NAME, owned by the container user, mode 0444]
    #[arg(long, value_name = SECRET_OBJECT_MOUNT, value_parser = value::config_mount)]
    pub config: Vec<SecretObjectMount>,
    /// Set a header of the HTTP health check
    #[arg(long, value_name = "NAME=VALUE", value_parser = value::header)]
    pub health_header: Vec<HttpHeader>,
    /// Add a device of the node; r, w, m: read, write, mknod
    #[arg(long, value_name = "SOURCE[:TARGET][:rwm]", value_parser = value::device)]
    pub device: Vec<Device>,
    /// Set a ulimit, like nofile=1024:4096
    #[arg(long, value_name = "NAME=SOFT[:HARD]", value_parser = value::ulimit)]
    pub ulimit: Vec<Ulimit>,
    /// Set a sysctl in the namespaces of the container
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::sysctl)]
    pub sysctl: Vec<(String, String)>,
    /// Add a Linux capability, like NET_ADMIN, or ALL
    #[arg(long, value_name = "NAME")]
    pub cap_add: Vec<Capability>,
    /// Drop a Linux capability, or ALL
    #[arg(long, value_name = "NAME")]
    pub cap_drop: Vec<Capability>,
}

/// Mounts of all kinds, in the order of the command line.
#[derive(Debug, Clone, Default)]
pub struct MountArgs(pub Vec<Mount>);

const BIND: &str = "bind";
const MOUNT: &str = "mount";
const TMPFS: &str = "tmpfs";
const VOLUME: &str = "volume";

/// Written by hand, since a derived parser keeps the order of one flag only.
impl Args for MountArgs {
    fn augment_args(command: Command) -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        command
            .arg(
                flag(VOLUME)
                    .value_name("NAME:TARGET[:ro][,subpath=PATH][,nocopy]")
                    .value_parser(value::volume)
                    .help("Mount a volume; created on first use with the content of the image at that path"),
            )
            .arg(flag(BIND).value_name("SOURCE:TARGET[:OPTIONS]").value_parser(value::bind).help(
                "Bind mount a file or directory of the node. Options: ro, nonrecursive, rslave, rshared",
            ))
            .arg(
                flag(TMPFS)
                    .value_name("TARGET[:OPTIONS]")
                    .value_parser(value::tmpfs)
                    .help("Mount a tmpfs. Options: size=BYTES, mode=OCTAL, exec, ro"),
            )
            .arg(
                flag(MOUNT)
                    .value_name("type=TYPE,source=SOURCE,target=TARGET[,OPTIONS]")
                    .value_parser(value::mount)
                    .help("Mount a volume, bind or tmpfs in Docker's long form"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for MountArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut mounts: Vec<(usize, Mount)> = Vec::new();
        for name in [VOLUME, BIND, TMPFS, MOUNT] {
            let indexes = matches.indices_of(name).into_iter().flatten();
            mounts.extend(indexes.zip(matches.get_many::<Mount>(name).into_iter().flatten().cloned()));
        }
        mounts.sort_by_key(|(index, _)| *index);
        Ok(Self(mounts.into_iter().map(|(_, mount)| mount).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Names of the flags of [`ListAdditions`] in an update; the names of a create are accepted as well. The others keep
/// their name: `--env-file` adds in any case, `--cap-add` and `--cap-drop` contain the direction.
const UPDATE_FLAG_NAMES: [(&str, &str); 24] = [
    ("alias", "alias-add"),
    ("bind", "bind-add"),
    ("config", "config-add"),
    ("constraint", "constraint-add"),
    ("container-label", "container-label-add"),
    ("device", "device-add"),
    ("dns", "dns-add"),
    ("dns-search", "dns-search-add"),
    ("env", "env-add"),
    ("group", "group-add"),
    ("health-header", "health-header-add"),
    ("host", "host-add"),
    ("label", "label-add"),
    ("mount", "mount-add"),
    ("network", "network-add"),
    ("prefer", "prefer-add"),
    ("publish", "publish-add"),
    ("publish-on", "publish-on-add"),
    ("secret", "secret-add"),
    ("sysctl", "sysctl-add"),
    ("tmpfs", "tmpfs-add"),
    ("toleration", "toleration-add"),
    ("ulimit", "ulimit-add"),
    ("volume", "volume-add"),
];

/// The same items under their names in an update, so that an update supports every list.
#[derive(Debug, Clone)]
pub struct UpdateAdditions(pub ListAdditions);

impl Args for UpdateAdditions {
    fn augment_args(command: Command) -> Command {
        let plain = ListAdditions::augment_args(Command::new("lists"));
        plain.get_arguments().cloned().fold(command, |command, flag| {
            let long =
                flag.get_long().and_then(|long| UPDATE_FLAG_NAMES.iter().find(|(plain, _)| *plain == long));
            command.arg(match long {
                Some((plain, long)) => flag.long(*long).alias(*plain),
                None => flag,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for UpdateAdditions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        ListAdditions::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// Items that an update removes. Removing a missing item is not an error.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Remove items (applied before additions)")]
pub struct ListRemovals {
    /// Remove a label
    #[arg(long, value_name = "KEY")]
    pub label_rm: Vec<String>,
    /// Remove a label of the containers
    #[arg(long, value_name = "KEY")]
    pub container_label_rm: Vec<String>,
    /// Remove an environment variable
    #[arg(long, value_name = "NAME")]
    pub env_rm: Vec<String>,
    /// Remove a constraint
    #[arg(long, value_name = "TEST")]
    pub constraint_rm: Vec<Constraint>,
    /// Remove a toleration
    #[arg(long, value_name = "KEY[=VALUE][:EFFECT]|*")]
    pub toleration_rm: Vec<TaintSelector>,
    /// Remove a placement preference
    #[arg(long, visible_alias = "placement-pref-rm", value_name = "spread=LABEL")]
    pub prefer_rm: Vec<PlacementPreference>,
    /// Unpublish a port, by its full mapping or its host port
    #[arg(long, value_name = "HOST|[IP:]HOST:CONTAINER", value_parser = value::unpublish)]
    pub publish_rm: Vec<PortRemoval>,
    /// Remove a test of the nodes that open ports in ingress mode; without any, every node opens them
    #[arg(long, value_name = "TEST")]
    pub publish_on_rm: Vec<Constraint>,
    /// Disconnect from a network
    #[arg(long, value_name = "NAME")]
    pub network_rm: Vec<NetworkName>,
    /// Remove a name of the service from all its networks
    #[arg(long, value_name = "NAME")]
    pub alias_rm: Vec<DnsLabel>,
    /// Remove a DNS server
    #[arg(long, value_name = "IP")]
    pub dns_rm: Vec<Ipv4Addr>,
    /// Remove a search domain
    #[arg(long, value_name = "DOMAIN")]
    pub dns_search_rm: Vec<String>,
    /// Remove entries from /etc/hosts: all of a name, or one
    #[arg(long, value_name = "NAME[:IP]", value_parser = value::host_removal)]
    pub host_rm: Vec<(String, Option<Ipv4Addr>)>,
    /// Remove a supplementary group
    #[arg(long, value_name = "GROUP")]
    pub group_rm: Vec<String>,
    /// Remove a mount, by its target
    #[arg(long, value_name = "TARGET")]
    pub mount_rm: Vec<String>,
    /// Unmount a volume, by its name or target; the data stays
    #[arg(long, value_name = "NAME|TARGET")]
    pub volume_rm: Vec<String>,
    /// Unmount a secret, by its name or target
    #[arg(long, value_name = "NAME|TARGET")]
    pub secret_rm: Vec<String>,
    /// Unmount a config, by its name or target
    #[arg(long, value_name = "NAME|TARGET")]
    pub config_rm: Vec<String>,
    /// Remove a header of the HTTP health check
    #[arg(long, value_name = "NAME")]
    pub health_header_rm: Vec<String>,
    /// Remove the health check; tasks are healthy while they run
    #[arg(long, alias = "no-healthcheck", conflicts_with_all = [
        "health_http", "health_tcp", "health_cmd", "health_exec", "health_interval", "health_timeout",
        "health_retries", "health_start_period", "health_start_interval", "health_header", "health_header_rm",
    ])]
    pub no_health: bool,
    /// Remove a device, by its target
    #[arg(long, value_name = "TARGET")]
    pub device_rm: Vec<String>,
    /// Remove a ulimit
    #[arg(long, value_name = "NAME")]
    pub ulimit_rm: Vec<UlimitName>,
    /// Remove a sysctl
    #[arg(long, value_name = "KEY")]
    pub sysctl_rm: Vec<String>,
}
