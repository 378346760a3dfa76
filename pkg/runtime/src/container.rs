//! The nouns of the door: what a container shall be, what was found, what happened.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use warren_types::{Bytes, MilliCpu};

use crate::error::Error;
use crate::signal::Signal;
use warren_image::Reference;

/// The largest assignment a container record carries. Larger ones would slow every listing down.
pub const MAX_ASSIGNMENT: usize = 16 << 10;
/// The smallest CPU limit the kernel takes: a quota of 1 ms in a period of 100 ms.
pub const MIN_CPU: MilliCpu = MilliCpu(10);
/// The smallest memory limit that leaves the container's own set-up enough room.
pub const MIN_MEMORY: Bytes = Bytes(6 << 20);
/// containerd refuses labels whose key and value together are longer.
const MAX_LABEL: usize = 4096;
/// containerd refuses longer identifiers.
const MAX_ID: usize = 76;
const MAX_HOSTNAME: usize = 64;

/// A container's name: letters and digits, with single `.`, `_` or `-` between them, at most 76. Safe in a
/// path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContainerId(String);

impl ContainerId {
    /// Parses an id.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the field `id`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let separated = text.split(['.', '_', '-']);
        let valid = separated
            .into_iter()
            .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
        match valid && text.len() <= MAX_ID {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::invalid(
                "id",
                format!(
                    "{text:?} is not made of letters and digits with single . _ - between, at most {MAX_ID}"
                ),
            )),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose container it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The task's id.
    pub task: String,
    /// How often the worker has started this task's container.
    pub attempt: u32,
    /// A hash of everything that, when changed, makes it another container.
    pub spec_hash: String,
}

/// CPU and memory limits; `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Hard limit, at least [`MIN_CPU`].
    pub cpu: Option<MilliCpu>,
    /// Hard limit, at least [`MIN_MEMORY`], swap included where the kernel accounts for it.
    pub memory: Option<Bytes>,
}

/// A file or directory of the host shown read-only in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindMount {
    /// Absolute path on the host; must exist when the process is created.
    pub source: PathBuf,
    /// Absolute path in the container; made if missing.
    pub target: PathBuf,
}

/// Where standard output and standard error go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Log {
    /// Nowhere.
    #[default]
    Discard,
    /// Both appended to one file, made if missing. The caller removes it.
    File(PathBuf),
}

/// Everything a container is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Its id, unique on the node.
    pub id: ContainerId,
    /// Whose it is.
    pub owner: Owner,
    /// The image, which must be on the node.
    pub image: Reference,
    /// Replaces the image's entrypoint, and drops its arguments.
    pub command: Option<Vec<String>>,
    /// Replaces the image's arguments.
    pub args: Option<Vec<String>>,
    /// Environment; overrides the image's. Later entries win.
    pub env: Vec<(String, String)>,
    /// The host name seen inside.
    pub hostname: String,
    /// CPU and memory limits.
    pub limits: Limits,
    /// The network namespace to join, as a path. `None` gives it one of its own without any connection.
    pub netns: Option<PathBuf>,
    /// Read-only files and directories of the host, such as `/etc/hosts`.
    pub mounts: Vec<BindMount>,
    /// Where its output goes.
    pub log: Log,
    /// Opaque bytes for the caller, at most [`MAX_ASSIGNMENT`].
    pub assignment: Vec<u8>,
    /// Further labels; keys that start with `warren.` are taken.
    pub labels: BTreeMap<String, String>,
    /// What asks it to end; `None` takes the image's wish, or SIGTERM.
    pub stop_signal: Option<Signal>,
}

impl ContainerSpec {
    /// Checks what can be checked without a runtime.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] names the field.
    pub fn check(&self) -> Result<(), Error> {
        let invalid = |field: &str, reason: String| Err(Error::invalid(field, reason));
        if self.assignment.len() > MAX_ASSIGNMENT {
            return invalid(
                "assignment",
                format!("{} bytes, want at most {MAX_ASSIGNMENT}", self.assignment.len()),
            );
        }
        if let Some(cpu) = self.limits.cpu.filter(|cpu| *cpu < MIN_CPU) {
            return invalid("limits.cpu", format!("{}m is below the minimum of {}m", cpu.0, MIN_CPU.0));
        }
        if let Some(memory) = self.limits.memory.filter(|memory| *memory < MIN_MEMORY) {
            let reason = format!("{} bytes are below the minimum of {}", memory.0, MIN_MEMORY.0);
            return invalid("limits.memory", reason);
        }
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid("env", format!("{name:?} is no name, or its value has a NUL character"));
            }
        }
        let words = self.command.iter().chain(&self.args).flatten();
        if let Some(word) = words.into_iter().find(|word| word.contains('\0')) {
            return invalid("command", format!("{word:?} has a NUL character"));
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
        if self.hostname.is_empty() || self.hostname.len() > MAX_HOSTNAME || !self.hostname.bytes().all(plain)
        {
            return invalid("hostname", format!("{:?} is no host name", self.hostname));
        }
        if let Some(mount) = self.mounts.iter().find(|m| !m.source.is_absolute() || !m.target.is_absolute()) {
            return invalid("mounts", format!("{mount:?} has a relative path"));
        }
        if let Log::File(path) = &self.log
            && (!path.is_absolute() || path.to_str().is_none())
        {
            return invalid("log", format!("{path:?} is not an absolute path in UTF-8"));
        }
        for (key, value) in &self.labels {
            if key.starts_with("warren.") || key.len() + value.len() > MAX_LABEL {
                return invalid("labels", format!("{key:?} is reserved, or too long with its value"));
            }
        }
        Ok(())
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// The exit code; 128 + n when signal n killed it.
    pub code: u32,
    /// When.
    pub at: SystemTime,
    /// The kernel killed something in the container for want of memory since the process was created.
    /// Unreliable only in one direction: `false` may also mean that the trace was gone before it was read.
    pub out_of_memory: bool,
}

