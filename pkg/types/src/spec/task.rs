//! The spec of one task: what it runs, with which limits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::check::{check_count, is_default, is_host_name};
use super::health::HealthCheck;
use super::image::{ImageResolver, PullPolicy};
use super::limits::{Limits, LogLimits};
use super::network::{DnsSettings, TaskNetworkMode};
use super::on_disconnect::OnDisconnect;
use super::process::{
    EnvVar, LifecycleHook, is_account, validate_env, validate_hooks, validate_user, validate_workdir,
};
use super::secret_object::{IMAGE_DIRECTORIES, MAX_TASK_SECRET_OBJECTS, SecretObjectMount};
use super::security::{AppArmor, Capability, Device, NoNewPrivileges, Seccomp, Ulimit, UserNamespace};
use super::storage::{MAX_MOUNTS, Mount, MountSource};
use super::sysctl::sysctl_fault;
use super::{RestartPolicy, validate_labels_at};
use crate::image_reference::{is_loopback_registry, split_reference};
use crate::secret_object::registry_host;
use crate::{Bytes, ImageReference, Resources, Signal, Violations};

/// The writable layer of a container without files of its own has some directories and mount points.
const MIN_STORAGE_LIMIT: Bytes = Bytes(1 << 20);
/// Default time between the withdrawal of a task's endpoints and the stop signal.
pub const DEFAULT_DRAIN_DELAY: Duration = Duration::from_secs(2);
/// How long a task that stops waits for the acknowledgement that no other node sends it new clients.
pub const WITHDRAWAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Default grace between the stop signal and SIGKILL.
pub const DEFAULT_STOP_GRACE: Duration = Duration::from_secs(10);
/// Longest grace and drain delay: a longer one would delay drains and updates too much.
pub const MAX_STOP_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Time between the moment at which a task has stopped by itself and the start of its replacement: clocks run
/// differently, and the two sides do not lose each other at the same moment.
const REPLACE_MARGIN: Duration = Duration::from_secs(10);
/// The most items of one list (groups, hosts, devices, ulimits, sysctls) of a task.
const MAX_ITEMS: usize = 64;
/// Labels of a container that its node and containerd set and act on: containerd restarts containers that have
/// `containerd.io/restart.status`.
const RESERVED_LABEL_PREFIXES: [&str; 3] = ["warren.", "warren/", "containerd.io/"];

