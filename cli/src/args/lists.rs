//! What a service has several of: the flags by which `service create` says them, and by which
//! `service update` adds to them (`--env` is `--env-add` there) and takes away from them (`--env-rm`).

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use warren_types::{
    Capability, Constraint, ContentMount, Device, HostEntry, HttpHeader, Mount, PublishedPort, Ulimit,
    UlimitName,
};

use super::value::{self, Unpublish, Variable};

/// Items of every list.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Lists (each can be given several times)")]
pub struct Additions {
    /// Label of the service
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::label)]
    pub label: Vec<(String, String)>,
    /// Environment variable; without a value it is taken from this command's environment
    #[arg(long, short, value_name = "NAME[=VALUE]", value_parser = value::variable)]
    pub env: Vec<Variable>,
    /// File with a variable per line; # starts a comment
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// What a node must be to run tasks: 'node.labels.zone in (a,b)'. KEY ==, !=, in, notin or exists, over
    /// node.id, node.name, node.ip, node.role, node.arch, node.os and node.labels.KEY
    #[arg(long, value_name = "TEST")]
    pub constraint: Vec<Constraint>,
    /// Open a port on the nodes that run tasks
    #[arg(long, short, value_name = "[IP:]HOST:CONTAINER[/tcp][,mode=host]", value_parser = value::publish)]
    pub publish: Vec<PublishedPort>,
    /// Line of /etc/hosts
    #[arg(long, value_name = "NAME:IP", value_parser = value::host)]
    pub host: Vec<HostEntry>,
    /// Further group of the process, by name or number
    #[arg(long, value_name = "GROUP")]
    pub group: Vec<String>,
    #[command(flatten)]
    pub mounts: Mounts,
    /// Secret that the tasks see as a file [default: at /run/secrets/NAME, of the container's user, mode 0400]
    #[arg(long, value_name = "NAME[:TARGET][,uid=N][,gid=N][,mode=OCTAL][,template]", value_parser = value::content)]
    pub secret: Vec<ContentMount>,
    /// Config that the tasks see as a file [default: at /NAME, of the container's user, mode 0444]
    #[arg(long, value_name = "NAME[:TARGET][,uid=N][,gid=N][,mode=OCTAL][,template]", value_parser = value::content)]
    pub config: Vec<ContentMount>,
    /// Header that the HTTP health check sends
    #[arg(long, value_name = "NAME=VALUE", value_parser = value::header)]
    pub health_header: Vec<HttpHeader>,
    /// Device of the node; r, w and m: read, write, make nodes
    #[arg(long, value_name = "SOURCE[:TARGET][:rwm]", value_parser = value::device)]
    pub device: Vec<Device>,
    /// Bound of the kernel on each process, like nofile=1024:4096
    #[arg(long, value_name = "NAME=SOFT[:HARD]", value_parser = value::ulimit)]
    pub ulimit: Vec<Ulimit>,
    /// Kernel setting of the container's own namespaces
    #[arg(long, value_name = "KEY=VALUE", value_parser = value::sysctl)]
    pub sysctl: Vec<(String, String)>,
    /// Capability beyond the default ones, like NET_ADMIN, or ALL
    #[arg(long, value_name = "NAME")]
    pub cap_add: Vec<Capability>,
    /// Capability to take from the default ones, or ALL
    #[arg(long, value_name = "NAME")]
    pub cap_drop: Vec<Capability>,
}

/// What is mounted, in the order of the command line, whichever flag says it.
#[derive(Debug, Clone, Default)]
pub struct Mounts(pub Vec<Mount>);

const BIND: &str = "bind";
const TMPFS: &str = "tmpfs";
const VOLUME: &str = "volume";

