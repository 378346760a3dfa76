//! The nouns of the door: what a container shall be, what was found, what happened.

mod found;
mod identity;
mod output;
mod resources;
mod security;
mod storage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use warren_image::Reference;
use warren_types::Bytes;

use crate::error::Error;
use warren_types::Signal;

pub use found::{Exit, Found, Info, Process, RuntimeEvent, Swept};
pub use identity::{ContainerId, Owner};
pub use output::Log;
pub use resources::{Limits, MIN_CPU, MIN_MEMORY, Reservations, Ulimit};
pub use security::{Access, Device, Network, Seccomp};
pub(crate) use storage::INIT;
pub use storage::{HostFile, Mount, MountSource, Propagation};

/// The largest assignment a container record carries. Larger ones would slow every listing down.
pub const MAX_ASSIGNMENT: usize = 16 << 10;
/// containerd refuses labels whose key and value together are longer.
const MAX_LABEL: usize = 4096;
const MAX_HOSTNAME: usize = 64;
/// One page; the kernel rounds up to it.
const MIN_SHM: Bytes = Bytes(4096);

/// Everything a container is made from. Begin with [`ContainerSpec::new`].
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
    /// The directory the command starts in: absolute, made if missing. `None` is the image's, or `/`.
    pub workdir: Option<String>,
    /// Who it runs as: a name or number, optionally `:` and a group. Names are those of the image's
    /// `/etc/passwd` and `/etc/group`. `None` is the image's, or root.
    pub user: Option<String>,
    /// Further groups, by name or number.
    pub groups: Vec<String>,
    /// Standard input, output and error are a terminal. Needs [`Log::Binary`].
    pub tty: bool,
    /// A static program on the host that runs as process 1: it starts the command that follows `--`, passes
    /// signals on to it, reaps what it leaves behind, and ends as it ends. It then also says whether the
    /// command can be run, by ending with code 127 or 126.
    pub init: Option<PathBuf>,
    /// What asks it to end; `None` takes the image's wish, or SIGTERM.
    pub stop_signal: Option<Signal>,

    /// The host name seen inside.
    pub hostname: String,
    /// Which network it is in.
    pub network: Network,

    /// What the kernel enforces.
    pub limits: Limits,
    /// What it gets first.
    pub reservations: Reservations,
    /// Bounds on each process, each name once. Without them they are containerd's own.
    pub ulimits: Vec<Ulimit>,
    /// Kernel settings of its own namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Size of `/dev/shm`; `None` is 64 MiB.
    pub shm_size: Option<Bytes>,
    /// -1000 to 1000: the higher, the sooner the kernel ends it when the machine lacks memory. `None` is
    /// containerd's own.
    pub oom_score_adj: Option<i32>,

    /// Every capability and device of the host, and no fence around the kernel's interfaces.
    pub privileged: bool,
    /// Capabilities beyond Docker's 14: names with or without `CAP_`, in any case, or `ALL`.
    pub cap_add: Vec<String>,
    /// Capabilities taken away. With `ALL` only added ones are left.
    pub cap_drop: Vec<String>,
    /// No program gets more rights than the one that started it.
    pub no_new_privileges: bool,
    /// Which system calls it may make.
    pub seccomp: Seccomp,
    /// Devices of the host.
    pub devices: Vec<Device>,

    /// Its own file system cannot be written to.
    pub read_only_root: bool,
    /// What was asked to be mounted.
    pub mounts: Vec<Mount>,
    /// The node's own files in it.
    pub files: Vec<HostFile>,
    /// Where its output goes.
    pub log: Log,

    /// Opaque bytes for the caller, at most [`MAX_ASSIGNMENT`].
    pub assignment: Vec<u8>,
    /// Further labels; keys that start with `warren.` are taken.
    pub labels: BTreeMap<String, String>,
}

impl ContainerSpec {
    /// A container that is all its image says and nothing more: an isolated network, no limits, and its
    /// output discarded. Its host name is its id.
    pub fn new(id: ContainerId, owner: Owner, image: Reference) -> Self {
        Self {
            // An id is longer than a host name may be, and all of its characters may be in one.
            hostname: id.as_str().chars().take(MAX_HOSTNAME).collect(),
            id,
            owner,
            image,
            command: None,
            args: None,
            env: Vec::new(),
            workdir: None,
            user: None,
            groups: Vec::new(),
            tty: false,
            init: None,
            stop_signal: None,
            network: Network::default(),
            limits: Limits::default(),
            reservations: Reservations::default(),
            ulimits: Vec::new(),
            sysctls: BTreeMap::new(),
            shm_size: None,
            oom_score_adj: None,
            privileged: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            no_new_privileges: false,
            seccomp: Seccomp::default(),
            devices: Vec::new(),
            read_only_root: false,
            mounts: Vec::new(),
            files: Vec::new(),
            log: Log::default(),
            assignment: Vec::new(),
            labels: BTreeMap::new(),
        }
    }

    /// Checks what can be checked without a runtime, an image and a machine.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the path of the field.
    pub fn check(&self) -> Result<(), Error> {
        self.check_process()?;
        resources::check_limits(&self.limits, &self.reservations)?;
        resources::check_ulimits(&self.ulimits)?;
        resources::check_oom_score(self.oom_score_adj)?;
        if let Some(size) = self.shm_size.filter(|size| *size < MIN_SHM) {
            let reason = format!("{} bytes are less than a page of {}", size.0, MIN_SHM.0);
            return Err(Error::invalid("shm_size", reason));
        }
        security::check_sysctls(&self.sysctls, &self.network)?;
        security::check_capabilities("cap_add", &self.cap_add)?;
        security::check_capabilities("cap_drop", &self.cap_drop)?;
        security::check_devices(&self.devices)?;
        storage::check_mounts(self)?;
        self.log.check(self.tty)?;
        self.check_notes()
    }

    fn check_process(&self) -> Result<(), Error> {
        let invalid = |field: &str, reason: String| Err(Error::invalid(field, reason));
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid("env", format!("{name:?} is no name, or its value has a NUL character"));
            }
        }
        let words = self.command.iter().chain(&self.args).flatten();
        if let Some(word) = words.into_iter().find(|word| word.contains('\0')) {
            return invalid("command", format!("{word:?} has a NUL character"));
        }
        if let Some(dir) = self.workdir.as_ref().filter(|dir| !dir.starts_with('/') || dir.contains('\0')) {
            return invalid("workdir", format!("{dir:?} is not an absolute path"));
        }
        if self.user.as_ref().is_some_and(String::is_empty) {
            return invalid("user", "it is empty; leave it out for the image's".to_owned());
        }
        if let Some(init) = self.init.as_ref().filter(|path| !storage::is_plain(path)) {
            return invalid("init", format!("{init:?} is not an absolute path in UTF-8"));
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
        let hostname = &self.hostname;
        if hostname.is_empty() || hostname.len() > MAX_HOSTNAME || !hostname.bytes().all(plain) {
            return invalid("hostname", format!("{hostname:?} is no host name"));
        }
        Ok(())
    }

    fn check_notes(&self) -> Result<(), Error> {
        if self.assignment.len() > MAX_ASSIGNMENT {
            let reason = format!("{} bytes, want at most {MAX_ASSIGNMENT}", self.assignment.len());
            return Err(Error::invalid("assignment", reason));
        }
        for (key, value) in &self.labels {
            if key.starts_with("warren.") || key.len() + value.len() > MAX_LABEL {
                let reason = format!("{key:?} is reserved, or too long with its value");
                return Err(Error::invalid("labels", reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
