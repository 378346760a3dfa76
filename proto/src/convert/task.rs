//! Task specs.

use std::time::Duration;

use warren_types::spec::{DEFAULT_STOP_GRACE, OnDisconnect};
use warren_types::{
    Bytes, Device, EnvVar, HealthCheck, HostEntry, Limits, LogLimits, MilliCpu, Mount, MountSource,
    Propagation, PullPolicy, Resources, RestartCondition, RestartPolicy, Seccomp, TaskSpec, Ulimit,
    Violations,
};

use super::fields::{FieldReader, optional_text, unknown_enum_value};
use super::spec::millis;
use crate::v1;

impl TryFrom<v1::TaskSpec> for TaskSpec {
    type Error = Violations;

    fn try_from(wire: v1::TaskSpec) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let image = fields.parse("image", &wire.image);
        let pull = fields.nest("pull", pull_policy(wire.pull));
        let env = wire.env.into_iter().map(|v1::EnvVar { name, value }| EnvVar { name, value }).collect();
        let hosts = fields.list("hosts", wire.hosts);
        let stop_signal = fields.parse_optional("stopSignal", &wire.stop_signal);
        let ulimits = fields.list("ulimits", wire.ulimits);
        let cap_add = fields.parse_list("capAdd", &wire.cap_add);
        let cap_drop = fields.parse_list("capDrop", &wire.cap_drop);
        let seccomp = fields.nest("seccomp", seccomp(wire.seccomp));
        let devices = fields.list("devices", wire.devices);
        let mounts = fields.list("mounts", wire.mounts);
        let secrets = fields.list("secrets", wire.secrets);
        let configs = fields.list("configs", wire.configs);
        let health = fields.nest("health", wire.health.map(HealthCheck::try_from).transpose());
        let restart = wire.restart.map_or_else(|| Ok(RestartPolicy::default()), RestartPolicy::try_from);
        let restart = fields.nest("restart", restart);
        let given = |text: String| (!text.is_empty()).then_some(text);
        let stop_after = wire.stop_after_ms.map(Duration::from_millis);
        let built = || {
            Some(TaskSpec {
                image: image?,
                pull: pull?,
                command: wire.command.map(|list| list.items),
                args: wire.args.map(|list| list.items),
                env,
                workdir: given(wire.workdir),
                user: given(wire.user),
                groups: wire.groups,
                hostname: given(wire.hostname),
                hosts: hosts?,
                tty: wire.tty,
                init: wire.init,
                stop_signal: stop_signal?,
                stop_grace: wire.stop_grace_ms.map_or(DEFAULT_STOP_GRACE, Duration::from_millis),
                limits: wire.limits.map(Into::into).unwrap_or_default(),
                reservations: wire.reservations.map(Into::into).unwrap_or_default(),
                ulimits: ulimits?,
                sysctls: wire.sysctls,
                shm_size: wire.shm_size_bytes.map(Bytes),
                oom_score_adj: wire.oom_score_adj,
                privileged: wire.privileged,
                cap_add: cap_add?,
                cap_drop: cap_drop?,
                no_new_privileges: wire.no_new_privileges,
                seccomp: seccomp?,
                devices: devices?,
                read_only: wire.read_only,
                mounts: mounts?,
                secrets: secrets?,
                configs: configs?,
                health: health?,
                restart: restart?,
                on_disconnect: stop_after.map_or(OnDisconnect::Keep, OnDisconnect::StopAfter),
                logs: wire.logs.map(Into::into).unwrap_or_default(),
            })
        };
        fields.finish(built())
    }
}

