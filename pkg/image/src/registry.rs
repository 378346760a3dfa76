//! The registry client for pulls: a manifest by name, blobs by digest, authentication on request.
//!
//! Responses are untrusted: every body has a size limit, every wait a timeout, a password is sent only over
//! TLS or to registries configured as plain HTTP, and a redirect never leaves TLS. Source: OCI distribution
//! specification 1.1 and, for tokens, Docker's "Token Authentication Specification".

mod auth;
mod challenge;
mod client;
mod clients;
mod credentials;
mod error;
mod retry;
mod settings;
mod token;

pub use credentials::RegistryCredentials;
pub use error::RegistryError;
pub use settings::{InvalidAuthority, InvalidHost, RegistryPolicy, RegistrySettings};

pub(crate) use client::{FetchedManifest, ManifestSelector, Repository};
pub(crate) use clients::RegistryClients;
pub(crate) use retry::{AttemptFailure, RetryCounter};
