//! Registries, as far as pulling needs them: a manifest by name, blobs by digest, access when asked for it.
//!
//! The HTTP API is small, and what comes over it is not to be trusted: every body is bounded, every wait has
//! an end, a password is sent only over TLS or to registries that were named as plain HTTP, and a redirect
//! never leaves TLS. Source: OCI distribution specification 1.1 and, for tokens, Docker's "Token
//! Authentication Specification".

mod access;
mod challenge;
mod client;
mod error;
mod hub;
mod settings;
mod tries;

pub use access::Credentials;
pub use error::RegistryError;
pub use settings::{InvalidAuthority, InvalidHost, Patience, Registries};

pub(crate) use client::{Found, Named, Repository};
pub(crate) use hub::Hub;
pub(crate) use tries::{Failure, Tries};
