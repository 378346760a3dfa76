//! The client of registries: what a name stands for, manifests by name, blobs by digest, signatures of images,
//! authentication on request.
//!
//! Responses are untrusted: every body has a size limit, every wait a timeout, a password is sent only over
//! TLS or to registries configured as plain HTTP, a token only to the registry it is for, and a redirect never leaves
//! TLS. After [`RegistrySettings::refuse_internal_addresses`] no request goes to this machine or to a metadata service.
//! Source: OCI distribution specification 1.1 and, for tokens, Docker's "Token Authentication Specification".
//!
//! It must never store anything, and never interpret more of an image than its digest, media type and signatures.
//!
//! Start reading at [`RegistryClients`].

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address_guard;
mod auth;
mod challenge;
mod client;
mod clients;
mod credentials;
mod digest;
mod error;
mod media_type;
mod reference;
mod repository_token;
mod resolve;
mod retry;
mod settings;
mod signature;
#[cfg(feature = "testing")]
pub mod testing;
mod token;

pub use client::{BlobReader, FetchedManifest, ManifestSelector, Repository};
pub use clients::RegistryClients;
pub use credentials::{DelegatedTokens, RegistryAccess, RegistryCredentials, RenewAccess, RenewalFailure};
pub use digest::Digest;
pub use error::RegistryError;
pub use media_type::{DOCKER_LIST, DOCKER_MANIFEST, IMAGE_TYPES, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST};
pub use reference::{InvalidReference, Reference};
pub use repository_token::RepositoryToken;
pub use resolve::{ResolveNames, ResolvedName};
pub use retry::{AttemptFailure, RetryCounter};
pub use settings::{InvalidAuthority, InvalidHost, RegistryPolicy, RegistrySettings};
pub use signature::ImageSignature;
pub use token::{GRANT_TIMEOUT, PullGrant};
