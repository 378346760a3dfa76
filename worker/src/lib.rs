//! The worker agent of a node: holds a session with a manager, and implements its assignments with containerd
//! and the kernel.
//!
//! It decides nothing about a task itself: `warren-task` chooses the next action, this crate executes it. It
//! must never stop or remove a container because of a lost connection, never keep state that cannot be
//! rebuilt from containerd and two disposable cache files, and never listen on a port of its own but that of
//! DNS on the gateway address of its containers.
//!
//! Start reading at [`Worker`], the composition root; then `tasks` (the actors of tasks) and `session` (the
//! protocol with the manager).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod backends;
mod cache;
mod certificate;
mod connectivity;
#[cfg(test)]
mod fake_manager;
#[cfg(test)]
mod fixtures;
mod handlers;
mod image_gc;
mod network;
mod node;
pub mod process;
mod session;
pub mod system_check;
mod tasks;
mod verification;
mod worker;

pub use backends::{BackendConfig, HostBackends, HostBackendsError};
#[cfg(any(test, feature = "testing"))]
pub use handlers::images::fake::FakeImages;
pub use handlers::images::{ImagePull, ImageSource};
pub use handlers::user_namespaces::UserIds;
pub use network::NetworkOptions;
pub use network::dns::BindDns;
#[cfg(any(test, feature = "testing"))]
pub use network::dns::loopback_dns;
pub use node::NodeOverrides;
pub use worker::{Worker, WorkerConfig, WorkerNotReady, WorkerStartError, WorkerStopError};
