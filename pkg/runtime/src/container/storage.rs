//! Mounts of a container in addition to its root file system.

use std::path::{Component, Path, PathBuf};

use warren_types::Bytes;

use super::ContainerSpec;
use crate::error::Error;

/// Path of the init program in containers that have one.
pub(crate) const INIT: &str = "/dev/init";
/// Path of the pipe that the init program passes on as standard input.
pub(crate) const STDIN: &str = "/dev/init-stdin";
/// Smallest tmpfs: one page.
const MIN_TMPFS: Bytes = Bytes(4096);
const MAX_MODE: u32 = 0o7777;
/// Mounts that every container needs; paths below the latter two are allowed.
const RESERVED_TARGETS: [&str; 3] = ["/proc", "/sys", "/dev"];
/// Mount options of a tmpfs without value.
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
/// Mount options of a tmpfs with a number.
const TMPFS_NUMBER_OPTIONS: [&str; 3] = ["uid", "gid", "nr_inodes"];

/// A mount of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerMount {
    /// Absolute path in the container, without `..`, created if missing. Each target once.
    pub target: PathBuf,
    /// Source.
    pub source: ContainerMountSource,
    /// The mount is read-only.
    pub read_only: bool,
}

/// Source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContainerMountSource {
    /// A file or directory of the host.
    Bind {
        /// Absolute path on the host. Must exist when the process is created; it is never created.
        path: PathBuf,
        /// Includes mounts below it, read-only if this one is (Linux 5.12 and later).
        recursive: bool,
        /// Propagation of later mounts.
        propagation: MountPropagation,
    },
    /// A file of the host, read-only, with noexec, nosuid and nodev. Requires `read_only`.
    File {
        /// Absolute path on the host. Must exist when the process is created.
        path: PathBuf,
    },
    /// A tmpfs that is lost with the process. By default noexec, nosuid and nodev.
    Tmpfs {
        /// Maximum size; `None`: half of the machine's memory, and at most the container's limit.
        size: Option<Bytes>,
        /// Permission bits of its root; `None`: 1777.
        mode: Option<u32>,
        /// Additional mount options: `exec`, `suid`, `dev`, `noatime`, `noswap`, `uid=1000`, `gid=1000` and
        /// similar.
        options: Vec<String>,
    },
}

/// Propagation of later mounts through a bind mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountPropagation {
    /// No propagation.
    #[default]
    Private,
    /// From the host to the container. The path must be on a shared or slave mount.
    Slave,
    /// In both directions. The path must be on a shared mount.
    Shared,
}

impl MountPropagation {
    /// As in mount(8), recursive.
    pub(crate) fn mount_option(self) -> &'static str {
        match self {
            Self::Private => "rprivate",
            Self::Slave => "rslave",
            Self::Shared => "rshared",
        }
    }
}

/// A file or directory of the node, such as `/etc/hosts`, mounted read-only with noexec, nosuid and nodev. A
/// [`ContainerMount`] with the same target replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFile {
    /// Absolute path on the host; must exist when the process is created.
    pub source: PathBuf,
    /// Absolute path in the container; created if missing.
    pub target: PathBuf,
}

/// Whether the path is absolute, in UTF-8, and without `..`.
pub(super) fn is_normalized(path: &Path) -> bool {
    let text = path.to_str().is_some_and(|text| !text.contains('\0'));
    text && path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

pub(super) fn check_mounts(spec: &ContainerSpec) -> Result<(), Error> {
    let own = [spec.first_program().map(|_| INIT), spec.piped_input().map(|_| STDIN)];
    let is_own = |target: &Path| own.iter().flatten().any(|own| target == Path::new(own));
    for (place, file) in spec.files.iter().enumerate() {
        if !is_normalized(&file.source) || !is_normalized(&file.target) {
            let reason = format!("{file:?} has a path that is not absolute, or has '..'");
            return Err(Error::invalid_field(format!("files[{place}]"), reason));
        }
    }
    for (place, mount) in spec.mounts.iter().enumerate() {
        let wrong =
            |part: &str, reason: String| Error::invalid_field(format!("mounts[{place}].{part}"), reason);
        let target = &mount.target;
        if !is_normalized(target) || target == Path::new("/") {
            let reason = format!("{target:?} is not an absolute path below / without '..'");
            return Err(wrong("target", reason));
        }
        if RESERVED_TARGETS.iter().any(|own| target == Path::new(own)) || target.starts_with("/proc") {
            return Err(wrong("target", format!("{target:?} is reserved for a kernel file system")));
        }
        let taken = spec.mounts[..place].iter().any(|earlier| earlier.target == *target);
        if taken || is_own(target) {
            return Err(wrong("target", format!("{target:?} is the target of another mount")));
        }
        if matches!(mount.source, ContainerMountSource::File { .. }) && !mount.read_only {
            return Err(wrong("read_only", "must be set for a file".to_owned()));
        }
        check_source(&mount.source, wrong)?;
    }
    Ok(())
}

fn check_source(source: &ContainerMountSource, wrong: impl Fn(&str, String) -> Error) -> Result<(), Error> {
    match source {
        ContainerMountSource::Bind { path, .. } | ContainerMountSource::File { path }
            if !is_normalized(path) =>
        {
            Err(wrong("source", format!("{path:?} is not an absolute path without '..'")))
        }
        ContainerMountSource::Bind { .. } | ContainerMountSource::File { .. } => Ok(()),
        ContainerMountSource::Tmpfs { size: Some(size), .. } if *size < MIN_TMPFS => {
            Err(wrong("size", format!("{} bytes are less than a page of {}", size.0, MIN_TMPFS.0)))
        }
        ContainerMountSource::Tmpfs { mode: Some(mode), .. } if *mode > MAX_MODE => {
            Err(wrong("mode", format!("{mode:o} has more than the permission bits {MAX_MODE:o}")))
        }
        ContainerMountSource::Tmpfs { options, .. } => match options
            .iter()
            .find(|option| !is_tmpfs_option(option))
        {
            None => Ok(()),
            Some(unknown) => Err(wrong("options", format!("{unknown:?} is not a mount option of a tmpfs"))),
        },
    }
}

fn is_tmpfs_option(option: &str) -> bool {
    let numbered = |(name, value): (&str, &str)| {
        TMPFS_NUMBER_OPTIONS.contains(&name) && !value.starts_with('+') && value.parse::<u32>().is_ok()
    };
    TMPFS_FLAGS.contains(&option) || option.split_once('=').is_some_and(numbered)
}
