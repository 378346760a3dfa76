//! Container images on this node: import of archives, pull from registries, look-up, listing, removal.
//!
//! An image enters containerd's content store blob by blob under a lease, every digest checked, and is
//! unpacked layer by layer into snapshots. When the lease goes, garbage-collection labels hold what the
//! image record needs. This crate also owns the connection to containerd that `warren-runtime` shares.
//!
//! It must never start or look at containers, never keep state of its own beside containerd, and never trust
//! an archive or a registry: names, sizes, digests and platforms are checked before anything acts on them.
//!
//! Start reading at [`Images`], then `archive` (what a file holds), `pull` (how an image comes over the
//! network), `unpack` (how it becomes snapshots) and `prune` (when it goes).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
#[cfg(feature = "build")]
pub mod build;
mod connection;
mod digest;
mod document;
mod error;
mod images;
mod parts;
mod platform;
mod prune;
mod pull;
mod reference;
mod registry;
mod store;
mod unpack;

pub use connection::{Connection, Fault, within};
pub use digest::Digest;
pub use document::RunConfig;
pub use error::Error;
pub use images::{ImageInfo, Images, ImportOptions, Imported, Listed, Part, TOUCH_EVERY};
pub use platform::native_architecture;
pub use prune::{Disk, Doomed, PrunePolicy, PruneReason, plan_prune};
pub use pull::Pulled;
pub use pull::flight::Pull;
pub use pull::progress::{LayerProgress, Progress, Stage};
pub use reference::{InvalidReference, Reference};
pub use registry::{Credentials, InvalidAuthority, InvalidHost, Patience, Registries, RegistryError};
