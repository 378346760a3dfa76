//! Flags of `service create` and `service update` that hold one value.
//!
//! Every flag is optional. A missing flag means the default in a new service, and keeps the value of an existing one.
//! Groups that only set fields of the spec do so here, the others in the command. Lists are in [`super::lists`], the
//! policies of updates in [`super::update_policy`].

use std::time::Duration;

use clap::Args;
use warren_types::{
    AppArmor, Bytes, EndpointMode, ImageResolver, LogLimits, MilliCpu, NoNewPrivileges, NodeLabel,
    OnDisconnect, PullPolicy, Resources, RestartCondition, RestartPolicy, ServiceSpec, Signal, TaskSpec,
    UserNamespace,
};

use super::update_policy::{RollbackFlags, UpdateFlags};
use super::value::{
    self, HttpTarget, ReplicaCount, ResetFlags, SeccompSource, SecurityOption, Setting, setting,
};

/// Flags that hold one value.
#[derive(Debug, Clone, Args)]
pub struct SpecArgs {
    #[command(flatten)]
    pub scale: ScaleFlags,
    #[command(flatten)]
    pub process: ProcessFlags,
    #[command(flatten)]
    pub resources: ResourceFlags,
    #[command(flatten)]
    pub privileges: PrivilegeFlags,
    #[command(flatten)]
    pub health: HealthFlags,
    #[command(flatten)]
    pub lifecycle: LifecycleFlags,
    #[command(flatten)]
    pub update: UpdateFlags,
    #[command(flatten)]
    pub rollback: RollbackFlags,
}

/// Number and placement of tasks.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Scheduling")]
pub struct ScaleFlags {
    /// Number of tasks [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub replicas: Option<ReplicaCount>,
    /// Maximum number of tasks on one node
    #[arg(long, value_name = "N", alias = "replicas-max-per-node", value_parser = setting(str::parse::<u32>))]
    pub max_per_node: Option<Setting<u32>>,
    /// In global mode: run one task for each value of this label of nodes, like node.labels.datacenter [default: one
    /// on each node]
    #[arg(long, value_name = "LABEL")]
    pub per: Option<NodeLabel>,
    /// In global mode: start it on each node before tasks of other services, and remove it only with --force
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub bootstrap: Option<bool>,
    /// What the name of the service resolves to: a virtual address (vip), or the addresses of its tasks (dnsrr)
    #[arg(long, value_name = "MODE")]
    pub endpoint_mode: Option<EndpointMode>,
}

/// Image and command of the container.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Image and process")]
pub struct ProcessFlags {
    /// Container image
    #[arg(long, value_name = "REFERENCE")]
    pub image: Option<String>,
    /// Pull policy: missing, always or never [default: missing]
    #[arg(long, value_name = "WHEN", value_parser = setting(str::parse::<PullPolicy>))]
    pub pull: Option<Setting<PullPolicy>>,
    /// Who decides which digest the tag stands for: manager (asks the registry), or worker (the first node that has
    /// the image: only where managers do not reach the registry) [default: manager; worker with --pull never, and for
    /// registries on localhost]
    #[arg(long, value_name = "WHO", value_parser = setting(str::parse::<ImageResolver>))]
    pub resolve_image: Option<Setting<ImageResolver>>,
    /// Override the ENTRYPOINT of the image, one word per flag (repeatable)
    #[arg(long, value_name = "WORD", alias = "entrypoint", allow_hyphen_values = true)]
    pub command: Vec<String>,
    /// Override the CMD of the image, one word per flag (repeatable)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true, conflicts_with_all = ["args", "no_args"])]
    pub arg: Vec<String>,
    /// Pass no arguments, not even the CMD of the image
    #[arg(long, conflicts_with = "args")]
    pub no_args: bool,
    /// Override the CMD of the image with all words after --
    #[arg(last = true, value_name = "ARGS")]
    pub args: Vec<String>,
    /// Working directory in the container; created if missing [default: from the image]
    #[arg(long, short, value_name = "PATH", value_parser = setting(value::text))]
    pub workdir: Option<Setting<String>>,
    /// User and group, by name or number [default: from the image]
    #[arg(long, short, value_name = "USER[:GROUP]", value_parser = setting(value::text))]
    pub user: Option<Setting<String>>,
    /// Host name in the container [default: from the service name and the slot]
    #[arg(long, value_name = "NAME", value_parser = setting(value::text))]
    pub hostname: Option<Setting<String>>,
    /// Allocate a terminal
    #[arg(
        long, short, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub tty: Option<bool>,
    /// Keep standard input open for `warren task attach --interactive`
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub stdin: Option<bool>,
    /// Run an init process that forwards signals and reaps zombies
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub init: Option<bool>,
    /// Signal that stops the process, like SIGQUIT [default: from the image, or SIGTERM]
    #[arg(long, value_name = "SIGNAL", value_parser = setting(str::parse::<Signal>))]
    pub stop_signal: Option<Setting<Signal>>,
    /// Time before the stop signal in which clients go to other tasks [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub drain_delay: Option<Setting<Duration>>,
    /// Time between the stop signal and SIGKILL [default: 10s]
    #[arg(long, value_name = "DURATION", alias = "stop-grace-period", value_parser = setting(value::duration))]
    pub stop_grace: Option<Setting<Duration>>,
    /// Shell command that runs in the container once it has started; the task is ready after it, and ends if it fails
    /// (repeatable)
    #[arg(long, value_name = "COMMAND")]
    pub post_start: Vec<String>,
    /// Shell command that runs in the container before the stop signal, within the stop grace (repeatable)
    #[arg(long, value_name = "COMMAND")]
    pub pre_stop: Vec<String>,
}

