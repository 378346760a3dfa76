//! Errors of the certificate authority.

use crate::{IdentityError, MaterialError};

/// Why a certificate could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The identity is of another cluster.
    #[error("cannot issue a certificate for cluster {wanted}: this is the authority of {own}")]
    OtherCluster {
        /// The cluster in the identity.
        wanted: String,
        /// The cluster of the authority.
        own: String,
    },
    /// The authority has expired.
    #[error("the cluster's certificate authority expired: replace it, or set the machine's clock right")]
    Expired,
    /// The time is before 1970.
    #[error("the system clock is before 1970; correct it")]
    Clock,
    /// The operating system returned no random bytes.
    #[error("no random bytes from the operating system for a serial number")]
    Randomness,
    /// A name that is not valid in certificates.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The certificate or key of the authority.
    #[error("the certificate or key of the authority is invalid")]
    Material(#[from] MaterialError),
    /// Encoding the certificate failed.
    #[error("cannot encode the certificate")]
    Certificate(#[from] rcgen::Error),
}
