//! The authorities that a member of the cluster trusts, and the digest by which a joiner recognises the right one.

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use sha2::{Digest, Sha256};
use warren_types::CaDigest;
use x509_parser::oid_registry::OID_X509_ORGANIZATION_NAME;

use crate::identity::parse_der;
use crate::{MaterialError, pem};

/// The digest of the certificate of an authority.
pub(crate) fn ca_digest(der: &CertificateDer<'_>) -> CaDigest {
    CaDigest::from_bytes(Sha256::digest(der).into())
}

/// The certificates of the authorities that are trusted; more than one while the authority is replaced.
#[derive(Clone, Debug)]
pub struct Roots {
    pem: String,
    store: RootCertStore,
    digests: Vec<CaDigest>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Roots {
    /// Reads one or more certificates of authorities from PEM.
    pub fn parse(text: &str) -> Result<Self, MaterialError> {
        let certificates = pem::parse_certificates(text)?;
        let mut store = RootCertStore::empty();
        let mut digests = Vec::with_capacity(certificates.len());
        for certificate in &certificates {
            if !parse_der(certificate)?.is_ca() {
                return Err(MaterialError::NotAnAuthority);
            }
            digests.push(ca_digest(certificate));
            store.add(certificate.clone()).map_err(|error| MaterialError::Pem(error.to_string()))?;
        }
        Ok(Self { pem: text.to_owned(), store, digests, certificates })
    }

    /// The one authority with this certificate.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, MaterialError> {
        Self::parse(&pem::write_certificate(certificate))
    }

    /// The PEM it was read from; not secret.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// The digest of each, in order.
    pub fn digests(&self) -> &[CaDigest] {
        &self.digests
    }

    /// The id of the cluster of the first one; `None` if it names none.
    pub fn cluster(&self) -> Option<String> {
        let parsed = parse_der(self.certificates.first()?).ok()?;
        let organization = parsed.subject().iter_by_oid(&OID_X509_ORGANIZATION_NAME).next();
        organization.and_then(|value| value.as_str().ok()).map(str::to_owned)
    }

    pub(crate) fn certificates(&self) -> &[CertificateDer<'static>] {
        &self.certificates
    }

    pub(crate) fn store(&self) -> RootCertStore {
        self.store.clone()
    }
}
