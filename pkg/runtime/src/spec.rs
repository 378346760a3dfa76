//! From a container's spec and its image's wishes to the document that runc reads. Pure.
//!
//! The defaults are those that people know from Docker: its capabilities, masked paths, mounts and seccomp
//! list. Source of the format: OCI runtime specification 1.0.2.

pub(crate) mod capabilities;
pub(crate) mod command;
mod defaults;
mod mounts;
pub(crate) mod resources;
mod seccomp;
pub(crate) mod user;

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use warren_image::RunConfig;

use crate::container::{Access, ContainerId, ContainerSpec, INIT, Network, Seccomp};
use crate::error::Error;
pub(crate) use capabilities::bits;
pub use seccomp::Architectures;
use user::User;

/// What of the machine decides about a container's document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// Containers live in cgroup version 2.
    pub unified_cgroups: bool,
    /// The kernel can limit memory and swap together.
    pub limits_swap: bool,
    /// The kernel can make a mount read-only together with those below it.
    pub recursive_read_only: bool,
    /// What can be given at all.
    pub capabilities: capabilities::Set,
    /// The programs that may run.
    pub architectures: Architectures,
}

/// A device as the container gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceNode {
    /// In the container.
    pub path: PathBuf,
    pub kind: oci::LinuxDeviceType,
    pub major: i64,
    pub minor: i64,
    /// Permission bits, owner and group: the host's.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub access: Access,
}

/// What the names in a spec were found to mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meant {
    pub user: User,
    pub devices: Vec<DeviceNode>,
}

/// The path of a container's cgroup, the same in every hierarchy.
pub(crate) fn cgroup_path(parent: &str, id: &ContainerId) -> PathBuf {
    Path::new("/").join(parent.trim_matches('/')).join(id.as_str())
}

/// The whole document.
///
/// # Errors
/// [`Error::InvalidSpec`] when neither spec nor image name a command, the image's directory is relative, or what
/// is asked for needs a capability that the machine cannot give.
pub(crate) fn document(
    spec: &ContainerSpec,
    image: &RunConfig,
    meant: &Meant,
    cgroup_parent: &str,
    host: Host,
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
        .set_process(Some(process(spec, image, &meant.user, granted)?))
        .set_mounts(Some(mounts::mounts(spec, host)))
        .set_linux(Some(linux(spec, meant, granted, cgroup_parent, host)));
    Ok(document)
}

/// runc does not say why it fails at this.
fn check_oom_score(spec: &ContainerSpec, host: Host) -> Result<(), Error> {
    match spec.oom_score_adj {
        Some(score) if score < 0 && !host.capabilities.has(oci::Capability::SysResource) => {
            let reason =
                format!("{score} needs a node that has SYS_RESOURCE; without it only 0 and more can be set");
            Err(Error::invalid("oom_score_adj", reason))
        }
        _ => Ok(()),
    }
}

fn process(
    spec: &ContainerSpec,
    image: &RunConfig,
    user: &User,
    granted: capabilities::Set,
) -> Result<oci::Process, Error> {
    let directory = match (&spec.workdir, image.working_dir.as_str()) {
        (Some(directory), _) => directory,
        (None, "") => "/",
        (None, directory) if directory.starts_with('/') => directory,
        (None, relative) => {
            return Err(Error::invalid("image", format!("its directory {relative:?} is relative")));
        }
    };
    let mut identity = oci::User::default();
    // The primary group is also listed: a program that drops it must not gain what "everyone else" may do.
    let mut groups = vec![user.gid];
    for group in &user.groups {
        if !groups.contains(group) {
            groups.push(*group);
        }
    }
    identity.set_uid(user.uid).set_gid(user.gid).set_additional_gids(Some(groups));
    let mut words = command::words(spec, image)?;
    if spec.init.is_some() {
        words.splice(..0, [INIT.to_owned(), "--".to_owned()]);
    }
    let mut process = oci::Process::default();
    process
        .set_terminal(Some(spec.tty))
        .set_user(identity)
        .set_args(Some(words))
        .set_env(Some(command::environment(spec, image)))
        .set_cwd(directory.into())
        .set_no_new_privileges(Some(spec.no_new_privileges))
        .set_capabilities(Some(capabilities::sets(granted)))
        .set_oom_score_adj(spec.oom_score_adj)
        .set_rlimits(resources::rlimits(&spec.ulimits));
    Ok(process)
}

fn linux(
    spec: &ContainerSpec,
    meant: &Meant,
    granted: capabilities::Set,
    cgroup_parent: &str,
    host: Host,
) -> oci::Linux {
    let mut linux = oci::Linux::default();
    linux
        .set_cgroups_path(Some(cgroup_path(cgroup_parent, &spec.id)))
        .set_namespaces(Some(namespaces(&spec.network, host)))
        .set_resources(Some(resources::resources(spec, &meant.devices, host)))
        .set_devices(Some(meant.devices.iter().map(device).collect()))
        .set_sysctl(Some(defaults::sysctls(spec)))
        .set_rootfs_propagation(mounts::root_propagation(spec));
    let fenced = !spec.privileged;
    linux
        .set_masked_paths(fenced.then(defaults::masked_paths))
        .set_readonly_paths(fenced.then(defaults::readonly_paths))
        .set_seccomp(
            (fenced && spec.seccomp == Seccomp::Default)
                .then(|| seccomp::profile(granted, host.architectures)),
        );
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

fn namespaces(network: &Network, host: Host) -> Vec<oci::LinuxNamespace> {
    use oci::LinuxNamespaceType as Type;
    let mut kinds = vec![(Type::Pid, None), (Type::Ipc, None), (Type::Uts, None), (Type::Mount, None)];
    match network {
        Network::Isolated => kinds.push((Type::Network, None)),
        Network::Joined(path) => kinds.push((Type::Network, Some(path.clone()))),
        Network::Host => {}
    }
    // Version 1 has no use for it: its hierarchies are shown rooted at the container by bind mounts.
    if host.unified_cgroups {
        kinds.push((Type::Cgroup, None));
    }
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
    seccomp::profile(capabilities::Set::from_mask(0), Architectures::Native)
}

#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
