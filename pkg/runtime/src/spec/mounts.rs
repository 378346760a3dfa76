//! What is mounted in a container: the kernel's file systems, then what was asked for, then the node's files.

use std::path::{Path, PathBuf};

use oci_spec::runtime as oci;
use warren_types::Bytes;

use super::Host;
use crate::container::{ContainerSpec, HostFile, INIT, Mount, MountSource, Propagation};

const SHM_SIZE: Bytes = Bytes(64 << 20);

/// All of them, each after those that it lies in.
pub(super) fn mounts(spec: &ContainerSpec, host: Host) -> Vec<oci::Mount> {
    let asked = |target: &Path| spec.mounts.iter().any(|mount| mount.target == target);
    let mut mounts = kernels(spec);
    mounts.retain(|mount| !asked(mount.destination()));
    let mut wanted: Vec<&Mount> = spec.mounts.iter().collect();
    wanted.sort_by_key(|mount| mount.target.components().count());
    mounts.extend(wanted.into_iter().map(|wanted| self::wanted(wanted, host)));
    let nodes = spec.files.iter().filter(|file| !asked(&file.target));
    mounts.extend(nodes.map(|HostFile { source, target }| file(source, target)));
    if let Some(init) = &spec.init {
        let options = ["bind", "ro", "rprivate", "nosuid", "nodev"].map(str::to_owned);
        mounts.push(mount(Path::new(INIT), "bind", init, options));
    }
    mounts
}

/// What the container's own root must be for mounts to pass between it and the host.
pub(super) fn root_propagation(spec: &ContainerSpec) -> Option<String> {
    let asks = |wanted: Propagation| {
        let mut binds = spec.mounts.iter().filter_map(|mount| match &mount.source {
            MountSource::Bind { propagation, .. } => Some(*propagation),
            MountSource::File { .. } | MountSource::Tmpfs { .. } => None,
        });
        binds.any(|propagation| propagation == wanted)
    };
    if asks(Propagation::Shared) {
        return Some("shared".to_owned());
    }
    asks(Propagation::Slave).then(|| "rslave".to_owned())
}

/// Those that every container has. Source: the documented defaults of Docker Engine.
fn kernels(spec: &ContainerSpec) -> Vec<oci::Mount> {
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

fn wanted(wanted: &Mount, host: Host) -> oci::Mount {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    match &wanted.source {
        MountSource::Bind { path, recursive, propagation } => {
            let mut options = own(&[if *recursive { "rbind" } else { "bind" }, propagation.option()]);
            match wanted.read_only {
                // The first covers the mount itself, also where the kernel does not know the second.
                true if *recursive && host.recursive_read_only => options.extend(own(&["ro", "rro"])),
                true => options.push("ro".to_owned()),
                false => options.push("rw".to_owned()),
            }
            mount(&wanted.target, "bind", path, options)
        }
        MountSource::File { path } => file(path, &wanted.target),
        MountSource::Tmpfs { size, mode, options: asked } => {
            let mut options = own(&["nosuid", "nodev", "noexec"]);
            options.push(format!("mode={:o}", mode.unwrap_or(0o1777)));
            options.extend(size.map(|size| format!("size={}", size.0)));
            // What comes later wins.
            options.extend(asked.iter().cloned());
            if wanted.read_only {
                options.push("ro".to_owned());
            }
            mount(&wanted.target, "tmpfs", Path::new("tmpfs"), options)
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
