//! Limits, reservations, privileges and devices.

use warren_types::spec::MAX_PIDS_LIMIT;
use warren_types::{
    AppArmor, Bytes, Device, DeviceAccess, DnsLabel, MilliCpu, NoNewPrivileges, Seccomp, SecretObjectKind,
    SecretObjectName, TaskSpec, Ulimit,
};

use super::fields::Fields;
use super::{STACK_LABEL, SecretObjectSource, StackSecretObject};
use crate::scalar::{parse_size, seccomp_file};

/// Limits, reservations, privileges and devices of a task.
pub(super) fn resources(service: &Fields<'_>, task: &mut TaskSpec) {
    let resources = service.sub("deploy").and_then(|deploy| deploy.sub("resources"));
    let limits = resources.as_ref().and_then(|resources| resources.sub("limits"));
    let reserved = resources.as_ref().and_then(|resources| resources.sub("reservations"));
    let in_limits = |key: &str| limits.as_ref().and_then(|limits| limits.sub(key));
    let in_reserved = |key: &str| reserved.as_ref().and_then(|reserved| reserved.sub(key));
    let cpus = either(in_limits("cpus"), service.sub("cpus"));
    task.limits.cpu = cpus.and_then(|cpus| milli_cpu(&cpus));
    task.limits.memory = either(in_limits("memory"), service.sub("mem_limit")).and_then(|size| bytes(&size));
    let pids = either(in_limits("pids"), service.sub("pids_limit"));
    task.limits.pids = pids.and_then(|pids| match pids.node.as_text() {
        Some("-1") => Some(MAX_PIDS_LIMIT),
        _ => pids.parse_self(),
    });
    task.reservations.cpu =
        in_reserved("cpus").and_then(|cpus| milli_cpu(&cpus)).unwrap_or(task.reservations.cpu);
    let memory = either(in_reserved("memory"), service.sub("mem_reservation"));
    task.reservations.memory = memory.and_then(|size| bytes(&size)).unwrap_or(task.reservations.memory);

    task.shm_size = service.bytes("shm_size");
    for (name, option) in service.entries("storage_opt") {
        let text = option.node.as_text().unwrap_or_default();
        match (name, parse_size(text)) {
            ("size", Some(size)) => task.storage_limit = Some(Bytes(size)),
            ("size", None) => option.fail(format!("{text:?} is not a number of bytes like 2g")),
            _ => option.fail("is not supported by this version; there is `size`"),
        }
    }
    task.oom_score_adj = service.number("oom_score_adj");
    task.privileged = service.flag("privileged").unwrap_or_default();
    task.read_only = service.flag("read_only").unwrap_or_default();
    task.user_namespace = service.parse("userns_mode");
    task.cap_add = service.items("cap_add").iter().filter_map(|one| one.parse_self()).collect();
    task.cap_drop = service.items("cap_drop").iter().filter_map(|one| one.parse_self()).collect();
    task.sysctls = service.pairs("sysctls");
    for (name, limit) in service.entries("ulimits") {
        let Some(name) = limit.parse_text(name) else { continue };
        let bound = |key| limit.number::<i64>(key).and_then(|bound| u64::try_from(bound).ok());
        task.ulimits.push(Ulimit { name, soft: bound("soft"), hard: bound("hard") });
    }
    for device in service.items("devices") {
        let source = device.text("source").unwrap_or_default().to_owned();
        let target = device.text("target").unwrap_or(&source).to_owned();
        let access = device.parse("permissions").unwrap_or(DeviceAccess::FULL);
        task.devices.push(Device { source, target, access });
    }
}

/// `security_opt`. Returns the config `name` if a file has the seccomp profile of the task.
pub(super) fn security_options(
    service: &Fields<'_>,
    name: &str,
    stack: &DnsLabel,
    task: &mut TaskSpec,
) -> Option<StackSecretObject> {
    let mut profile = None;
    for option in service.items("security_opt") {
        let text = option.node.as_text().unwrap_or_default();
        if let Some(file) = seccomp_file(text) {
            let Some(name) = option.parse_text::<SecretObjectName>(name) else { continue };
            task.seccomp = Seccomp::Config(name.clone());
            profile = Some(StackSecretObject {
                defined: option.position(),
                kind: SecretObjectKind::Config,
                name,
                labels: [(STACK_LABEL.to_owned(), stack.to_string())].into(),
                source: SecretObjectSource::File(file.into()),
            });
            continue;
        }
        match text.split_once(['=', ':']).unwrap_or((text, "")) {
            ("no-new-privileges", "" | "true") => task.no_new_privileges = NoNewPrivileges::On,
            ("no-new-privileges", "false") => task.no_new_privileges = NoNewPrivileges::Off,
            ("seccomp", "unconfined") => (task.seccomp, profile) = (Seccomp::Unconfined, None),
            ("seccomp", "builtin") => (task.seccomp, profile) = (Seccomp::Default, None),
            ("apparmor", "docker-default") => task.apparmor = AppArmor::Default,
            ("apparmor", profile) => task.apparmor = option.parse_text(profile).unwrap_or_default(),
            _ => option.fail(format!(
                "{text:?} is not supported by this version; there are no-new-privileges, apparmor:PROFILE, \
                 seccomp:unconfined and seccomp:FILE"
            )),
        }
    }
    profile
}

/// The value of two keys with one meaning, which must not differ.
fn either<'a>(deploy: Option<Fields<'a>>, old: Option<Fields<'a>>) -> Option<Fields<'a>> {
    if let (Some(deploy), Some(old)) = (&deploy, &old)
        && deploy.node.as_text() != old.node.as_text()
    {
        old.fail(format!("differs from {}; leave one of them out", deploy.path));
    }
    deploy.or(old)
}

/// A number of CPUs, also without a digit before the point.
fn milli_cpu(cpus: &Fields<'_>) -> Option<MilliCpu> {
    let text = cpus.node.as_text().unwrap_or_default();
    let zero = if text.starts_with('.') { "0" } else { "" };
    cpus.parse_text(&format!("{zero}{text}"))
}

fn bytes(size: &Fields<'_>) -> Option<Bytes> {
    size.parse_self::<u64>().map(Bytes)
}
