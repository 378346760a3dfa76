//! Containers for a worker, behind one small trait, [`Runtime`].
//!
//! [`containerd::ContainerdRuntime`] drives containerd 1.6 and later; `fake::FakeRuntime` (feature `testing`)
//! keeps containers in memory. One conformance suite checks both for the same behaviour. [`supervise`] runs a
//! private containerd on machines without one. containerd is the only store: this crate keeps no state that a
//! restart would lose.
//!
//! It must never decide what should run, never report an exit that it did not observe, and never remove what
//! it did not create. Every call has a deadline except [`ExecHandle::wait`]; every `ensure_*` and `remove` is
//! idempotent.
//!
//! Start reading at [`Runtime`] and [`ContainerSpec`], then `containerd/create.rs`: `host_check.rs` resolves
//! the names in a spec on this machine, and `spec.rs` builds the OCI document.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod apparmor;
mod cgroup;
mod container;
pub mod containerd;
mod error;
mod exec;
mod exec_plan;
#[cfg(feature = "testing")]
pub mod fake;
mod host_check;
mod host_process;
mod image_files;
mod oom_score;
mod open_files;
mod pidfd;
mod process_list;
mod programs;
mod quota;
mod rootfs;
mod spec;
pub mod supervise;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;
mod user_namespace;

use std::path::PathBuf;

use async_trait::async_trait;
use futures::stream::BoxStream;

pub use apparmor::{AppArmorHost, AppArmorState, DEFAULT_APPARMOR_PROFILE};
pub use cgroup::{CgroupSupport, CgroupVersion};
pub use container::{
    ContainerId, ContainerLimits, ContainerMount, ContainerMountSource, ContainerOwner,
    ContainerReservations, ContainerSpec, ContainerStatus, ContainerUlimit, DevicePermissions, HostDevice,
    HostFile, MAX_ASSIGNMENT, MIN_CPU, MIN_MEMORY, MountPropagation, NetworkMode, OutputTarget, PrivateUsers,
    ProcessExit, ProcessState, RuntimeEvent, RuntimeInfo, SeccompPolicy, StandardInput, SweepReport,
};
pub use error::Error;
pub use exec::{
    AttachedProcess, ContainerHandles, ExecHandle, ExecInput, ExecOutput, ExecProcess, ExecSpec, TerminalSize,
};
pub use host_check::{MIN_KERNEL, kernel_release, major_minor};
pub use image_files::{ContainerUser, ImageFiles};
pub use oom_score::lower_oom_score;
pub use open_files::raise_open_files_limit;
pub use process_list::ContainerProcess;
pub use usage::{ContainerUsage, LayerUsage};
pub use warren_image::Reference;
pub use warren_tree::Unmeasured;
pub use warren_types::Signal;