/// Resource limits and reservations.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Resources")]
pub struct ResourceFlags {
    /// CPU limit of a task, like 0.5 or 500m [default: unlimited]
    #[arg(long, value_name = "CPUS", alias = "limit-cpu", value_parser = setting(str::parse::<MilliCpu>))]
    pub cpus: Option<Setting<MilliCpu>>,
    /// Memory limit of a task, like 256Mi or 256M [default: unlimited]
    #[arg(long, value_name = "BYTES", alias = "limit-memory", value_parser = setting(str::parse::<Bytes>))]
    pub memory: Option<Setting<Bytes>>,
    /// Limit of processes and threads of a task [default: 4096]
    #[arg(long, value_name = "N", alias = "limit-pids", value_parser = setting(str::parse::<u32>))]
    pub pids: Option<Setting<u32>>,
    /// CPU reserved for each task
    #[arg(long, value_name = "CPUS", alias = "reserve-cpu", value_parser = setting(str::parse::<MilliCpu>))]
    pub reserve_cpus: Option<Setting<MilliCpu>>,
    /// Memory reserved for each task
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub reserve_memory: Option<Setting<Bytes>>,
    /// Size of /dev/shm [default: 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub shm_size: Option<Setting<Bytes>>,
    /// Limit of what a task writes to its own file system, like 2G, without volumes; a task beyond it fails [default:
    /// unlimited]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub storage_limit: Option<Setting<Bytes>>,
    /// OOM score adjustment, -1000 to 1000; tasks with higher values are killed first
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = setting(str::parse::<i32>))]
    pub oom_score_adj: Option<Setting<i32>>,
}

impl ResourceFlags {
    /// Sets what is given.
    pub fn change(&self, resets: &mut ResetFlags, task: &mut TaskSpec) {
        let Self { cpus, memory, pids, reserve_cpus, reserve_memory, shm_size, storage_limit, oom_score_adj } =
            self;
        resets.set_optional("--cpus", cpus, &mut task.limits.cpu);
        resets.set_optional("--memory", memory, &mut task.limits.memory);
        resets.set_optional("--pids", pids, &mut task.limits.pids);
        let Resources { cpu, memory } = &mut task.reservations;
        resets.set("--reserve-cpus", reserve_cpus, cpu, MilliCpu::default());
        resets.set("--reserve-memory", reserve_memory, memory, Resources::default().memory);
        resets.set_optional("--shm-size", shm_size, &mut task.shm_size);
        resets.set_optional("--storage-limit", storage_limit, &mut task.storage_limit);
        resets.set_optional("--oom-score-adj", oom_score_adj, &mut task.oom_score_adj);
    }
}

/// Privileges of the container.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Privileges")]
pub struct PrivilegeFlags {
    /// Give the container full access to the node
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub privileged: Option<bool>,
    /// Prevent processes from gaining privileges (no_new_privs): true or false [default: that of the cluster]
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        value_parser = setting(str::parse::<NoNewPrivileges>)
    )]
    pub no_new_privileges: Option<Setting<NoNewPrivileges>>,
    /// Let processes reach the metadata service of a cloud, 169.254.169.254, which often holds credentials
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub allow_metadata: Option<bool>,
    /// Seccomp profile: default, unconfined, config/NAME for the profile in a config, or a file with one in Docker's
    /// format, which becomes a config [default: default]
    #[arg(long, value_name = "PROFILE", value_parser = setting(str::parse::<SeccompSource>))]
    pub seccomp: Option<Setting<SeccompSource>>,
    /// AppArmor profile: default, unconfined, or the name of one that is loaded on the nodes [default: default]
    #[arg(long, value_name = "PROFILE", value_parser = setting(str::parse::<AppArmor>))]
    pub apparmor: Option<Setting<AppArmor>>,
    /// As in Docker: no-new-privileges[=BOOL], seccomp=FILE, seccomp=unconfined or apparmor=PROFILE (repeatable)
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub security_opt: Vec<SecurityOption>,
    /// Users of the container: those of the node (host), or others without rights on the node, which no other task
    /// has (private) [default: that of the cluster]
    #[arg(long, value_name = "KIND", value_parser = setting(str::parse::<UserNamespace>))]
    pub user_namespace: Option<Setting<UserNamespace>>,
    /// Mount the root file system read-only
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true"
    )]
    pub read_only: Option<bool>,
}