/// What one task runs, with which limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaskSpec {
    /// The image.
    pub image: ImageReference,
    /// When the image is pulled.
    #[serde(default)]
    pub pull: PullPolicy,
    /// Who decides which digest the tag of the image stands for.
    #[serde(default, skip_serializing_if = "is_default")]
    pub resolve_image: ImageResolver,
    /// Replaces the image's ENTRYPOINT. The image's CMD is then dropped too, as in Docker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Replaces the image's CMD.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added to the image's environment; each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Labels of its container.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub container_labels: BTreeMap<String, String>,
    /// Working directory, absolute, created if missing; `None` is the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// `user[:group]`, names from the container's own files or numbers; `None` is the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Additional groups, by name or number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Host name inside the container; `None` is made from service and slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    /// Additional lines of `/etc/hosts`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostEntry>,
    /// A terminal for standard input and output.
    #[serde(default)]
    pub tty: bool,
    /// Standard input stays open for clients that attach to the task; otherwise it is empty. Without a terminal, a
    /// small init is process 1, as with `init`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stdin: bool,
    /// Runs a small init as process 1, which forwards signals and reaps orphaned processes.
    #[serde(default)]
    pub init: bool,
    /// The first signal of a stop; `None` is the image's, or SIGTERM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<Signal>,
    /// Time between the withdrawal of its endpoints and the stop signal, in which clients go elsewhere.
    #[serde(
        default = "default_drain_delay",
        with = "crate::text::duration",
        skip_serializing_if = "is_default_drain_delay"
    )]
    pub drain_delay: Duration,
    /// Time between the stop signal and SIGKILL.
    #[serde(default = "default_stop_grace", with = "crate::text::duration")]
    pub stop_grace: Duration,
    /// Run one after the other once its process has started; it counts as ready after them, and ends if one fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub post_start: Vec<LifecycleHook>,
    /// Run one after the other before the stop signal, within the time between that and SIGKILL.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pre_stop: Vec<LifecycleHook>,
    /// Limits that the kernel enforces.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
    /// What the scheduler reserves on the node.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reservations: Resources,
    /// Limits on each process; each name once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ulimits: Vec<Ulimit>,
    /// Kernel settings of the container's own namespaces: `net.core.somaxconn`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctls: BTreeMap<String, String>,
    /// Size of `/dev/shm`; `None` is 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Bytes>,
    /// How much its container may write to its own file system, its writable layer: not to volumes and other mounts.
    /// `None` is unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_limit: Option<Bytes>,
    /// -1000 to 1000: the higher, the sooner the kernel kills it when the node is out of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// Gives all privileges of root on the node.
    #[serde(default)]
    pub privileged: bool,
    /// Capabilities added to the default ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<Capability>,
    /// Capabilities removed from the default ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<Capability>,
    /// No program gets more privileges than the one that started it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub no_new_privileges: NoNewPrivileges,
    /// Which system calls it may make.
    #[serde(default)]
    pub seccomp: Seccomp,
    /// Its AppArmor profile.
    #[serde(default, skip_serializing_if = "is_default")]
    pub apparmor: AppArmor,
    /// Devices of the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// The container's own file system is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// What is mounted; each target once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Secrets that it gets as files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretObjectMount>,
    /// Configs that it gets as files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<SecretObjectMount>,
    /// Its health check; with `None` it is healthy while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthCheck>,
    /// When the worker restarts it.
    #[serde(default)]
    pub restart: RestartPolicy,
    /// What the node does with it while it reaches no manager.
    #[serde(default, skip_serializing_if = "OnDisconnect::is_keep")]
    pub on_disconnect: OnDisconnect,
    /// How much of its output is kept.
    #[serde(default)]
    pub logs: LogLimits,
    /// How it is connected.
    #[serde(default, skip_serializing_if = "is_default")]
    pub network: TaskNetworkMode,
    /// How names outside the cluster are resolved.
    #[serde(default, skip_serializing_if = "DnsSettings::is_default")]
    pub dns: DnsSettings,
    /// Its processes may reach the metadata service of a cloud, 169.254.169.254, which often holds credentials.
    #[serde(default, skip_serializing_if = "is_default")]
    pub allow_metadata: bool,
    /// Which users of the node its users are; `None` is the default of the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_namespace: Option<UserNamespace>,
}

fn default_drain_delay() -> Duration {
    DEFAULT_DRAIN_DELAY
}

fn is_default_drain_delay(time: &Duration) -> bool {
    *time == DEFAULT_DRAIN_DELAY
}

