//! What a service shall be: the flags that `service create` and `service update` share.
//!
//! Every flag here is optional. What is not said is the default in a new service and stays as it is in an
//! old one. Lists are in [`super::lists`].

use std::time::Duration;

use clap::Args;
use warren_types::{Bytes, MilliCpu, OnDisconnect, PullPolicy, RestartCondition, Seccomp, Signal};

use super::value::{self, HttpTarget, Replicas, Setting, setting};

/// Every flag that is not a list.
#[derive(Debug, Clone, Args)]
pub struct SpecArgs {
    #[command(flatten)]
    pub scale: ScaleFlags,
    #[command(flatten)]
    pub process: ProcessFlags,
    #[command(flatten)]
    pub bounds: BoundFlags,
    #[command(flatten)]
    pub rights: RightFlags,
    #[command(flatten)]
    pub health: HealthFlags,
    #[command(flatten)]
    pub life: LifeFlags,
}

/// How many tasks, and where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "How many")]
pub struct ScaleFlags {
    /// How many tasks to run [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub replicas: Option<Replicas>,
    /// Most tasks of the service on one node
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub max_per_node: Option<Setting<u32>>,
}

/// What runs.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Image and process")]
pub struct ProcessFlags {
    /// Image to run
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
    /// When to ask a registry for the image: missing, always or never [default: missing]
    #[arg(long, value_name = "WHEN", value_parser = setting(str::parse::<PullPolicy>))]
    pub pull: Option<Setting<PullPolicy>>,
    /// Replaces the image's ENTRYPOINT; one word each (repeatable)
    #[arg(long, value_name = "WORD", alias = "entrypoint", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Replaces the image's CMD; one word each (repeatable)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, conflicts_with_all = ["args", "no_args"])]
    pub arg: Vec<String>,
    /// Pass no arguments: not even the image's CMD
    #[arg(long, conflicts_with = "args")]
    pub no_args: bool,
    /// Replaces the image's CMD: all words after --
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,
    /// Working directory, made if it is missing [default: the image's]
    #[arg(long, value_name = "PATH", value_parser = setting(value::text))]
    pub workdir: Option<Setting<String>>,
    /// Run as this user, by names or numbers [default: the image's]
    #[arg(long, value_name = "USER[:GROUP]", value_parser = setting(value::text))]
    pub user: Option<Setting<String>>,
    /// Host name inside [default: made from service and slot]
    #[arg(long, value_name = "NAME", value_parser = setting(value::text))]
    pub hostname: Option<Setting<String>>,
    /// Give the process a terminal
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub tty: Option<bool>,
    /// Run a small init as process 1, which forwards signals and reaps processes
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub init: Option<bool>,
    /// Signal that asks the process to end, like SIGQUIT [default: the image's, or SIGTERM]
    #[arg(long, value_name = "SIGNAL", value_parser = setting(str::parse::<Signal>))]
    pub stop_signal: Option<Setting<Signal>>,
    /// Time between the stop signal and SIGKILL [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub stop_grace: Option<Setting<Duration>>,
}

/// How much it may have.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Resources")]
pub struct BoundFlags {
    /// Most CPU a task may use, like 0.5 or 500m [default: no limit]
    #[arg(long, value_name = "CPUS", value_parser = setting(str::parse::<MilliCpu>))]
    pub cpus: Option<Setting<MilliCpu>>,
    /// Most memory a task may use, like 256Mi or 256M [default: no limit]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub memory: Option<Setting<Bytes>>,
    /// Most processes and threads a task may have [default: no limit]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub pids: Option<Setting<u32>>,
    /// CPU that is set aside for each task
    #[arg(long, value_name = "CPUS", value_parser = setting(str::parse::<MilliCpu>))]
    pub reserve_cpus: Option<Setting<MilliCpu>>,
    /// Memory that is set aside for each task
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub reserve_memory: Option<Setting<Bytes>>,
    /// Size of /dev/shm [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub shm_size: Option<Setting<Bytes>>,
    /// -1000 to 1000: the higher, the sooner the kernel ends it when the node lacks memory
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = setting(str::parse::<i32>))]
    pub oom_score_adj: Option<Setting<i32>>,
}

/// What it may do.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Rights")]
pub struct RightFlags {
    /// Everything that root of the node may do
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub privileged: Option<bool>,
    /// No program gets more rights than the one that started it
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub no_new_privileges: Option<bool>,
    /// Which system calls it may make: default or unconfined [default: default]
    #[arg(long, value_name = "PROFILE", value_parser = setting(str::parse::<Seccomp>))]
    pub seccomp: Option<Setting<Seccomp>>,
    /// Its own file system cannot be written to
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub read_only: Option<bool>,
}

/// How it is found to be well. Headers are in [`super::lists`].
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Health check (none: a task is well while it runs)")]
pub struct HealthFlags {
    /// Ask this path by HTTP: 200 to 399 is well [default port: the lowest that is published]
    #[arg(long, value_name = "[:PORT]/PATH", value_parser = value::http_target)]
    #[arg(conflicts_with_all = ["health_tcp", "health_cmd", "health_exec"])]
    pub health_http: Option<HttpTarget>,
    /// Connect to this port of the container
    #[arg(long, value_name = "PORT", value_parser = value::port)]
    #[arg(conflicts_with_all = ["health_cmd", "health_exec"])]
    pub health_tcp: Option<u16>,
    /// Have /bin/sh of the container run this: 0 is well
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true, value_parser = value::shell_words)]
    #[arg(conflicts_with = "health_exec")]
    pub health_cmd: Option<String>,
    /// Run a program of the container without a shell: 0 is well; one word each (repeatable)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub health_exec: Vec<String>,
    /// Time between checks [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_interval: Option<Setting<Duration>>,
    /// A check that takes longer has failed [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_timeout: Option<Setting<Duration>>,
    /// Failures in a row that make a task unhealthy [default: 3]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub health_retries: Option<Setting<u32>>,
    /// Time after the start in which failures before the first success do not count [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_start_period: Option<Setting<Duration>>,
    /// Time between checks before the first success [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_start_interval: Option<Setting<Duration>>,
}

/// When it is started again or given up, and what is kept of what it writes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Restarts, lost nodes and logs")]
pub struct LifeFlags {
    /// After which ends to start it again: any, on-failure or none [default: any]
    #[arg(long, value_name = "WHEN", value_parser = setting(str::parse::<RestartCondition>))]
    pub restart: Option<Setting<RestartCondition>>,
    /// Pause before the first restart; it doubles up to 5 minutes [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub restart_delay: Option<Setting<Duration>>,
    /// More restarts than this within the window make the task FAILED [default: 3]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub restart_max: Option<Setting<u32>>,
    /// Time in which restarts are counted [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub restart_window: Option<Setting<Duration>>,
    /// Size of one log file [default: 10MiB]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub log_max_size: Option<Setting<Bytes>>,
    /// How many log files to keep of a task [default: 5]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub log_files: Option<Setting<u32>>,
    /// What its node does with it while it reaches no manager: keep, or stop-after=TIME [default: keep]
    #[arg(long, value_name = "POLICY", value_parser = setting(value::on_disconnect))]
    pub on_disconnect: Option<Setting<OnDisconnect>>,
    /// For how long its node may be down before another takes its place [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub replace_after: Option<Setting<Duration>>,
}
