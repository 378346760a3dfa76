//! Task specs.

use std::time::Duration;

use warren_types::spec::{AppArmor, NoNewPrivileges, OnDisconnect, Seccomp};
use warren_types::{
    Bytes, Device, DnsSettings, EnvVar, HealthCheck, HostEntry, LifecycleHook, Limits, LogLimits, MilliCpu,
    Mount, MountSource, NetworkAttachment, Resources, RestartPolicy, TaskNetworkMode, TaskSpec, Ulimit,
    Violation, Violations,
};

use super::fields::{FieldReader, millis, unknown_enum_value};
use super::wire_form::{
    WireForm, convert_by_wire_form, field, or_default, read_field, required_messages, wire_form_by_convert,
    wire_structs,
};
use crate::v1;
use crate::v1::task_network::Mode;

wire_structs! {
    TaskSpec as TaskSpec {
        image, pull, command, args, env, container_labels, workdir, user, groups, hostname, hosts, tty, stdin, init,
        stop_signal, drain_delay_ms: drain_delay by drain_delay, stop_grace_ms: stop_grace by stop_grace,
        limits by or_default, reservations by or_default, ulimits, sysctls, shm_size_bytes: shm_size, oom_score_adj,
        privileged, cap_add, cap_drop, no_new_privileges with new_privileges by privilege_gain,
        seccomp with seccomp_config by seccomp_profile, apparmor, devices, read_only, mounts, secrets, configs, health,
        restart by or_default, stop_after_ms: on_disconnect,
        logs by or_default, network by or_default, dns by or_default, allow_metadata, post_start, pre_stop,
        resolve_image, storage_limit_bytes: storage_limit, user_namespace
    };
    DnsSettings as DnsSettings { servers, searches };
    NetworkAttachment as NetworkAttachment { network, aliases };
    Device as Device { source, target, access };
    EnvVar as EnvVar { name, value };
    HostEntry as HostEntry { name, address };
    LifecycleHook as LifecycleHook { command, env, workdir, user };
    RestartPolicy as RestartPolicy { condition, delay_ms: delay, max, window_ms: window };
    Ulimit as Ulimit { name, soft, hard };
}
convert_by_wire_form! { TaskSpec }
required_messages! { TaskSpec as TaskSpec }
wire_form_by_convert! { HealthCheck: HealthCheck::try_from; Mount: Mount::try_from; }

/// A switch with three positions as two fields, of which neither is set by default.
mod privilege_gain {
    use super::{NoNewPrivileges, Violation, Violations};

    pub fn to_wire(value: &NoNewPrivileges) -> bool {
        *value == NoNewPrivileges::On
    }

    pub fn other_to_wire(value: &NoNewPrivileges) -> bool {
        *value == NoNewPrivileges::Off
    }

    pub fn from_wire(is_on: bool, is_off: bool) -> Result<NoNewPrivileges, Violations> {
        match (is_on, is_off) {
            (false, false) => Ok(NoNewPrivileges::Default),
            (true, false) => Ok(NoNewPrivileges::On),
            (false, true) => Ok(NoNewPrivileges::Off),
            (true, true) => {
                Err(Violation::new("", "is set beside newPrivileges; leave one of them out").into())
            }
        }
    }
}

/// A number, and the name of a config beside that of the default.
mod seccomp_profile {
    use super::{Seccomp, Violation, Violations, WireForm, unknown_enum_value, v1};

    pub fn to_wire(value: &Seccomp) -> i32 {
        let number = match value {
            Seccomp::Default | Seccomp::Config(_) => v1::Seccomp::Default,
            Seccomp::Unconfined => v1::Seccomp::Unconfined,
        };
        number.into()
    }

    pub fn other_to_wire(value: &Seccomp) -> String {
        match value {
            Seccomp::Default | Seccomp::Unconfined => String::new(),
            Seccomp::Config(name) => name.to_string(),
        }
    }