impl From<&TaskSpec> for v1::TaskSpec {
    fn from(spec: &TaskSpec) -> Self {
        // All fields are named, so that none can be omitted.
        let TaskSpec {
            image,
            pull,
            command,
            args,
            env,
            workdir,
            user,
            groups,
            hostname,
            hosts,
            tty,
            init,
            stop_signal,
            stop_grace,
            limits,
            reservations,
            ulimits,
            sysctls,
            shm_size,
            oom_score_adj,
            privileged,
            cap_add,
            cap_drop,
            no_new_privileges,
            seccomp,
            devices,
            read_only,
            mounts,
            secrets,
            configs,
            health,
            restart,
            on_disconnect,
            logs,
        } = spec;
        let list = |items: &Vec<String>| v1::StringList { items: items.clone() };
        let var = |var: &EnvVar| v1::EnvVar { name: var.name.clone(), value: var.value.clone() };
        Self {
            image: image.to_string(),
            pull: v1::PullPolicy::from(*pull).into(),
            command: command.as_ref().map(list),
            args: args.as_ref().map(list),
            env: env.iter().map(var).collect(),
            workdir: workdir.clone().unwrap_or_default(),
            user: user.clone().unwrap_or_default(),
            groups: groups.clone(),
            hostname: hostname.clone().unwrap_or_default(),
            hosts: hosts.iter().map(Into::into).collect(),
            tty: *tty,
            init: *init,
            stop_signal: optional_text(stop_signal.as_ref()),
            stop_grace_ms: (*stop_grace != DEFAULT_STOP_GRACE).then(|| millis(*stop_grace)),
            limits: (*limits != Limits::default()).then(|| (*limits).into()),
            reservations: (*reservations != Resources::default()).then(|| (*reservations).into()),
            ulimits: ulimits.iter().map(Into::into).collect(),
            sysctls: sysctls.clone(),
            shm_size_bytes: shm_size.map(|size| size.0),
            oom_score_adj: *oom_score_adj,
            privileged: *privileged,
            cap_add: cap_add.iter().map(ToString::to_string).collect(),
            cap_drop: cap_drop.iter().map(ToString::to_string).collect(),
            no_new_privileges: *no_new_privileges,
            seccomp: match seccomp {
                Seccomp::Default => v1::Seccomp::Default.into(),
                Seccomp::Unconfined => v1::Seccomp::Unconfined.into(),
            },
            devices: devices.iter().map(Into::into).collect(),
            read_only: *read_only,
            mounts: mounts.iter().map(Into::into).collect(),
            secrets: secrets.iter().map(Into::into).collect(),
            configs: configs.iter().map(Into::into).collect(),
            health: health.as_ref().map(Into::into),
            restart: (*restart != RestartPolicy::default()).then(|| restart.into()),
            stop_after_ms: on_disconnect.stop_after().map(millis),
            logs: (*logs != LogLimits::default()).then(|| (*logs).into()),
        }
    }
}

impl From<v1::Limits> for Limits {
    fn from(wire: v1::Limits) -> Self {
        let v1::Limits { cpu_milli, memory_bytes, pids } = wire;
        Self { cpu: cpu_milli.map(MilliCpu), memory: memory_bytes.map(Bytes), pids }
    }
}

impl From<Limits> for v1::Limits {
    fn from(limits: Limits) -> Self {
        let Limits { cpu, memory, pids } = limits;
        Self { cpu_milli: cpu.map(|cpu| cpu.0), memory_bytes: memory.map(|memory| memory.0), pids }
    }
}

impl From<v1::Resources> for Resources {
    fn from(wire: v1::Resources) -> Self {
        Self { cpu: MilliCpu(wire.cpu_milli), memory: Bytes(wire.memory_bytes) }
    }
}

impl From<Resources> for v1::Resources {
    fn from(resources: Resources) -> Self {
        Self { cpu_milli: resources.cpu.0, memory_bytes: resources.memory.0 }
    }
}

impl From<v1::LogLimits> for LogLimits {
    fn from(wire: v1::LogLimits) -> Self {
        Self { max_size: Bytes(wire.max_size_bytes), max_files: wire.max_files }
    }
}

impl From<LogLimits> for v1::LogLimits {
    fn from(limits: LogLimits) -> Self {
        Self { max_size_bytes: limits.max_size.0, max_files: limits.max_files }
    }
}

impl TryFrom<v1::HostEntry> for HostEntry {
    type Error = Violations;

    fn try_from(wire: v1::HostEntry) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let address = fields.parse("address", &wire.address);
        fields.finish(address.map(|address| Self { name: wire.name, address }))
    }
}

impl From<&HostEntry> for v1::HostEntry {
    fn from(entry: &HostEntry) -> Self {
        Self { name: entry.name.clone(), address: entry.address.to_string() }
    }
}

impl TryFrom<v1::Ulimit> for Ulimit {
    type Error = Violations;

    fn try_from(wire: v1::Ulimit) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let name = fields.parse("name", &wire.name);
        fields.finish(name.map(|name| Self { name, soft: wire.soft, hard: wire.hard }))
    }
}

impl From<&Ulimit> for v1::Ulimit {
    fn from(ulimit: &Ulimit) -> Self {
        Self { name: ulimit.name.to_string(), soft: ulimit.soft, hard: ulimit.hard }
    }
}

impl TryFrom<v1::Device> for Device {
    type Error = Violations;

    fn try_from(wire: v1::Device) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let access = fields.parse("access", &wire.access);
        fields.finish(access.map(|access| Self { source: wire.source, target: wire.target, access }))
    }
}

impl From<&Device> for v1::Device {
    fn from(device: &Device) -> Self {
        let Device { source, target, access } = device;
        Self { source: source.clone(), target: target.clone(), access: access.to_string() }
    }
}

impl TryFrom<v1::Mount> for Mount {
    type Error = Violations;

    fn try_from(wire: v1::Mount) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let source = match wire.source {
            Some(v1::mount::Source::Bind(v1::BindMount { path, propagation: wire, recursive })) => fields
                .nest("source.bind.propagation", propagation(wire))
                .map(|propagation| MountSource::Bind { path, propagation, recursive }),
            Some(v1::mount::Source::Tmpfs(v1::TmpfsMount { size_bytes, mode, exec })) => {
                Some(MountSource::Tmpfs { size: size_bytes.map(Bytes), mode, exec })
            }
            Some(v1::mount::Source::Volume(v1::VolumeMount { name, subpath, no_copy })) => {
                let subpath = (!subpath.is_empty()).then_some(subpath);
                Some(MountSource::Volume { name, subpath, no_copy })
            }
            None => fields.add_violation("source", "is missing; give bind, volume or tmpfs"),
        };
        fields.finish(source.map(|source| Self { target: wire.target, source, read_only: wire.read_only }))
    }
}

