//! Specification of a container.

mod identity;
mod input;
mod output;
mod resources;
mod security;
mod status;
mod storage;
mod users;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warren_image::Reference;
use warren_types::{AppArmor, Bytes, Signal};

use crate::error::Error;

pub use identity::{ContainerId, ContainerOwner};
pub use input::StandardInput;
pub use output::OutputTarget;
pub(crate) use resources::ulimit_kind;
pub use resources::{ContainerLimits, ContainerReservations, ContainerUlimit, MIN_CPU, MIN_MEMORY};
pub(crate) use security::CapabilityEntry;
pub use security::{DevicePermissions, HostDevice, NetworkMode, SeccompPolicy};
pub use status::{ContainerStatus, ProcessExit, ProcessState, RuntimeEvent, RuntimeInfo, SweepReport};
pub use storage::{ContainerMount, ContainerMountSource, HostFile, MountPropagation};
pub(crate) use storage::{INIT, STDIN};
pub use users::PrivateUsers;

/// Largest assignment in a container record. Larger ones would slow down every listing.
pub const MAX_ASSIGNMENT: usize = 16 << 10;
/// containerd rejects labels whose key and value together are longer.
const MAX_LABEL: usize = 4096;
const MAX_HOSTNAME: usize = 64;
/// One page; the kernel rounds up to it.
const MIN_SHM: Bytes = Bytes(4096);

/// Specification of a container. Create it with [`ContainerSpec::new`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerSpec {
    /// Unique on the node.
    pub id: ContainerId,
    /// The task of the container.
    pub owner: ContainerOwner,
    /// Must be on the node.
    pub image: Reference,

    /// Replaces the image's entrypoint, and drops its arguments.
    pub command: Option<Vec<String>>,
    /// Replaces the image's arguments.
    pub args: Option<Vec<String>>,
    /// Environment; overrides the image's. Later entries win.
    pub env: Vec<(String, String)>,
    /// Absolute working directory, created if missing. `None`: that of the image, or `/`.
    pub workdir: Option<String>,
    /// User name or number, optionally with `:` and a group. Names are those of the image's `/etc/passwd` and
    /// `/etc/group`. `None`: the user of the image, or root.
    pub user: Option<String>,
    /// Additional groups, by name or number.
    pub groups: Vec<String>,
    /// Standard input, output and error are a terminal. Needs [`OutputTarget::Binary`].
    pub tty: bool,
    /// Standard input for clients of [`Runtime::attach`](crate::Runtime::attach); `None`: it is empty. Needs
    /// [`OutputTarget::Binary`].
    pub stdin: Option<StandardInput>,
    /// A static program on the host that runs as process 1: it starts the command that follows `--`, forwards
    /// signals to it, reaps orphaned processes, and exits with the status of the command, or with 127 or 126
    /// if the command cannot be executed.
    pub init: Option<PathBuf>,
    /// Signal that stops the container; `None`: that of the image, or SIGTERM.
    pub stop_signal: Option<Signal>,

    /// Host name in the container.
    pub hostname: String,
    /// Network mode.
    pub network: NetworkMode,

    /// Limits of the container.
    pub limits: ContainerLimits,
    /// Reserved resources.
    pub reservations: ContainerReservations,
    /// Limits of each process, each name once. Empty: containerd's defaults.
    pub ulimits: Vec<ContainerUlimit>,
    /// Kernel settings of the container's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Size of `/dev/shm`; `None` is 64 MiB.
    pub shm_size: Option<Bytes>,
    /// What its writable layer may hold. The kernel refuses to write more where the file system of the layers has
    /// project quotas; elsewhere nothing does: see [`Runtime::layer_usage`](crate::Runtime::layer_usage).
    pub storage_limit: Option<Bytes>,
    /// -1000 to 1000; the kernel kills processes with higher values first when memory runs out. `None`:
    /// containerd's default.
    pub oom_score_adj: Option<i32>,

    /// Every capability and device of the host, without masked paths and default profiles.
    pub privileged: bool,
    /// Capabilities in addition to Docker's 14: names with or without `CAP_`, in any case, or `ALL`.
    pub cap_add: Vec<String>,
    /// Capabilities to drop. With `ALL`, only added ones remain.
    pub cap_drop: Vec<String>,
    /// No program gains privileges on execve(2).
    pub no_new_privileges: bool,
    /// Allowed system calls.
    pub seccomp: SeccompPolicy,
    /// Its AppArmor profile; a named one must be loaded on the host.
    pub apparmor: AppArmor,
    /// Its user namespace, which exists; `None`: that of the host.
    pub user_namespace: Option<PrivateUsers>,
    /// Devices of the host.
    pub devices: Vec<HostDevice>,

    /// The root file system is read-only.
    pub read_only_root: bool,
    /// Mounts of the task.
    pub mounts: Vec<ContainerMount>,
    /// Files of the node, such as `/etc/hosts`.
    pub files: Vec<HostFile>,
    /// Target of the output.
    pub log: OutputTarget,

    /// Opaque bytes of the caller, at most [`MAX_ASSIGNMENT`].
    pub assignment: Vec<u8>,
    /// Additional labels; keys that start with `warren.` are reserved.
    pub labels: BTreeMap<String, String>,
}

