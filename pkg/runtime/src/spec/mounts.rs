//! Mounts of a container: kernel file systems, then the spec's mounts, then files of the node.

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use warren_types::Bytes;

use super::HostFeatures;
use crate::container::{
    ContainerMount, ContainerMountSource, ContainerSpec, HostFile, INIT, MountPropagation, PrivateUsers,
    STDIN,
};

const SHM_SIZE: Bytes = Bytes(64 << 20);

/// All mounts, parents before children.
pub(super) fn mounts(spec: &ContainerSpec, host: HostFeatures) -> Vec<oci::Mount> {
    let asked = |target: &Path| spec.mounts.iter().any(|mount| mount.target == target);
    let mut mounts = default_mounts(spec);
    mounts.retain(|mount| !asked(mount.destination()));
    let mut desired: Vec<(usize, &ContainerMount)> = spec.mounts.iter().enumerate().collect();
    desired.sort_by_key(|(_, mount)| mount.target.components().count());
    mounts.extend(desired.into_iter().map(|(place, expected)| match &spec.user_namespace {
        None => self::requested_mount(expected, host),
        Some(users) => private_mount(expected, place, users, host),
    }));
    let nodes = spec.files.iter().filter(|file| !asked(&file.target));
    mounts.extend(nodes.map(|HostFile { source, target }| file(source, target)));
    if let Some(program) = spec.first_program() {
        let options = ["bind", "ro", "rprivate", "nosuid", "nodev"].map(str::to_owned);
        mounts.push(mount(Path::new(INIT), "bind", program, options));
    }
    if let Some(input) = spec.piped_input() {
        mounts.push(file(&input.pipe, Path::new(STDIN)));
    }
    mounts
}

/// Propagation that the container's root needs for the propagation of its mounts.
pub(super) fn root_propagation(spec: &ContainerSpec) -> Option<String> {
    let asks = |desired: MountPropagation| {
        let mut binds = spec.mounts.iter().filter_map(|mount| match &mount.source {
            ContainerMountSource::Bind { propagation, .. } => Some(*propagation),
            ContainerMountSource::File { .. } | ContainerMountSource::Tmpfs { .. } => None,
        });
        binds.any(|propagation| propagation == desired)
    };
    if asks(MountPropagation::Shared) {
        return Some("shared".to_owned());
    }
    asks(MountPropagation::Slave).then(|| "rslave".to_owned())
}

/// Mounts of every container. Source: the documented defaults of Docker Engine.
fn default_mounts(spec: &ContainerSpec) -> Vec<oci::Mount> {
    let kernel = |target: &str, kind: &str, source: &str, options: &[&str]| {
        let options = options.iter().map(|option| (*option).to_owned());
        mount(Path::new(target), kind, Path::new(source), options)
    };
    let access = if spec.privileged { "rw" } else { "ro" };
    let shm = format!("size={}", spec.shm_size.unwrap_or(SHM_SIZE).0);
    vec![
        kernel("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        kernel("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        kernel(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        kernel("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", access]),
        kernel("/sys/fs/cgroup", "cgroup", "cgroup", &["nosuid", "noexec", "nodev", "relatime", access]),
        kernel("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        kernel("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", &shm]),
    ]
}

/// Of a container with a user namespace of its own: bind mounts have sources with shifted ids, which are read-only if
/// the mount is. The OCI runtime may not change these.
fn private_mount(
    desired: &ContainerMount,
    place: usize,
    users: &PrivateUsers,
    host: HostFeatures,
) -> oci::Mount {
    let ContainerMountSource::Bind { recursive, propagation, .. } = &desired.source else {
        return requested_mount(desired, host);
    };
    let options = [if *recursive { "rbind" } else { "bind" }, propagation.mount_option()].map(str::to_owned);
    mount(&desired.target, "bind", &users.mount_source(place), options)
}

fn requested_mount(desired: &ContainerMount, host: HostFeatures) -> oci::Mount {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    match &desired.source {
        ContainerMountSource::Bind { path, recursive, propagation } => {
            let mut options = own(&[if *recursive { "rbind" } else { "bind" }, propagation.mount_option()]);
            match desired.read_only {
                // `ro` covers the mount itself, also on kernels without `rro`.
                true if *recursive && host.recursive_read_only => options.extend(own(&["ro", "rro"])),
                true => options.push("ro".to_owned()),
                false => options.push("rw".to_owned()),
            }
            mount(&desired.target, "bind", path, options)
        }
        ContainerMountSource::File { path } => file(path, &desired.target),
        ContainerMountSource::Tmpfs { size, mode, options: asked } => {
            let mut options = own(&["nosuid", "nodev", "noexec"]);
            options.push(format!("mode={:o}", mode.unwrap_or(0o1777)));
            options.extend(size.map(|size| format!("size={}", size.0)));
            // Later mounts win.
            options.extend(asked.iter().cloned());
            if desired.read_only {
                options.push("ro".to_owned());
            }
            mount(&desired.target, "tmpfs", Path::new("tmpfs"), options)
        }
    }
}

fn file(source: &Path, target: &Path) -> oci::Mount {
    let options = ["rbind", "ro", "rprivate", "nosuid", "nodev", "noexec"].map(str::to_owned);
    mount(target, "bind", source, options)
}

fn mount(target: &Path, kind: &str, source: &Path, options: impl IntoIterator<Item = String>) -> oci::Mount {
    let mut mount = oci::Mount::default();
    mount
        .set_destination(PathBuf::from(target))
        .set_typ(Some(kind.to_owned()))
        .set_source(Some(PathBuf::from(source)))
        .set_options(Some(options.into_iter().collect()));
    mount
}
