//! The door to containers: one small trait, [`Runtime`], for a worker that asks what to do and does one
//! thing at a time.
//!
//! [`containerd::Containerd`] drives containerd 1.6 and later; `fake::Fake` (feature `testing`) keeps
//! containers in memory. One conformance suite holds both to the same behaviour. [`supervise`] runs a
//! containerd of our own where the machine has none. containerd is the only ledger: nothing is remembered
//! here that a restart would miss.
//!
//! It must never decide what should run, never report an exit that it did not see, and never remove what it
//! did not make. Every call has a deadline, and every `ensure_*` and `remove` is harmless the second time.
//!
//! Start reading at [`Runtime`] and [`ContainerSpec`], then `containerd/create.rs`: it asks `host.rs` what the names
//! in a spec mean on this machine, and `spec.rs` for the document that makes them true.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cgroup;
mod container;
pub mod containerd;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
mod host;
mod image_files;
mod pidfd;
mod programs;
mod rootfs;
mod setup;
mod spec;
pub mod supervise;
#[cfg(feature = "testing")]
pub mod testing;
mod usage;

use async_trait::async_trait;
use futures::stream::BoxStream;

pub use container::{
    Access, ContainerId, ContainerSpec, Device, Exit, Found, HostFile, Info, Limits, Log, MAX_ASSIGNMENT,
    MIN_CPU, MIN_MEMORY, Mount, MountSource, Network, Owner, Process, Propagation, Reservations,
    RuntimeEvent, Seccomp, Swept, Ulimit,
};
pub use error::Error;
pub use image_files::{ImageFiles, RunsAs};
pub use setup::ProcessSetup;
pub use usage::Usage;
pub use warren_image::Reference;
pub use warren_types::Signal;

/// What this crate's operations return.
pub type Result<T> = std::result::Result<T, Error>;

/// Containers as a worker sees them. All of one object's containers live in one namespace that nobody else
/// uses.
#[async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// The runtime's name and version, which proves that it answers.
    ///
    /// # Errors
    /// [`Error::Unavailable`] or [`Error::Timeout`] when it does not.
    async fn info(&self) -> Result<Info>;

    /// Every container of the namespace, also those that somebody else put there ([`Found::owner`] is then
    /// `None`). A container whose process could not be asked about in time is listed as
    /// [`Process::Unknown`].
    async fn list(&self) -> Result<Vec<Found>>;

    /// One container, or `None` when there is no record of it.
    async fn inspect(&self, id: &ContainerId) -> Result<Option<Found>>;

    /// Makes record, file system and process of a container, as far as they are missing; the process waits
    /// for [`Runtime::start`]. A container that is created or running already is left as it is.
    ///
    /// # Errors
    /// [`Error::ImageMissing`], [`Error::CommandNotFound`] and [`Error::InvalidSpec`] are the spec's fault;
    /// [`Error::Conflict`] when the id belongs to something else or its process has ended and was not
    /// deleted.
    async fn ensure_created(&self, spec: &ContainerSpec) -> Result<()>;

    /// Starts a created process and returns its pid; the pid of a running one.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a process, [`Error::Conflict`] when it has ended.
    async fn start(&self, id: &ContainerId) -> Result<u32>;

    /// Sends a signal to the container's first process. `false`: there was no process to get it.
    async fn signal(&self, id: &ContainerId, signal: Signal) -> Result<bool>;

    /// Deletes an ended or never started process and keeps record and file system, so that
    /// [`Runtime::ensure_created`] can make a new one in place. Returns how it ended; `None` without a
    /// process.
    ///
    /// # Errors
    /// [`Error::Conflict`] while it runs.
    async fn delete_process(&self, id: &ContainerId) -> Result<Option<Exit>>;

    /// Removes process, record and file system, in that order, and whatever a half-done creation or removal
    /// left.
    ///
    /// # Errors
    /// [`Error::Conflict`] while its process runs: signal it first.
    async fn remove(&self, id: &ContainerId) -> Result<()>;

    /// Replaces the ledger, a short text of the caller's that outlives restarts of everything but the
    /// container.
    async fn set_ledger(&self, id: &ContainerId, ledger: &str) -> Result<()>;

    /// What the container's processes use; `None` when it has none, or where nobody counts. Reads a few small files
    /// of the kernel, and asks no runtime.
    fn usage(&self, _id: &ContainerId) -> Option<Usage> {
        None
    }

    /// As whom and within which bounds the processes of a container run.
    ///
    /// # Errors
    /// [`Error::NotFound`] without a record; [`Error::Failed`] for what a further process cannot take on.
    async fn process_setup(&self, id: &ContainerId) -> Result<ProcessSetup>;

    /// What happens from now on. Events are hints: they may come twice, late or not at all, so look before
    /// acting. [`RuntimeEvent::Lost`] means that some may be missing, [`RuntimeEvent::Resumed`] that it is
    /// time to list.
    fn events(&self) -> BoxStream<'static, RuntimeEvent>;

    /// Opens the files of an image that is on this node, without a container.
    ///
    /// # Errors
    /// [`Error::ImageMissing`]; [`Error::ImageUnusable`] when its files are kept in a way that nobody can look into.
    async fn image_files(&self, image: &Reference) -> Result<ImageFiles>;

    /// Who a container of an image runs as that asks for `user` as [`ContainerSpec::user`] does.
    ///
    /// # Errors
    /// [`Error::ImageMissing`]; [`Error::InvalidSpec`] for a name that the image does not have.
    async fn runs_as(&self, image: &Reference, user: Option<&str>) -> Result<RunsAs>;

    /// Removes what a killed agent or runtime left behind and no container owns. What a call of this runtime
    /// works on is never touched, and what is found must still be there some seconds later; so this is for any
    /// time, is quick only when there is nothing to remove, and is harmless to drop half-way.
    async fn sweep_strays(&self) -> Result<Swept>;

    /// Removes what all containers together stood in, once there is none left: for the end of a node.
    async fn remove_node(&self) -> Result<()>;
}
