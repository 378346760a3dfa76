//! Container images on this node: import of archives, look-up, listing, removal.
//!
//! An image enters containerd's content store blob by blob under a lease, every digest checked, and is
//! unpacked layer by layer into snapshots. When the lease goes, garbage-collection labels hold what the
//! image record needs. This crate also owns the connection to containerd that `warren-runtime` shares.
//!
//! It must never start or look at containers, never keep state of its own beside containerd, and never trust
//! an archive: names, sizes, digests and platforms are checked before anything acts on them.
//!
//! Start reading at [`Images`], then `archive` (what a file holds) and `unpack` (how it becomes snapshots).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
#[cfg(feature = "build")]
pub mod build;
mod connection;
mod digest;
mod document;
mod error;
mod images;
mod reference;
mod store;
mod unpack;

pub use connection::{Connection, Fault, within};
pub use digest::Digest;
pub use document::RunConfig;
pub use error::Error;
pub use images::{ImageInfo, Images, ImportOptions, Imported, Listed};
pub use reference::{InvalidReference, Reference};

/// The architecture of this machine in the words of OCI images (`amd64`, `arm64`, ...).
pub fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
