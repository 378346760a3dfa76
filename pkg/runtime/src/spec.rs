//! Builds the OCI document of a container from its spec and its image. Pure.
//!
//! The defaults are Docker's: capabilities, masked paths, mounts and seccomp list. Source of the format: OCI
//! runtime specification 1.0.2.

pub(crate) mod capabilities;
pub(crate) mod command;
mod defaults;
mod mounts;
mod resources;
mod seccomp;
pub(crate) mod user;

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use warren_image::RunConfig;
use warren_types::ID_RANGE_SIZE;

use crate::container::{
    ContainerId, ContainerSpec, DevicePermissions, INIT, NetworkMode, STDIN, SeccompPolicy,
};
use crate::error::Error;
pub(crate) use capabilities::bits;
pub use seccomp::AllowedArchitectures;
use user::User;

/// Properties of the machine that affect the document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFeatures {
    /// Containers are in cgroup version 2.
    pub unified_cgroups: bool,
    /// The kernel can limit memory and swap together.
    pub limits_swap: bool,
    /// The kernel can make a mount read-only recursively.
    pub recursive_read_only: bool,
    /// Capabilities that containers can get.
    pub capabilities: capabilities::CapabilitySet,
    /// Architectures of programs that may run.
    pub architectures: AllowedArchitectures,
    /// The first two numbers of the version of the kernel.
    pub kernel: (u32, u32),
}

/// A device in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNode {
    /// Path in the container.
    pub path: PathBuf,
    pub kind: oci::LinuxDeviceType,
    pub major: i64,
    pub minor: i64,
    /// Permission bits, owner and group of the host's device.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub access: DevicePermissions,
}

/// The names in a spec, resolved on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolvedSpec {
    pub user: User,
    pub devices: Vec<DeviceNode>,
    /// Name of the AppArmor profile, which is loaded.
    pub apparmor: Option<String>,
}

/// The path of a container's cgroup, the same in every hierarchy.
pub(crate) fn cgroup_path(parent: &str, id: &ContainerId) -> PathBuf {
    Path::new("/").join(parent.trim_matches('/')).join(id.as_str())
}

/// Builds the document.
///
/// # Errors
/// [`Error::InvalidSpec`] if neither spec nor image have a command, the image's working directory is
/// relative, or the machine lacks a requested capability.
pub(crate) fn document(
    spec: &ContainerSpec,
    image: &RunConfig,
    meant: &ResolvedSpec,
    cgroup_parent: &str,
    host: HostFeatures,
) -> Result<oci::Spec, Error> {
    let granted = capabilities::granted(spec, host.capabilities)?;
    check_oom_score(spec, host)?;
    let mut document = oci::Spec::default();
    let mut root = oci::Root::default();
    root.set_path("rootfs".into()).set_readonly(Some(spec.read_only_root));
    document
        .set_version("1.0.2".to_owned())
        .set_root(Some(root))
        .set_hostname(Some(spec.hostname.clone()))
        .set_process(Some(process(spec, image, meant, granted, host)?))
        .set_mounts(Some(mounts::mounts(spec, host)))
        .set_linux(Some(linux(spec, meant, granted, cgroup_parent, host)));
    Ok(document)
}

/// runc reports no reason when this fails.
fn check_oom_score(spec: &ContainerSpec, host: HostFeatures) -> Result<(), Error> {
    match spec.oom_score_adj {
        Some(score) if score < 0 && !host.capabilities.has(oci::Capability::SysResource) => {
            let reason = format!("{score} needs a node with SYS_RESOURCE; without it, set 0 or more");
            Err(Error::invalid_field("oom_score_adj", reason))
        }
        _ => Ok(()),
    }
}

/// Without a score, a container would have that of containerd, which the machine protects from the OOM killer.
fn oom_score(spec: &ContainerSpec, host: HostFeatures) -> Option<i32> {
    let can_lower = host.capabilities.has(oci::Capability::SysResource);
    spec.oom_score_adj.or(can_lower.then_some(0))
}