/// Result of the operations of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A container runtime. All containers of one runtime are in one namespace that has no other user.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// Name and version of the runtime, as proof that it answers, and the AppArmor of the machine.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Timeout`] if it does not answer.
    async fn info(&self) -> Result<RuntimeInfo>;

    /// Every container of the namespace, including those that other clients created
    /// ([`ContainerStatus::owner`] is then `None`). A container whose supervisor did not answer in time is
    /// listed as [`ProcessState::Unknown`].
    async fn list(&self) -> Result<Vec<ContainerStatus>>;

    /// One container, or `None` without a record.
    async fn inspect(&self, id: &ContainerId) -> Result<Option<ContainerStatus>>;

    /// Creates the missing ones of record, file system and process of a container; the process waits for
    /// [`Runtime::start`]. A created or running container is not changed.
    ///
    /// # Errors
    /// [`Error::ImageMissing`], [`Error::CommandNotFound`] and [`Error::InvalidSpec`] for errors in the spec;
    /// [`Error::Conflict`] if the id is taken, or its process has ended and was not deleted.
    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()>;

    /// Starts a created process and returns its pid; returns the pid of a running one.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a process, [`Error::Conflict`] if it has ended.
    async fn start(&self, id: &ContainerId) -> Result<u32>;

    /// Sends a signal to the first process of the container. `false`: there is no process.
    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool>;

    /// Deletes an ended or never started process and keeps record and file system, so that
    /// [`Runtime::ensure_created`] can create a new process in place. Returns how the process ended; `None`
    /// without a process.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the process runs.
    async fn delete_process(&self, id: &ContainerId) -> Result<Option<ProcessExit>>;

    /// Removes process, record and file system, in that order, and leftovers of an interrupted creation or
    /// removal.
    ///
    /// # Errors
    /// [`Error::Conflict`] if the process runs: signal it first.
    async fn remove(&self, id: &ContainerId) -> Result<()>;

    /// Replaces the attempt history, a short text of the caller that is stored with the container.
    async fn set_attempt_history(&self, id: &ContainerId, history: &str) -> Result<()>;

    /// Resource usage of the container's processes; `None` without processes or accounting. Reads a few small
    /// kernel files and does not call containerd.
    fn usage(&self, _id: &ContainerId) -> Option<ContainerUsage> {
        None
    }

    /// What the writable layer of a container uses; `None` without one. Looks at each of its files, except those that
    /// are deleted and still open: the more there are, the longer it takes. After a minute, or if directories are
    /// nested too deep, it is at least so much.
    async fn layer_usage(&self, id: &ContainerId) -> Result<Option<LayerUsage>>;

    /// The directory on the disk of the writable layers; `None` before the first container, or if they are on none.
    async fn layer_root(&self) -> Result<Option<PathBuf>>;

    /// Removes the writable layer of a container without a process, and keeps its record: [`Runtime::ensure_created`]
    /// creates another one. Of an ended process that was not deleted, only the files are removed.
    ///
    /// # Errors
    /// [`Error::Conflict`] if there is a process.
    async fn remove_layer(&self, id: &ContainerId) -> Result<()>;

    /// The processes of the container, by pid; none without a running process. Reads a few small kernel files for each.
    fn processes(&self, id: &ContainerId) -> Vec<ContainerProcess>;

    /// Runs a further program in a running container, in its namespaces and its cgroup.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a running process; [`Error::CommandNotFound`] and [`Error::InvalidSpec`]
    /// (`command`, `environment`, `user` or `directory`) for errors in the spec.
    async fn exec(&self, id: &ContainerId, spec: &ExecSpec) -> Result<ExecProcess>;

    /// Attaches a client to the first process of a running container, with its standard input or without.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a running process; [`Error::InvalidSpec`] (`stdin`) without an open input.
    async fn attach(&self, id: &ContainerId, with_input: bool) -> Result<AttachedProcess>;

    /// Opens parts of a running container.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a running process.
    async fn open(&self, id: &ContainerId) -> Result<ContainerHandles>;

    /// Events from now on. Events are hints: they may be duplicated, late or missing, so check before acting.
    /// [`RuntimeEvent::Lost`] means that some may be missing, [`RuntimeEvent::Resumed`] that the caller must
    /// list again.
    fn events(&self) -> BoxStream<'static, RuntimeEvent>;

    /// Opens the files of an image on this node, without a container.
    ///
    /// # Errors
    /// [`Error::ImageMissing`]; [`Error::ImageUnusable`] if the snapshotter does not allow access to the
    /// files.
    async fn image_files(&self, image: &Reference) -> Result<ImageFiles>;

    /// Resolves `user` (as in [`ContainerSpec::user`]) for containers of an image.
    ///
    /// # Errors
    /// [`Error::ImageMissing`]; [`Error::InvalidSpec`] for a name that is not in the image.
    async fn resolve_user(&self, image: &Reference, user: Option<&str>) -> Result<ContainerUser>;

    /// Removes leftovers of a killed agent or runtime that belong to no container. Objects that a call of
    /// this runtime works on are not touched, and an orphan must exist for some seconds before it is removed.
    /// So it is safe at any time, returns quickly only without orphans, and may be cancelled.
    async fn sweep_orphans(&self) -> Result<SweepReport>;

    /// Removes what all containers of the node share, after the last container: for a node that leaves.
    async fn remove_node(&self) -> Result<()>;
}
