//! From a container's spec and its image's wishes to the document that runc reads. Pure.
//!
//! The defaults are those that people know from Docker: its capabilities, masked paths, mounts and seccomp
//! list. Source of the format: OCI runtime specification 1.0.2.

pub(crate) mod command;
mod defaults;
mod seccomp;
pub(crate) mod user;

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use warren_image::RunConfig;

use crate::container::{BindMount, ContainerId, ContainerSpec, Limits};
use crate::error::Error;
use user::User;

/// The period of CPU limits in microseconds, and the shares that one whole CPU weighs.
const CPU_PERIOD: u64 = 100_000;
const SHARES_PER_CPU: u64 = 1024;
const MIN_SHARES: u64 = 2;

/// What of the machine decides about a container's document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// Containers live in cgroup version 2.
    pub unified_cgroups: bool,
    /// The kernel can limit memory and swap together.
    pub limits_swap: bool,
}

/// The path of a container's cgroup, the same in every hierarchy.
pub(crate) fn cgroup_path(parent: &str, id: &ContainerId) -> PathBuf {
    Path::new("/").join(parent.trim_matches('/')).join(id.as_str())
}

/// The whole document.
///
/// # Errors
/// [`Error::InvalidSpec`] when neither spec nor image name a command, or the image's directory is relative.
pub(crate) fn document(
    spec: &ContainerSpec,
    image: &RunConfig,
    user: &User,
    cgroup_parent: &str,
    host: Host,
) -> Result<oci::Spec, Error> {
    let mut document = oci::Spec::default();
    let mut root = oci::Root::default();
    root.set_path("rootfs".into()).set_readonly(Some(false));
    document
        .set_version("1.0.2".to_owned())
        .set_root(Some(root))
        .set_hostname(Some(spec.hostname.clone()))
        .set_process(Some(process(spec, image, user)?))
        .set_mounts(Some(mounts(&spec.mounts)))
        .set_linux(Some(linux(spec, cgroup_parent, host)));
    Ok(document)
}

fn process(spec: &ContainerSpec, image: &RunConfig, user: &User) -> Result<oci::Process, Error> {
    let directory = match image.working_dir.as_str() {
        "" => "/",
        directory if directory.starts_with('/') => directory,
        relative => return Err(Error::invalid("image", format!("its directory {relative:?} is relative"))),
    };
    let mut identity = oci::User::default();
    // The primary group is also listed: a program that drops it must not gain what "everyone else" may do.
    let mut groups = vec![user.gid];
    groups.extend(user.groups.iter().filter(|group| **group != user.gid));
    identity.set_uid(user.uid).set_gid(user.gid).set_additional_gids(Some(groups));
    let mut process = oci::Process::default();
    process
        .set_terminal(Some(false))
        .set_user(identity)
        .set_args(Some(command::words(spec, image)?))
        .set_env(Some(command::environment(&spec.hostname, image, &spec.env)))
        .set_cwd(directory.into())
        .set_no_new_privileges(Some(false))
        .set_capabilities(Some(defaults::capabilities()))
        // Limits on open files and the like are containerd's own: runc may lower them, but not raise them.
        .set_rlimits(None);
    Ok(process)
}

fn mounts(binds: &[BindMount]) -> Vec<oci::Mount> {
    let mut mounts = defaults::mounts();
    mounts.extend(binds.iter().map(|bind| {
        let options = ["rbind", "ro", "rprivate", "nosuid", "nodev", "noexec"];
        defaults::mount(&bind.target, "bind", &bind.source, &options)
    }));
    mounts
}

fn linux(spec: &ContainerSpec, cgroup_parent: &str, host: Host) -> oci::Linux {
    let mut linux = oci::Linux::default();
    linux
        .set_cgroups_path(Some(cgroup_path(cgroup_parent, &spec.id)))
        .set_namespaces(Some(namespaces(spec.netns.as_deref(), host)))
        .set_resources(Some(resources(&spec.limits, host)))
        .set_sysctl(Some(defaults::sysctls()))
        .set_seccomp(Some(seccomp::profile()))
        .set_masked_paths(Some(defaults::masked_paths()))
        .set_readonly_paths(Some(defaults::readonly_paths()));
    linux
}

fn namespaces(network: Option<&Path>, host: Host) -> Vec<oci::LinuxNamespace> {
    use oci::LinuxNamespaceType as Type;
    let mut kinds = vec![Type::Pid, Type::Ipc, Type::Uts, Type::Mount, Type::Network];
    // Version 1 has no use for it: its hierarchies are shown read-only, rooted at the container by bind
    // mounts.
    if host.unified_cgroups {
        kinds.push(Type::Cgroup);
    }
    let namespace = |kind| {
        let mut namespace = oci::LinuxNamespace::default();
        let path = network.filter(|_| kind == Type::Network).map(Path::to_owned);
        namespace.set_typ(kind).set_path(path);
        namespace
    };
    kinds.into_iter().map(namespace).collect()
}

fn resources(limits: &Limits, host: Host) -> oci::LinuxResources {
    let mut resources = oci::LinuxResources::default();
    // runc adds the few devices every container has after this rule.
    let mut nothing = oci::LinuxDeviceCgroup::default();
    nothing.set_allow(false).set_access(Some("rwm".to_owned()));
    resources.set_devices(Some(vec![nothing]));
    if let Some(limit) = limits.cpu {
        let mut cpu = oci::LinuxCpu::default();
        cpu.set_period(Some(CPU_PERIOD))
            .set_quota(Some((limit.0 * CPU_PERIOD / 1000) as i64))
            .set_shares(Some((limit.0 * SHARES_PER_CPU / 1000).max(MIN_SHARES)));
        resources.set_cpu(Some(cpu));
    }
    if let Some(limit) = limits.memory {
        let mut memory = oci::LinuxMemory::default();
        let bytes = i64::try_from(limit.0).unwrap_or(i64::MAX);
        memory.set_limit(Some(bytes));
        if host.limits_swap {
            memory.set_swap(Some(bytes));
        }
        resources.set_memory(Some(memory));
    }
    resources
}

#[cfg(test)]
mod tests;