/// The health check. Its headers are in [`super::lists`].
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Health check (without one, a running task is healthy)")]
pub struct HealthFlags {
    /// Check with an HTTP GET of this path; 200 to 399 is healthy [default port: the lowest published port]
    #[arg(long, value_name = "[:PORT]/PATH", value_parser = value::http_target)]
    #[arg(conflicts_with_all = ["health_tcp", "health_cmd", "health_exec"])]
    pub health_http: Option<HttpTarget>,
    /// Check by connecting to this port of the container
    #[arg(long, value_name = "PORT", value_parser = value::port)]
    #[arg(conflicts_with_all = ["health_cmd", "health_exec"])]
    pub health_tcp: Option<u16>,
    /// Check by running this with /bin/sh in the container; exit code 0 is healthy
    #[arg(long, value_name = "COMMAND", allow_hyphen_values = true, value_parser = value::shell_words)]
    #[arg(conflicts_with = "health_exec")]
    pub health_cmd: Option<String>,
    /// Check by running this program in the container without a shell, one word per flag (repeatable)
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub health_exec: Vec<String>,
    /// Time between checks [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_interval: Option<Setting<Duration>>,
    /// Timeout of a check [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_timeout: Option<Setting<Duration>>,
    /// Consecutive failures that make a task unhealthy [default: 3]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub health_retries: Option<Setting<u32>>,
    /// Time after the start in which failures do not count before the first success [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_start_period: Option<Setting<Duration>>,
    /// Time between checks before the first success [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub health_start_interval: Option<Setting<Duration>>,
}

/// Restart policy, policy for disconnected nodes, and log retention.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Restart, disconnection and logs")]
pub struct LifecycleFlags {
    /// Restart condition: any, on-failure or none [default: any]
    #[arg(long, value_name = "WHEN", alias = "restart-condition")]
    #[arg(value_parser = setting(str::parse::<RestartCondition>))]
    pub restart: Option<Setting<RestartCondition>>,
    /// Delay before the first restart; doubles up to 5 minutes [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub restart_delay: Option<Setting<Duration>>,
    /// Restarts within the window after which the task is FAILED [default: 3]
    #[arg(long, value_name = "N", alias = "restart-max-attempts", value_parser = setting(str::parse::<u32>))]
    pub restart_max: Option<Setting<u32>>,
    /// Window in which restarts are counted [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub restart_window: Option<Setting<Duration>>,
    /// Maximum size of a log file [default: 10MiB]
    #[arg(long, value_name = "BYTES", value_parser = setting(str::parse::<Bytes>))]
    pub log_max_size: Option<Setting<Bytes>>,
    /// Number of log files kept for a task [default: 5]
    #[arg(long, value_name = "N", value_parser = setting(str::parse::<u32>))]
    pub log_files: Option<Setting<u32>>,
    /// Action while the node reaches no manager: keep, or stop-after=TIME [default: keep]
    #[arg(long, value_name = "POLICY", value_parser = setting(value::on_disconnect))]
    pub on_disconnect: Option<Setting<OnDisconnect>>,
    /// Time a node may be down before its tasks are replaced [default: 0s]
    #[arg(long, value_name = "DURATION", value_parser = setting(value::duration))]
    pub replace_after: Option<Setting<Duration>>,
}

impl LifecycleFlags {
    /// Sets what is given.
    pub fn change(&self, resets: &mut ResetFlags, spec: &mut ServiceSpec) {
        let Self {
            restart,
            restart_delay,
            restart_max,
            restart_window,
            log_max_size,
            log_files,
            on_disconnect,
            replace_after,
        } = self;
        let (policy, default) = (&mut spec.task.restart, RestartPolicy::default());
        resets.set("--restart", restart, &mut policy.condition, default.condition);
        resets.set("--restart-delay", restart_delay, &mut policy.delay, default.delay);
        resets.set("--restart-max", restart_max, &mut policy.max, default.max);
        resets.set("--restart-window", restart_window, &mut policy.window, default.window);
        let (logs, default) = (&mut spec.task.logs, LogLimits::default());
        resets.set("--log-max-size", log_max_size, &mut logs.max_size, default.max_size);
        resets.set("--log-files", log_files, &mut logs.max_files, default.max_files);
        let policy = &mut spec.task.on_disconnect;
        resets.set("--on-disconnect", on_disconnect, policy, OnDisconnect::default());
        resets.set("--replace-after", replace_after, &mut spec.replace_after, Duration::ZERO);
    }
}