impl From<&Mount> for v1::Mount {
    fn from(mount: &Mount) -> Self {
        let Mount { target, source, read_only } = mount;
        let source = match source {
            MountSource::Bind { path, propagation, recursive } => v1::mount::Source::Bind(v1::BindMount {
                path: path.clone(),
                propagation: v1::Propagation::from(*propagation).into(),
                recursive: *recursive,
            }),
            MountSource::Volume { name, subpath, no_copy } => v1::mount::Source::Volume(v1::VolumeMount {
                name: name.clone(),
                subpath: subpath.clone().unwrap_or_default(),
                no_copy: *no_copy,
            }),
            MountSource::Tmpfs { size, mode, exec } => v1::mount::Source::Tmpfs(v1::TmpfsMount {
                size_bytes: size.map(|size| size.0),
                mode: *mode,
                exec: *exec,
            }),
        };
        Self { target: target.clone(), read_only: *read_only, source: Some(source) }
    }
}

impl TryFrom<v1::RestartPolicy> for RestartPolicy {
    type Error = Violations;

    fn try_from(wire: v1::RestartPolicy) -> Result<Self, Violations> {
        let v1::RestartPolicy { condition, delay_ms, max, window_ms } = wire;
        let mut fields = FieldReader::default();
        let condition = fields.nest("condition", restart_condition(condition));
        let (delay, window) = (Duration::from_millis(delay_ms), Duration::from_millis(window_ms));
        fields.finish(condition.map(|condition| Self { condition, delay, max, window }))
    }
}

impl From<&RestartPolicy> for v1::RestartPolicy {
    fn from(policy: &RestartPolicy) -> Self {
        let RestartPolicy { condition, delay, max, window } = *policy;
        let condition = match condition {
            RestartCondition::Any => v1::RestartCondition::Any,
            RestartCondition::OnFailure => v1::RestartCondition::OnFailure,
            RestartCondition::None => v1::RestartCondition::None,
        };
        Self { condition: condition.into(), delay_ms: millis(delay), max, window_ms: millis(window) }
    }
}

fn restart_condition(wire: i32) -> Result<RestartCondition, Violations> {
    match v1::RestartCondition::try_from(wire) {
        Ok(v1::RestartCondition::Any) => Ok(RestartCondition::Any),
        Ok(v1::RestartCondition::OnFailure) => Ok(RestartCondition::OnFailure),
        Ok(v1::RestartCondition::None) => Ok(RestartCondition::None),
        Ok(v1::RestartCondition::Unspecified) | Err(_) => {
            Err(unknown_enum_value(wire, "any, on-failure or none"))
        }
    }
}

fn pull_policy(wire: i32) -> Result<PullPolicy, Violations> {
    match v1::PullPolicy::try_from(wire) {
        Ok(v1::PullPolicy::Missing) => Ok(PullPolicy::Missing),
        Ok(v1::PullPolicy::Always) => Ok(PullPolicy::Always),
        Ok(v1::PullPolicy::Never) => Ok(PullPolicy::Never),
        Err(_) => Err(unknown_enum_value(wire, "missing, always or never")),
    }
}

impl From<PullPolicy> for v1::PullPolicy {
    fn from(policy: PullPolicy) -> Self {
        match policy {
            PullPolicy::Missing => Self::Missing,
            PullPolicy::Always => Self::Always,
            PullPolicy::Never => Self::Never,
        }
    }
}

fn seccomp(wire: i32) -> Result<Seccomp, Violations> {
    match v1::Seccomp::try_from(wire) {
        Ok(v1::Seccomp::Default) => Ok(Seccomp::Default),
        Ok(v1::Seccomp::Unconfined) => Ok(Seccomp::Unconfined),
        Err(_) => Err(unknown_enum_value(wire, "default or unconfined")),
    }
}

fn propagation(wire: i32) -> Result<Propagation, Violations> {
    match v1::Propagation::try_from(wire) {
        Ok(v1::Propagation::Private) => Ok(Propagation::Private),
        Ok(v1::Propagation::Slave) => Ok(Propagation::Slave),
        Ok(v1::Propagation::Shared) => Ok(Propagation::Shared),
        Err(_) => Err(unknown_enum_value(wire, "rprivate, rslave or rshared")),
    }
}

impl From<Propagation> for v1::Propagation {
    fn from(propagation: Propagation) -> Self {
        match propagation {
            Propagation::Private => Self::Private,
            Propagation::Slave => Self::Slave,
            Propagation::Shared => Self::Shared,
        }
    }
}