    pub fn from_wire(number: i32, config: String) -> Result<Seccomp, Violations> {
        match (v1::Seccomp::try_from(number), config.as_str()) {
            (Ok(v1::Seccomp::Default), "") => Ok(Seccomp::Default),
            (Ok(v1::Seccomp::Unconfined), "") => Ok(Seccomp::Unconfined),
            (Ok(v1::Seccomp::Default), _) => WireForm::from_wire(config).map(Seccomp::Config),
            (Ok(v1::Seccomp::Unconfined), _) => {
                let message = "is unconfined, and seccompConfig is set; leave one of them out";
                Err(Violation::new("", message).into())
            }
            (Err(_), _) => Err(unknown_enum_value(number, "default or unconfined")),
        }
    }
}

/// Empty for the default.
impl WireForm<String> for AppArmor {
    fn to_wire(&self) -> String {
        match self {
            Self::Default => String::new(),
            named => named.to_string(),
        }
    }

    fn from_wire(wire: String) -> Result<Self, Violations> {
        match wire.as_str() {
            "" => Ok(Self::Default),
            text => text.parse().map_err(|why: String| Violation::new("", why).into()),
        }
    }
}

impl WireForm<v1::StringList> for Vec<String> {
    fn to_wire(&self) -> v1::StringList {
        v1::StringList { items: self.clone() }
    }

    fn from_wire(wire: v1::StringList) -> Result<Self, Violations> {
        Ok(wire.items)
    }
}

impl WireForm<v1::TaskNetwork> for TaskNetworkMode {
    fn to_wire(&self) -> v1::TaskNetwork {
        let mode = match self {
            Self::Networks(items) => Mode::Networks(v1::NetworkAttachments { items: items.to_wire() }),
            Self::Host => Mode::Host(v1::HostNetwork {}),
            Self::None => Mode::None(v1::NoNetwork {}),
        };
        v1::TaskNetwork { mode: Some(mode) }
    }

    fn from_wire(wire: v1::TaskNetwork) -> Result<Self, Violations> {
        match wire.mode {
            Some(Mode::Networks(networks)) => read_field("networks", networks.items).map(Self::Networks),
            Some(Mode::Host(v1::HostNetwork {})) => Ok(Self::Host),
            Some(Mode::None(v1::NoNetwork {})) => Ok(Self::None),
            None => Err(Violation::new("", "is missing; give networks, host or none").into()),
        }
    }
}

/// Times that are left out if they are the default.
macro_rules! default_times {
    ($($field:ident: $default:expr;)*) => {$(
        mod $field {
            use super::{Duration, Violations, millis};

            pub fn to_wire(time: &Duration) -> Option<u64> {
                (*time != $default).then(|| millis(*time))
            }

            pub fn from_wire(wire: Option<u64>) -> Result<Duration, Violations> {
                Ok(wire.map_or($default, Duration::from_millis))
            }
        }
    )*};
}

default_times! {
    drain_delay: warren_types::spec::DEFAULT_DRAIN_DELAY;
    stop_grace: warren_types::spec::DEFAULT_STOP_GRACE;
}

impl WireForm<Option<u64>> for OnDisconnect {
    fn to_wire(&self) -> Option<u64> {
        self.stop_after().map(millis)
    }

    fn from_wire(wire: Option<u64>) -> Result<Self, Violations> {
        Ok(wire.map_or(Self::Keep, |after| Self::StopAfter(Duration::from_millis(after))))
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

impl TryFrom<v1::Mount> for Mount {
    type Error = Violations;

    fn try_from(wire: v1::Mount) -> Result<Self, Violations> {
        let mut fields = FieldReader::default();
        let source = match wire.source {
            Some(v1::mount::Source::Bind(v1::BindMount { path, propagation, recursive })) => {
                field(&mut fields, "source.bind.propagation", WireForm::from_wire(propagation))
                    .map(|propagation| MountSource::Bind { path, propagation, recursive })
            }
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
                propagation: propagation.to_wire(),
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
