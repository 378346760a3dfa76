//! The authorities a member of the cluster trusts, and the digest by which a joiner knows the right one.

use std::fmt;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use crate::identity::parse_der;
use crate::{MaterialError, pem};

/// SHA-256 of an authority's certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CaDigest([u8; 32]);

impl CaDigest {
    pub(crate) fn of(der: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(der).into())
    }

    /// The 32 bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// 64 lower-case hexadecimal digits.
impl fmt::Display for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CaDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CaDigest({self})")
    }
}

/// The certificates of the authorities that are trusted; more than one while the authority is replaced.
#[derive(Clone, Debug)]
pub struct Roots {
    pem: String,
    store: RootCertStore,
    digests: Vec<CaDigest>,
}

impl Roots {
    /// Reads one or more certificates of authorities from PEM.
    pub fn parse(text: &str) -> Result<Self, MaterialError> {
        let certificates = pem::parse_certificates(text)?;
        let mut store = RootCertStore::empty();
        let mut digests = Vec::with_capacity(certificates.len());
        for certificate in certificates {
            if !parse_der(&certificate)?.is_ca() {
                return Err(MaterialError::NotAnAuthority);
            }
            digests.push(CaDigest::of(&certificate));
            store.add(certificate).map_err(|error| MaterialError::Pem(error.to_string()))?;
        }
        Ok(Self { pem: text.to_owned(), store, digests })
    }

    /// The PEM it was read from; not secret.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The digest of each, in order.
    pub fn digests(&self) -> &[CaDigest] {
        &self.digests
    }

    pub(crate) fn store(&self) -> RootCertStore {
        self.store.clone()
    }
}