fn default_stop_grace() -> Duration {
    DEFAULT_STOP_GRACE
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostEntry {
    /// A host name.
    pub name: String,
    /// Its address.
    pub address: Ipv4Addr,
}

impl TaskSpec {
    /// Its node needs secrets or configs for it.
    pub fn has_secret_objects(&self) -> bool {
        !self.secrets.is_empty() || !self.configs.is_empty() || self.seccomp.config().is_some()
    }

    /// Its process changes the data of a volume, which outlives it.
    pub fn writes_to_volumes(&self) -> bool {
        let writes = |mount: &Mount| matches!(mount.source, MountSource::Volume { .. }) && !mount.read_only;
        self.mounts.iter().any(writes)
    }

    /// Who decides which digest the tag of the image stands for. Not managers if nodes must not ask a registry, or if
    /// the registry is another one on each machine.
    pub fn image_resolver(&self) -> ImageResolver {
        match is_loopback_registry(&registry_host(&self.image)) || self.pull == PullPolicy::Never {
            true => ImageResolver::Worker,
            false => self.resolve_image,
        }
    }

    /// A task of `image` with defaults for everything else.
    pub fn new(image: ImageReference) -> Self {
        Self {
            image,
            pull: PullPolicy::default(),
            resolve_image: ImageResolver::default(),
            command: None,
            args: None,
            env: Vec::new(),
            container_labels: BTreeMap::new(),
            workdir: None,
            user: None,
            groups: Vec::new(),
            hostname: None,
            hosts: Vec::new(),
            tty: false,
            stdin: false,
            init: false,
            stop_signal: None,
            drain_delay: DEFAULT_DRAIN_DELAY,
            stop_grace: DEFAULT_STOP_GRACE,
            post_start: Vec::new(),
            pre_stop: Vec::new(),
            limits: Limits::default(),
            reservations: Resources::default(),
            ulimits: Vec::new(),
            sysctls: BTreeMap::new(),
            shm_size: None,
            storage_limit: None,
            oom_score_adj: None,
            privileged: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            no_new_privileges: NoNewPrivileges::default(),
            seccomp: Seccomp::default(),
            apparmor: AppArmor::default(),
            devices: Vec::new(),
            read_only: false,
            mounts: Vec::new(),
            secrets: Vec::new(),
            configs: Vec::new(),
            health: None,
            restart: RestartPolicy::default(),
            on_disconnect: OnDisconnect::default(),
            logs: LogLimits::default(),
            network: TaskNetworkMode::default(),
            dns: DnsSettings::default(),
            allow_metadata: false,
            user_namespace: None,
        }
    }

    /// The time after a loss at which such a task has certainly stopped by itself; zero if it never does. A
    /// stop grace above the default adds to it.
    pub fn self_stop_delay(&self) -> Duration {
        let margin = REPLACE_MARGIN + self.stop_grace.saturating_sub(DEFAULT_STOP_GRACE);
        self.on_disconnect.stop_after().map_or(Duration::ZERO, |time| time + margin)
    }

    /// All violations of the spec; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut wrong = Violations::default();
        self.validate_process(&mut wrong);
        self.validate_container_labels(&mut wrong);
        self.validate_identity(&mut wrong);
        self.validate_resources(&mut wrong);
        self.validate_mounts(&mut wrong);
        wrong.nest("restart", self.restart.validate());
        wrong.nest("onDisconnect", self.on_disconnect.validate());
        wrong.nest("network", self.network.validate());
        wrong.nest("dns", self.dns.validate());
        if self.allow_metadata && !self.network.has_address() {
            wrong
                .add("allowMetadata", "only a task with an address of its own is kept from it; leave it out");
        }
        if self.user_namespace == Some(UserNamespace::Private)
            && let Some(reason) = self.private_users_conflict()
        {
            wrong.add("userNamespace", format!("private is not possible {reason}"));
        }
        if let Some(health) = &self.health {
            wrong.nest("health", health.validate());
        }
        wrong.nest("logs", self.logs.validate());
        wrong
    }

    fn validate_process(&self, wrong: &mut Violations) {
        if let Err(fault) = split_reference(self.image.as_str()) {
            let message = format!(
                "{:?} is not an image reference: {fault}; expected [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]",
                self.image.as_str()
            );
            wrong.add("image", message);
        }
        if self.command.as_ref().is_some_and(|command| command.first().is_none_or(String::is_empty)) {
            wrong.add("command", "is empty; leave it out to run the image's own entrypoint");
        }
        let mut words = self.command.iter().flatten().chain(self.args.iter().flatten());
        if words.any(|word| word.contains('\0')) {
            wrong.add("args", "a NUL byte cannot be passed to a program");
        }
        validate_env(&self.env, wrong);
        for (field, time) in [("drainDelay", self.drain_delay), ("stopGrace", self.stop_grace)] {
            if time > MAX_STOP_GRACE {
                wrong.add(field, "is longer than 24 hours");
            }
        }
        validate_workdir(self.workdir.as_deref(), wrong);
        validate_hooks("postStart", &self.post_start, wrong);
        validate_hooks("preStop", &self.pre_stop, wrong);
    }

    fn validate_container_labels(&self, wrong: &mut Violations) {
        validate_labels_at("containerLabels", &self.container_labels, wrong);
        for key in self.container_labels.keys() {
            if let Some(prefix) = RESERVED_LABEL_PREFIXES.into_iter().find(|prefix| key.starts_with(prefix)) {
                let message = format!("keys that start with {prefix} are reserved; give another key");
                wrong.add(format!("containerLabels[{key:?}]"), message);
            }
        }
    }

    fn validate_identity(&self, wrong: &mut Violations) {
        validate_user(self.user.as_deref(), wrong);
        check_count("groups", self.groups.len(), MAX_ITEMS, wrong);
        for (i, group) in self.groups.iter().enumerate().filter(|(_, group)| !is_account(group)) {
            wrong.add(format!("groups[{i}]"), format!("{group:?} is not a group's name or number"));
        }
        let fixed = self.hostname.as_ref().filter(|name| !crate::template::is_template(name));
        if let Some(hostname) = fixed.filter(|name| !is_host_name(name, 64)) {
            let message =
                format!("{hostname:?} is not a host name of at most 64 letters, digits, '.' and '-'");
            wrong.add("hostname", message);
        }
        check_count("hosts", self.hosts.len(), MAX_ITEMS, wrong);
        for (i, HostEntry { name, .. }) in self.hosts.iter().enumerate() {
            if !is_host_name(name, 253) {
                wrong.add(format!("hosts[{i}].name"), format!("{name:?} is not a host name"));
            }
        }
    }

    fn validate_resources(&self, wrong: &mut Violations) {
        wrong.nest("limits", self.limits.validate());
        let Resources { cpu, memory } = self.reservations;
        if self.limits.cpu.is_some_and(|limit| cpu > limit) {
            wrong.add("reservations.cpu", "is more than limits.cpu, so it could never be used");
        }
        if self.limits.memory.is_some_and(|limit| memory > limit) {
            wrong.add("reservations.memory", "is more than limits.memory, so it could never be used");
        }
        check_count("ulimits", self.ulimits.len(), MAX_ITEMS, wrong);
        let mut seen = BTreeSet::new();
        for (i, Ulimit { name, soft, hard }) in self.ulimits.iter().enumerate() {
            if !seen.insert(*name) {
                wrong.add(format!("ulimits[{i}].name"), format!("{name} is given twice"));
            }
            if soft.unwrap_or(u64::MAX) > hard.unwrap_or(u64::MAX) {
                wrong.add(format!("ulimits[{i}].soft"), "is more than the hard limit");
            }
        }
        check_count("sysctls", self.sysctls.len(), MAX_ITEMS, wrong);
        for (key, value) in &self.sysctls {
            if let Some(fault) = sysctl_fault(key, value) {
                wrong.add(format!("sysctls[{key:?}]"), format!("{key} {fault}"));
            }
        }
        if self.shm_size.is_some_and(|size| size < super::storage::MIN_TMPFS) {
            wrong.add("shmSize", "is less than a page of 4KiB");
        }
        if let Some(limit) = self.storage_limit.filter(|limit| *limit < MIN_STORAGE_LIMIT) {
            let message = format!("{limit} is below the minimum of {MIN_STORAGE_LIMIT}");
            wrong.add("storageLimit", message);
        }
        if let Some(score) = self.oom_score_adj.filter(|score| !(-1000..=1000).contains(score)) {
            wrong.add("oomScoreAdj", format!("{score} is not between -1000 and 1000"));
        }
        check_count("devices", self.devices.len(), MAX_ITEMS, wrong);
        for (i, device) in self.devices.iter().enumerate() {
            wrong.nest(&format!("devices[{i}]"), device.validate());
        }
    }

    fn validate_mounts(&self, wrong: &mut Violations) {
        if self.mounts.len() > MAX_MOUNTS {
            wrong.add("mounts", format!("{} are more than {MAX_MOUNTS}", self.mounts.len()));
        }
        let mut seen = BTreeSet::new();
        for (i, mount) in self.mounts.iter().enumerate() {
            wrong.nest(&format!("mounts[{i}]"), mount.validate());
            if !seen.insert(mount.target.trim_end_matches('/')) {
                let message = format!("{} is given twice", mount.target);
                wrong.add(format!("mounts[{i}].target"), message);
            }
        }
        let targets = self.secrets.iter().map(SecretObjectMount::secret_target);
        let secrets: Vec<String> = targets.collect();
        let configs: Vec<String> = self.configs.iter().map(SecretObjectMount::config_target).collect();
        for (path, secret_objects, targets) in
            [("secrets", &self.secrets, &secrets), ("configs", &self.configs, &configs)]
        {
            if secret_objects.len() > MAX_TASK_SECRET_OBJECTS {
                wrong.add(path, format!("{} are more than {MAX_TASK_SECRET_OBJECTS}", secret_objects.len()));
            }
            for (i, (content, target)) in secret_objects.iter().zip(targets).enumerate() {
                wrong.nest(&format!("{path}[{i}]"), content.validate());
                if IMAGE_DIRECTORIES.contains(&target.as_str()) {
                    let message = format!(
                        "{target} is a directory of every usual image; give the path of a file, like \
                         {target}/{}",
                        content.source
                    );
                    wrong.add(format!("{path}[{i}].target"), message);
                }
                if !seen.insert(target) {
                    let message = format!("{target} is the target of another mount too");
                    wrong.add(format!("{path}[{i}].target"), message);
                }
            }
        }
        // A file cannot also be a directory; mounts below other mounts are allowed.
        for (path, targets) in [("secrets", &secrets), ("configs", &configs)] {
            for (i, file) in targets.iter().enumerate() {
                let below =
                    |other: &str| other.strip_prefix(file.as_str()).is_some_and(|rest| rest.starts_with('/'));
                if let Some(other) = seen.iter().find(|other| below(other)) {
                    let message = format!("{file} is a file, but {other} is below it");
                    wrong.add(format!("{path}[{i}].target"), message);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn self_stop_delay_includes_stop_grace() {
        let secs = Duration::from_secs;
        let mut task = TaskSpec::new("web:1".parse().unwrap());
        assert_eq!(task.self_stop_delay(), Duration::ZERO);
        for (stop_after, grace, expected) in
            [(secs(30), DEFAULT_STOP_GRACE, 40), (secs(30), secs(0), 40), (secs(30), secs(60), 90)]
        {
            task.on_disconnect = OnDisconnect::StopAfter(stop_after);
            task.stop_grace = grace;
            assert_eq!(task.self_stop_delay(), secs(expected));
        }
    }

    #[test]
    fn storage_limit_has_a_minimum() {
        let mut task = TaskSpec::new("web:1".parse().unwrap());
        for (limit, expected) in [(MIN_STORAGE_LIMIT.0, ""), (MIN_STORAGE_LIMIT.0 - 1, "storageLimit")] {
            task.storage_limit = Some(Bytes(limit));
            let wrong = task.validate();
            assert_eq!(wrong.0.first().map_or("", |violation| violation.path.as_str()), expected);
        }
    }

    #[test]
    fn workers_resolve_what_managers_must_not_ask_for() {
        for (image, pull, asked, expected) in [
            ("web:1", PullPolicy::Missing, ImageResolver::Manager, ImageResolver::Manager),
            ("web:1", PullPolicy::Always, ImageResolver::Manager, ImageResolver::Manager),
            ("web:1", PullPolicy::Missing, ImageResolver::Worker, ImageResolver::Worker),
            ("web:1", PullPolicy::Never, ImageResolver::Manager, ImageResolver::Worker),
            ("localhost:5000/web:1", PullPolicy::Always, ImageResolver::Manager, ImageResolver::Worker),
            ("127.0.0.1:5000/web:1", PullPolicy::Missing, ImageResolver::Manager, ImageResolver::Worker),
            ("10.0.0.1:5000/web:1", PullPolicy::Missing, ImageResolver::Manager, ImageResolver::Manager),
        ] {
            let mut task = TaskSpec::new(image.parse().unwrap());
            (task.pull, task.resolve_image) = (pull, asked);
            assert_eq!(task.image_resolver(), expected, "{image} {pull:?}");
        }
    }
}