impl ContainerSpec {
    /// A container with the defaults of its image: an isolated network, no limits, discarded output, and its
    /// id as host name.
    pub fn new(id: ContainerId, owner: ContainerOwner, image: Reference) -> Self {
        Self {
            // An id may be longer than a host name; all of its characters are allowed in one.
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
            stdin: None,
            init: None,
            stop_signal: None,
            network: NetworkMode::default(),
            limits: ContainerLimits::default(),
            reservations: ContainerReservations::default(),
            ulimits: Vec::new(),
            sysctls: BTreeMap::new(),
            shm_size: None,
            storage_limit: None,
            oom_score_adj: None,
            privileged: false,
            cap_add: Vec::new(),
            cap_drop: Vec::new(),
            no_new_privileges: false,
            seccomp: SeccompPolicy::default(),
            apparmor: AppArmor::default(),
            user_namespace: None,
            devices: Vec::new(),
            read_only_root: false,
            mounts: Vec::new(),
            files: Vec::new(),
            log: OutputTarget::default(),
            assignment: Vec::new(),
            labels: BTreeMap::new(),
        }
    }

    /// Validates what does not depend on runtime, image and machine.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`] with the path of the field.
    pub fn validate(&self) -> Result<(), Error> {
        self.check_process_fields()?;
        resources::check_limits(&self.limits, &self.reservations)?;
        resources::check_ulimits(&self.ulimits)?;
        resources::check_oom_score(self.oom_score_adj)?;
        if let Some(size) = self.shm_size.filter(|size| *size < MIN_SHM) {
            let reason = format!("{} bytes are less than a page of {}", size.0, MIN_SHM.0);
            return Err(Error::invalid_field("shm_size", reason));
        }
        security::check_sysctls(&self.sysctls, &self.network)?;
        security::check_capabilities("cap_add", &self.cap_add)?;
        security::check_capabilities("cap_drop", &self.cap_drop)?;
        security::check_devices(&self.devices)?;
        storage::check_mounts(self)?;
        self.user_namespace.as_ref().map_or(Ok(()), |namespace| users::check(namespace, self))?;
        self.log.check(self.tty)?;
        self.stdin.as_ref().map_or(Ok(()), |input| input.check(&self.log))?;
        self.check_metadata()
    }

    /// The input that process 1 passes on; the supervisor passes on that of a terminal.
    pub(crate) fn piped_input(&self) -> Option<&StandardInput> {
        self.stdin.as_ref().filter(|_| !self.tty)
    }

    /// The program that runs as process 1 and starts the command, if there is one.
    pub(crate) fn first_program(&self) -> Option<&Path> {
        let input = self.piped_input().map(|input| input.program.as_path());
        self.init.as_deref().or(input)
    }

    fn check_process_fields(&self) -> Result<(), Error> {
        let invalid = |field: &str, reason: String| Err(Error::invalid_field(field, reason));
        for (name, value) in &self.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                return invalid(
                    "env",
                    format!("{name:?} is not a valid name, or its value has a NUL character"),
                );
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
            return invalid("user", "must not be empty; leave it out for the user of the image".to_owned());
        }
        if let Some(init) = self.init.as_ref().filter(|path| !storage::is_normalized(path)) {
            return invalid("init", format!("{init:?} is not an absolute path in UTF-8"));
        }
        let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'.' || b == b'_';
        let hostname = &self.hostname;
        if hostname.is_empty() || hostname.len() > MAX_HOSTNAME || !hostname.bytes().all(plain) {
            return invalid("hostname", format!("{hostname:?} is not a host name"));
        }
        Ok(())
    }

    fn check_metadata(&self) -> Result<(), Error> {
        if self.assignment.len() > MAX_ASSIGNMENT {
            let reason = format!("{} bytes exceed the maximum of {MAX_ASSIGNMENT}", self.assignment.len());
            return Err(Error::invalid_field("assignment", reason));
        }
        for (key, value) in &self.labels {
            if key.starts_with("warren.") || key.len() + value.len() > MAX_LABEL {
                let reason = format!("{key:?} is reserved, or too long with its value");
                return Err(Error::invalid_field("labels", reason));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