fn process(
    spec: &ContainerSpec,
    image: &RunConfig,
    meant: &ResolvedSpec,
    granted: capabilities::CapabilitySet,
    host: HostFeatures,
) -> Result<oci::Process, Error> {
    let directory = match (&spec.workdir, image.working_dir.as_str()) {
        (Some(directory), _) => directory,
        (None, "") => "/",
        (None, directory) if directory.starts_with('/') => directory,
        (None, relative) => {
            return Err(Error::invalid_field(
                "image",
                format!("its working directory {relative:?} is relative"),
            ));
        }
    };
    let mut words = command::command_line(spec, image)?;
    if spec.first_program().is_some() {
        let input = spec.piped_input().map(|_| ["--input", STDIN]);
        let first = [INIT].into_iter().chain(input.into_iter().flatten()).chain(["--"]);
        words.splice(..0, first.map(str::to_owned));
    }
    let mut process = oci::Process::default();
    process
        .set_terminal(Some(spec.tty))
        .set_user(identity(&meant.user))
        .set_args(Some(words))
        .set_env(Some(command::environment(spec, image)))
        .set_cwd(directory.into())
        .set_no_new_privileges(Some(spec.no_new_privileges))
        .set_apparmor_profile(meant.apparmor.clone())
        .set_capabilities(Some(capabilities::oci_sets(granted)))
        .set_oom_score_adj(oom_score(spec, host))
        .set_rlimits(resources::rlimits(&spec.ulimits));
    Ok(process)
}

/// The user of a process.
pub(crate) fn identity(user: &User) -> oci::User {
    let mut identity = oci::User::default();
    // The primary group is listed as well: a program that drops it must not gain the permissions of "others".
    let mut groups = vec![user.gid];
    for group in &user.groups {
        if !groups.contains(group) {
            groups.push(*group);
        }
    }
    identity.set_uid(user.uid).set_gid(user.gid).set_additional_gids(Some(groups));
    identity
}

fn linux(
    spec: &ContainerSpec,
    meant: &ResolvedSpec,
    granted: capabilities::CapabilitySet,
    cgroup_parent: &str,
    host: HostFeatures,
) -> oci::Linux {
    let mut linux = oci::Linux::default();
    linux
        .set_cgroups_path(Some(cgroup_path(cgroup_parent, &spec.id)))
        .set_namespaces(Some(namespaces(spec, host)))
        .set_resources(Some(resources::resources(spec, &meant.devices, host)))
        .set_devices(Some(meant.devices.iter().map(device).collect()))
        .set_sysctl(Some(defaults::sysctls(spec)))
        .set_rootfs_propagation(mounts::root_propagation(spec));
    if let Some(users) = &spec.user_namespace {
        let ids = oci::LinuxIdMappingBuilder::default()
            .container_id(0u32)
            .host_id(users.ids.first)
            .size(ID_RANGE_SIZE)
            .build()
            .expect("all fields are set");
        linux.set_uid_mappings(Some(vec![ids])).set_gid_mappings(Some(vec![ids]));
    }
    let fenced = !spec.privileged;
    let seccomp = match &spec.seccomp {
        SeccompPolicy::Default => fenced.then(|| seccomp::profile(granted, host.architectures)),
        SeccompPolicy::Unconfined => None,
        SeccompPolicy::Profile(profile) => Some(seccomp::resolve(profile, granted, host.kernel)),
    };
    linux
        .set_masked_paths(fenced.then(defaults::masked_paths))
        .set_readonly_paths(fenced.then(defaults::readonly_paths))
        .set_seccomp(seccomp);
    linux
}

fn device(node: &DeviceNode) -> oci::LinuxDevice {
    let mut device = oci::LinuxDevice::default();
    device
        .set_path(node.path.clone())
        .set_typ(node.kind)
        .set_major(node.major)
        .set_minor(node.minor)
        .set_file_mode(Some(node.mode))
        .set_uid(Some(node.uid))
        .set_gid(Some(node.gid));
    device
}

fn namespaces(spec: &ContainerSpec, host: HostFeatures) -> Vec<oci::LinuxNamespace> {
    use oci::LinuxNamespaceType as Type;
    let mut kinds = vec![(Type::Pid, None), (Type::Ipc, None), (Type::Uts, None), (Type::Mount, None)];
    match &spec.network {
        NetworkMode::Isolated => kinds.push((Type::Network, None)),
        NetworkMode::Joined(path) => kinds.push((Type::Network, Some(path.clone()))),
        NetworkMode::Host => {}
    }
    // Version 1 has no use for it: bind mounts show its hierarchies with the container as root.
    if host.unified_cgroups {
        kinds.push((Type::Cgroup, None));
    }
    kinds.extend(spec.user_namespace.as_ref().map(|users| (Type::User, Some(users.namespace()))));
    let namespace = |(kind, path)| {
        let mut namespace = oci::LinuxNamespace::default();
        namespace.set_typ(kind).set_path(path);
        namespace
    };
    kinds.into_iter().map(namespace).collect()
}

/// The profile of a container without capabilities.
#[cfg(test)]
pub(crate) fn default_profile() -> oci::LinuxSeccomp {
    seccomp::profile(capabilities::CapabilitySet::from_mask(0), AllowedArchitectures::Native)
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod tests;
