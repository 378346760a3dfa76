//! Resolves the names in a spec on this machine: devices, files and programs.
//!
//! Read-only. Something missing is an error of the spec, reported before anything of the container is
//! created: containerd and the supervisor would report it late and in other terms or, for a logger, not at
//! all.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use oci_spec::runtime::LinuxDeviceType as Kind;

use crate::cgroup::CgroupHierarchies;
use crate::container::{
    ContainerMount, ContainerMountSource, ContainerSpec, ContainerUlimit, DevicePermissions,
    MountPropagation, OutputTarget,
};
use crate::error::Error;
use crate::programs::is_program;
use crate::spec::capabilities::CapabilitySet;
use crate::spec::{AllowedArchitectures, DeviceNode, HostFeatures};

/// Entries of `/dev` that are file systems and links of the container, not devices.
const NOT_DEVICES: [&str; 7] = ["console", "fd", "mqueue", "pts", "shm", "ptmx", ".udev"];
/// Maximum number of open files of a process.
const NR_OPEN: &str = "/proc/sys/fs/nr_open";

/// First kernel with all that a node cannot do without: `openat2(2)`, by which it reads files of containers.
pub const MIN_KERNEL: (u32, u32) = (5, 6);
/// First kernel that makes a mount read-only recursively.
const RECURSIVE_READ_ONLY: (u32, u32) = (5, 12);

impl HostFeatures {
    /// Reads the properties of this machine that affect documents. The capabilities of this process are the
    /// maximum for containers: containerd was started by it, or is as privileged.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn read(cgroups: &CgroupHierarchies, architectures: AllowedArchitectures) -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let capabilities = CapabilitySet::bounding(&status)
            .ok_or_else(|| io::Error::other("/proc/self/status has no CapBnd"))?;
        let release = kernel_release()?;
        let kernel = major_minor(&release)
            .ok_or_else(|| io::Error::other(format!("{release:?} is not a version of the kernel")))?;
        Ok(Self {
            unified_cgroups: cgroups.is_unified(),
            limits_swap: cgroups.limits_swap(),
            recursive_read_only: kernel >= RECURSIVE_READ_ONLY,
            capabilities,
            architectures,
            kernel,
        })
    }
}

/// The release of the running kernel, as `uname -r` prints it.
///
/// # Errors
/// `/proc` is not mounted.
pub fn kernel_release() -> io::Result<String> {
    fs::read_to_string("/proc/sys/kernel/osrelease").map(|release| release.trim().to_owned())
}

/// The first two numbers of a version: `6.1.0-28-amd64`, `v1.7.2`.
pub fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim_start_matches('v').split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Checks every name in the spec, and returns its devices.
///
/// # Errors
/// [`Error::InvalidSpec`] with the path of the field and the actual state.
pub(crate) fn check_host(spec: &ContainerSpec) -> Result<Vec<DeviceNode>, Error> {
    for (place, file) in spec.files.iter().enumerate() {
        ensure_exists(&format!("files[{place}].source"), &file.source)?;
    }
    check_host_mounts(&spec.mounts)?;
    if let Some(init) = &spec.init {
        ensure_program("init", init)?;
    }
    if let Some(input) = &spec.stdin {
        ensure_program("stdin.program", &input.program)?;
    }
    if let OutputTarget::Binary { program, dir, .. } = &spec.log {
        ensure_program("log.program", program)?;
        if !dir.is_dir() {
            return Err(Error::invalid_field("log.dir", format!("{} is not a directory", dir.display())));
        }
    }
    check_host_ulimits(&spec.ulimits)?;
    devices(spec)
}

fn ensure_exists(field: &str, path: &Path) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::invalid_field(
            field,
            format!("{} does not exist on this node; create it first", path.display()),
        )),
        Err(error) => Err(Error::invalid_field(field, format!("{}: {error}", path.display()))),
    }
}

fn ensure_program(field: &str, path: &Path) -> Result<(), Error> {
    match is_program(path) {
        true => Ok(()),
        false => {
            Err(Error::invalid_field(field, format!("{} is not a program on this node", path.display())))
        }
    }
}

fn check_host_mounts(mounts: &[ContainerMount]) -> Result<(), Error> {
    for (place, mount) in mounts.iter().enumerate() {
        let (path, propagation) = match &mount.source {
            ContainerMountSource::Bind { path, propagation, .. } => (path, propagation),
            ContainerMountSource::File { path } => (path, &MountPropagation::Private),
            ContainerMountSource::Tmpfs { .. } => continue,
        };
        ensure_exists(&format!("mounts[{place}].source"), path)?;
        if *propagation == MountPropagation::Private {
            continue;
        }
        let unreadable = |error: io::Error| Error::Failed {
            action: "read the mount table".to_owned(),
            reason: error.to_string(),
        };
        let table = fs::read_to_string("/proc/self/mountinfo").map_err(unreadable)?;
        let real = fs::canonicalize(path).map_err(unreadable)?;
        let (below, tags) = mount_of(&table, &real);
        let shared = tags.contains("shared:");
        if !shared && (*propagation == MountPropagation::Shared || !tags.contains("master:")) {
            let reason = format!(
                "{} is on the mount {}, which is not shared; run mount --make-rshared {} on the node",
                path.display(),
                below.display(),
                below.display()
            );
            return Err(Error::invalid_field(format!("mounts[{place}].propagation"), reason));
        }
    }
    Ok(())
}

