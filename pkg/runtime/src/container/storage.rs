//! What a container sees mounted, beside its own file system.

use std::path::{Component, Path, PathBuf};

use warren_types::Bytes;

use super::ContainerSpec;
use crate::error::Error;

/// Where the init is seen in a container that has one.
pub(crate) const INIT: &str = "/dev/init";
/// The smallest file system in memory: one page.
const MIN_TMPFS: Bytes = Bytes(4096);
const MAX_MODE: u32 = 0o7777;
/// What every container has and cannot do without; below the latter two is free.
const KERNELS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Mount options that a file system in memory takes as they are.
const TMPFS_FLAGS: [&str; 13] = [
    "noexec",
    "exec",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noatime",
    "relatime",
    "strictatime",
    "nodiratime",
    "sync",
    "noswap",
    "ro",
];
/// And those that it takes with a number.
const TMPFS_NUMBERS: [&str; 3] = ["uid", "gid", "nr_inodes"];

/// Something mounted because it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path in the container, without `..`; made if missing. Each once.
    pub target: PathBuf,
    /// What.
    pub source: MountSource,
    /// The container cannot write to it.
    pub read_only: bool,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// A file or directory of the host.
    Bind {
        /// Absolute path on the host. Must exist when the process is created; it is never made.
        path: PathBuf,
        /// Mounts below it are seen as well, and read-only if it is (from Linux 5.12 on).
        recursive: bool,
        /// Which mounts made later are seen on the other side.
        propagation: Propagation,
    },
    /// A file of the host that is only read: nothing on it can be executed, is set-user-id or a device. Must be mounted
    /// read-only.
    File {
        /// Absolute path on the host. Must exist when the process is created.
        path: PathBuf,
    },
    /// Memory of the container's own, gone with its process. By default nothing on it can be executed, is
    /// set-user-id or a device.
    Tmpfs {
        /// At most so much; `None` is half of the machine's memory, bounded by the container's limit.
        size: Option<Bytes>,
        /// Permission bits of its root; `None` is 1777.
        mode: Option<u32>,
        /// Further mount options: `exec`, `suid`, `dev`, `noatime`, `noswap`, `uid=1000`, `gid=1000` and the
        /// like.
        options: Vec<String>,
    },
}

/// Which mounts made later are seen on the other side of a bind mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// Those of the host in the container. The path must lie on a shared or slave mount.
    Slave,
    /// Both ways. The path must lie on a shared mount.
    Shared,
}

impl Propagation {
    /// As mount(8) calls it, with all mounts below.
    pub(crate) fn option(self) -> &'static str {
        match self {
            Self::Private => "rprivate",
            Self::Slave => "rslave",
            Self::Shared => "rshared",
        }
    }
}

/// A file or directory of the node's own, such as `/etc/hosts`, shown read-only, and nothing on it can be
/// executed, is set-user-id or a device. A [`Mount`] at the same target takes its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    /// Absolute path on the host; must exist when the process is created.
    pub source: PathBuf,
    /// Absolute path in the container; made if missing.
    pub target: PathBuf,
}

/// An absolute path in UTF-8 that says where it leads.
pub(super) fn is_plain(path: &Path) -> bool {
    let text = path.to_str().is_some_and(|text| !text.contains('\0'));
    text && path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

pub(super) fn check_mounts(spec: &ContainerSpec) -> Result<(), Error> {
    for (place, file) in spec.files.iter().enumerate() {
        if !is_plain(&file.source) || !is_plain(&file.target) {
            let reason = format!("{file:?} has a path that is not absolute, or has '..'");
            return Err(Error::invalid(format!("files[{place}]"), reason));
        }
    }
    for (place, mount) in spec.mounts.iter().enumerate() {
        let wrong = |part: &str, reason: String| Error::invalid(format!("mounts[{place}].{part}"), reason);
        let target = &mount.target;
        if !is_plain(target) || target == Path::new("/") {
            let reason = format!("{target:?} is not an absolute path below / without '..'");
            return Err(wrong("target", reason));
        }
        if KERNELS.iter().any(|own| target == Path::new(own)) || target.starts_with("/proc") {
            return Err(wrong("target", format!("{target:?} is the kernel's part of the container")));
        }
        let taken = spec.mounts[..place].iter().any(|earlier| earlier.target == *target);
        if taken || (spec.init.is_some() && target == Path::new(INIT)) {
            return Err(wrong("target", format!("{target:?} has something mounted already")));
        }
        if matches!(mount.source, MountSource::File { .. }) && !mount.read_only {
            return Err(wrong("read_only", "a file is only read; set it".to_owned()));
        }
        check_source(&mount.source, wrong)?;
    }
    Ok(())
}

fn check_source(source: &MountSource, wrong: impl Fn(&str, String) -> Error) -> Result<(), Error> {
    match source {
        MountSource::Bind { path, .. } | MountSource::File { path } if !is_plain(path) => {
            Err(wrong("source", format!("{path:?} is not an absolute path without '..'")))
        }
        MountSource::Bind { .. } | MountSource::File { .. } => Ok(()),
        MountSource::Tmpfs { size: Some(size), .. } if *size < MIN_TMPFS => {
            Err(wrong("size", format!("{} bytes are less than a page of {}", size.0, MIN_TMPFS.0)))
        }
        MountSource::Tmpfs { mode: Some(mode), .. } if *mode > MAX_MODE => {
            Err(wrong("mode", format!("{mode:o} has more than the permission bits {MAX_MODE:o}")))
        }
        MountSource::Tmpfs { options, .. } => match options.iter().find(|option| !is_tmpfs_option(option)) {
            None => Ok(()),
            Some(unknown) => Err(wrong("options", format!("{unknown:?} is no option of a tmpfs"))),
        },
    }
}

fn is_tmpfs_option(option: &str) -> bool {
    let numbered = |(name, value): (&str, &str)| {
        TMPFS_NUMBERS.contains(&name) && !value.starts_with('+') && value.parse::<u32>().is_ok()
    };
    TMPFS_FLAGS.contains(&option) || option.split_once('=').is_some_and(numbered)
}
