//! Container images on this node: archive import, registry pull, lookup, listing, removal.
//!
//! An image is written to containerd's content store blob by blob under a lease, each digest checked, and
//! is unpacked layer by layer into snapshots. Garbage-collection labels then keep what the image record
//! needs. This crate also owns the containerd connection that `warren-runtime` shares.
//!
//! It must never start or inspect containers, never keep state outside containerd, and never trust an
//! archive or a registry: names, sizes, digests and platforms are checked before use.
//!
//! Start reading at [`ImageStore`], then `archive` (archive contents), `images/pull` (download), `unpack` (snapshots)
//! and `prune` (removal).

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod archive;
#[cfg(feature = "build")]
pub mod build;
mod connection;
mod document;
mod error;
mod image_parts;
mod images;
mod platform;
mod prune;
mod store;
mod unpack;

pub use connection::{CallError, ContainerdConnection, with_deadline};
pub use document::RunConfig;
pub use error::Error;
pub use images::{
    BlobSource, ImageInfo, ImagePart, ImagePullProgress, ImageStore, ImportOptions, ImportedName,
    LAST_USE_INTERVAL, LayerProgress, LayerStage, ListedImage, PullHandle, PulledImage,
};
pub use platform::native_architecture;
pub use prune::{FilesystemUsage, PruneCandidate, PrunePolicy, PruneReason, plan_prune};
pub use warren_registry::{
    DelegatedTokens, Digest, InvalidAuthority, InvalidHost, InvalidReference, Reference, RegistryAccess,
    RegistryCredentials, RegistryError, RegistryPolicy, RegistrySettings, RenewAccess, RenewalFailure,
    RepositoryToken,
};