/// The mount that contains a path, and its propagation, from the text of a `mountinfo` (proc(5)).
pub(crate) fn mount_of<'a>(table: &'a str, path: &Path) -> (PathBuf, &'a str) {
    let mounts = table.lines().filter_map(|line| {
        let target = line.split(' ').nth(4)?;
        let before = line.split(" - ").next()?;
        // The optional fields follow the sixth.
        let tags = before.splitn(7, ' ').nth(6).unwrap_or_default();
        Some((PathBuf::from(unescaped(target)), tags))
    });
    let around = mounts.filter(|(target, _)| path.starts_with(target));
    // The last of equal mounts is the visible one.
    around.max_by_key(|(target, _)| target.components().count()).unwrap_or_default()
}

/// The kernel writes spaces and some other characters as three octal digits.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

fn check_host_ulimits(ulimits: &[ContainerUlimit]) -> Result<(), Error> {
    let Some(place) = ulimits.iter().position(|ulimit| ulimit.name == "nofile") else { return Ok(()) };
    // If it cannot be read, the kernel decides.
    let most = fs::read_to_string(NR_OPEN).ok().and_then(|text| text.trim().parse::<u64>().ok());
    match most {
        Some(most) if ulimits[place].hard > most => {
            let reason = format!("{} is more than this node's fs.nr_open of {most}", ulimits[place].hard);
            Err(Error::invalid_field(format!("ulimits[{place}].hard"), reason))
        }
        _ => Ok(()),
    }
}

/// The requested devices, and in a privileged container all devices of the machine.
fn devices(spec: &ContainerSpec) -> Result<Vec<DeviceNode>, Error> {
    let mut nodes = Vec::new();
    for (place, device) in spec.devices.iter().enumerate() {
        let field = format!("devices[{place}].source");
        ensure_exists(&field, &device.source)?;
        match device_node(&device.source, &device.target, device.access) {
            Ok(Some(node)) => nodes.push(node),
            Ok(None) => {
                return Err(Error::invalid_field(
                    field,
                    format!("{} is not a device", device.source.display()),
                ));
            }
            Err(error) => {
                return Err(Error::invalid_field(field, format!("{}: {error}", device.source.display())));
            }
        }
    }
    if spec.privileged {
        let mut found = Vec::new();
        collect(Path::new("/dev"), &mut found);
        found.retain(|found: &DeviceNode| nodes.iter().all(|asked| asked.path != found.path));
        nodes.extend(found);
        // Sorted, so that the document does not depend on the order of directory entries.
        nodes.sort_by(|a, b| a.path.cmp(&b.path));
    }
    Ok(nodes)
}

/// The device at `source`, for `target`; `None` for other files.
fn device_node(source: &Path, target: &Path, access: DevicePermissions) -> io::Result<Option<DeviceNode>> {
    let meta = fs::metadata(source)?;
    let kind = match meta.file_type() {
        kind if kind.is_block_device() => Kind::B,
        kind if kind.is_char_device() => Kind::C,
        _ => return Ok(None),
    };
    Ok(Some(DeviceNode {
        path: target.to_owned(),
        kind,
        major: i64::try_from(major(meta.rdev())).unwrap_or_default(),
        minor: i64::try_from(minor(meta.rdev())).unwrap_or_default(),
        mode: meta.mode() & 0o7777,
        uid: meta.uid(),
        gid: meta.gid(),
        access,
    }))
}

