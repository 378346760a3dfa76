//! The body of `POST /containers/create` as the spec of a service.

mod fields;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use warren_client::SeccompConfig;
use warren_types::{
    AppArmor, Bytes, Device, DeviceAccess, NoNewPrivileges, PublishMode, PublishedPort, Seccomp,
    UserNamespace, Violations,
};

use self::fields::{NO_SHARED_NAMESPACES, PATHS, REFUSED};
use crate::model::{self, Pairs};
use crate::object_ids::ObjectIds;
use crate::one_off::{KEPT, ONE_OFF_LABEL, REMOVED_AT_END, STDIN_ONCE_LABEL};
use crate::spec::{self, ReceivedSpec};

/// Where it runs: the name of a node, or `any`.
const NODE_LABEL: &str = "io.warren.node";

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A list of words, or one text, which is one word.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Words {
    Many(Vec<String>),
    One(String),
}

impl Words {
    fn into_list(self) -> Vec<String> {
        match self {
            Words::Many(words) => words,
            Words::One(word) => vec![word],
        }
    }
}

/// The body of the request.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ContainerCreateRequest {
    hostname: Option<String>,
    domainname: Option<String>,
    user: Option<String>,
    tty: Option<bool>,
    open_stdin: Option<bool>,
    stdin_once: Option<bool>,
    env: Option<Vec<String>>,
    cmd: Option<Words>,
    healthcheck: Option<model::HealthCheck>,
    image: Option<String>,
    volumes: Option<BTreeMap<String, Value>>,
    working_dir: Option<String>,
    entrypoint: Option<Words>,
    network_disabled: Option<bool>,
    mac_address: Option<String>,
    labels: Option<Pairs>,
    stop_signal: Option<String>,
    stop_timeout: Option<i64>,
    host_config: Option<HostConfig>,
    networking_config: Option<NetworkingConfig>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct HostConfig {
    binds: Option<Vec<String>>,
    mounts: Option<Vec<model::Mount>>,
    tmpfs: Option<Pairs>,
    log_config: Option<LogConfig>,
    network_mode: Option<String>,
    port_bindings: Option<BTreeMap<String, Option<Vec<PortBinding>>>>,
    restart_policy: Option<RestartPolicy>,
    auto_remove: Option<bool>,
    cap_add: Option<Vec<String>>,
    cap_drop: Option<Vec<String>>,
    dns: Option<Vec<String>>,
    dns_search: Option<Vec<String>>,
    extra_hosts: Option<Vec<String>>,
    group_add: Option<Vec<String>>,
    ipc_mode: Option<String>,
    oom_score_adj: Option<i64>,
    privileged: Option<bool>,
    readonly_rootfs: Option<bool>,
    security_opt: Option<Vec<String>>,
    shm_size: Option<i64>,
    storage_opt: Option<Pairs>,
    sysctls: Option<Pairs>,
    memory: Option<i64>,
    memory_reservation: Option<i64>,
    nano_cpus: Option<i64>,
    devices: Option<Vec<DeviceMapping>>,
    pids_limit: Option<i64>,
    ulimits: Option<Vec<model::Ulimit>>,
    init: Option<bool>,
    userns_mode: Option<String>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct LogConfig {
    r#type: Option<String>,
    config: Option<Pairs>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PortBinding {
    host_ip: Option<String>,
    host_port: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RestartPolicy {
    name: Option<String>,
    maximum_retry_count: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct DeviceMapping {
    path_on_host: String,
    path_in_container: String,
    cgroup_permissions: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NetworkingConfig {
    endpoints_config: Option<BTreeMap<String, Option<Endpoint>>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Endpoint {
    aliases: Option<Vec<String>>,
    #[serde(rename = "IPAMConfig")]
    ipam_config: Option<Value>,
}

/// The spec of a service without tasks, whose only one is the container. `own_node` is the node of this manager, on
/// which it runs unless a label says otherwise.
///
/// # Errors
/// Every field that is not supported or not valid, with its path in the request.
pub fn service(
    name: &str,
    request: ContainerCreateRequest,
    own_node: Option<&str>,
    ids: &ObjectIds,
) -> Result<ReceivedSpec, Violations> {
    let mut wrong = Violations::default();
    let host = request.host_config.clone().unwrap_or_default();
    let ports = ports(&mut wrong, host.port_bindings.clone().unwrap_or_default());
    let devices = devices(&mut wrong, host.devices.clone().unwrap_or_default());
    let (privileged, shm_size) = (host.privileged == Some(true), host.shm_size.filter(|size| *size != 0));
    let shm_size = shm_size.and_then(|size| {
        let size = u64::try_from(size).ok();
        if size.is_none() {
            wrong.add("HostConfig.ShmSize", "is negative");
        }
        size.map(Bytes)
    });
    let storage_limit = storage_limit(&mut wrong, host.storage_opt.clone().unwrap_or_default());
    let user_namespace = host.userns_mode.as_ref().filter(|mode| !mode.is_empty()).and_then(|mode| {
        let parsed = mode.parse::<UserNamespace>();
        parsed.map_err(|why| wrong.add("HostConfig.UsernsMode", why)).ok()
    });
    let security = security_options(&mut wrong, host.security_opt.as_deref().unwrap_or_default());
    let docker = translate(&mut wrong, name, request, host, own_node);
    let mut received = match spec::from_docker(docker, ids) {
        Ok(received) if wrong.0.is_empty() => received,
        Ok(_) => return Err(wrong),
        Err(others) => {
            wrong.0.extend(others.0);
            return Err(renamed(wrong));
        }
    };
    let spec = &mut received.spec;
    spec.ports = ports;
    (spec.task.privileged, spec.task.devices) = (privileged, devices);
    (spec.task.shm_size, spec.task.storage_limit) = (shm_size, storage_limit);
    spec.task.user_namespace = user_namespace;
    (spec.task.no_new_privileges, spec.task.seccomp) = (security.no_new_privileges, security.seccomp);
    spec.task.apparmor = security.apparmor;
    received.profiles.extend(security.profile);
    spec::check(&received.spec).map_err(renamed)?;
    Ok(received)
}

/// With the paths of this request.
fn renamed(mut wrong: Violations) -> Violations {
    for violation in &mut wrong.0 {
        let renamed = PATHS.iter().find_map(|(from, to)| {
            let rest = violation.path.strip_prefix(from)?;
            Some(format!("{to}{rest}"))
        });
        violation.path = renamed.unwrap_or_else(|| std::mem::take(&mut violation.path));
    }
    wrong
}

fn is_default(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        // -1 is no limit.
        Value::Number(number) => matches!(number.as_i64(), Some(0 | -1)),
        Value::String(text) => matches!(text.as_str(), "" | "default" | "private" | "runc"),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn translate(
    wrong: &mut Violations,
    name: &str,
    request: ContainerCreateRequest,
    host: HostConfig,
    own_node: Option<&str>,
) -> model::ServiceSpec {
    for (field, reason) in REFUSED {
        if host.others.get(field).is_some_and(|value| !is_default(value)) {
            wrong.add(format!("HostConfig.{field}"), reason);
        }
    }
    let mut refuse = |is_set: bool, path: &str, reason: &str| {
        if is_set {
            wrong.add(path, reason);
        }
    };
    let is_set = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    refuse(is_set(&request.domainname), "Domainname", "give the whole name with --hostname");
    refuse(is_set(&request.mac_address), "MacAddress", "addresses are those of the cluster");
    refuse(
        request.volumes.is_some_and(|volumes| !volumes.is_empty()),
        "Volumes",
        "every volume has a name here: give --volume NAME:PATH",
    );
    refuse(
        host.ipc_mode.as_ref().is_some_and(|mode| !matches!(mode.as_str(), "" | "private" | "shareable")),
        "HostConfig.IpcMode",
        NO_SHARED_NAMESPACES,
    );
    let mut labels = request.labels.unwrap_or_default();
    let node = labels.get(NODE_LABEL).map(String::as_str).or(own_node).filter(|node| *node != "any");
    let placement = model::Placement {
        constraints: node.map(|node| vec![format!("node.hostname=={node}")]),
        ..Default::default()
    };
    let mark = if host.auto_remove == Some(true) { REMOVED_AT_END } else { KEPT };
    labels.insert(ONE_OFF_LABEL.to_owned(), mark.to_owned());
    if request.open_stdin == Some(true) && request.stdin_once == Some(true) {
        labels.insert(STDIN_ONCE_LABEL.to_owned(), true.to_string());
    }
    let networks = networks(
        wrong,
        request.network_disabled == Some(true),
        host.network_mode,
        request.networking_config.and_then(|config| config.endpoints_config).unwrap_or_default(),
    );
    let container = model::ContainerSpec {
        image: request.image,
        labels: Some(labels),
        command: request.entrypoint.map(Words::into_list),
        args: request.cmd.map(Words::into_list),
        hostname: request.hostname,
        env: request.env,
        dir: request.working_dir,
        user: request.user,
        groups: host.group_add,
        stop_signal: request.stop_signal,
        tty: request.tty,
        open_stdin: request.open_stdin,
        read_only: host.readonly_rootfs,
        mounts: Some(mounts(wrong, host.mounts, host.binds, host.tmpfs)),
        stop_grace_period: request.stop_timeout.map(|seconds| seconds.saturating_mul(NANOS_PER_SECOND)),
        healthcheck: request.healthcheck.filter(|check| *check != model::HealthCheck::default()),
        hosts: host.extra_hosts.map(|entries| entries.iter().map(|entry| host_line(entry)).collect()),
        dns_config: Some(model::DnsConfig { nameservers: host.dns, search: host.dns_search, options: None }),
        init: host.init,
        sysctls: host.sysctls,
        capability_add: host.cap_add,
        capability_drop: host.cap_drop,
        ulimits: host.ulimits,
        oom_score_adj: host.oom_score_adj,
        ..Default::default()
    };
    let limits = model::Limit {
        nano_cpus: host.nano_cpus,
        memory_bytes: host.memory,
        pids: host.pids_limit.filter(|limit| *limit > 0),
    };
    let reservations = model::Reservations { memory_bytes: host.memory_reservation, ..Default::default() };
    let log = host.log_config.unwrap_or_default();
    let task = model::TaskSpec {
        container_spec: Some(container),
        resources: Some(model::ResourceRequirements {
            limits: Some(limits),
            reservations: Some(reservations),
        }),
        restart_policy: Some(restart(wrong, host.restart_policy.unwrap_or_default())),
        placement: Some(placement),
        networks: Some(networks),
        log_driver: log
            .r#type
            .filter(|name| !name.is_empty())
            .map(|name| model::Driver { name: Some(name), options: log.config }),
        ..Default::default()
    };
    let replicated = model::ReplicatedMode { replicas: Some(0) };
    model::ServiceSpec {
        name: Some(name.to_owned()),
        task_template: Some(task),
        mode: Some(model::ServiceMode { replicated: Some(replicated), ..Default::default() }),
        ..Default::default()
    }
}

/// `NAME:ADDRESS` as a line of `/etc/hosts`.
fn host_line(entry: &str) -> String {
    match entry.split_once([':', '=']) {
        Some((name, address)) => format!("{address} {name}"),
        None => entry.to_owned(),
    }
}

fn restart(wrong: &mut Violations, policy: RestartPolicy) -> model::RestartPolicy {
    let condition = match policy.name.as_deref().unwrap_or_default() {
        "" | "no" => "none",
        "on-failure" => "on-failure",
        "always" | "unless-stopped" => "any",
        other => {
            let known = "give no, on-failure, always or unless-stopped";
            wrong.add("HostConfig.RestartPolicy.Name", format!("{other:?} is not a policy; {known}"));
            "none"
        }
    };
    model::RestartPolicy {
        condition: Some(condition.to_owned()),
        max_attempts: policy.maximum_retry_count.filter(|count| *count > 0),
        ..Default::default()
    }
}

/// What `--security-opt` says.
#[derive(Default)]
struct SecurityOptions {
    no_new_privileges: NoNewPrivileges,
    seccomp: Seccomp,
    apparmor: AppArmor,
    /// The profile that `seccomp` names.
    profile: Option<SeccompConfig>,
}

fn security_options(wrong: &mut Violations, options: &[String]) -> SecurityOptions {
    let mut read = SecurityOptions::default();
    for (i, option) in options.iter().enumerate() {
        let path = format!("HostConfig.SecurityOpt[{i}]");
        match option.split_once(['=', ':']).unwrap_or((option.as_str(), "")) {
            ("no-new-privileges", "" | "true") => read.no_new_privileges = NoNewPrivileges::On,
            ("no-new-privileges", "false") => read.no_new_privileges = NoNewPrivileges::Off,
            ("apparmor", "docker-default") => read.apparmor = AppArmor::Default,
            ("apparmor", profile) => match profile.parse::<AppArmor>() {
                Ok(profile) => read.apparmor = profile,
                Err(why) => wrong.add(path, why),
            },
            ("seccomp", "builtin") => (read.seccomp, read.profile) = (Seccomp::Default, None),
            // A name as inspect shows it, or JSON.
            ("seccomp", profile) => match (profile.parse::<Seccomp>(), profile.trim_start().starts_with('{'))
            {
                (Ok(named), _) => (read.seccomp, read.profile) = (named, None),
                (Err(why), false) => wrong.add(path, why),
                (Err(_), true) => match SeccompConfig::new(profile.as_bytes()) {
                    Ok(config) => {
                        read.seccomp = Seccomp::Config(config.name.clone());
                        read.profile = Some(config);
                    }
                    Err(violations) => wrong.nest(&path, violations),
                },
            },
            _ => wrong.add(path, "is not supported; there are no-new-privileges, seccomp and apparmor"),
        }
    }
    read
}

fn networks(
    wrong: &mut Violations,
    is_disabled: bool,
    mode: Option<String>,
    endpoints: BTreeMap<String, Option<Endpoint>>,
) -> Vec<model::NetworkAttachment> {
    let is_standard = |name: &str| matches!(name, "" | "default" | "bridge");
    let attachment = |target: String, aliases| model::NetworkAttachment {
        target: Some(target),
        aliases,
        driver_opts: None,
    };
    if is_disabled {
        return vec![attachment("none".to_owned(), None)];
    }
    let mut attachments = Vec::new();
    for (name, endpoint) in endpoints {
        let endpoint = endpoint.unwrap_or_default();
        if endpoint.ipam_config.is_some_and(|config| !is_default(&config)) {
            let path = format!("NetworkingConfig.EndpointsConfig.{name}.IPAMConfig");
            wrong.add(path, "addresses are those of the cluster");
        }
        if !is_standard(&name) {
            attachments.push(attachment(name, endpoint.aliases.filter(|aliases| !aliases.is_empty())));
        }
    }
    let mode = mode.unwrap_or_default();
    if attachments.is_empty() && mode.starts_with("container:") {
        wrong.add("HostConfig.NetworkMode", NO_SHARED_NAMESPACES);
    } else if attachments.is_empty() && !is_standard(&mode) {
        attachments.push(attachment(mode, None));
    }
    attachments
}

/// `--storage-opt size=2G`: the only option, for what the container may write to its own file system.
fn storage_limit(wrong: &mut Violations, options: Pairs) -> Option<Bytes> {
    let mut limit = None;
    for (name, value) in options {
        let path = format!("HostConfig.StorageOpt.{name}");
        match (name.as_str(), binary_size(&value).parse::<Bytes>()) {
            ("size", Ok(size)) => limit = Some(size),
            ("size", Err(error)) => wrong.add(path, error),
            _ => wrong.add(path, "is not supported; there is size"),
        }
    }
    limit
}

/// The kernel counts `1m` in powers of two, and Docker as well.
fn binary_size(text: &str) -> String {
    let is_short = text.ends_with(['k', 'K', 'm', 'M', 'g', 'G']);
    if is_short { format!("{text}i") } else { text.to_owned() }
}

fn mounts(
    wrong: &mut Violations,
    mounts: Option<Vec<model::Mount>>,
    binds: Option<Vec<String>>,
    tmpfs: Option<Pairs>,
) -> Vec<model::Mount> {
    let mut all = mounts.unwrap_or_default();
    for (i, bind) in binds.into_iter().flatten().enumerate() {
        let path = format!("HostConfig.Binds[{i}]");
        let parts: Vec<&str> = bind.split(':').collect();
        let (source, target, options) = match parts[..] {
            [source, target] => (source, target, ""),
            [source, target, options] => (source, target, options),
            _ => {
                wrong.add(path, "every volume has a name here: give SOURCE:PATH or SOURCE:PATH:ro");
                continue;
            }
        };
        let mut mount = model::Mount {
            r#type: Some(if source.starts_with('/') { "bind" } else { "volume" }.to_owned()),
            source: Some(source.to_owned()),
            target: Some(target.to_owned()),
            ..Default::default()
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option {
                "ro" => mount.read_only = Some(true),
                "rw" | "z" | "Z" => {}
                "nocopy" if !source.starts_with('/') => {
                    let options = model::VolumeOptions { no_copy: Some(true), ..Default::default() };
                    mount.volume_options = Some(options);
                }
                other if source.starts_with('/') => {
                    let options =
                        model::BindOptions { propagation: Some(other.to_owned()), ..Default::default() };
                    mount.bind_options = Some(options);
                }
                other => wrong.add(&path, format!("{other:?} is not supported; there are ro, rw and nocopy")),
            }
        }
        all.push(mount);
    }
    for (target, options) in tmpfs.unwrap_or_default() {
        let mut read = model::TmpfsOptions::default();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let size = option.strip_prefix("size=").map(|size| binary_size(size).parse::<Bytes>());
            let mode = option.strip_prefix("mode=").map(|mode| u32::from_str_radix(mode, 8));
            match (option, size, mode) {
                (_, Some(Ok(size)), _) => read.size_bytes = i64::try_from(size.0).ok(),
                (_, _, Some(Ok(mode))) => read.mode = Some(mode),
                ("exec" | "noexec", ..) => read.options = Some(vec![vec![option.to_owned()]]),
                ("rw" | "nosuid" | "nodev", ..) => {}
                _ => {
                    let message =
                        format!("{option:?} is not supported; there are size, mode, exec and noexec");
                    wrong.add(format!("HostConfig.Tmpfs[{target}]"), message);
                }
            }
        }
        all.push(model::Mount {
            r#type: Some("tmpfs".to_owned()),
            target: Some(target),
            tmpfs_options: Some(read),
            ..Default::default()
        });
    }
    all
}

fn ports(wrong: &mut Violations, bindings: BTreeMap<String, Option<Vec<PortBinding>>>) -> Vec<PublishedPort> {
    let mut ports = Vec::new();
    for (container, bindings) in bindings {
        let (number, protocol) = container.split_once('/').unwrap_or((&container, "tcp"));
        let path = format!("HostConfig.PortBindings[{container}]");
        let (Ok(container_port), Ok(protocol)) = (number.parse(), protocol.parse()) else {
            wrong.add(path, "is not a port: give one like 80/tcp");
            continue;
        };
        for binding in bindings.unwrap_or_default() {
            let text = |text: Option<String>| text.filter(|text| !text.is_empty());
            let host_port = text(binding.host_port).map_or(Ok(0), |port| port.parse());
            let host_ip = match text(binding.host_ip).as_deref() {
                None | Some("0.0.0.0" | "::") => Ok(None),
                Some(address) => address.parse().map(Some),
            };
            match (host_port, host_ip) {
                (Ok(host_port), Ok(host_ip)) => ports.push(PublishedPort {
                    host_ip,
                    host_port,
                    container_port,
                    protocol,
                    mode: PublishMode::Host,
                    prefer_local: false,
                    client_affinity: false,
                }),
                (Err(_), _) => wrong.add(&path, "HostPort is one port: ranges are not supported"),
                (_, Err(_)) => wrong.add(&path, "HostIp is not an IPv4 address, which this version needs"),
            }
        }
    }
    ports
}

fn devices(wrong: &mut Violations, devices: Vec<DeviceMapping>) -> Vec<Device> {
    let mut read = Vec::new();
    for (i, device) in devices.into_iter().enumerate() {
        let DeviceMapping { path_on_host, path_in_container, cgroup_permissions } = device;
        let access = match cgroup_permissions.as_str() {
            "" => Ok(DeviceAccess::FULL),
            text => text.parse(),
        };
        let target = if path_in_container.is_empty() { path_on_host.clone() } else { path_in_container };
        match access {
            Ok(access) => read.push(Device { source: path_on_host, target, access }),
            Err(error) => wrong.add(format!("HostConfig.Devices[{i}].CgroupPermissions"), error),
        }
    }
    read
}