impl Exit {
    /// The signal that the code stands for. A program can return such a code by itself, too.
    pub fn signal(&self) -> Option<Signal> {
        let number = self.code.checked_sub(128)?;
        Signal::from_number(i32::try_from(number).ok()?)
    }
}

/// The state of a container's first process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Process {
    /// There is none: never created, deleted, or lost with the machine or its supervisor.
    None,
    /// Made and waiting to be started.
    Created {
        /// Its process id on the host.
        pid: u32,
    },
    /// Started and not ended.
    Running {
        /// Its process id on the host.
        pid: u32,
    },
    /// Ended, with its record still there.
    Stopped(Exit),
    /// The runtime did not say in time; ask again.
    Unknown {
        /// Its words.
        reason: String,
    },
}

/// A container as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its id, as the runtime spells it.
    pub id: ContainerId,
    /// Whose it is; `None` when somebody else made it.
    pub owner: Option<Owner>,
    /// The image's name.
    pub image: String,
    /// The bytes given at creation.
    pub assignment: Vec<u8>,
    /// The caller's notes, empty at creation.
    pub ledger: String,
    /// Further labels given at creation.
    pub labels: BTreeMap<String, String>,
    /// What asks it to end.
    pub stop_signal: Signal,
    /// Its process.
    pub process: Process,
    /// Whether its file system is there.
    pub snapshot: bool,
}

/// The runtime that answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// `containerd` or `fake`.
    pub name: &'static str,
    /// Its version.
    pub version: String,
}

/// Something happened, or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeEvent {
    /// A container's first process ended.
    Exited {
        /// The container.
        id: ContainerId,
        /// How.
        exit: Exit,
    },
    /// The kernel killed something in a container for want of memory; the container may live on.
    OutOfMemory {
        /// The container.
        id: ContainerId,
    },
    /// Events may have been missed from here on.
    Lost,
    /// Events flow again (or for the first time): list to learn what was missed.
    Resumed,
}

/// What a sweep removed, by id or path, and what it could not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Processes that had no container record.
    pub tasks: Vec<String>,
    /// Supervisor processes that supervised nothing.
    pub shims: Vec<String>,
    /// Empty cgroups.
    pub cgroups: Vec<String>,
    /// File systems that no container owned.
    pub snapshots: Vec<String>,
    /// Why something that should have gone is still there; the next sweep tries again.
    pub failed: Vec<String>,
}

impl Swept {
    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_safe_in_paths() {
        for good in ["a", "web.1", "a-b_c.d", "0"] {
            assert_eq!(ContainerId::parse(good).unwrap().as_str(), good);
        }
        let long = "a".repeat(77);
        for bad in ["", ".", "..", "a/b", "a..b", "-a", "a-", "a b", "ä", &long] {
            assert!(ContainerId::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exit_codes_above_128_name_a_signal() {
        let exit = |code| Exit { code, at: SystemTime::UNIX_EPOCH, out_of_memory: false };
        assert_eq!(exit(137).signal(), Some(Signal::KILL));
        for code in [0, 7, 128, 255] {
            assert_eq!(exit(code).signal(), None, "{code}");
        }
    }

    fn spec() -> ContainerSpec {
        ContainerSpec {
            id: ContainerId::parse("a").unwrap(),
            owner: Owner { task: "t".into(), attempt: 1, spec_hash: "h".into() },
            image: Reference::parse("x").unwrap(),
            command: None,
            args: None,
            env: vec![("A".into(), "b=c".into())],
            hostname: "web-1".into(),
            limits: Limits { cpu: Some(MIN_CPU), memory: Some(MIN_MEMORY) },
            netns: None,
            mounts: Vec::new(),
            log: Log::Discard,
            assignment: vec![0; MAX_ASSIGNMENT],
            labels: BTreeMap::new(),
            stop_signal: None,
        }
    }

    #[test]
    fn a_bad_field_is_refused_by_name() {
        spec().check().unwrap();
        let check = |field: &str, change: fn(&mut ContainerSpec)| {
            let mut spec = spec();
            change(&mut spec);
            let error = spec.check().unwrap_err();
            assert!(matches!(&error, Error::InvalidSpec { field: f, .. } if f == field), "{field}: {error}");
            assert!(!error.is_transient());
        };
        check("assignment", |s| s.assignment.push(0));
        check("limits.cpu", |s| s.limits.cpu = Some(MilliCpu(9)));
        check("limits.memory", |s| s.limits.memory = Some(Bytes(1 << 20)));
        check("env", |s| s.env.push((String::new(), "x".into())));
        check("env", |s| s.env.push(("A=B".into(), "x".into())));
        check("command", |s| s.args = Some(vec!["a\0b".into()]));
        check("hostname", |s| s.hostname = "a b".into());
        check("hostname", |s| s.hostname.clear());
        check("log", |s| s.log = Log::File("relative".into()));
        check("labels", |s| drop(s.labels.insert("warren.task".into(), "x".into())));
        check("labels", |s| drop(s.labels.insert("k".into(), "x".repeat(4096))));
        check("mounts", |s| s.mounts.push(BindMount { source: "a".into(), target: "/b".into() }));
    }
}