/// All devices below a directory, without following links. Entries that vanish meanwhile are ignored.
fn collect(folder: &Path, found: &mut Vec<DeviceNode>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if NOT_DEVICES.iter().any(|name| path == Path::new("/dev").join(name)) {
            continue;
        }
        if kind.is_dir() {
            collect(&path, found);
        } else if kind.is_block_device() || kind.is_char_device() {
            found.extend(device_node(&path, &path, DevicePermissions::FULL).ok().flatten());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::container::{HostDevice, StandardInput};
    use crate::spec::fixtures::spec;
    use warren_types::Bytes;

    fn refused(field: &str, change: impl FnOnce(&mut ContainerSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.validate().unwrap();
        let error = check_host(&spec).expect_err(field);
        assert!(matches!(&error, Error::InvalidSpec { field: f, .. } if f == field), "{field}: {error}");
        error.to_string()
    }

    fn device(source: &str) -> HostDevice {
        HostDevice { source: source.into(), target: "/dev/x".into(), access: DevicePermissions::FULL }
    }

    fn bind(path: &Path, propagation: MountPropagation) -> ContainerMount {
        let source = ContainerMountSource::Bind { path: path.to_owned(), recursive: true, propagation };
        ContainerMount { target: "/x".into(), source, read_only: false }
    }

    #[test]
    fn versions_are_parsed() {
        assert_eq!(major_minor("6.18.5-fc\n"), Some((6, 18)));
        assert!(major_minor("5.10.0-28-amd64") < Some(RECURSIVE_READ_ONLY));
        assert!(major_minor("5.12-rc1") >= Some(RECURSIVE_READ_ONLY));
        assert_eq!((major_minor("v1.7.2"), major_minor("1.6.20~ds1")), (Some((1, 7)), Some((1, 6))));
        assert_eq!(major_minor("odd"), None);
    }

    #[test]
    fn missing_path_is_rejected_by_field() {
        let missing = Path::new("/no/such/thing");
        let text = refused("mounts[0].source", |s| s.mounts = vec![bind(missing, MountPropagation::Private)]);
        assert!(text.contains("/no/such/thing does not exist"), "{text}");
        assert!(!missing.exists());
        refused("init", |s| s.init = Some("/etc/passwd".into()));
        refused("devices[0].source", |s| s.devices = vec![device("/dev/no-such")]);
        let text = refused("devices[0].source", |s| s.devices = vec![device("/etc/passwd")]);
        assert!(text.contains("is not a device"), "{text}");
        let log = |program: &str, dir: &str| OutputTarget::Binary {
            program: program.into(),
            dir: dir.into(),
            max_size: Bytes(1),
            max_files: 1,
        };
        refused("stdin.program", |s| {
            s.stdin = Some(StandardInput { pipe: "/pipe".into(), program: "/etc/passwd".into() });
            s.log = log("/bin/sh", "/tmp");
        });
        refused("log.program", |s| s.log = log("/no/logger", "/tmp"));
        refused("log.dir", |s| s.log = log("/bin/sh", "/no/dir"));
        refused("ulimits[0].hard", |s| {
            s.ulimits =
                vec![ContainerUlimit { name: "nofile".into(), soft: 1, hard: ContainerUlimit::UNLIMITED }];
        });
    }

    #[test]
    fn device_matches_host() {
        let spec = ContainerSpec { devices: vec![device("/dev/null")], ..spec() };
        let found = check_host(&spec).unwrap();
        let [node] = &found[..] else { panic!("{found:?}") };
        assert_eq!((node.kind, node.major, node.minor), (Kind::C, 1, 3));
        assert_eq!(node.path, Path::new("/dev/x"));
    }

    #[test]
    fn privileged_container_gets_each_device_once_without_ttys() {
        let asked = HostDevice { target: "/dev/null".into(), ..device("/dev/zero") };
        let spec = ContainerSpec { privileged: true, devices: vec![asked], ..spec() };
        let found = check_host(&spec).unwrap();
        let null: Vec<_> = found.iter().filter(|node| node.path == Path::new("/dev/null")).collect();
        assert_eq!((null.len(), null[0].minor), (1, 5), "what was asked for wins");
        assert!(found.iter().any(|node| node.path == Path::new("/dev/full")));
        assert!(!found.iter().any(|node| node.path.starts_with("/dev/pts")));
        assert_eq!(found, check_host(&spec).unwrap());
    }

    #[test]
    fn innermost_last_mount_of_path_wins() {
        let table = "22 1 0:1 / / rw - ext4 x rw\n\
            23 22 0:2 / /a rw shared:5 - tmpfs x rw\n\
            24 23 0:3 / /a/b\\040c rw master:5 propagate_from:2 - tmpfs x rw\n\
            25 22 0:4 / /twice rw shared:6 - tmpfs x rw\n\
            26 25 0:5 / /twice rw - tmpfs x rw\n";
        let check = |path: &str, target: &str, tags: &str| {
            assert_eq!(mount_of(table, Path::new(path)), (PathBuf::from(target), tags), "{path}");
        };
        check("/etc", "/", "");
        check("/ab", "/", "");
        check("/a/x", "/a", "shared:5");
        check("/a/b c/d", "/a/b c", "master:5 propagate_from:2");
        check("/twice/x", "/twice", "");
    }

    #[test]
    fn propagation_requires_host_propagation() {
        // The kernel's own file systems are private unless configured otherwise.
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let (_, tags) = mount_of(&table, Path::new("/proc"));
        if tags.is_empty() {
            let text = refused("mounts[0].propagation", |s| {
                s.mounts = vec![bind(Path::new("/proc"), MountPropagation::Slave)];
            });
            assert!(text.contains("--make-rshared /proc"), "{text}");
        }
    }
}