/// By hand, since a derived parser keeps the order of one flag only.
impl Args for Mounts {
    fn augment_args(command: Command) -> Command {
        let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        command
            .arg(
                flag(VOLUME)
                    .value_name("NAME:TARGET[:ro][,subpath=PATH][,nocopy]")
                    .value_parser(value::volume)
                    .help(
                        "Volume, made where its first task comes to; it begins with what the image has there",
                    ),
            )
            .arg(
                flag(BIND)
                    .value_name("SOURCE:TARGET[:OPTIONS]")
                    .value_parser(value::bind)
                    .help("File or directory of the node. Options: ro, nonrecursive, rslave, rshared"),
            )
            .arg(
                flag(TMPFS)
                    .value_name("TARGET[:OPTIONS]")
                    .value_parser(value::tmpfs)
                    .help("Memory as a file system. Options: size=BYTES, mode=OCTAL, exec, ro"),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Mounts {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found: Vec<(usize, Mount)> = Vec::new();
        for name in [VOLUME, BIND, TMPFS] {
            let places = matches.indices_of(name).into_iter().flatten();
            found.extend(places.zip(matches.get_many::<Mount>(name).into_iter().flatten().cloned()));
        }
        found.sort_by_key(|(place, _)| *place);
        Ok(Self(found.into_iter().map(|(_, mount)| mount).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Names of the flags of [`Additions`] in an update. The others keep theirs: `--env-file` adds anyway,
/// `--cap-add` and `--cap-drop` say which way they go.
const IN_UPDATE: [(&str, &str); 15] = [
    ("bind", "bind-add"),
    ("config", "config-add"),
    ("constraint", "constraint-add"),
    ("device", "device-add"),
    ("env", "env-add"),
    ("group", "group-add"),
    ("health-header", "health-header-add"),
    ("host", "host-add"),
    ("label", "label-add"),
    ("publish", "publish-add"),
    ("secret", "secret-add"),
    ("sysctl", "sysctl-add"),
    ("tmpfs", "tmpfs-add"),
    ("ulimit", "ulimit-add"),
    ("volume", "volume-add"),
];

/// The same items under their names in an update, so that none can be forgotten there.
#[derive(Debug, Clone)]
pub struct Added(pub Additions);

impl Args for Added {
    fn augment_args(command: Command) -> Command {
        let plain = Additions::augment_args(Command::new("lists"));
        plain.get_arguments().cloned().fold(command, |command, flag| {
            let long = flag.get_long().and_then(|long| IN_UPDATE.iter().find(|(plain, _)| *plain == long));
            command.arg(match long {
                Some((_, long)) => flag.long(*long).short(None),
                None => flag,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Added {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Additions::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

/// What an update takes away. What is not there is gone already.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Taken from lists before anything is added")]
pub struct Removals {
    /// Label to take away
    #[arg(long, value_name = "KEY")]
    pub label_rm: Vec<String>,
    /// Environment variable to take away
    #[arg(long, value_name = "NAME")]
    pub env_rm: Vec<String>,
    /// Constraint to take away
    #[arg(long, value_name = "TEST")]
    pub constraint_rm: Vec<Constraint>,
    /// Port to close, as it was published or by its port of the node alone
    #[arg(long, value_name = "HOST|[IP:]HOST:CONTAINER", value_parser = value::unpublish)]
    pub publish_rm: Vec<Unpublish>,
    /// Lines of /etc/hosts to take away: all of a name, or one
    #[arg(long, value_name = "NAME[:IP]", value_parser = value::host_removal)]
    pub host_rm: Vec<(String, Option<Ipv4Addr>)>,
    /// Group to take away
    #[arg(long, value_name = "GROUP")]
    pub group_rm: Vec<String>,
    /// Mount to take away, by where it is in the container
    #[arg(long, value_name = "TARGET")]
    pub mount_rm: Vec<String>,
    /// Volume to take away, by its name or by where it is in the container; its data stays
    #[arg(long, value_name = "NAME|TARGET")]
    pub volume_rm: Vec<String>,
    /// Secret to take away, by its name or by where it is in the container
    #[arg(long, value_name = "NAME|TARGET")]
    pub secret_rm: Vec<String>,
    /// Config to take away, by its name or by where it is in the container
    #[arg(long, value_name = "NAME|TARGET")]
    pub config_rm: Vec<String>,
    /// Header of the health check to take away
    #[arg(long, value_name = "NAME")]
    pub health_header_rm: Vec<String>,
    /// Take the health check away: the tasks are well while they run
    #[arg(long, conflicts_with_all = [
        "health_http", "health_tcp", "health_cmd", "health_exec", "health_interval", "health_timeout",
        "health_retries", "health_start_period", "health_start_interval", "health_header", "health_header_rm",
    ])]
    pub no_health: bool,
    /// Device to take away, by where it is in the container
    #[arg(long, value_name = "TARGET")]
    pub device_rm: Vec<String>,
    /// Ulimit to take away
    #[arg(long, value_name = "NAME")]
    pub ulimit_rm: Vec<UlimitName>,
    /// Kernel setting to take away
    #[arg(long, value_name = "KEY")]
    pub sysctl_rm: Vec<String>,
}
