//! Mounts of a task.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::template::is_template;
use crate::{Bytes, Violations, VolumeName};

/// How many mounts a task may have.
pub const MAX_MOUNTS: usize = 64;
/// The smallest tmpfs: one page.
pub const MIN_TMPFS: Bytes = Bytes(4096);

/// Files of /proc over which container runtimes allow mounts, as lxcfs makes them.
const MOUNTABLE_PROC_FILES: [&str; 8] =
    ["cpuinfo", "diskstats", "loadavg", "meminfo", "slabinfo", "stat", "swaps", "uptime"];

/// A mount in a container, in addition to its own file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// Absolute path in the container.
    pub target: String,
    /// What is mounted there.
    pub source: MountSource,
    /// The container cannot write to it.
    #[serde(default)]
    pub read_only: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum MountSource {
    /// A file or directory of the node, which must exist.
    #[serde(rename_all = "camelCase")]
    Bind {
        /// Absolute path on the node.
        path: String,
        /// Which later mounts are visible on the other side.
        #[serde(default)]
        propagation: Propagation,
        /// Mounts below the path are included.
        #[serde(default = "default_recursive")]
        recursive: bool,
    },
    /// A volume, created on the node of its first task. While it is empty it gets the files of the image at
    /// the target.
    #[serde(rename_all = "camelCase")]
    Volume {
        /// Name of the volume: a [`Template`](crate::Template).
        name: String,
        /// Only this directory of the volume, created if missing: relative, a template too. It gets no files
        /// of the image.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subpath: Option<String>,
        /// Files of the image are not copied into it.
        #[serde(default)]
        no_copy: bool,
    },
    /// Memory of the container, deleted with it.
    #[serde(rename_all = "camelCase")]
    Tmpfs {
        /// Maximum size; `None` is half of the node's memory, bounded by the container's memory limit.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        size: Option<Bytes>,
        /// Permission bits of its root; `None` is 1777.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::text::octal")]
        mode: Option<u32>,
        /// Programs on it can be executed.
        #[serde(default)]
        exec: bool,
    },
}

fn default_recursive() -> bool {
    true
}

/// Which later mounts are visible on the other side of a bind mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Propagation {
    /// None.
    #[default]
    #[serde(rename = "rprivate")]
    Private,
    /// Later mounts of the node are visible in the container.
    #[serde(rename = "rslave")]
    Slave,
    /// Later mounts are visible in both directions.
    #[serde(rename = "rshared")]
    Shared,
}

impl Propagation {
    /// All values.
    pub const ALL: [Self; 3] = [Self::Private, Self::Slave, Self::Shared];

    /// As in files and flags: `rslave`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Private => "rprivate",
            Self::Slave => "rslave",
            Self::Shared => "rshared",
        }
    }
}

impl FromStr for Propagation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|propagation| propagation.as_str() == text);
        known.ok_or_else(|| format!("{text:?} is not a propagation; give rprivate, rslave or rshared"))
    }
}

/// An absolute path without `.` and `..`, so that the text shows where it leads.
pub(crate) fn is_normalized_absolute(path: &str) -> bool {
    let mut parts = path.split('/');
    parts.next() == Some("") && parts.all(|part| part != "." && part != "..") && !path.contains('\0')
}

/// The format of a volume's name, for messages.
const VOLUME_NAME_FORMAT: &str =
    "a volume name: 1 to 64 letters, digits, '.', '_' and '-', ending with a letter or digit";

/// A relative path without `.`, `..` and empty parts.
pub fn is_normalized_relative(path: &str) -> bool {
    path.len() <= 1024 && !path.contains('\0') && path.split('/').all(|part| !["", ".", ".."].contains(&part))
}

impl Mount {
    /// Whether mounts that are made later on the node are visible in the container.
    pub(super) fn has_later_mounts(&self) -> bool {
        match &self.source {
            MountSource::Bind { propagation, .. } => *propagation != Propagation::Private,
            MountSource::Volume { .. } | MountSource::Tmpfs { .. } => false,
        }
    }

    /// All violations of the mount; paths are relative to it.
    pub fn validate(&self) -> Violations {
        let mut violations = Violations::default();
        let target = self.target.trim_end_matches('/');
        if !is_normalized_absolute(&self.target) || target.is_empty() {
            let message = format!("{:?} is not an absolute path below / without '..'", self.target);
            violations.add("target", message);
        }
        let parts: Vec<&str> = target.split('/').filter(|part| !part.is_empty()).collect();
        match parts[..] {
            ["proc"] => violations.add("target", "/proc is reserved for the container; choose another path"),
            ["proc", file] if MOUNTABLE_PROC_FILES.contains(&file) => {}
            ["proc", ..] => {
                violations.add(
                    "target",
                    format!("{target} is in /proc, which is the kernel's; choose another path"),
                );
            }
            ["sys" | "dev"] => {
                violations.add("target", format!("{target} is reserved for the container; mount below it"));
            }
            _ => {}
        }
        match &self.source {
            MountSource::Bind { path, .. } if !is_normalized_absolute(path) => {
                violations.add("source.bind.path", format!("{path:?} is not an absolute path without '..'"));
            }
            MountSource::Tmpfs { size: Some(size), .. } if *size < MIN_TMPFS => {
                violations.add("source.tmpfs.size", format!("{size} is less than a page of {MIN_TMPFS}"));
            }
            MountSource::Tmpfs { mode: Some(mode), .. } if *mode > 0o7777 => {
                violations
                    .add("source.tmpfs.mode", format!("{mode:o} has more than the permission bits 7777"));
            }
            MountSource::Volume { name, subpath, .. } => {
                if !is_template(name) && name.parse::<VolumeName>().is_err() {
                    let message = format!("{name:?} is not {VOLUME_NAME_FORMAT}");
                    violations.add("source.volume.name", message);
                }
                if let Some(path) =
                    subpath.as_ref().filter(|path| !is_template(path) && !is_normalized_relative(path))
                {
                    let message =
                        format!("{path:?} is not a relative path without '.', '..' and empty parts");
                    violations.add("source.volume.subpath", message);
                }
            }
            MountSource::Bind { .. } | MountSource::Tmpfs { .. } => {}
        }
        violations
    }
}
